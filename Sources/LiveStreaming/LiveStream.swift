// The shell of a live stream: its content, its rules, timers and requests, joined. What to do is the rules' to say.

internal import Digests
internal import EventLoops
internal import ResumableUploads
internal import StreamBuffers
internal import UploadClient

/// Owned by the session's thread after `init`; unchecked for that reason.
final class LiveStream: @unchecked Sendable {
  let loop: EventLoop

  private let configuration: LiveStreamConfiguration
  private let session: UploadSession
  private let content: any StreamContent
  /// What produces the content, and how it is woken; nil for content that is all there.
  private let live: LiveSource?

  private var machine: any StreamStateMachine
  private var handler: @Sendable (LiveStreamEvent) -> Void = { _ in }
  private var request: RunningRequest?
  private var startTime = MonotonicInstant(nanoseconds: 0)
  private var transport: TransportAcknowledgements
  private var progressTimer: EventLoop.Timer?
  private var retryTimer: EventLoop.Timer?
  private var rollOverTimer: EventLoop.Timer?
  private var lifetimeTimer: EventLoop.Timer?
  private var awaitedOffset: UInt64?
  private var isStarted = false
  private var isSuspended = false
  /// What became due while suspended.
  private var heldStep: StreamStep?
  private var toldAcknowledged: UInt64 = 0
  private var verified: UInt64?
  private var sourceError: LiveStreamError?
  private var sourceLost: UInt64 = 0
  private var response: HTTPResponse?
  /// Itself, from its start to its end: its owner may keep nothing but the events.
  private var keptAlive: LiveStream?
  private var generator = SystemRandomNumberGenerator()

  /// libcurl fails a transfer after 300 KB of response heads, interim ones included: a request ends before that.
  private static let responseHeaderLimit: UInt64 = 200_000

  /// Streams a source through a circular buffer.
  convenience init(
    source: any StreamSource, configuration: LiveStreamConfiguration, session: UploadSession
  ) throws(SystemError) {
    let retention = configuration.resumable == .always ? 0 : configuration.retention
    let ends = try CircularBuffer.make(
      capacity: .bytes(configuration.buffer.byteCount + retention),
      overflow: configuration.overflow == .dropOldest ? .dropOldest : .refuse, memory: configuration.memory)
    let writer = StreamWriter(
      consumer: ends.consumer, pairSize: configuration.pairSize, digest: configuration.digest)
    self.init(
      content: writer, live: LiveSource(source: source, producer: ends.producer, writer: writer),
      configuration: configuration, session: session, upload: UploadClientStateMachine.Configuration())
  }

  /// Uploads a file.
  convenience init(file: UploadFile, configuration: LiveStreamConfiguration, session: UploadSession) {
    var upload = UploadClientStateMachine.Configuration()
    upload.isOptimistic = true
    upload.length = file.size
    upload.digest = file.digest.map { DigestField([($0.algorithm.name, $0.bytes)]) }
    self.init(
      content: FileContent(file), live: nil, configuration: configuration, session: session, upload: upload)
  }

  private init(
    content: any StreamContent, live: LiveSource?, configuration: LiveStreamConfiguration, session: UploadSession,
    upload: UploadClientStateMachine.Configuration
  ) {
    self.content = content
    self.live = live
    self.configuration = configuration
    self.session = session
    loop = session.loop
    transport = TransportAcknowledgements(retention: configuration.retention)
    machine = Self.rules(configuration, upload)
  }

  private static func rules(
    _ configuration: LiveStreamConfiguration, _ chosen: UploadClientStateMachine.Configuration
  ) -> any StreamStateMachine {
    guard configuration.resumable != .never else { return plainRules(configuration) }
    var upload = chosen
    upload.discovers = configuration.resumable == .auto
    upload.appendSize = configuration.rollOver.size
    upload.streamID = configuration.streamID
    upload.digestAlgorithm = configuration.digest?.name
    return ResumableStream(
      upload, target: configuration.request.url, policy: configuration.retry, resuming: configuration.resumeData)
  }

