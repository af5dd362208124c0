// A failed system call, with words that its reader can act on.

internal import Glibc

/// A system call that failed: which one, on what, and why.
///
/// Thrown wherever Sluice talks to the kernel. `description` is one line fit for a person.
public struct SystemError: Error, Equatable, Sendable, CustomStringConvertible {
  /// What was attempted, e.g. `"openat kitchen.part"`.
  public let operation: String
  /// The `errno` that it left, see errno(3).
  public let code: Int32

  /// The error of a call that failed.
  public init(operation: String, code: Int32) {
    self.operation = operation
    self.code = code
  }

  /// The error that the calling thread's last failed call left in `errno`.
  public static func last(_ operation: String) -> SystemError {
    SystemError(operation: operation, code: errno)
  }

  /// The kernel's own words for ``code``, e.g. `No space left on device`.
  public var reason: String { String(cString: strerror(code)) }

  /// ``operation`` and ``reason``, on one line.
  public var description: String { "\(operation): \(reason)" }
}

/// poll(2) on one descriptor, also through signals; each signal begins the time anew.
///
/// - Parameter timeout: in milliseconds; -1 for none.
/// - Returns: whether it is ready, or in an error state.
@discardableResult
package func waitUntilReady(_ descriptor: Int32, for events: Int32, timeout: Int32 = -1) -> Bool {
  var polled = pollfd(fd: descriptor, events: Int16(events), revents: 0)
  return (try? retryingInterrupts("poll") { poll(&polled, 1, timeout) }) ?? 0 > 0
}

/// Calls `body` until it returns something other than -1 with `EINTR`; throws what else went wrong.
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
