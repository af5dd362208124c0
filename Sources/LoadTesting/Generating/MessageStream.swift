// A stream of which each message is a request of its own: log lines, sensor readings, pieces of speech.

internal import EventLoops
internal import LiveStreaming
internal import UploadClient

/// Sends one message after another, over connections that are kept and that the streams of a lane take in turn. A
/// message that becomes due while another is under way waits its turn, and its delay counts from the time at which it
/// was due. A message that fails is not sent again: it counts as an error, and as lost.
///
/// Owned by its loop's thread; unchecked for that reason.
final class MessageStream: PacedStream, PacedSourceObserver, @unchecked Sendable {
  private let loop: LoadLoop
  private let place: LoadPlace
  private let source: PacedSource
  private var figures: StreamFigures
  private let request: UploadRequest
  private let lane: Int
  /// What is due and not answered; the first is under way if there is a task.
  private var messages = MessageLedger()
  private var task: UploadTask?
  private var sentAt: Int64 = 0
  private var retryTimer: EventLoop.Timer?
  private var isStopped = false
  private var isDue = false
  private var hasFailed = false
  private var hasAcknowledged = false

  init(_ place: LoadPlace, on loop: LoadLoop, life: Range<Int64>) {
    let plan = loop.plan
    let configuration = plan.configuration
    let schedule = StreamSchedule(
      configuration.profile, seed: configuration.seed, stream: place.index, generation: place.generation)
    self.loop = loop
    self.place = place
    source = PacedSource(
      configuration.profile, schedule, bytes: plan.bytes, stream: place.index, start: life.lowerBound,
      end: life.upperBound,
      clock: plan.clock)
    let stream = plan.streamConfiguration(place)
    request = stream.request
    lane = stream.lane
    figures = loop.figures.streamStarted(index: place.index, isSlow: false, now: plan.clock.now)
  }

  func begin() {
    source.observer = self
    source.start(on: loop.loop) { [unowned self] in sendNext() }
  }

  func quiet() {
    source.quiet()
    finishIfAcknowledged()
  }

  var isAcknowledged: Bool { messages.isEmpty }

  func finish() { end() }

  /// Each message is answered, or fails: there is nothing to be asked for.
  func finishUnacknowledged() {}

  func stop(isDue: Bool) {
    (isStopped, self.isDue) = (true, isDue)
    guard let task else { return end() }
    task.cancel()
  }

  private func finishIfAcknowledged() {
    if source.isQuiet || source.isFinished, messages.isEmpty { loop.finish(self) }
  }

  // MARK: The source

  func became(due message: StreamSchedule.Message, at due: Int64, now: Int64) {
    messages.due(message.byteCount, at: due)
    loop.figures.due(bytes: message.byteCount, &figures)
    loop.figures.reached(dueAt: due, now: now)
  }

  func handedOver(before offset: UInt64, now: Int64) {}

  func stalled(for time: Int64) { loop.figures.stalled(for: time) }

  // MARK: Requests

  private func sendNext() {
    guard task == nil, retryTimer == nil, !isStopped else { return }
    guard let message = messages.oldest else { return finishIfAcknowledged() }
    do throws(UploadError) {
      task = try loop.session.upload(request, body: .bytes(bytes(of: message)), lane: lane) { [self] event in
        handle(event)
      }
    } catch {
      // What is wrong with one is wrong with all.
      loop.plan.end(error.description)
      return
    }
    sentAt = loop.plan.clock.now
    loop.figures.attempts(&figures, now: sentAt)
    loop.figures.sent(bytes: message.byteCount, &figures)
    if loop.plan.spend(bytes: message.byteCount) { loop.capReached() }
  }