  private static func plainRules(_ configuration: LiveStreamConfiguration) -> any StreamStateMachine {
    PlainStream(policy: configuration.retry, streamID: configuration.streamID)
  }

  // MARK: Start and end

  func start(_ handler: @escaping @Sendable (LiveStreamEvent) -> Void) {
    guard !isStarted else { return }
    isStarted = true
    self.handler = handler
    startTime = .now
    guard !machine.isEnded else { return end(Self.cancelled) }
    keptAlive = self
    do {
      try live?.start(on: loop, context: sourceContext(), dataArrived: { [unowned self] in dataArrived() })
    } catch let error as LiveStreamError {
      return perform(machine.stop(error))
    } catch {
      return perform(machine.stop(LiveStreamError(.source, "\(error)")))
    }
    live?.writer.didWrite = { [unowned self] in didWrite() }
    tickProgress()
    perform(machine.start(content.supply, now: startTime))
  }

  func finish() {
    guard !machine.isEnded else { return }
    live?.source.stop()
  }

  func cancel() {
    let step = machine.stop(Self.cancelled)
    // One that was not started yet has nothing to end; `start` tells.
    if isStarted { perform(step) }
  }

  /// Ends, and lets the server forget what it has (section "Upload Cancellation").
  func abandon() {
    let step = machine.abandon(Self.cancelled)
    if isStarted { perform(step) }
  }

  func suspend() {
    guard !machine.isEnded, !isSuspended else { return }
    isSuspended = true
    request?.task.suspend()
  }

  func resume() {
    guard isSuspended else { return }
    isSuspended = false
    request?.task.resume()
    if let step = heldStep {
      heldStep = nil
      perform(step)
    }
  }

  private static let cancelled = LiveStreamError(.cancelled, "stopped before everything was sent")

  private func sourceContext() -> SourceContext {
    SourceContext(
      loop: loop, overflow: configuration.overflow,
      report: { [weak self, loop] event in
        loop.execute { [weak self] in
          guard let self else { return }
          sourceLost += event.lost
          handler(.source(event))
        }
      },
      fail: { [weak self, loop] error in
        loop.execute { [weak self] in self?.sourceError = self?.sourceError ?? error }
      })
  }

  private func end(_ error: LiveStreamError?) {
    for timer in [progressTimer, retryTimer, rollOverTimer, lifetimeTimer, transport.timer] {
      if let timer { loop.cancel(timer) }
    }
    let resumeData = machine.resumeData
    dropRequest()
    live?.stop(on: loop)
    var summary = StreamSummary(
      progress: progress(), gaps: machine.gaps, resent: machine.resent, sourceLost: sourceLost, response: response,
      missingAtServer: response?["Stream-Missing"].flatMap { UInt64($0) }, error: error ?? sourceError)
    summary.isResumable = !machine.trustsTransport
    summary.resumeData = summary.error == nil ? nil : resumeData
    summary.verified = verified
    handler(.ended(summary))
    handler = { _ in }
    // Not at once: it is still on the stack.
    loop.atEndOfTurn { [self] in keptAlive = nil }
  }

  // MARK: Steps

  private func perform(_ step: StreamStep) {
    for event in machine.takeEvents() { handler(event) }
    settleAcknowledged()
    switch step {
    case .none: break
    case .end(let error): end(error)
    case _ where isSuspended: heldStep = step
    case .request(let next): send(next)
    case .awaitBytes(let offset):
      awaitedOffset = offset
      if !content.requestWakeUp(at: offset) { dataArrived() }
    case .wait(let dropout):
      handler(.dropout(dropout))
      retryTimer = loop.schedule(after: dropout.retryDelay) { [unowned self] in
        retryTimer = nil
        perform(machine.retryIsDue(content.supply))
      }
    case .fallBack(let reason):
      guard configuration.resumable == .auto else {
        return end(
          LiveStreamError(
            .refused,
            "the server does not support resumable uploads: \(reason); --resumable auto goes on without them"))
      }
      handler(.upload(.notSupported(reason)))
      machine = Self.plainRules(configuration)
      perform(machine.start(content.supply, now: .now))
    }
  }

