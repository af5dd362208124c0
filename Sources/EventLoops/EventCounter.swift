// The only way in which a thread of Sluice wakes another: an eventfd.

internal import CLinux
internal import Glibc

/// A counter in the kernel with a waitable descriptor: eventfd(2).
///
/// Any thread may call ``signal()``. The waiting thread watches ``descriptor`` for readability. An edge-triggered
/// watcher need not call ``drain()``, because each signal is a separate edge. This saves a system call per wake-up.
public struct EventCounter: ~Copyable, Sendable {
  /// The descriptor to watch for readability. It is closed with the counter.
  public let descriptor: Int32

  /// Creates a counter with the value 0. Throws the error of eventfd(2).
  public init() throws(SystemError) {
    descriptor = try retryingInterrupts("eventfd") { eventfd(0, Int32(EFD_CLOEXEC | EFD_NONBLOCK)) }
  }

  deinit { close(descriptor) }

  /// Adds one, and wakes the waiting thread. It never blocks. At 2^64 - 2 unread signals, it drops one, but then the
  /// waiter is awake anyway.
  public borrowing func signal() {
    // A lost wake-up would leave its waiter asleep forever. No error is created, because it would be on the heap, and
    // the capture thread allocates nothing.
    while eventfd_write(descriptor, 1) != 0, errno == EINTR {}
  }

  /// Takes all signals so far, and returns their number, or 0.
  @discardableResult
  public borrowing func drain() -> UInt64 {
    var count: eventfd_t = 0
    while eventfd_read(descriptor, &count) != 0 {
      if errno != EINTR { return 0 }
    }
    return count
  }
}
