// One stream of a load test: an ordinary live stream with its measurements.

internal import EventLoops
internal import LiveStreaming
internal import LoadReports
internal import UploadClient

/// Owned by its loop's thread; unchecked for that reason.
final class LoadStream: PacedStream, PacedSourceObserver, @unchecked Sendable {
  private let loop: LoadLoop
  private let source: PacedSource
  private var ledger = MessageLedger()
  private var figures: StreamFigures
  /// When the current request was sent; nil after its first interim response.
  private var requestSentAt: Int64?
  private var isConnected = false
  /// Whether the generator sends nothing now, as its profile requires.
  private var isSuspended = false
  /// A plain upload is not acknowledged before its end. Then the final response acknowledges the bytes of its request.
  private var isPlain = false
  private var requestStart: UInt64 = 0
  private var isStopped = false
  private var isFinishing = false
  private let place: LoadPlace
  private let streamer: LiveStreamer
  private var faults: FaultSchedule
  private var faultTimer: EventLoop.Timer?
  /// The start of the stream, on the run's clock.
  private let start: Int64

  init(_ place: LoadPlace, on loop: LoadLoop, life: Range<Int64>) {
    let plan = loop.plan
    let schedule = StreamSchedule(
      plan.configuration.profile, seed: plan.configuration.seed, stream: place.index, generation: place.generation)
    self.loop = loop
    self.place = place
    start = life.lowerBound
    isPlain = plan.configuration.resumable == .never
    faults = FaultSchedule(
      plan.configuration.profile, seed: plan.configuration.seed, stream: place.index, generation: place.generation)
    source = PacedSource(
      plan.configuration.profile, schedule, bytes: plan.bytes, stream: place.index, start: life.lowerBound,
      end: life.upperBound, clock: plan.clock)
    streamer = LiveStreamer(source, configuration: plan.streamConfiguration(place), session: loop.session)
    figures = loop.figures.streamStarted(
      index: place.index, isSlow: schedule.isSlow, continuing: place.outage, now: plan.clock.now)
  }

  func begin() {
    source.observer = self
    streamer.start { [self] event in handle(event) }
    scheduleFault()
  }

  func quiet() {
    source.quiet()
    finishIfAcknowledged()
  }

  func stop(isDue: Bool) {
    isStopped = !isDue || figures.isSlow
    streamer.cancel()
  }

  var isAcknowledged: Bool { isPlain || ledger.isEmpty }

  private func finishIfAcknowledged() {
    guard source.isQuiet, !isFinishing, isAcknowledged else { return }
    isFinishing = true
    loop.finish(self)
  }

  func finish() { streamer.finish() }

  /// Ends a stream whose last bytes are not acknowledged. A proxy may drop interim responses, or has forwarded its
  /// maximum number for one request. The answer to the end of the request acknowledges them. A slow line may still take
  /// what is due.
  func finishUnacknowledged() {
    guard !isFinishing, !figures.isSlow else { return }
    isFinishing = true
    loop.finish(self)
  }

  // MARK: The source

  func became(due message: StreamSchedule.Message, at due: Int64, now: Int64) {
    ledger.due(message.byteCount, at: due)
    loop.figures.due(bytes: message.byteCount, &figures)
    loop.figures.reached(dueAt: due, now: now)
  }

  func handedOver(before offset: UInt64, now: Int64) {
    while let message = ledger.nextSent(before: offset) {
      loop.figures.sent(bytes: message.byteCount, &figures)
      if loop.plan.spend(bytes: message.byteCount) { loop.capReached() }
    }
  }

  func stalled(for time: Int64) { loop.figures.stalled(for: time) }

  // MARK: The stream

