// The state of each stream while it lives. It is small, because there are thousands of streams.

internal import LoadReports

/// The figures of one stream. Filled by ``LoopFigures``, to which everything that happens is reported.
struct StreamFigures: Equatable, Sendable {
  /// Its number among all streams of the run.
  let index: Int
  /// Slow on purpose: its delays are kept apart.
  let isSlow: Bool
  var phase = Phase.connecting
  /// When it was started, on the run's clock.
  let startedAt: Int64
  var offered: UInt64 = 0
  var sent: UInt64 = 0
  var accepted: UInt64 = 0
  var acknowledged: UInt64 = 0
  var interruptions: UInt32 = 0
  /// When it was interrupted, as long as no byte was acknowledged since.
  var interruptedAt: Int64?
  /// What interrupted it, unless that was on purpose.
  var interruptionCause: String?
  /// How long it has waited since, of its own accord, and since when it does.
  var pausedFor: Int64 = 0
  var pauseStartedAt: Int64?
  /// When the server last acknowledged something of it.
  var acknowledgedAt: Int64?
  /// Of its messages' delays from due to acknowledged.
  var delayCount: UInt64 = 0
  var delaySum: Int64 = 0
  var delayMaximum: Int64 = 0
  /// Of its messages that failed: how many, the sum of their due times, and the first.
  var failedCount: UInt64 = 0
  var failedDueSum: Int64 = 0
  var failedDueFirst = Int64.max

  enum Phase: Equatable, Sendable {
    /// Has no connection, and tries to get one.
    case connecting
    case live
    case ended
  }

  init(index: Int, isSlow: Bool, startedAt: Int64) {
    self.index = index
    self.isSlow = isSlow
    self.startedAt = startedAt
  }

  /// Lost its connection, and nothing of it was acknowledged since.
  var isInterrupted: Bool { interruptedAt != nil }

  /// What failed is as old as the stream makes it.
  mutating func addAgesOfFailed(now: Int64) {
    guard failedCount > 0 else { return }
    delayCount += failedCount
    let (ages, overflow) = now.multipliedReportingOverflow(by: Int64(clamping: failedCount))
    delaySum = delaySum.addingSaturated(max(0, (overflow ? .max : ages) - failedDueSum))
    delayMaximum = max(delayMaximum, now - failedDueFirst)
    failedCount = 0
  }

  /// The mean delay from due to acknowledged; nil when nothing was acknowledged.
  var meanDelay: Int64? { delayCount == 0 ? nil : Int64(clamping: UInt64(delaySum) / delayCount) }
  var maximumDelay: Int64? { delayCount == 0 ? nil : delayMaximum }
}

extension StreamRow {
  /// A stream that ended at `now`.
  init(_ stream: StreamFigures, _ outcome: StreamOutcome, now: Int64) {
    self.init()
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
}
