// Whether a file was written, where its size and the time of its last write do not say so.

internal import EventLoops
internal import Glibc

/// Watches one open file for writes, with inotify(7). Any thread.
///
/// The kernel changes a file's `ctime` for a write, but also for chmod(2), chown(2) and link(2). Its `mtime` is that of
/// the last write, but anybody who may write can set it back. This tells the one from the other: the kernel reports a
/// write before the call returns, and so before anybody can set a time back. It does not report stores through a memory
/// mapping, or writes of another machine on a network file system.
package final class FileWrites: Sendable {
  private let descriptor: Int32

  /// - Parameter file: a descriptor of the file. It may be closed afterwards.
  /// - Returns: nil if the file cannot be watched: `/proc` is missing, or the user has no inotify instance left.
  package init?(of file: Int32) {
    let made = inotify_init1(Int32(O_NONBLOCK | O_CLOEXEC))
    guard made >= 0 else { return nil }
    // The link leads to the open file, whatever its path is by now.
    guard inotify_add_watch(made, "/proc/self/fd/\(file)", UInt32(IN_MODIFY)) >= 0 else {
      close(made)
      return nil
    }
    descriptor = made
  }

  deinit { close(descriptor) }

  /// Whether somebody has written into the file, or truncated it. The kernel queues equal events once, so they may stay.
  package var any: Bool { waitUntilReady(descriptor, for: POLLIN, timeout: 0) }
}
