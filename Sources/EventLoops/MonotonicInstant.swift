// Time in Sluice: monotonic, in nanoseconds, never the wall clock.

package import Glibc

/// A point on `CLOCK_MONOTONIC`, in nanoseconds since an arbitrary start. It does not jump when the date is set.
public struct MonotonicInstant: Comparable, Hashable, Sendable {
  /// Nanoseconds since the start of the clock.
  public var nanoseconds: Int64

  /// Creates the instant this long after the start of the clock.
  public init(nanoseconds: Int64) { self.nanoseconds = nanoseconds }

  /// The current time; clock_gettime(2), without a system call on Linux (vDSO).
  public static var now: MonotonicInstant { read(CLOCK_MONOTONIC) }

  /// The time since the machine started, including sleep: `CLOCK_BOOTTIME`.
  package static var sinceBoot: MonotonicInstant { read(CLOCK_BOOTTIME) }

  private static func read(_ clock: clockid_t) -> MonotonicInstant {
    var time = timespec()
    clock_gettime(clock, &time)
    return MonotonicInstant(time)
  }

  /// A time from the kernel or a driver.
  package init(_ time: timespec) {
    nanoseconds = Int64(time.tv_sec).multipliedSaturated(by: 1_000_000_000).addingSaturated(Int64(time.tv_nsec))
  }

  /// Whether `a` is before `b`.
  public static func < (a: MonotonicInstant, b: MonotonicInstant) -> Bool { a.nanoseconds < b.nanoseconds }

  /// The instant moved by a duration. The result saturates at the end of the range ("never").
  public static func + (a: MonotonicInstant, b: Duration) -> MonotonicInstant {
    .init(nanoseconds: a.nanoseconds.addingSaturated(b.nanoseconds))
  }

  /// The instant this many nanoseconds later. The result saturates.
  package func advanced(byNanoseconds count: Int64) -> MonotonicInstant {
    .init(nanoseconds: nanoseconds.addingSaturated(count))
  }

  /// The number of nanoseconds since `earlier`, for code that runs for every message. A `Duration` is 128 bits of
  /// attoseconds, and dividing it costs more than the rest of the comparison.
  public func nanoseconds(since earlier: MonotonicInstant) -> Int64 {
    let (difference, overflow) = nanoseconds.subtractingReportingOverflow(earlier.nanoseconds)
    return overflow ? (nanoseconds < 0 ? .min : .max) : difference
  }

  /// The time from `b` to `a`. The result saturates.
  public static func - (a: MonotonicInstant, b: MonotonicInstant) -> Duration { .nanoseconds(a.nanoseconds(since: b)) }
}

extension Duration {
  /// The duration in whole nanoseconds, saturating at about ±292 years.
  public var nanoseconds: Int64 {
    let (seconds, attoseconds) = components
    // Both parts have the same sign.
    return seconds.multipliedSaturated(by: 1_000_000_000).addingSaturated(attoseconds / 1_000_000_000)
  }

  /// The duration in seconds, with the precision of a `Double`.
  public var seconds: Double { Double(nanoseconds) / 1e9 }
}

extension FixedWidthInteger {
  /// The sum, which saturates at the end of the range.
  @inlinable
  package func addingSaturated(_ other: Self) -> Self {
    let (sum, overflow) = addingReportingOverflow(other)
    return overflow ? (other < 0 ? .min : .max) : sum
  }

  /// The difference, which saturates at the end of the range.
  @inlinable
  package func subtractingSaturated(_ other: Self) -> Self {
    let (difference, overflow) = subtractingReportingOverflow(other)
    return overflow ? (other > 0 ? .min : .max) : difference
  }

  /// The product, which saturates at the end of the range.
  @inlinable
  package func multipliedSaturated(by other: Self) -> Self {
    let (product, overflow) = multipliedReportingOverflow(by: other)
    return overflow ? ((self < 0) == (other < 0) ? .max : .min) : product
  }
}
