// The run second by second.

/// What was measured in one interval of the run.
public struct LoadInterval: Equatable, Sendable {
  /// Streams that are connected, and that try to be, at the interval's end.
  public var live: UInt64 = 0
  public var connecting: UInt64 = 0
  /// Bytes whose time came, were handed to the engine, were acknowledged by the server.
  public var offered: UInt64 = 0
  public var sent: UInt64 = 0
  public var acknowledged: UInt64 = 0
  /// From due to acknowledged by the server, of streams that are not slow on purpose.
  public var acknowledgedDelay = LatencyHistogram()
  public var lateness = LatencyHistogram()
  public var interruptions: UInt64 = 0
  public var errors: UInt64 = 0
  /// Processor time of the generator, in nanoseconds.
  public var processorTime: Int64 = 0

  public init() {}

  /// Adds what others measured in the same time.
  public mutating func merge(_ other: LoadInterval) {
    live += other.live
    connecting += other.connecting
    add(other)
  }

  /// Adds the interval that follows: the streams that are live are then those of its end.
  mutating func append(_ next: LoadInterval) {
    live = next.live
    connecting = next.connecting
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
    processorTime += other.processorTime
  }
}

/// Intervals of one length, from the run's start on.
///
/// There are never more than ``maximumCount``: when one more is appended, each two become one of twice the length. So a
/// run of half an hour has one for every second, and a run of a week takes no more memory.
public struct IntervalSeries: Equatable, Sendable {
  public static let maximumCount = 1800

  /// How long each one is, in nanoseconds: a second times a power of two.
  public private(set) var length: Int64 = 1_000_000_000
  /// In order. The last one may not have lasted its whole length.
  public private(set) var intervals: [LoadInterval] = []
  /// How many seconds are in the last one.
  private var secondsInLast: Int64 = 0

  public init() {}

  /// When the interval at `index` began, in nanoseconds since the run's start.
  public func start(of index: Int) -> Int64 { Int64(index) * length }

  /// Appends the next second.
  public mutating func append(second: LoadInterval) {
    if !intervals.isEmpty, secondsInLast * 1_000_000_000 < length {
      intervals[intervals.count - 1].append(second)
      secondsInLast += 1
      return
    }
    // An even number of whole intervals: the last one is whole afterwards as well.
    if intervals.count == Self.maximumCount { coarsen() }
    intervals.append(second)
    secondsInLast = 1
  }

  /// Adds what another part measured in the same intervals of its run.
  public mutating func merge(_ other: IntervalSeries) {
    var other = other
    while length < other.length { coarsen() }
    while other.length < length { other.coarsen() }
    for (index, interval) in other.intervals.enumerated() {
      if index < intervals.count { intervals[index].merge(interval) } else { intervals.append(interval) }
    }
    if other.intervals.count == intervals.count { secondsInLast = max(secondsInLast, other.secondsInLast) }
  }

  /// Makes each two intervals one.
  private mutating func coarsen() {
    let hasPartner = intervals.count.isMultiple(of: 2)
    if hasPartner { secondsInLast += length / 1_000_000_000 }
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
