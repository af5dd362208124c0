// The state of each stream while it lives. It is small, because there are thousands of streams.

internal import LoadReports

/// The figures of one stream. ``LoopFigures`` updates them, and receives every event.
struct StreamFigures: Equatable, Sendable {
  // Small values follow optional numbers, because they fit into the same words.

  /// Its start on the run's clock.
  let startedAt: Int64
  var offered: UInt64 = 0
  var sent: UInt64 = 0
  var accepted: UInt64 = 0
  var acknowledged: UInt64 = 0
  /// When it was interrupted; nil once a byte was acknowledged after that.
  var interruptedAt: Int64?
  /// Whether it is slow on purpose. Its delays are kept separately.
  let isSlow: Bool
  var phase = Phase.connecting
  /// Whether its outage began with its predecessor, so that the interruption was already counted.
  private(set) var continuesOutage = false
  var interruptions: UInt32 = 0
  /// The cause of the interruption; nil if it was on purpose.
  var interruptionCause: String?
  /// The class of the error that its outage was last counted as. The same cause is not another error.
  var countedCause: String?
  /// How long it has paused since the interruption between its attempts, and when the current pause began.
  var pausedFor: Int64 = 0
  var pauseStartedAt: Int64?
  private let number: UInt32
  /// When the server last acknowledged bytes of it.
  var acknowledgedAt: Int64?
  /// The number, maximum and sum of its messages' delays from due to acknowledged. Some million ages of failed messages
  /// exceed 63 bits.
  var delayCount: UInt64 = 0
  var delayMaximum: Int64 = 0
  var delaySum: Int128 = 0
  /// Its failed messages: the sum of their due times, their number, and the first one.
  var failedDueSum: Int128 = 0
  var failedCount: UInt64 = 0
  var failedDueFirst = Int64.max

  enum Phase: Equatable, Sendable {
    /// It has no connection, and tries to establish one.
    case connecting
    case live
    case ended
  }

  init(index: Int, isSlow: Bool, startedAt: Int64) {
    number = UInt32(clamping: index)
    self.isSlow = isSlow
    self.startedAt = startedAt
  }

  /// The stream's number among all streams of the run.
  var index: Int { Int(number) }

  /// Whether it has lost its connection, with no acknowledgement since.
  var isInterrupted: Bool { interruptedAt != nil }

  /// Ends its outage, and returns it. Nil without one.
  mutating func takeOutage(now: Int64) -> StreamOutage? {
    guard let start = interruptedAt else { return nil }
    let outage = StreamOutage(
      start: start, cause: interruptionCause, countedCause: countedCause, pausedFor: pausedFor,
      pauseStartedAt: pauseStartedAt ?? now)
    (interruptedAt, interruptionCause, continuesOutage, countedCause) = (nil, nil, false, nil)
    return outage
  }

  /// Continues the outage in which its predecessor failed.
  mutating func continueOutage(_ outage: StreamOutage) {
    (interruptedAt, interruptionCause, continuesOutage) = (outage.start, outage.cause, true)
    countedCause = outage.countedCause
    (pausedFor, pauseStartedAt) = (outage.pausedFor, outage.pauseStartedAt)
  }

  /// Adds the ages of its failed messages at the stream's end. Call it once.
  mutating func addAgesOfFailed(now: Int64) {
    guard failedCount > 0 else { return }
    delayCount += failedCount
    // 128 bits are enough for any 64-bit count of 63-bit times.
    delaySum += max(0, Int128(now) * Int128(failedCount) - failedDueSum)
    delayMaximum = max(delayMaximum, now - failedDueFirst)
  }

  /// The mean delay from due to acknowledged; nil without acknowledgements.
  var meanDelay: Int64? { delayCount == 0 ? nil : Int64(clamping: delaySum / Int128(delayCount)) }
  var maximumDelay: Int64? { delayCount == 0 ? nil : delayMaximum }
}

/// An outage of a stream, or of several streams that replace each other in one place.
struct StreamOutage: Equatable, Sendable {
  var start: Int64
  /// The class of its first error. Nil if it began on purpose.
  var cause: String?
  /// See ``StreamFigures/countedCause``.
  var countedCause: String?
  /// How long the generator has paused in it, and when the current pause began.
  var pausedFor: Int64
  var pauseStartedAt: Int64
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