  /// There are bytes where there were none, or the stream has ended.
  private func dataArrived() {
    guard let offset = awaitedOffset else { return live?.writer.write() ?? () }
    // In this order: after the producer has finished, the head is final.
    guard content.isFinished || content.head >= offset || !content.requestWakeUp(at: offset) else { return }
    awaitedOffset = nil
    perform(machine.bytesAreReady(content.supply))
  }

  // MARK: One request after another

  private func send(_ next: StreamRequest) {
    dropRequest()
    if next.describesRepresentation {
      content.restartDigest(at: next.start)
      if let lifetimeTimer { loop.cancel(lifetimeTimer) }
      lifetimeTimer = nil
    }
    let number = UInt64.random(in: .min ... .max, using: &generator)
    do {
      let body: UploadBody =
        switch next.content {
        case .absent: .none
        case .empty: .empty
        case .bytes(let maximum): try content.openBody(from: next.start, maximum: maximum)
        }
      let whole = next.uploadRequest(configuration)
      let task = try session.upload(whole, body: body) { [weak self] event in
        guard let self, let request, request.number == number else { return }
        handle(event, request)
      }
      request = RunningRequest(step: next, whole: whole, task: task, number: number)
      transport.begin(at: next.start)
    } catch {
      content.dropBody()
      let kind: LiveStreamError.Kind = error is SystemError ? .source : .invalidRequest
      perform(machine.stop(LiveStreamError(kind, "\(error)")))
    }
  }

  private func dropRequest() {
    guard let request else { return }
    self.request = nil
    request.task.cancel()
    content.dropBody()
    if let rollOverTimer { loop.cancel(rollOverTimer) }
    rollOverTimer = nil
  }

  private func handle(_ event: UploadTask.Event, _ request: RunningRequest) {
    switch event {
    case .connected:
      machine.connected()
      perform(.none)
    case .interimResponse(let response):
      handler(.interimResponse(response))
      let step = machine.received(
        interim: response, location: location(response, request), sentUpTo: request.sentUpTo, now: .now)
      noteLifetime()
      perform(step)
      if request.task.responseHeaderByteCount > Self.responseHeaderLimit { rollOver() }
    case .finished(let result):
      takeCounts()
      let sentUpTo = request.sentUpTo
      self.request = nil
      content.dropBody()
      if let rollOverTimer { loop.cancel(rollOverTimer) }
      rollOverTimer = nil
      finished(result, request, sentUpTo: sentUpTo)
    }
  }

  private func finished(
    _ result: Result<UploadTask.Outcome, UploadError>, _ request: RunningRequest, sentUpTo: UInt64
  ) {
    var result = result
    var place: String?
    if case .success(let outcome) = result {
      response = outcome.response
      place = location(outcome.response, request)
      if outcome.response.status == 401, let token = configuration.bearerToken?(), token != request.whole.bearerToken {
        // It ran out, and has been renewed meanwhile.
        result = .failure(UploadError(.connectionLost, "the bearer token has changed"))
      }
      compareDigest(outcome.response, sentUpTo: sentUpTo)
    }
    let step = machine.requestEnded(
      RequestEnd(result: result, location: place, sentUpTo: sentUpTo), content.supply, now: .now, using: &generator)
    noteLifetime()
    perform(step)
  }

  private func location(_ response: HTTPResponse, _ request: RunningRequest) -> String? {
    guard let value = response["Location"] else { return nil }
    return configuration.keepsOrigin
      ? request.whole.keepingOrigin(ofLocation: value) : request.whole.resolving(location: value)
  }

  /// The request under way ends where it is, for another to go on.
  private func rollOver() {
    rollOverTimer = nil
    guard let request, request.step.rollsOver else { return }
    if content.endBody() { return }
    // Its length was announced: it can only be broken off.
    let sentUpTo = request.sentUpTo
    dropRequest()
    finished(
      .failure(UploadError(.connectionLost, "broken off to go on in another request")), request, sentUpTo: sentUpTo)
  }

