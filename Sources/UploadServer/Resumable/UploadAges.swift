// How long uploads have been left alone, for a server that comes later: only the time counts in which a server runs.
//
// A clock that jumps, or a server that is down for a week, must not end an upload. So no two dates are compared. A server writes
// down from time to time how long it has seen each upload idle, and of which state of the upload's record that is true: the
// record's modification time is the name of that state, and nothing else.

internal import EventLoops
internal import Glibc

/// The ages of uploads as an earlier server has written them down.
struct UploadAges {
  /// In milliseconds, by the upload's token and the state of its record.
  private var ages: [Substring: Int64] = [:]

  /// Adds what one loop has written. A line that is none is passed over.
  mutating func read(_ text: String) {
    for line in text.split(separator: "\n") {
      guard let space = line.lastIndex(of: " "), let idle = Int64(line[line.index(after: space)...]), idle >= 0 else {
        continue
      }
      ages[line[..<space], default: 0] = max(idle, ages[line[..<space]] ?? 0)
    }
  }

  /// How old the upload is whose record has that status; zero if the record has been written since.
  func age(of token: String, _ status: stat) -> Duration {
    .milliseconds(ages[Self.key(token, status)[...]] ?? 0)
  }

  /// One line of the file.
  static func line(_ token: String, _ status: stat, idle: Duration) -> String {
    "\(key(token, status)) \(max(0, idle.nanoseconds / 1_000_000))\n"
  }

  private static func key(_ token: String, _ status: stat) -> String {
    "\(token) \(status.st_mtim.tv_sec) \(status.st_mtim.tv_nsec)"
  }
}
