// The measurements of one network loop. Only the loop writes them, without locks. They are taken and merged once per
// second.

internal import LoadReports

/// The figures of one loop, from the run's start to now and for the current interval.
///
/// All times are nanoseconds on the run's clock, where 0 is the run's start. Recording is O(1), and allocates only for
/// the first value in a power of two. A value: pass copies to other threads.
struct LoopFigures: Sendable {
  private(set) var totals = LoadTotals()
  /// The figures of finished intervals, without those that only intervals count; see ``histograms``.
  private var measured = LoadHistograms()
  private(set) var spread = StreamSpread()
  /// The current interval.
  private var interval = LoadInterval()
  /// Messages that failed before the run's end.
  private var unanswered = UnansweredMessages()

  init() {}

  /// From the run's start to now. Until an interval ends, its own counts exist only there, so that each message is
  /// recorded once.
  var histograms: LoadHistograms {
    var all = measured
    all.add(interval)
    return all
  }

  /// Ends the current interval, returns its measurements, and begins the next.
  mutating func takeInterval() -> LoadInterval {
    var taken = interval
    if taken.fewestAfterLoss ?? .max >= taken.live { taken.fewestAfterLoss = nil }
    measured.add(taken)
    interval = LoadInterval()
    interval.live = taken.live
    interval.connecting = taken.connecting
    return taken
  }

  /// The run is over, and its streams end as planned from here on. They do not count as lost in its last second.
  mutating func runEnded() {
    totals.streams.fewestLiveAtEnd = min(interval.live, interval.fewestAfterLoss ?? .max)
  }

  // MARK: Streams

  /// A stream begins, without a connection.
  ///
  /// - Parameter outage: the outage in which its predecessor failed. The stream continues it.
  mutating func streamStarted(
    index: Int, isSlow: Bool = false, continuing outage: StreamOutage? = nil, now: Int64
  ) -> StreamFigures {
    totals.streams.started += 1
    interval.connecting += 1
    var stream = StreamFigures(index: index, isSlow: isSlow, startedAt: now)
    if let outage { stream.continueOutage(outage) }
    return stream
  }

  /// The stream has a connection, either the first or a new one after an interruption.
  ///
  /// - Parameter after: how long that took; nil if it uses an existing connection.
  mutating func connected(_ stream: inout StreamFigures, after delay: Int64?) {
    if let delay {
      totals.connects += 1
      measured.record(delay, as: .connect)
    }
    enter(.live, &stream)
  }

  /// The first interim response to a request, with the time since its head was sent.
  mutating func interim(after delay: Int64) { measured.record(delay, as: .interim) }

  /// An interim response, the first or any other.
  mutating func interimResponse() { totals.interimResponses += 1 }

  /// A final response, with the time since the end of the request's content; nil if it came before that.
  mutating func response(_ status: Int, after delay: Int64?) {
    totals.responses[status, default: 0] += 1
    if let delay { measured.record(delay, as: .response) }
  }

  /// The stream lost its connection, and waits before its next attempt.
  ///
  /// - Parameter cause: the error's class; nil if the generator cut the connection on purpose.
  mutating func interrupted(_ stream: inout StreamFigures, cause: String?, now: Int64) {
    if cause == nil { totals.interruptions.onPurpose += 1 } else { totals.interruptions.unplanned += 1 }
    interval.interruptions += 1
    stream.interruptions += 1
    // If it is interrupted again before an acknowledgement, it has stood still since the first interruption.
    if stream.interruptedAt == nil {
      (stream.interruptedAt, stream.interruptionCause) = (now, cause)
      // Pauses before it do not belong to it. A plain stream has them after a connection that failed.
      (stream.pausedFor, stream.pauseStartedAt) = (0, now)
    }
    stream.pauseStartedAt = stream.pauseStartedAt ?? now
    enter(.connecting, &stream)
  }