  /// The upload resource's life is counted anew with each response that tells it.
  private func noteLifetime() {
    guard let lifetime = machine.takeLifetime(), !machine.isEnded else { return }
    if let lifetimeTimer { loop.cancel(lifetimeTimer) }
    // Early enough for what is under way to end, and for one more request.
    let margin = max(lifetime / 10, min(.seconds(20), lifetime / 2))
    lifetimeTimer = loop.schedule(after: lifetime - margin) { [unowned self] in
      lifetimeTimer = nil
      guard machine.expiresSoon() else { return }
      if request != nil { return rollOver() }
      if awaitedOffset != nil {
        awaitedOffset = nil
        perform(machine.bytesAreReady(content.supply))
      }
    }
  }

  /// `Repr-Digest` (RFC 9530) against the digest of what went out.
  private func compareDigest(_ response: HTTPResponse, sentUpTo: UInt64) {
    guard let algorithm = configuration.digest, response.isSuccess, let text = response[DigestField.representation],
      let theirs = DigestField(parsing: text)?[algorithm.name], let ours = content.digest(since: machine.base),
      ours.upTo == sentUpTo
    else { return }
    if theirs == ours.value.bytes {
      verified = sentUpTo
    } else {
      handler(.upload(.digestMismatch(offset: sentUpTo)))
      sourceError =
        sourceError
        ?? LiveStreamError(
          .protocolBroken, "the server has other bytes than were sent: its \(algorithm.name) digest differs")
    }
  }

  // MARK: Acknowledgements

  /// The writer has written into the pair.
  private func didWrite() {
    if machine.trustsTransport {
      guard let writer = live?.writer else { return }
      if transport.isDue(writer, now: .now) { checkTransport() }
      schedulePressureCheck(writer)
    } else if rollOverTimer == nil, let request, request.step.rollsOver {
      rollOverTimer = loop.schedule(after: configuration.rollOver.after) { [unowned self] in rollOver() }
    }
  }

  private func checkTransport() {
    request?.task.updateAcknowledged()
    takeCounts()
    settleAcknowledged()
  }

  private func takeCounts() {
    guard let request else { return }
    machine.wrote(upTo: request.step.start + request.task.sentByteCount)
    machine.acknowledgedByTransport(bodyCount: request.task.acknowledgedByteCount, now: .now)
  }

  /// Tells what is acknowledged, and gives it up.
  private func settleAcknowledged() {
    let acknowledged = machine.acknowledged
    if machine.trustsTransport {
      // Nothing is released between a request's end and its verdict: what a refused one has carried may be needed again.
      content.release(upTo: transport.releasable(acknowledged: acknowledged, capacity: content.capacity))
    } else {
      content.release(upTo: acknowledged)
      if acknowledged > toldAcknowledged {
        toldAcknowledged = acknowledged
        handler(.acknowledged(acknowledged))
      }
    }
  }

  private func schedulePressureCheck(_ writer: StreamWriter) {
    guard transport.timer == nil, let delay = transport.pressureDelay(writer, acknowledged: machine.acknowledged) else {
      return
    }
    transport.timer = loop.schedule(after: delay) { [unowned self] in
      transport.timer = nil
      let before = machine.acknowledged
      checkTransport()
      transport.looked(hasProgress: machine.acknowledged > before)
      if request != nil { schedulePressureCheck(writer) }
    }
  }

  // MARK: Progress

  private func tickProgress() {
    guard let interval = configuration.progressInterval else { return }
    progressTimer = loop.schedule(after: interval) { [unowned self] in
      if machine.trustsTransport { checkTransport() }
      handler(.progress(progress()))
      tickProgress()
    }
  }

  private func progress() -> StreamProgress {
    let head = content.head
    let sent = max(machine.sent, request?.sentUpTo ?? 0)
    return StreamProgress(
      elapsed: .now - startTime, captured: head, sent: sent, acknowledged: machine.acknowledged,
      buffered: live == nil ? 0 : Int(head - min(head, max(machine.acknowledged, content.oldest))),
      capacity: live == nil ? 0 : configuration.buffer.byteCount,
      dropouts: machine.dropouts, lost: machine.lost, isConnected: request != nil || awaitedOffset != nil)
  }
}
