// A failed system call, with a human-readable description.

internal import Glibc

/// A failed system call: the operation, its object, and the reason.
///
/// It is thrown wherever Sluice calls the kernel. `description` is one line of text to display.
public struct SystemError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The attempted operation, such as `"openat kitchen.part"`.
  public let operation: String
  /// The `errno` of the call, see errno(3).
  public let code: Int32

  /// Creates the error of a failed call.
  public init(operation: String, code: Int32) {
    self.operation = operation
    self.code = code
  }

  /// The error of the calling thread's last failed call, from `errno`.
  public static func last(_ operation: String) -> SystemError {
    SystemError(operation: operation, code: errno)
  }

  /// Whether the system may later permit what it has refused, because the cause is this machine, a disk or a file
  /// server, and not the object of the call.
  package var isTemporary: Bool {
    [EMFILE, ENFILE, ENOMEM, ENOBUFS, EIO, ESTALE, EAGAIN, ETIMEDOUT].contains(code)
  }

  /// The kernel's text for ``code``, such as `No space left on device`.
  public var reason: String { String(cString: strerror(code)) }

  /// ``operation`` and ``reason``, on one line.
  public var description: String { "\(operation): \(reason)" }
}

/// poll(2) on one descriptor, continued after signals. Each signal restarts the time.
///
/// - Parameter timeout: in milliseconds. -1 means none.
/// - Returns: whether it is ready, or in an error state.
@discardableResult
package func waitUntilReady(_ descriptor: Int32, for events: Int32, timeout: Int32 = -1) -> Bool {
  var polled = pollfd(fd: descriptor, events: Int16(events), revents: 0)
  return (try? retryingInterrupts("poll") { poll(&polled, 1, timeout) }) ?? 0 > 0
}

/// Calls `body` until it does not fail with `EINTR`. Throws any other error.
@discardableResult
package func retryingInterrupts<Result: FixedWidthInteger & SignedInteger>(
  _ operation: @autoclosure () -> String, _ body: () -> Result
) throws(SystemError) -> Result {
  while true {
    let result = body()
    if result != -1 { return result }
    if errno != EINTR { throw .last(operation()) }
  }
}
