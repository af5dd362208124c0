// A log of events in order, so that a test can wait for one instead of sleeping.

public import EventLoops
internal import Glibc
internal import PropertyTesting

/// A wait that ended without its event.
public struct TestFailure: Error, CustomStringConvertible {
  public let description: String

  public init(_ description: String) {
    self.description = description
    TestFailure.report(description)
  }

  /// Appends a line to the file that the environment names. The process of an exit test has no other place for it: its
  /// parent reports only the exit code.
  private static func report(_ description: String) {
    guard let path = getenv("SLUICE_TEST_FAILURES") else { return }
    let descriptor = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0o600)
    guard descriptor >= 0 else { return }
    defer { close(descriptor) }
    let line = "process \(getpid()): \(description)\n"
    _ = line.withCString { write(descriptor, $0, strlen($0)) }
  }
}

/// Collects events from any thread. One thread waits for them.
public final class EventLog<Event: Sendable>: Sendable {
  private let events = Lock<[Event]>([])
  private let arrived: EventCounter

  public init() throws(SystemError) { arrived = try EventCounter() }

  public func append(_ event: Event) {
    events.withLock { $0.append(event) }
    arrived.signal()
  }

  public var all: [Event] { events.withLock { $0 } }

  /// Waits until `find` returns a value for the events so far.
  @discardableResult
  public func wait<Found>(
    _ what: @autoclosure () -> String, within limit: Duration = .seconds(60), _ find: ([Event]) -> Found?
  ) throws -> Found {
    try wait(what(), within: limit, from: 0) { find(Array($0)) }
  }

  /// Waits until `find` returns a value for the events from number `start` on. The indices of the slice count all
  /// events.
  @discardableResult
  package func wait<Found>(
    _ what: @autoclosure () -> String, within limit: Duration = .seconds(60), from start: Int,
    _ find: (ArraySlice<Event>) -> Found?
  ) throws -> Found {
    let deadline = MonotonicInstant.now + limit
    while true {
      if let found = find(all[start...]) { return found }
      let remaining = deadline - .now
      guard remaining.nanoseconds > 0 else {
        throw TestFailure("\(what()) did not come; there were \(all[start...])")
      }
      // Another thread that waits for the same log may have drained the signal.
      if waitUntilReadable(arrived.descriptor, limit: min(remaining, .milliseconds(100))) { arrived.drain() }
    }
  }

  /// Waits for the first event that `matches`.
  @discardableResult
  public func first(_ what: @autoclosure () -> String, where matches: (Event) -> Bool) throws -> Event {
    try wait(what()) { $0.first(where: matches) }
  }
}

/// Polls for a condition without an event. A server that never reaches it fails the test instead of blocking it.
///
/// - Parameter claim: evaluated when the time is over, so that it can describe the state at that moment.
package func waitUntil(
  _ claim: @autoclosure () -> String, within seconds: Int = 60, _ condition: () throws -> Bool
) throws {
  for _ in 0..<(seconds * 1000) {
    if try condition() { return }
    poll(nil, 0, 1)
  }
  throw TestFailure("it never came about that \(claim())")
}
