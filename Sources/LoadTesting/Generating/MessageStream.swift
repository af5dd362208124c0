// A stream with a separate request for each message, such as log lines, sensor readings or pieces of speech.

internal import EventLoops
internal import LiveStreaming
internal import LoadReports
internal import UploadClient

/// Sends messages over persistent connections that the streams of a lane share. A failed message is not sent again, and
/// counts as an error and as lost.
///
/// Without ``LoadConfiguration/arrivals``, one request follows another. A message that becomes due during a request
/// waits for its end, and its delay counts from its due time. With arrivals, each request begins when it is due, and is
/// dropped if the loop has reached its maximum.
///
/// Owned by its loop's thread; unchecked for that reason.
final class MessageStream: PacedStream, PacedSourceObserver, @unchecked Sendable {
  /// A message in progress. On the loop's thread, like its stream.
  private final class Request: @unchecked Sendable {
    let message: MessageLedger.Message
    var task: UploadTask?
    var sentAt: Int64 = 0
    init(_ message: MessageLedger.Message) { self.message = message }
  }

  private let loop: LoadLoop
  private let place: LoadPlace
  private let source: PacedSource
  private var figures: StreamFigures
  /// Whether each request begins when its message is due.
  private let isOpen: Bool
  /// Messages that are due but not yet sent.
  private var waiting = MessageLedger()
  private var underWay: [ObjectIdentifier: Request] = [:]
  /// The unfinished message of a cancelled request.
  private var cancelled: [MessageLedger.Message] = []
  private var sentCount = 0
  private var retryTimer: EventLoop.Timer?
  private var isStopped = false
  private var isDue = false
  private var hasFailed = false
  private var hasAcknowledged = false

  init(_ place: LoadPlace, on loop: LoadLoop, life: Range<Int64>) {
    let plan = loop.plan
    let configuration = plan.configuration
    let schedule = StreamSchedule(
      configuration.profile, seed: configuration.seed, stream: place.index, generation: place.generation,
      arrivals: plan.arrivals.map { ($0, configuration.streams) })
    self.loop = loop
    self.place = place
    isOpen = plan.arrivals != nil
    source = PacedSource(
      configuration.profile, schedule, bytes: plan.bytes, stream: place.index, start: life.lowerBound,
      end: life.upperBound,
      clock: plan.clock)
    figures = loop.figures.streamStarted(index: place.index, continuing: place.outage, now: plan.clock.now)
  }

  func begin() {
    source.observer = self
    source.start(on: loop.eventLoop) { [unowned self] in sendNext() }
  }

  func quiet() {
    source.quiet()
    finishIfAcknowledged()
  }

  var isAcknowledged: Bool { waiting.isEmpty && underWay.isEmpty }

  func finish() { end() }

  /// Each message is answered or fails, so no acknowledgement must be requested.
  func finishUnacknowledged() {}

  func stop(isDue: Bool) {
    (isStopped, self.isDue) = (true, isDue)
    for request in Array(underWay.values) { request.task?.cancel() }
    if underWay.isEmpty { end() }
  }

  private func finishIfAcknowledged() {
    if source.isQuiet || source.isFinished, isAcknowledged { loop.finish(self) }
  }

  // MARK: The source

  func became(due message: StreamSchedule.Message, at due: Int64, now: Int64) {
    loop.figures.due(bytes: message.byteCount, &figures)
    loop.figures.reached(dueAt: due, now: now)
    if isOpen, !loop.mayBeginRequest() {
      loop.figures.dropped(bytes: message.byteCount, dueAt: due, &figures)
    } else {
      waiting.due(message.byteCount, at: due)
    }
  }

  func handedOver(before offset: UInt64, now: Int64) {}

  /// Never called, because the source of a stream of requests does not wait for space.
  func stalled(for time: Int64) {}

  // MARK: Requests

  private func sendNext() {
    while !isStopped, isOpen || underWay.isEmpty && retryTimer == nil, let message = waiting.oldest {
      _ = waiting.nextAcknowledged(before: message.end)
      guard send(message) else { return }
    }
    finishIfAcknowledged()
  }

  /// Returns false if the run should end.
  private func send(_ message: MessageLedger.Message) -> Bool {
    let request = Request(message)
    do throws(UploadError) {
      let number = isOpen ? place.index + sentCount * loop.plan.configuration.streams : place.index
      request.task = try loop.session.upload(
        loop.plan.request(of: place, number: number), body: .bytes(content(of: message)),
        lane: loop.plan.lane(of: place, number: number)
      ) { [self] event in
        handle(event, of: request)
      }
    } catch {
      // A problem with one request affects all.
      cancelled.append(message)
      loop.plan.end(.failed(error.description))
      return false
    }
    sentCount += 1
    underWay[ObjectIdentifier(request)] = request
    request.sentAt = loop.plan.clock.now
    loop.figures.attempts(&figures, now: request.sentAt)
    loop.figures.sent(bytes: message.byteCount, &figures)
    if loop.plan.spend(bytes: message.byteCount) { loop.capReached() }
    return true
  }

