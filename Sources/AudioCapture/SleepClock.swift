// The time that the machine has slept. A microphone records nothing in that time, and CLOCK_MONOTONIC excludes it.

internal import EventLoops

/// Measures how long the machine has been suspended since its start. Any thread.
struct SleepClock: Sendable {
  /// The shortest sleep, in nanoseconds, that can be distinguished from the noise of reading two clocks.
  static let resolution: Int64 = 200_000_000

  /// The time in nanoseconds. It is read once per period, and arithmetic with a `Duration` would cost more than that.
  let asleep: @Sendable () -> Int64

  /// The kernel's: CLOCK_BOOTTIME includes sleep, and CLOCK_MONOTONIC does not.
  static let system = SleepClock {
    var best = (width: Int64.max, difference: Int64(0))
    // Repeat if the thread was interrupted between the readings.
    for _ in 0..<4 where best.width > 100_000 {
      let before = MonotonicInstant.now
      let sinceBoot = MonotonicInstant.sinceBoot
      let width = MonotonicInstant.now.nanoseconds(since: before)
      if width < best.width { best = (width, sinceBoot.nanoseconds(since: before)) }
    }
    return best.difference
  }
}
