// Detects writes to a file that its size and the time of its last write do not show.

internal import EventLoops
internal import Glibc

/// Watches one open file for writes, with inotify(7). Any thread.
///
/// The kernel changes a file's `ctime` for a write, but also for chmod(2), chown(2) and link(2). Its `mtime` is the
/// time of the last write, but anyone with write permission can set it back. This type distinguishes these cases. The
/// kernel reports a write before the call returns, and so before its time can be set back. It does not report stores
/// through a memory mapping, or writes of another machine on a network file system.
package final class FileWrites: Sendable {
  private let descriptor: Int32

  /// - Parameter file: a descriptor of the file. You may close it afterwards.
  /// - Returns: nil if the file cannot be watched, because `/proc` is missing or the user has no inotify instance left.
  package init?(of file: Int32) {
    let made = inotify_init1(Int32(O_NONBLOCK | O_CLOEXEC))
    guard made >= 0 else { return nil }
    // The link leads to the open file, regardless of its current path.
    guard inotify_add_watch(made, "/proc/self/fd/\(file)", UInt32(IN_MODIFY)) >= 0 else {
      close(made)
      return nil
    }
    descriptor = made
  }

  deinit { close(descriptor) }

  /// Whether the file was written or truncated. The kernel queues equal events once, so they may stay in the queue.
  package var any: Bool { waitUntilReady(descriptor, for: POLLIN, timeout: 0) }
}