  private func content(of message: MessageLedger.Message) -> [UInt8] {
    let content = loop.plan.bytes.bytes(
      stream: place.index, at: message.end - UInt64(message.byteCount), count: message.byteCount)
    // In an open model, nothing waits for space or for the previous message.
    if !isOpen { source.taken(before: message.end) }
    return content
  }

  private func handle(_ event: UploadTask.Event, of request: Request) {
    switch event {
    case .connected(let isNew):
      let now = loop.plan.clock.now
      loop.figures.connected(&figures, after: isNew ? now - request.sentAt : nil)
      if isNew, loop.plan.spendConnection() { loop.capReached() }
    case .interimResponse: loop.figures.interimResponse()
    case .accepted, .response, .responseBody: break
    case .finished(let result): finished(request, result)
    }
  }

  private func finished(_ request: Request, _ result: Result<UploadTask.Outcome, UploadError>) {
    let message = request.message
    guard underWay.removeValue(forKey: ObjectIdentifier(request)) != nil else { return }
    if isOpen { loop.requestEnded() }
    let now = loop.plan.clock.now
    switch result {
    case .success(let outcome):
      let status = outcome.response.status
      loop.figures.response(status, after: request.task?.contentEndedAt.map { (.now - $0).nanoseconds })
      // A server cannot have stored what was not sent. libcurl may retain bytes that it has taken.
      let isSent = !outcome.isEarly && request.task?.passedOnByteCount ?? 0 >= UInt64(message.byteCount)
      if outcome.response.confirmsContent, isSent {
        hasAcknowledged = true
        loop.figures.acknowledged(bytes: message.byteCount, dueAt: message.due, now: now, &figures)
      } else if outcome.response.confirmsContent {
        fail(message, ErrorClass.http(status), "the server answered \(status) before all of the message was sent")
      } else {
        let meaning = outcome.response.isSuccess ? ", which does not confirm the message" : ""
        fail(message, ErrorClass.http(status), outcome.response.reason ?? "the server answered \(status)\(meaning)")
      }
    case .failure(let error) where error.kind == .cancelled: cancelled.append(message)
    case .failure(let error):
      fail(message, error.kind.errorClass.rawValue, error.description)
      if error.kind == .http2NotSupported { loop.http2NotSupported(error.description) }
      // An outage counts as one interruption, however many requests fail during it.
      if figures.isInterrupted {
        loop.figures.attemptFailed(&figures, now: now)
      } else {
        loop.figures.interrupted(&figures, cause: error.kind.errorClass.rawValue, now: now)
      }
      // A server that refuses connections must not be asked as fast as it can refuse.
      if !isStopped, !isOpen {
        retryTimer = loop.eventLoop.schedule(after: Self.pauseAfterFailure) { [unowned self] in
          retryTimer = nil
          sendNext()
        }
      }
    }
    // Breaks the reference cycle between the task's closures and the request.
    request.task = nil
    if isStopped {
      if underWay.isEmpty { end() }
    } else {
      sendNext()
    }
  }

  private static let pauseAfterFailure = Duration.milliseconds(100)

  private func fail(_ message: MessageLedger.Message, _ name: String, _ example: String) {
    hasFailed = true
    loop.figures.error(name, example: example)
    loop.figures.lost(bytes: UInt64(message.byteCount))
    loop.figures.failed(dueAt: message.due, &figures)
  }

  private func end() {
    guard source.observer != nil else { return }
    if let retryTimer { loop.eventLoop.cancel(retryTimer) }
    retryTimer = nil
    source.observer = nil
    source.stop()
    while let message = waiting.nextAcknowledged(before: waiting.head) { cancelled.append(message) }
    for message in cancelled {
      loop.figures.failed(dueAt: message.due, &figures)
      if isDue { loop.figures.lost(bytes: UInt64(message.byteCount)) }
    }
    let isUnfinished = !cancelled.isEmpty
    if isUnfinished, isDue {
      loop.figures.error(
        ErrorClass.unfinished.rawValue, example: "the run ended before the server answered all messages")
    }
    // A stream of which everything has failed so far has failed, even if the run ends early because of that.
    let outcome: StreamOutcome =
      hasFailed && !hasAcknowledged ? .failed : !isUnfinished ? .finished : isDue ? .failed : .stopped
    let now = loop.plan.clock.now
    let outage = outcome == .failed ? figures.takeOutage(now: now) : nil
    loop.figures.streamEnded(&figures, outcome, now: now)
    loop.ended(self, place, thinkTime: source.thinkTime, outcome, outage)
  }
}

extension UploadError.Kind {
  /// Its class in the report. A cancelled request is not an error.
  fileprivate var errorClass: ErrorClass {
    switch self {
    case .unknownHost: .unknownHost
    case .unreachable: .unreachable
    case .connectionLost: .connectionLost
    case .timedOut: .timedOut
    case .tlsFailed: .tls
    case .proxyRefused: .notPermitted
    case .certificateNotTrusted, .certificateNotYetValid: .notTrusted
    case .invalidRequest, .badCredentialsFile: .invalidRequest
    case .protocolViolation, .http2Violation: .protocolBroken
    case .http2NotSupported: .http2
    case .bodyFailed: .source
    case .cancelled: .unfinished
    case .cut, .other: .other
    }
  }
}
