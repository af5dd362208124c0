// The date in the formats of HTTP and of our events, without Foundation.

internal import CLinux
internal import Glibc

/// Seconds and milliseconds of the wall clock, and its two text formats.
package struct WallClock: Sendable, Equatable {
  /// Since 1970-01-01T00:00:00Z, without leap seconds, as POSIX counts.
  package let seconds: Int64
  package let milliseconds: Int

  package init(seconds: Int64, milliseconds: Int = 0) {
    self.seconds = seconds
    self.milliseconds = milliseconds
  }

  /// The creation time of a file (statx(2)). Nil if the file does not exist, or the file system does not report it.
  package init?(birthOf file: String, in directory: Int32) {
    var status = sluice_statx()
    guard statx(directory, file, AT_SYMLINK_NOFOLLOW, SLUICE_STATX_BTIME, &status) == 0,
      status.stx_mask & SLUICE_STATX_BTIME != 0, status.stx_btime.tv_sec > 0
    else { return nil }
    self.init(seconds: status.stx_btime.tv_sec, milliseconds: Int(status.stx_btime.tv_nsec / 1_000_000))
  }

  /// In milliseconds since 1970.
  package var sinceEpoch: Int64 { seconds.multipliedSaturated(by: 1000).addingSaturated(Int64(milliseconds)) }

  package static var now: WallClock {
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    return WallClock(seconds: Int64(time.tv_sec), milliseconds: time.tv_nsec / 1_000_000)
  }

  /// Whether the clock is synchronized by NTP, PTP or similar (adjtimex(2)). Nil if this process is not permitted
  /// to query that, as with `ProtectClock=` of systemd.exec(5). A clock that was set manually is not synchronized until
  /// the next measurement.
  package static var isSynchronized: Bool? {
    var state = timex()
    let status = adjtimex(&state)
    return status < 0 ? nil : status != TIME_ERROR
  }

  /// Reads a time in the format of ``iso8601``, with or without its fraction. Nil for anything else.
  package init?(iso8601 text: String) {
    let parts = text.prefix(19).split(omittingEmptySubsequences: false) { "-T:".contains($0) }
    let fields = parts.compactMap { Int32($0) }
    guard parts.count == 6, text.prefix(19).filter({ "-T:".contains($0) }) == "--T::", fields.count == 6,
      (1970...9999).contains(fields[0]), (1...12).contains(fields[1]),
      (1...31).contains(fields[2]), (0...23).contains(fields[3]), (0...59).contains(fields[4]),
      (0...60).contains(fields[5])
    else { return nil }
    var time = tm()
    (time.tm_year, time.tm_mon, time.tm_mday) = (fields[0] - 1900, fields[1] - 1, fields[2])
    (time.tm_hour, time.tm_min, time.tm_sec) = (fields[3], fields[4], fields[5])
    let fraction = text.dropFirst(19)
    let milliseconds = fraction.first == "." ? Int(fraction.dropFirst().prefix(3)) : 0
    guard let milliseconds, milliseconds >= 0 else { return nil }
    self.init(seconds: Int64(timegm(&time)), milliseconds: milliseconds)
  }

  /// `2026-11-20T17:22:19.123Z` (RFC 3339).
  package var iso8601: String {
    let time = brokenDown
    return
      "\(Self.padded(Int(time.tm_year) + 1900, 4))-\(Self.padded(Int(time.tm_mon) + 1))-\(Self.padded(Int(time.tm_mday)))T"
      + "\(Self.clock(time)).\(Self.padded(milliseconds, 3))Z"
  }

  /// The time in a format of strftime(3), in UTC.
  package func formatted(_ format: String) -> String {
    var time = brokenDown
    var text = [CChar](repeating: 0, count: 4096)
    let count = strftime(&text, text.count, format, &time)
    return String(decoding: text[..<count].map { UInt8(bitPattern: $0) }, as: UTF8.self)
  }

  /// `Fri, 20 Nov 2026 17:22:19 GMT` (RFC 9110, section 5.6.7).
  package var imfFixdate: String {
    let days = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"]
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    let time = brokenDown
    return "\(days[Int(time.tm_wday)]), \(Self.padded(Int(time.tm_mday))) \(months[Int(time.tm_mon)]) "
      + "\(Self.padded(Int(time.tm_year) + 1900, 4)) \(Self.clock(time)) GMT"
  }

  private var brokenDown: tm {
    var seconds = time_t(seconds)
    var time = tm()
    gmtime_r(&seconds, &time)
    return time
  }

  private static func clock(_ time: tm) -> String {
    "\(padded(Int(time.tm_hour))):\(padded(Int(time.tm_min))):\(padded(Int(time.tm_sec)))"
  }

  private static func padded(_ number: Int, _ width: Int = 2) -> String {
    let digits = String(number)
    return String(repeating: "0", count: max(0, width - digits.count)) + digits
  }
}
