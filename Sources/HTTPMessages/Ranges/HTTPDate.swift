// Dates in fields, in the three forms that a recipient must accept (RFC 9110, section 5.6.7).

package enum HTTPDate {
  private static let months = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]

  /// The seconds since 1970-01-01T00:00:00Z; nil if the text is not an HTTP-date.
  ///
  /// - Parameter year: the current year, which determines the century of the oldest form with its two digits.
  package static func seconds(parsing text: String, year: Int = 2026) -> Int64? {
    // The text is split by octets, because Swift's characters combine octets that HTTP treats separately.
    let words = text.utf8.split(separator: Octet.space).map { String(decoding: $0, as: UTF8.self).lowercasedASCII }
    switch words.count {
    // Sun, 06 Nov 1994 08:49:37 GMT
    case 6 where words[5] == "gmt" && words[3].utf8.count == 4:
      return seconds(day: words[1], month: words[2], year: number(words[3]), time: words[4])
    // Sunday, 06-Nov-94 08:49:37 GMT
    case 4 where words[3] == "gmt":
      let date = words[1].split(separator: "-").map(String.init)
      guard date.count == 3, date[2].utf8.count == 2, let short = number(date[2]) else { return nil }
      let full = year - year % 100 + short
      // A year that would be more than 50 years in the future is in the previous century.
      return seconds(day: date[0], month: date[1], year: full > year + 50 ? full - 100 : full, time: words[2])
    // Sun Nov  6 08:49:37 1994
    case 5 where words[4].utf8.count == 4:
      return seconds(day: words[2], month: words[1], year: number(words[4]), time: words[3])
    default: return nil
    }
  }

  private static func seconds(day: String, month: String, year: Int?, time: String) -> Int64? {
    let clock = time.split(separator: ":", omittingEmptySubsequences: false).map(String.init)
    guard let day = number(day), let month = months.firstIndex(of: month), let year, clock.count == 3,
      clock.allSatisfy({ $0.utf8.count == 2 }), let hour = number(clock[0]), let minute = number(clock[1]),
      let second = number(clock[2]), (1...31).contains(day), (1...9999).contains(year), hour < 24, minute < 60,
      second <= 60
    else { return nil }
    let days = days(year: year, month: month + 1, day: day)
    return days * 86_400 + Int64(hour * 3600 + minute * 60 + second)
  }

  /// A number of at most four digits.
  private static func number(_ text: String) -> Int? {
    guard (1...4).contains(text.utf8.count), text.utf8.allSatisfy(Octet.isDigit) else { return nil }
    return Int(text)
  }

  /// The days since 1970-01-01 in the Gregorian calendar. Here a year begins in March, so that a leap day is its last.
  private static func days(year: Int, month: Int, day: Int) -> Int64 {
    let year = month <= 2 ? year - 1 : year
    let (era, yearOfEra) = (year / 400, year % 400)
    let dayOfYear = (153 * ((month + 9) % 12) + 2) / 5 + day - 1
    return Int64(era * 146_097 + yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear - 719_468)
  }
}
