// The small values of the room: instants, durations, errors, counters.

import EventLoops
import Glibc
import PropertyTesting
import Testing

@Suite("Instants, errors and counters")
struct ValueTests {
  @Test("a duration in nanoseconds stops at the ends of what can be counted")
  func nanoseconds() {
    #expect(Duration.milliseconds(3).nanoseconds == 3_000_000)
    #expect(Duration.milliseconds(-3).nanoseconds == -3_000_000)
    #expect(Duration.seconds(Int64.max).nanoseconds == .max)
    #expect(Duration.seconds(Int64.min).nanoseconds == .min)
    // The last second that still fits, and a fraction that does not.
    #expect((Duration.seconds(9_223_372_036) + .milliseconds(900)).nanoseconds == .max)
    #expect((Duration.seconds(-9_223_372_036) - .milliseconds(900)).nanoseconds == .min)
  }

  @Test("an instant moved beyond the end of time stays at the end")
  func instants() {
    #expect(MonotonicInstant(nanoseconds: 5) + .nanoseconds(7) == MonotonicInstant(nanoseconds: 12))
    #expect(MonotonicInstant.now + .seconds(Int64.max) == MonotonicInstant(nanoseconds: .max))
    let before = MonotonicInstant.now
    #expect(MonotonicInstant.now >= before)
    #expect(MonotonicInstant(nanoseconds: 12) - MonotonicInstant(nanoseconds: 5) == .nanoseconds(7))
  }

  @Test("a failed call says what was tried and why it failed")
  func systemErrors() {
    let error = SystemError(operation: "openat kitchen.part", code: ENOSPC)
    #expect(error.description == "openat kitchen.part: No space left on device")
  }

  @Test("a counter counts signals and is readable while it has some")
  func counter() throws {
    let counter = try EventCounter()
    let none = counter.drain()
    for _ in 0..<3 { counter.signal() }
    let readable = waitUntilReadable(counter.descriptor, limit: .zero)
    let sum = counter.drain()
    let quiet = !waitUntilReadable(counter.descriptor, limit: .zero)
    #expect(none == 0 && readable && sum == 3 && quiet)
  }
}
