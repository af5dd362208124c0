// How the streams of a run differed: a mean over ten thousand of them says nothing of the one that was starved.

/// Over all streams that ended: how their own figures are spread, and which ones were the worst.
public struct StreamSpread: Equatable, Sendable {
  public static let worstCount = 10

  /// Of each stream the mean, and the largest, delay from due to acknowledged.
  public var meanDelay = LatencyHistogram()
  public var maximumDelay = LatencyHistogram()
  /// Of each stream the acknowledged bytes a second.
  public var goodput = LatencyHistogram()
  /// Of each stream how often it was interrupted.
  public var interruptions = LatencyHistogram()
  /// At most ``worstCount``, the worst one first: those that failed, then those with the largest delay.
  public internal(set) var worst: [StreamRow] = []

  public init() {}

  mutating func record(_ stream: StreamFigures, _ outcome: StreamOutcome, now: Int64) {
    let row = StreamRow(stream, outcome, now: now)
    if let mean = row.meanDelay { meanDelay.record(mean) }
    if let maximum = row.maximumDelay { maximumDelay.record(maximum) }
    goodput.record(Int64(clamping: row.goodput))
    interruptions.record(Int64(stream.interruptions))
    insert(row)
  }

  private mutating func insert(_ row: StreamRow) {
    if worst.count == Self.worstCount {
      guard let last = worst.last, row.isWorse(than: last) else { return }
      worst.removeLast()
    }
    worst.insert(row, at: worst.firstIndex { row.isWorse(than: $0) } ?? worst.endIndex)
  }

  public mutating func merge(_ other: StreamSpread) {
    meanDelay.merge(other.meanDelay)
    maximumDelay.merge(other.maximumDelay)
    goodput.merge(other.goodput)
    interruptions.merge(other.interruptions)
    for row in other.worst { insert(row) }
  }
}

/// One stream, as a row of a table.
public struct StreamRow: Equatable, Sendable {
  /// Its number among all streams of the run.
  public var index = 0
  /// When it was started, and how long it lasted.
  public var startedAt: Int64 = 0
  public var lasted: Int64 = 0
  public var outcome = StreamOutcome.stopped
  /// From due to acknowledged; nil when nothing was acknowledged.
  public var meanDelay: Int64?
  public var maximumDelay: Int64?
  public var offered: UInt64 = 0
  public var acknowledged: UInt64 = 0
  public var interruptions: UInt64 = 0

  public init() {}

  init(_ stream: StreamFigures, _ outcome: StreamOutcome, now: Int64) {
    index = stream.index
    startedAt = stream.startedAt
    lasted = max(0, now - stream.startedAt)
    self.outcome = outcome
    meanDelay = stream.meanDelay
    maximumDelay = stream.maximumDelay
    offered = stream.offered
    acknowledged = stream.acknowledged
    interruptions = UInt64(stream.interruptions)
  }

  /// Acknowledged bytes a second.
  public var goodput: UInt64 {
    lasted > 0 ? UInt64(max(0, Int64(saturating: Double(acknowledged) * 1e9 / Double(lasted)))) : acknowledged
  }

  /// A total order, so that the ten worst are the same ones in whatever order they are found.
  func isWorse(than other: StreamRow) -> Bool {
    func rank(_ row: StreamRow) -> (Int, Int64, Int, Int64) {
      // Nothing acknowledged of what was offered is worse than any delay.
      let delay = row.maximumDelay ?? (row.offered > 0 ? .max : 0)
      return (row.outcome == .failed ? 1 : 0, delay, -row.index, -row.startedAt)
    }
    return rank(self) > rank(other)
  }
}
