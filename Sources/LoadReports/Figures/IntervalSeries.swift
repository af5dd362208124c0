// The measurements of a run per second.

/// The measurements of one interval of the run.
package struct LoadInterval: Equatable, Sendable {
  /// Streams that are connected, or trying to connect, at the interval's end.
  package var live: UInt64 = 0
  package var connecting: UInt64 = 0
  /// The fewest live streams after a loss within the interval, if these are fewer than ``live``. Otherwise nil, as in
  /// reports of older versions. For several loops or parts, this is the sum of theirs, each at its own time.
  package var fewestAfterLoss: UInt64?
  /// Bytes that became due, were passed to the engine, and were acknowledged by the server.
  package var offered: UInt64 = 0
  package var sent: UInt64 = 0
  package var acknowledged: UInt64 = 0
  /// From due to acknowledged by the server, without streams that are slow on purpose.
  package var acknowledgedDelay = LatencyHistogram()
  package var lateness = LatencyHistogram()
  package var interruptions: UInt64 = 0
  package var errors: UInt64 = 0
  /// Processor time of the generator, in nanoseconds.
  package var processorTime: Int64 = 0

  package init() {}

  /// The fewest live streams at its end or after a loss within it.
  package var fewestLive: UInt64 { min(live, fewestAfterLoss ?? live) }

  /// Adds the measurements of others for the same time.
  package mutating func merge(_ other: LoadInterval) {
    let fewest = fewestLive + other.fewestLive
    live += other.live
    connecting += other.connecting
    fewestAfterLoss = fewest < live ? fewest : nil
    add(other)
  }

  /// Adds the next interval. The live streams are then those at its end.
  mutating func append(_ next: LoadInterval) {
    let fewest = min(fewestLive, next.fewestLive)
    live = next.live
    connecting = next.connecting
    fewestAfterLoss = fewest < live ? fewest : nil
    add(next)
  }

  private mutating func add(_ other: LoadInterval) {
    offered += other.offered
    sent += other.sent
    acknowledged += other.acknowledged
    acknowledgedDelay.merge(other.acknowledgedDelay)
    lateness.merge(other.lateness)
    interruptions += other.interruptions
    errors += other.errors
    processorTime = processorTime.addingSaturated(other.processorTime)
  }
}

/// Intervals of equal length, from the run's start on.
///
/// There are at most ``maximumCount``. When one more is appended, each pair is combined into one of twice the length.
/// So a run of half an hour has one for every second, and a run of a week needs no more memory.
package struct IntervalSeries: Equatable, Sendable {
  static let maximumCount = 1800

  /// The length of each in nanoseconds: a second times a power of two.
  private(set) var length: Int64 = 1_000_000_000
  /// In order. The last one may be incomplete.
  package private(set) var intervals: [LoadInterval] = []
  /// The total number of seconds in all of them.
  private(set) var seconds: Int64 = 0

  package init() {}

  /// A series read from a file; nil if it is inconsistent.
  init?(length: Int64, seconds: Int64, intervals: [LoadInterval]) {
    let lengthInSeconds = length / 1_000_000_000
    guard length > 0, length.isMultiple(of: 1_000_000_000), lengthInSeconds.nonzeroBitCount == 1, seconds >= 0,
      seconds < 1 << 33, Int64(intervals.count) == (seconds + lengthInSeconds - 1) / lengthInSeconds,
      intervals.count <= Self.maximumCount
    else { return nil }
    self.length = length
    self.seconds = seconds
    self.intervals = intervals
  }

  /// When the interval at `index` began, in nanoseconds since the run's start.
  func start(of index: Int) -> Int64 { Int64(index) * length }

  /// Appends the next second.
  package mutating func append(second: LoadInterval) {
    let hasRoom = seconds * 1_000_000_000 < Int64(intervals.count) * length
    seconds += 1
    guard !hasRoom else { return intervals[intervals.count - 1].append(second) }
    // An even number of complete intervals, so that the last one is complete afterwards as well.
    if intervals.count == Self.maximumCount { coarsen() }
    intervals.append(second)
  }

  /// Adds the measurements of another part for the same intervals.
  mutating func merge(_ other: IntervalSeries) {
    var other = other
    while length < other.length { coarsen() }
    while other.length < length { other.coarsen() }
    for (index, interval) in other.intervals.enumerated() {
      if index < intervals.count { intervals[index].merge(interval) } else { intervals.append(interval) }
    }
    seconds = max(seconds, other.seconds)
  }

  /// Combines each pair of intervals.
  mutating func coarsen() {
    length *= 2
    var merged: [LoadInterval] = []
    merged.reserveCapacity(Self.maximumCount)
    for index in stride(from: 0, to: intervals.count, by: 2) {
      var interval = intervals[index]
      if index + 1 < intervals.count { interval.append(intervals[index + 1]) }
      merged.append(interval)
    }
    intervals = merged
  }
}
