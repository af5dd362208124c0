// The distribution of values over fixed buckets, as in a Prometheus histogram.

/// Counts of values by upper bounds, and their sum. A value. Two distributions with the same bounds can be added.
public struct Distribution: Sendable, Equatable {
  /// Bounds for the delays of a live stream in seconds: from a quarter of a millisecond to half a minute.
  public static let delays: [Double] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
  ]

  /// The upper bounds in ascending order. Each bound belongs to its bucket.
  public let bounds: [Double]
  /// The number of values in each bucket. Values beyond the last bound are only in ``count``.
  public private(set) var counts: [UInt64]
  /// The number of recorded values.
  public private(set) var count: UInt64 = 0
  /// The sum of all values.
  public private(set) var sum = 0.0

  /// Creates a distribution without values.
  public init(bounds: [Double] = Distribution.delays) {
    precondition(zip(bounds, bounds.dropFirst()).allSatisfy { $0 < $1 }, "bounds ascend")
    self.bounds = bounds
    counts = Array(repeating: 0, count: bounds.count)
  }

  /// Records a value `times` times.
  public mutating func record(_ value: Double, count times: UInt64 = 1) {
    count += times
    sum += value * Double(times)
    var index = 0
    // Small values are frequent, and there are a dozen bounds, so a binary search would cost more.
    while index < bounds.count, value > bounds[index] { index += 1 }
    if index < counts.count { counts[index] += times }
  }

  /// Adds the counts of another distribution with the same bounds.
  public mutating func add(_ other: Distribution) {
    precondition(bounds == other.bounds, "distributions with different buckets cannot be added")
    for index in counts.indices { counts[index] += other.counts[index] }
    count += other.count
    sum += other.sum
  }
}
