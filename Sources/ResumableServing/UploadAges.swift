// How long uploads have been idle, for a later server. Only time in which a server runs counts.
//
// A clock that jumps, or a server that is down for a week, must not end an upload. So the server compares no dates. It
// regularly writes how long it has seen each upload idle, and for which state of the upload's record that holds. The
// record's modification time only identifies that state.

internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import StreamServing

/// The ages of uploads that an earlier server has written.
struct UploadAges {
  /// In milliseconds, by the upload's token and the state of its record.
  private var ages: [String: Int64] = [:]

  /// Adds what one loop has written. Skips invalid lines.
  ///
  /// By octets, because the server's start waits for this, and there may be a hundred thousand lines.
  mutating func read(_ text: [UInt8]) {
    for line in text.split(separator: Octet.lineFeed) {
      guard let space = line.lastIndex(of: Octet.space), space + 1 < line.endIndex,
        let idle = Self.count(line[(space + 1)...])
      else { continue }
      let key = String(decoding: line[..<space], as: UTF8.self)
      ages[key] = max(idle, ages[key] ?? 0)
    }
  }

  /// nil for anything but digits, and for impossibly large values.
  private static func count(_ digits: ArraySlice<UInt8>) -> Int64? {
    var count: Int64 = 0
    for digit in digits {
      guard Octet.isDigit(digit), digits.count <= 18 else { return nil }
      // At most 18 digits: below 2^63.
      count = count * 10 + Int64(digit - 0x30)
    }
    return count
  }

  /// The age of the upload whose record has that status; zero if the record was written since.
  func age(of token: String, _ status: stat) -> Duration {
    .milliseconds(ages[Self.key(token, status)] ?? 0)
  }

  /// One line of the file.
  static func line(_ token: String, _ status: stat, idle: Duration) -> String {
    "\(key(token, status)) \(max(0, idle.nanoseconds / 1_000_000))\n"
  }

  private static func key(_ token: String, _ status: stat) -> String {
    "\(token) \(status.st_mtim.tv_sec) \(status.st_mtim.tv_nsec)"
  }
}