  /// Another attempt failed, and the stream waits again.
  mutating func attemptFailed(_ stream: inout StreamFigures, now: Int64) {
    totals.interruptions.failedAttempts += 1
    stream.pauseStartedAt = stream.pauseStartedAt ?? now
    enter(.connecting, &stream)
  }

  /// The stream begins an attempt.
  mutating func attempts(_ stream: inout StreamFigures, now: Int64) {
    guard let since = stream.pauseStartedAt else { return }
    stream.pauseStartedAt = nil
    stream.pausedFor = stream.pausedFor.addingSaturated(now - since)
  }

  /// The stream has recovered: by an acknowledgement, or by a connection if there are no acknowledgements.
  mutating func recovered(_ stream: inout StreamFigures, now: Int64) {
    attempts(&stream, now: now)
    guard let outage = stream.takeOutage(now: now) else { return }
    ended(outage, now: now)
    measured.record(max(0, now - outage.start - stream.pausedFor), as: .resume)
  }

  /// An outage is over: its stream has recovered, or no stream continues it.
  mutating func ended(_ outage: StreamOutage, now: Int64) {
    let end = max(outage.start, now)
    measured.record(end - outage.start, as: .outage)
    if let cause = outage.cause { totals.outages.add(LoadOutage(outage.start..<end, cause: cause)) }
  }

  /// - Parameters:
  ///   - name: its class: see ``LoadReports/LoadTotals/countError(_:example:)``.
  ///   - example: its text.
  mutating func error(_ name: String, example: @autoclosure () -> String) {
    totals.countError(name, example: example())
    interval.errors += 1
  }

  /// The stream is over. Its offered and unacknowledged bytes are lost, unless the run was stopped.
  mutating func streamEnded(_ stream: inout StreamFigures, _ outcome: StreamOutcome, now: Int64) {
    guard stream.phase != .ended else { return }
    switch outcome {
    case .finished: totals.streams.finished += 1
    case .failed: totals.streams.failed += 1
    case .stopped: break
    }
    // The server has not returned, so the outage lasted at least until now.
    if let outage = stream.takeOutage(now: now) { ended(outage, now: now) }
    enter(.ended, &stream, isLoss: outcome == .failed)
    stream.addAgesOfFailed(now: now)
    spread.record(StreamRow(stream, outcome, now: now))
  }

  /// - Parameter isLoss: whether a live stream that enters it is missing afterwards. One that ends as planned is not.
  private mutating func enter(_ phase: StreamFigures.Phase, _ stream: inout StreamFigures, isLoss: Bool = true) {
    guard stream.phase != phase, stream.phase != .ended else { return }
    switch stream.phase {
    case .connecting: interval.connecting -= 1
    case .live:
      interval.live -= 1
      if isLoss { interval.fewestAfterLoss = min(interval.fewestAfterLoss ?? .max, interval.live) }
    case .ended: break
    }
    switch phase {
    case .connecting: interval.connecting += 1
    case .live: interval.live += 1
    case .ended: break
    }
    stream.phase = phase
    totals.streams.peakLive = max(totals.streams.peakLive, interval.live)
  }

  // MARK: Messages

  /// A message becomes due, whether or not it can be sent.
  mutating func due(bytes: Int, _ stream: inout StreamFigures) {
    totals.messages.due += 1
    totals.bytes.offered += UInt64(bytes)
    stream.offered += UInt64(bytes)
    interval.offered += UInt64(bytes)
    measured.record(Int64(bytes), as: .message)
  }

  /// The generator has processed a due message. Its delay so far is the generator's fault, not the server's.
  ///
  /// Call it once for each message, even if there is no space for it. Its further wait counts as ``stalled(for:)``.
  mutating func reached(dueAt: Int64, now: Int64) {
    interval.lateness.record(now - dueAt)
  }

  /// There was no space for a message for this time.
  mutating func stalled(for time: Int64) { measured.record(time, as: .stall) }

  /// A message was passed to the engine completely.
  mutating func sent(bytes: Int, _ stream: inout StreamFigures) {
    totals.messages.sent += 1
    totals.bytes.sent += UInt64(bytes)
    stream.sent += UInt64(bytes)
    interval.sent += UInt64(bytes)
  }

