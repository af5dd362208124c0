// Tools for tests with real threads: a value moved to another thread, waits with a limit, and processor time.

internal import EventLoops
internal import Glibc

/// Carries a noncopyable value into the closure of a thread, which cannot consume what it captures.
public final class Handover<Value: ~Copyable & Sendable>: Sendable {
  private let value: Lock<Value?>

  public init(_ value: consuming Value) { self.value = Lock(consume value) }

  /// Returns the value, once.
  public func take() -> Value {
    value.withLock { value in
      guard let taken = value.take() else { fatalError("taken twice: an error of the test itself") }
      return taken
    }
  }
}

/// Runs each body on a thread of its own, and returns when all have ended.
public func concurrently(_ bodies: (@Sendable () -> Void)...) throws {
  let threads = try bodies.enumerated().map { try NamedThread("test \($0)", $1) }
  for thread in threads { thread.join() }
}

/// The processor time of the calling thread, which the load of the machine does not change.
public func threadTime() -> Duration {
  var time = timespec()
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
  return .seconds(time.tv_sec) + .nanoseconds(time.tv_nsec)
}

/// Waits until `descriptor` is readable. Returns false after `limit`, which a test reports as a lost wake-up.
public func waitUntilReadable(_ descriptor: Int32, limit: Duration = .seconds(30)) -> Bool {
  let deadline = MonotonicInstant.now + limit
  var entry = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
  while true {
    let remaining = (deadline - .now).nanoseconds / 1_000_000
    let result = poll(&entry, 1, Int32(max(0, remaining)))
    if result > 0 { return true }
    if result == 0 { return false }
    // -1 is EINTR here: continue with the remaining time.
  }
}

/// Reads an eventfd: the number of signals since the last call.
@discardableResult
public func takeSignals(_ descriptor: Int32) -> UInt64 {
  var count: UInt64 = 0
  return read(descriptor, &count, 8) == 8 ? count : 0
}
