// The directories of tests that a process removes when it exits. The process of an exit test often ends with exit(3),
// which releases no object.

internal import EventLoops
internal import Glibc

/// Removes directories when the process exits. A process that a signal kills leaves them.
package enum RemovalAtExit {
  private static let directories = Lock<Set<String>>([])
  /// The handler is registered once, with the first directory.
  private static let registration = atexit { RemovalAtExit.removeAll() }

  /// Removes this directory with its content when the process exits.
  package static func include(_ path: String) {
    _ = registration
    directories.withLock { _ = $0.insert(path) }
  }

  /// Leaves this directory when the process exits.
  package static func exclude(_ path: String) {
    directories.withLock { _ = $0.remove(path) }
  }

  private static func removeAll() {
    let rest = directories.withLock { Array($0) }
    guard !rest.isEmpty else { return }
    // Other threads still run, and may write into a directory while it is removed.
    for _ in 0..<5 { if (try? TestProcess("/bin/rm", ["-rf"] + rest).wait()) == 0 { return } }
  }
}
