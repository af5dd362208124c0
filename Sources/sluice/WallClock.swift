// The time of day, for those who read events later.

internal import Glibc

enum WallClock {
  /// Now in UTC as RFC 3339 has it, with milliseconds: `2026-11-20T17:22:19.123Z`.
  static var text: String {
    var now = timespec()
    clock_gettime(CLOCK_REALTIME, &now)
    var parts = tm()
    gmtime_r(&now.tv_sec, &parts)
    return withUnsafeTemporaryAllocation(of: CChar.self, capacity: 32) { bytes in
      strftime(bytes.baseAddress, bytes.count, "%Y-%m-%dT%H:%M:%S", &parts)
      return String(cString: bytes.baseAddress!) + ".\(String(1000 + now.tv_nsec / 1_000_000).dropFirst())Z"
    }
  }
}
