// Time as the rest of Sluice reads it: monotonic, in nanoseconds, never the wall clock.

internal import Glibc

/// A point on `CLOCK_MONOTONIC`, in nanoseconds since an arbitrary start. Does not jump when the date is set.
public struct MonotonicInstant: Comparable, Hashable, Sendable {
  public var nanoseconds: Int64

  public init(nanoseconds: Int64) { self.nanoseconds = nanoseconds }

  /// The time now; clock_gettime(2), no system call on Linux (vDSO).
  public static var now: MonotonicInstant {
    var time = timespec()
    clock_gettime(CLOCK_MONOTONIC, &time)
    return MonotonicInstant(nanoseconds: Int64(time.tv_sec) * 1_000_000_000 + Int64(time.tv_nsec))
  }

  public static func < (a: MonotonicInstant, b: MonotonicInstant) -> Bool { a.nanoseconds < b.nanoseconds }

  /// The instant moved by a duration; one beyond the end of what can be counted ("never") is the end.
  public static func + (a: MonotonicInstant, b: Duration) -> MonotonicInstant {
    .init(nanoseconds: a.nanoseconds.addingSaturated(b.nanoseconds))
  }

  /// How many nanoseconds this is after `earlier`. For paths taken with every message: a `Duration` is 128 bits of
  /// attoseconds, and dividing those costs more than the rest of the comparison.
  public func nanoseconds(since earlier: MonotonicInstant) -> Int64 { nanoseconds - earlier.nanoseconds }

  public static func - (a: MonotonicInstant, b: MonotonicInstant) -> Duration {
    .nanoseconds(a.nanoseconds - b.nanoseconds)
  }
}

extension Duration {
  /// The duration in whole nanoseconds, saturating at about ±292 years.
  public var nanoseconds: Int64 {
    let (seconds, attoseconds) = components
    let (product, overflow) = seconds.multipliedReportingOverflow(by: 1_000_000_000)
    return overflow ? (seconds < 0 ? .min : .max) : product.addingSaturated(attoseconds / 1_000_000_000)
  }

  /// The duration in seconds, as precise as a `Double` is.
  public var seconds: Double { Double(nanoseconds) / 1e9 }
}

extension Int64 {
  /// The sum, or the end of the range that it would go beyond.
  fileprivate func addingSaturated(_ other: Int64) -> Int64 {
    let (sum, overflow) = addingReportingOverflow(other)
    return overflow ? (other < 0 ? .min : .max) : sum
  }
}