  /// This machine's TCP has accepted a message completely.
  mutating func accepted(bytes: Int, dueAt: Int64, now: Int64, _ stream: inout StreamFigures) {
    totals.bytes.accepted += UInt64(bytes)
    stream.accepted += UInt64(bytes)
    if !stream.isSlow { measured.record(now - dueAt, as: .accepted) }
  }

  /// The server has acknowledged a message completely.
  mutating func acknowledged(bytes: Int, dueAt: Int64, now: Int64, _ stream: inout StreamFigures) {
    let delay = max(0, now - dueAt)
    totals.messages.acknowledged += 1
    totals.bytes.acknowledged += UInt64(bytes)
    stream.acknowledged += UInt64(bytes)
    interval.acknowledged += UInt64(bytes)
    recordDelay(delay, &stream)
    recovered(&stream, now: now)
  }

  /// The server has acknowledged the end of a message, and will never have its beginning.
  mutating func acknowledgedPart(bytes: UInt64, _ stream: inout StreamFigures) {
    totals.bytes.acknowledged += bytes
    stream.acknowledged += bytes
    interval.acknowledged += bytes
  }

  /// The server has acknowledged some bytes of the stream. Call it once, before the messages.
  mutating func acknowledgement(_ stream: inout StreamFigures, now: Int64) {
    if let last = stream.acknowledgedAt, stream.interruptedAt == nil { measured.record(now - last, as: .rhythm) }
    stream.acknowledgedAt = now
  }

  /// A message will never be acknowledged: its delay is at least its age.
  mutating func neverAcknowledged(dueAt: Int64, now: Int64, _ stream: inout StreamFigures) {
    recordDelay(max(0, now - dueAt), &stream)
  }

  /// A message has failed and is not sent again. Because a failure may be quick, its delay is its age at the run's end,
  /// and for the stream's own figures, at the stream's end.
  mutating func failed(dueAt: Int64, _ stream: inout StreamFigures) {
    unanswered.add(dueAt: dueAt)
    stream.failedCount += 1
    stream.failedDueSum += Int128(dueAt)
    stream.failedDueFirst = min(stream.failedDueFirst, dueAt)
  }

  /// A request was due but could not begin, because the maximum number was under way.
  mutating func dropped(bytes: Int, dueAt: Int64, _ stream: inout StreamFigures) {
    totals.messages.dropped += 1
    lost(bytes: UInt64(bytes))
    failed(dueAt: dueAt, &stream)
  }

  /// The run is over. Call it once, after its last stream.
  mutating func ended(now: Int64) {
    unanswered.recordAges(at: now, in: &interval.acknowledgedDelay)
  }

  private mutating func recordDelay(_ delay: Int64, _ stream: inout StreamFigures) {
    if stream.isSlow {
      measured.record(delay, as: .acknowledgedSlow)
    } else {
      interval.acknowledgedDelay.record(delay)
    }
    stream.delayCount += 1
    stream.delaySum += Int128(delay)
    stream.delayMaximum = max(stream.delayMaximum, delay)
  }

  /// Bytes were sent again after an interruption.
  mutating func sentAgain(bytes: UInt64) { totals.bytes.sentAgain += bytes }

  /// Offered bytes were lost.
  mutating func lost(bytes: UInt64) { totals.bytes.lost += bytes }
}

extension LoadHistograms {
  fileprivate mutating func add(_ interval: LoadInterval) {
    self[.lateness].merge(interval.lateness)
    self[.acknowledged].merge(interval.acknowledgedDelay)
  }
}

extension LoadReport {
  /// Adds the measurements of a loop. Its intervals are added to ``intervals`` separately, merged with those of the
  /// other loops.
  mutating func add(_ loop: LoopFigures) {
    totals.merge(loop.totals)
    histograms.merge(loop.histograms)
    spread.merge(loop.spread)
  }
}