  private func handle(_ event: LiveStreamEvent) {
    switch event {
    case .acknowledged(let offset): acknowledged(before: offset)
    case .accepted(let offset): accepted(before: offset, now: loop.plan.clock.now)
    case .interimResponse:
      loop.figures.interimResponse()
      if let sent = requestSentAt {
        loop.figures.interim(after: loop.plan.clock.now - sent)
        requestSentAt = nil
      }
    case .connected(let isNew, let delay): connected(isNew: isNew, after: delay)
    case .response(let status, let delay): loop.figures.response(status, after: delay?.nanoseconds)
    case .connecting(let offset, _):
      requestStart = offset
      // Also without an outage: a bearer token is renewed.
      if isConnected { disconnected() }
      loop.figures.attempts(&figures, now: loop.plan.clock.now)
    case .outage(let attempt): dropped(attempt)
    case .attemptFailed:
      disconnected()
      loop.figures.attemptFailed(&figures, now: loop.plan.clock.now)
    case .gap(let gap):
      ledger.lost(gap.offset..<gap.offset.addingSaturated(gap.length))
      loop.figures.lost(bytes: gap.length)
    case .missingAtServer(let count): loop.figures.lost(bytes: count)
    case .upload(.notSupported): isPlain = true
    case .upload(.serverWentBack(let before, let now)):
      loop.figures.error(
        ErrorClass.wentBack.rawValue,
        example: "the server has less than it had acknowledged: \(now) bytes instead of \(before)")
    case .ended(let summary): ended(summary)
    case .streaming, .discarding, .upload, .source, .progress, .missed: break
    }
  }

  private func connected(isNew: Bool, after delay: Duration) {
    isConnected = true
    source.waitsForServer = !isSuspended
    requestSentAt = loop.plan.clock.now
    loop.figures.connected(&figures, after: isNew ? delay.nanoseconds : nil)
    if isPlain { loop.figures.recovered(&figures, now: loop.plan.clock.now) }
    if isNew, loop.plan.spendConnection() { loop.capReached() }
  }

  private func accepted(before offset: UInt64, now: Int64) {
    while let message = ledger.nextAccepted(before: offset) {
      // The lost bytes were never passed to TCP, or did not arrive.
      guard message.lostByteCount == 0 else { continue }
      loop.figures.accepted(bytes: message.byteCount, dueAt: message.due, now: now, &figures)
    }
  }

  private func acknowledged(before offset: UInt64) {
    let now = loop.plan.clock.now
    // At a request's end nothing more is requested from the source, which otherwise shows that TCP has accepted bytes.
    if loop.plan.configuration.tellsAccepted { accepted(before: offset, now: now) }
    loop.figures.acknowledgement(&figures, now: now)
    while let message = ledger.nextAcknowledged(before: offset) {
      guard message.lostByteCount > 0 else {
        loop.figures.acknowledged(bytes: message.byteCount, dueAt: message.due, now: now, &figures)
        continue
      }
      loop.figures.neverAcknowledged(dueAt: message.due, now: now, &figures)
      let count = message.byteCount - message.lostByteCount
      if count > 0 { loop.figures.acknowledgedPart(bytes: UInt64(count), &figures) }
    }
    if source.isQuiet { finishIfAcknowledged() }
  }

  private func disconnected() {
    source.waitsForServer = false
    isConnected = false
    requestSentAt = nil
  }

  private func dropped(_ attempt: FailedAttempt) {
    disconnected()
    let cause = attempt.cause == .cut ? nil : attempt.cause.errorClass
    if figures.continuesOutage, cause != nil {
      // Its predecessor was interrupted.
      loop.figures.attemptFailed(&figures, now: loop.plan.clock.now)
    } else {
      loop.figures.interrupted(&figures, cause: cause, now: loop.plan.clock.now)
    }
    // An outage is one error for each of its causes, however many streams it ends.
    guard let cause, cause != figures.countedCause else { return }
    figures.countedCause = cause
    loop.figures.error(
      cause, example: attempt.reason.map { "\(attempt.cause): \"\($0)\"" } ?? attempt.cause.description)
  }

  /// A plain request was answered, which acknowledges its bytes. Those of earlier, interrupted requests are never
  /// acknowledged.
  private func completedPlain() {
    let now = loop.plan.clock.now
    while let message = ledger.nextAcknowledged(before: requestStart) {
      loop.figures.neverAcknowledged(dueAt: message.due, now: now, &figures)
    }
    // The request may begin within a message whose first bytes were lost. The server has the rest of it.
    if let message = ledger.oldest, message.end - UInt64(message.byteCount) < requestStart {
      _ = ledger.nextAcknowledged(before: message.end)
      loop.figures.neverAcknowledged(dueAt: message.due, now: now, &figures)
      loop.figures.acknowledgedPart(bytes: message.end - requestStart, &figures)
    }
    acknowledged(before: ledger.head)
  }

