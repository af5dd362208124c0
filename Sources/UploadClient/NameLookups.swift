// Limits the number of abandoned name lookups that are still running.
//
// libcurl looks up each name on a separate thread with getaddrinfo(3), which cannot be cancelled. With name servers
// that do not answer, it takes half a minute. When a request ends earlier, libcurl must not wait for that thread
// (CURLOPT_QUICK_EXIT), because the whole loop would wait. But then each retry would leave another thread behind, so
// their number is limited.

internal import Glibc

/// The lookups of one session. On the session's thread.
final class NameLookups {
  /// The number of running abandoned lookups at which no new one begins.
  static let limit = 4

  /// Requests whose lookup is running.
  private var running = 0
  /// The number of abandoned lookups when it was last determined.
  private(set) var abandoned = 0
  private let countThreads: () -> Int?

  /// - Parameter countThreads: returns the number of lookups that this process runs, or nil if it is unknown.
  init(countThreads: @escaping () -> Int? = NameLookups.threadCount) { self.countThreads = countThreads }

  /// Whether a new lookup may begin. If so, it does.
  func begin() -> Bool {
    if abandoned >= Self.limit {
      // If they cannot be counted, too many of them are better than a stream that never looks up a name again.
      abandoned = min(abandoned, max(0, (countThreads() ?? 0) - running))
    }
    guard abandoned < Self.limit else { return false }
    running += 1
    return true
  }

  /// The lookup has succeeded or failed.
  func end() { running -= 1 }

  /// The request has ended before its lookup.
  func abandon() {
    running -= 1
    abandoned += 1
  }

  /// libcurl's threads inherit the name of the thread that started them, which is the caller.
  static func threadCount() -> Int? {
    guard let own = name(of: "thread-self"), let directory = opendir("/proc/self/task") else { return nil }
    defer { closedir(directory) }
    var count = 0
    while let entry = readdir(directory) {
      let thread = withUnsafeBytes(of: &entry.pointee.d_name) {
        String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self)
      }
      if thread.first?.isNumber == true, name(of: "self/task/\(thread)") == own { count += 1 }
    }
    return count - 1
  }

  private static func name(of thread: String) -> [UInt8]? {
    let descriptor = open("/proc/\(thread)/comm", O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    var bytes = [UInt8](repeating: 0, count: 32)
    let count = read(descriptor, &bytes, bytes.count)
    return count > 0 ? Array(bytes[..<count]) : nil
  }
}
