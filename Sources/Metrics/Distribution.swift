// How values are spread, in buckets whose bounds are chosen beforehand: what a Prometheus histogram is made of.

/// Counts of values by upper bounds, and their sum. A value; two of the same bounds can be added.
public struct Distribution: Sendable, Equatable {
  /// From a quarter of a millisecond to half a minute, in seconds: delays that a live stream may have.
  public static let delays: [Double] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
  ]

  /// Upper bounds, each a part of its bucket, ascending.
  public let bounds: [Double]
  /// How many values lie in each bucket; those beyond the last bound are only in ``count``.
  public private(set) var counts: [UInt64]
  /// How many values were recorded.
  public private(set) var count: UInt64 = 0
  /// The sum of all values.
  public private(set) var sum = 0.0

  /// A distribution without values.
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
    // Small values are the frequent ones, and there are a dozen bounds: a search would cost more.
    while index < bounds.count, value > bounds[index] { index += 1 }
    if index < counts.count { counts[index] += times }
  }

  /// Adds what another of the same bounds has counted.
  public mutating func add(_ other: Distribution) {
    precondition(bounds == other.bounds, "distributions are added bucket by bucket")
    for index in counts.indices { counts[index] += other.counts[index] }
    count += other.count
    sum += other.sum
  }
}
