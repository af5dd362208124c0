// How the streams of a run differed. A mean over ten thousand of them does not show the one that was starved.

/// The distribution of the figures of all ended streams, and the worst streams.
package struct StreamSpread: Equatable, Sendable {
  static let worstCount = 10

  /// The mean and the largest delay from due to acknowledged, per stream.
  package var meanDelay = LatencyHistogram()
  package var maximumDelay = LatencyHistogram()
  /// The acknowledged bytes per second, per stream.
  package var goodput = LatencyHistogram()
  /// The number of interruptions, per stream.
  package var interruptions = LatencyHistogram()
  /// At most ``worstCount``, the worst one first: failed ones, and then those with the largest delay.
  package internal(set) var worst: [StreamRow] = []

  package init() {}

  /// Adds a stream that ended.
  package mutating func record(_ row: StreamRow) {
    if let mean = row.meanDelay { meanDelay.record(mean) }
    if let maximum = row.maximumDelay { maximumDelay.record(maximum) }
    goodput.record(Int64(clamping: row.goodput))
    interruptions.record(Int64(clamping: row.interruptions))
    insert(row)
  }

  private mutating func insert(_ row: StreamRow) {
    if worst.count == Self.worstCount {
      guard let last = worst.last, row.isWorse(than: last) else { return }
      worst.removeLast()
    }
    worst.insert(row, at: worst.firstIndex { row.isWorse(than: $0) } ?? worst.endIndex)
  }

  package mutating func merge(_ other: StreamSpread) {
    meanDelay.merge(other.meanDelay)
    maximumDelay.merge(other.maximumDelay)
    goodput.merge(other.goodput)
    interruptions.merge(other.interruptions)
    for row in other.worst { insert(row) }
  }
}

/// One stream, as a row of a table.
package struct StreamRow: Equatable, Sendable {
  /// Its number among all streams of the run.
  package var index = 0
  /// Its start and its duration.
  package var startedAt: Int64 = 0
  package var lasted: Int64 = 0
  package var outcome = StreamOutcome.stopped
  /// From due to acknowledged; nil without acknowledgements.
  package var meanDelay: Int64?
  package var maximumDelay: Int64?
  package var offered: UInt64 = 0
  package var acknowledged: UInt64 = 0
  package var interruptions: UInt64 = 0

  package init() {}

  /// Acknowledged bytes per second.
  package var goodput: UInt64 {
    lasted > 0 ? UInt64(max(0, Int64(saturating: Double(acknowledged) * 1e9 / Double(lasted)))) : acknowledged
  }

  /// A total order, so that the ten worst are the same in whatever order they are found.
  func isWorse(than other: StreamRow) -> Bool {
    func rank(_ row: StreamRow) -> (Int, Int64, Int, Int64) {
      // No acknowledgement of offered bytes is worse than any delay.
      let delay = row.maximumDelay ?? (row.offered > 0 ? .max : 0)
      return (row.outcome == .failed ? 1 : 0, delay, -row.index, -row.startedAt)
    }
    return rank(self) > rank(other)
  }
}

/// How a stream ended.
package enum StreamOutcome: String, CaseIterable, Sendable {
  /// The stream or the run came to its planned end, and everything was acknowledged.
  case finished
  /// It gave up.
  case failed
  /// The run was stopped before its end.
  case stopped
}