  private func bytes(of message: MessageLedger.Message) -> [UInt8] {
    [UInt8](unsafeUninitializedCapacity: message.byteCount) { buffer, count in
      while count < message.byteCount {
        let offset = message.end - UInt64(message.byteCount - count)
        count += source.read(at: offset, maximum: min(message.byteCount - count, BodyBytes.window)) { span in
          let part = min(span.byteCount, message.byteCount - count)
          span.withUnsafeBytes { bytes in
            UnsafeMutableRawBufferPointer(rebasing: UnsafeMutableRawBufferPointer(buffer)[count...])
              .copyMemory(from: UnsafeRawBufferPointer(rebasing: bytes[..<part]))
          }
          return part
        }
      }
    }
  }

  private func handle(_ event: UploadTask.Event) {
    switch event {
    case .connected(let isNew):
      let now = loop.plan.clock.now
      loop.figures.connected(&figures, after: isNew ? now - sentAt : nil)
      if isNew, loop.plan.spendConnection() { loop.capReached() }
    case .interimResponse: loop.figures.interimResponse()
    case .accepted, .response, .responseBody: break
    case .finished(let result): finished(result)
    }
  }

  private func finished(_ result: Result<UploadTask.Outcome, UploadError>) {
    let ended = task
    task = nil
    let now = loop.plan.clock.now
    guard let message = messages.oldest else { return }
    switch result {
    case .success(let outcome):
      let status = outcome.response.status
      loop.figures.response(status, after: ended?.contentEndedAt.map { (.now - $0).nanoseconds })
      if outcome.response.isSuccess {
        _ = messages.nextAcknowledged(before: message.end)
        hasAcknowledged = true
        loop.figures.acknowledged(bytes: message.byteCount, dueAt: message.due, now: now, &figures)
      } else {
        fail(message, "http-\(status)", outcome.response.reason ?? "the server answered \(status)")
      }
    case .failure(let error) where error.kind == .cancelled:
      return end()
    case .failure(let error):
      fail(message, Self.errorClass(error.kind), error.description)
      // An outage is one interruption, however many requests fail while it lasts.
      if figures.isInterrupted {
        loop.figures.attemptFailed(&figures, now: now)
      } else {
        loop.figures.interrupted(&figures, cause: Self.errorClass(error.kind), now: now)
      }
      // A server that refuses connections is not asked as fast as it can refuse.
      if !isStopped {
        retryTimer = loop.loop.schedule(after: Self.pauseAfterFailure) { [unowned self] in
          retryTimer = nil
          sendNext()
        }
      }
    }
    if isStopped { return end() }
    sendNext()
  }

  private static let pauseAfterFailure = Duration.milliseconds(100)

  private func fail(_ message: MessageLedger.Message, _ name: String, _ example: String) {
    _ = messages.nextAcknowledged(before: message.end)
    hasFailed = true
    loop.figures.error(name, example: example)
    loop.figures.lost(bytes: UInt64(message.byteCount))
    loop.figures.failed(dueAt: message.due, &figures)
  }

  private func end() {
    guard source.observer != nil else { return }
    if let retryTimer { loop.loop.cancel(retryTimer) }
    retryTimer = nil
    source.observer = nil
    source.stop()
    let now = loop.plan.clock.now
    let isUnfinished = !messages.isEmpty
    while let message = messages.nextAcknowledged(before: messages.head) {
      loop.figures.failed(dueAt: message.due, &figures)
      if isDue { loop.figures.lost(bytes: UInt64(message.byteCount)) }
    }
    if isUnfinished, isDue { loop.figures.error("unfinished", example: "stopped before everything was answered") }
    let outcome: StreamOutcome =
      isUnfinished && !isDue ? .stopped : isUnfinished || hasFailed && !hasAcknowledged ? .failed : .finished
    loop.figures.streamEnded(&figures, outcome, now: now)
    loop.ended(self, place, thinkTime: source.thinkTime, outcome)
  }

  /// A short word for all failures that are alike.
  private static func errorClass(_ kind: UploadError.Kind) -> String {
    switch kind {
    case .unknownHost: "unknown-host"
    case .unreachable: "unreachable"
    case .connectionLost: "connection-lost"
    case .timedOut: "timed-out"
    default: kind.rawValue
    }
  }
}