  private func ended(_ summary: StreamSummary) {
    if let faultTimer { loop.eventLoop.cancel(faultTimer) }
    faultTimer = nil
    loop.figures.sentAgain(bytes: summary.resent)
    if isPlain, summary.error == nil { completedPlain() }
    let now = loop.plan.clock.now
    var outcome = StreamOutcome.finished
    if let error = summary.error {
      outcome =
        error.kind != .cancelled ? .failed : isStopped ? .stopped : isAcknowledged && !isPlain ? .finished : .failed
      if error.kind == .http2NotSupported { loop.http2NotSupported(error.description) }
      if outcome == .failed {
        // If the run ends during an outage, its end does not count as another error.
        if figures.countedCause == nil || !error.isEndOfRun {
          loop.figures.error(error.errorClass.rawValue, example: error.description)
        }
        loop.figures.lost(
          bytes: figures.offered - min(figures.offered, max(figures.acknowledged, summary.progress.settled)))
      }
    }
    while let message = ledger.nextAcknowledged(before: ledger.head) {
      loop.figures.neverAcknowledged(dueAt: message.due, now: now, &figures)
    }
    // A wait that never ended counts with its length so far.
    source.waitsForServer = false
    source.observer = nil
    let outage = outcome == .failed ? figures.takeOutage(now: now) : nil
    loop.figures.streamEnded(&figures, outcome, now: now)
    loop.ended(self, place, thinkTime: source.thinkTime, outcome, outage)
  }

  // MARK: Faults

  private func scheduleFault() {
    guard let (time, fault) = faults.next() else { return }
    faultTimer = loop.eventLoop.schedule(at: loop.plan.clock.instant(start + time)) { [unowned self] in
      faultTimer = nil
      perform(fault)
    }
  }

  private func perform(_ fault: FaultSchedule.Fault) {
    guard !source.isQuiet else { return }
    switch fault {
    case .drop:
      // Without a connection, there is nothing to cut.
      if isConnected { streamer.cutConnection() }
      scheduleFault()
    case .stall(let length):
      streamer.suspend()
      isSuspended = true
      source.waitsForServer = false
      faultTimer = loop.eventLoop.schedule(after: .nanoseconds(length)) { [unowned self] in
        faultTimer = nil
        streamer.resume()
        isSuspended = false
        source.waitsForServer = isConnected
        scheduleFault()
      }
    }
  }
}

/// The place of a stream in a run.
struct LoadPlace {
  /// The number among all streams of the run.
  var index: Int
  /// 0 for the first one in its place, and 1 for its successor.
  var generation = 0
  /// The outage in which its predecessor failed. Nil if there was none.
  var outage: StreamOutage?
}

extension FailedAttempt.Cause {
  /// Its class in the report. A deliberate cut is not an error.
  var errorClass: String {
    switch self {
    case .unknownHost: ErrorClass.unknownHost.rawValue
    case .unreachable: ErrorClass.unreachable.rawValue
    case .connectionLost: ErrorClass.connectionLost.rawValue
    case .timedOut: ErrorClass.timedOut.rawValue
    case .response(let status): ErrorClass.http(status)
    case .overtaken: ErrorClass.overtaken.rawValue
    case .cut, .machine, .other: ErrorClass.other.rawValue
    }
  }
}

extension LiveStreamError {
  /// Whether the run ended, and not the stream.
  fileprivate var isEndOfRun: Bool {
    switch kind {
    case .cancelled, .unfinished: true
    case .unreachable, .invalidRequest, .notPermitted, .notTrusted, .refused, .protocolBroken, .insecureLocation,
      .http2NotSupported, .overflow, .source:
      false
    }
  }

  /// Its class in the report.
  var errorClass: ErrorClass {
    switch kind {
    case .invalidRequest: .invalidRequest
    case .notPermitted: .notPermitted
    case .notTrusted: .notTrusted
    case .refused: .refused
    case .protocolBroken: .protocolBroken
    case .insecureLocation: .insecureLocation
    case .http2NotSupported: .http2
    case .unreachable: .gaveUp
    case .overflow: .overflow
    case .source: .source
    case .cancelled, .unfinished: .unfinished
    }
  }
}
