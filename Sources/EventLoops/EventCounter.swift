// The one way in which a thread of Sluice wakes another: an eventfd.

internal import CLinux
internal import Glibc

/// A counter in the kernel that a descriptor makes waitable: eventfd(2).
///
/// Any thread may ``signal()``; the thread that owns the wait watches ``descriptor`` for readability. An edge-triggered
/// watcher need not ``drain()``: each signal is an edge of its own, which saves a system call per wake-up.
public struct EventCounter: ~Copyable, Sendable {
  /// The descriptor to watch for readability; closed with the counter.
  public let descriptor: Int32

  /// Makes a counter of 0. Throws what eventfd(2) fails with.
  public init() throws(SystemError) {
    descriptor = try retryingInterrupts("eventfd") { eventfd(0, Int32(EFD_CLOEXEC | EFD_NONBLOCK)) }
  }

  deinit { close(descriptor) }

  /// Adds one and wakes whoever waits. Never blocks: at 2^64 - 2 unread signals it drops one, and the waiter is awake
  /// anyway.
  public borrowing func signal() {
    // A wake-up that is lost leaves its waiter asleep for ever. An error would be made on the heap, and the capture
    // thread allocates nothing.
    while eventfd_write(descriptor, 1) != 0, errno == EINTR {}
  }

  /// Takes all signals given so far and returns how many they were; 0 when there was none.
  @discardableResult
  public borrowing func drain() -> UInt64 {
    var count: eventfd_t = 0
    while eventfd_read(descriptor, &count) != 0 {
      if errno != EINTR { return 0 }
    }
    return count
  }
}
