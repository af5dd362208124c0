// How many name lookups nobody waits for any more are still running.
//
// libcurl looks names up on a thread of its own for each, in getaddrinfo(3), which cannot be cancelled: with silent
// name servers it takes half a minute. libcurl must not wait for that thread when a request ends before
// (CURLOPT_QUICK_EXIT), or the whole loop would. But each retry would then leave another thread behind, so there is a
// bound.

internal import EventLoops
internal import Glibc

/// Of one session. On the session's thread.
final class NameLookups {
  /// So many may be left running before no new one is begun.
  static let limit = 4

  /// Requests whose lookup is running.
  private var running = 0
  /// Lookups left behind, when that was last known.
  private(set) var abandoned = 0
  private let countThreads: () -> Int?

  /// - Parameter countThreads: how many lookups this process runs; nil when that cannot be known.
  init(countThreads: @escaping () -> Int? = NameLookups.threadCount) { self.countThreads = countThreads }

  /// Whether a new lookup may begin; if so, it does.
  func begin() -> Bool {
    if abandoned >= Self.limit {
      // Where they cannot be counted, better too many of them than a stream that never looks again.
      abandoned = min(abandoned, max(0, (countThreads() ?? 0) - running))
    }
    guard abandoned < Self.limit else { return false }
    running += 1
    return true
  }

  /// It has given an address, or failed.
  func end() { running -= 1 }

  /// Its request has ended before it.
  func abandon() {
    running -= 1
    abandoned += 1
  }

  /// libcurl's threads have the name of the thread that began them, and so of the caller.
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
