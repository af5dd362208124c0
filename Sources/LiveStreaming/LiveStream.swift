// The shell of a live stream. It connects content, state machine, timers and requests. The state machine decides.

internal import Digests
internal import EventLoops
internal import HTTPMessages
internal import ResumableUploads
internal import StreamBuffers
internal import UploadClient

/// Owned by the session's thread after `init`; unchecked for that reason.
final class LiveStream: @unchecked Sendable {
  // The members that each message uses come first and adjacent. With thousands of streams, the processor has to wait
  // for each cache line.

  let loop: EventLoop
  let content: any StreamContent
  /// The writer for content that is being produced.
  let writer: StreamWriter?
  var awaitedOffset: UInt64?
  /// A copy of a property of `machine`. It is read for every message, and each read from an `any` copies its whole
  /// content.
  var trustsTransport: Bool
  var isSuspended = false
  var request: RunningRequest?
  /// A request that was interrupted before its end. It continued until the end of that turn.
  var brokenOff: RunningRequest?
  var toldAcknowledged: UInt64 = 0
  var machine: any StreamStateMachine
  var handler: @Sendable (LiveStreamEvent) -> Void = { _ in }
  var rollOverTimer: EventLoop.Timer?
  var pauseTimer: EventLoop.Timer?
  var intermediary = IntermediaryLimits()

  let session: UploadSession
  let configuration: LiveStreamConfiguration
  /// The source of the content and its wake-ups. Nil for content that is complete.
  let live: LiveSource?
  var startTime = MonotonicInstant(nanoseconds: 0)
  var transport: TransportAcknowledgements
  var progressTimer: EventLoop.Timer?
  var retryTimer: EventLoop.Timer?
  var lifetimeTimer: EventLoop.Timer?
  var finishTimer: EventLoop.Timer?
  /// The longest time without progress at the end of the stream.
  var finishLimit: Duration?
  /// The request at the end of the stream that moves nothing, what it had moved, and since when.
  private var silence: (request: UInt64, traffic: RequestTraffic, since: MonotonicInstant)?
  /// Whether the stream was finished before its start.
  private var finishesAtStart = false
  var hasConnected = false
  /// Whether the last request has never had a connection, so that the address of the server may have changed.
  var lacksConnection = false
  /// The reason of this machine for the last failed attempt. Nil if the last attempt failed for another reason,
  /// or after a connection.
  var machineError: SystemError?
  var isStarted = false
  var isAbandoned = false
  /// The step that became due during the suspension.
  var heldStep: StreamStep?
  /// The bytes that the server's last digest covered.
  var verified: Range<UInt64>?
  /// The error if the server's digest differs from that of the sent bytes.
  var digestError: LiveStreamError?
  /// The work after the spool has stored what it can, or does not answer.
  var afterSpool: (() -> Void)?
  var diskTimer: EventLoop.Timer?
  /// Ends the wait for the spool, while there is one.
  var endWithoutSpool: (() -> Void)?
  /// Whether the session closes. Its thread then does not wait for the spool.
  var isSessionClosing = false
  /// The number of bytes that the server lacks, although it has confirmed the stream, and that stay in the spool.
  var missingInSpool: UInt64 = 0
  /// See ``StreamSummary/notSynchronized``.
  var notSynchronized: UInt64 = 0
  /// The newest valid bearer token.
  var token: String?
  var sourceLost: UInt64 = 0
  var sourceSkipped: UInt64 = 0
  var sourceUnit = SourceEvent.Unit.frames
  /// The stream offset before which bytes were released because they were acknowledged.
  var released: UInt64 = 0
  /// The bytes that were lost between the source and the server.
  var losses = LossLedger()
  var gaps = 0
  /// Where the newest loss of the oldest bytes begins for which ``LiveStreamEvent/discarding(_:)`` was reported. Nil if
  /// a gap was reported for each.
  var discardingFrom: UInt64?
  /// The newest hole of the spool for which it was reported, and no gap yet.
  var discardingHole: Range<UInt64>?
  /// Bytes that were sent more than once before the fallback to a plain upload.
  var resentBeforeFallBack: UInt64 = 0
  /// See ``FailedAttempt/unconfirmed``.
  var unconfirmed: UInt64 = 0
  var response: HTTPResponse?
  /// Why its body is incomplete.
  var responseFailure: UploadError?
  /// See ``FailedAttempt/locationOrigin``: that of the last request, if it failed.
  var locationOrigin: String?
  /// Makes the description of the stream for the server.
  var describer: StreamDescriber?
  /// The registration for the closing of the session, from the start of the stream to its end.
  var closing: UInt64?
  /// The stream itself, from its start to its end, because its owner may keep only the events.
  var keptAlive: LiveStream?

  /// Streams a source.
  convenience init(_ live: LiveSource, configuration: LiveStreamConfiguration, session: UploadSession) {
    self.init(
      content: live.writer, live: live, configuration: configuration, session: session,
      upload: UploadClientStateMachine.Configuration())
  }

  /// The longest file that is sent with its creation, in bytes. If a proxy drops the 104 with the Location, all sent
  /// bytes are lost with the connection. So a longer file justifies one or two round trips before it (section "Careful
  /// Upload Creation").
  private static let optimisticLimit: UInt64 = 4 << 20

  /// The smallest `max-append-size` and `max-size` of a server that a stream can use, in bytes. A smaller limit would
  /// cause hundreds of requests per second.
  private static let smallestLimit: UInt64 = 1000

  /// Uploads a file.
  convenience init(file: UploadFile, configuration: LiveStreamConfiguration, session: UploadSession) {
    var upload = UploadClientStateMachine.Configuration()
    upload.isOptimistic = file.size <= Self.optimisticLimit
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
    writer = live?.writer
    self.configuration = configuration
    self.session = session
    loop = session.loop
    // PUT replaces the stored bytes. After an interrupted request, the next one sends all of them again if it can.
    transport = TransportAcknowledgements(
      retention: configuration.retention, keepsStart: live != nil && configuration.request.method == "PUT")
    machine = Self.rules(configuration, upload)
    trustsTransport = machine.trustsTransport
  }

  static func rules(
    _ configuration: LiveStreamConfiguration, _ chosen: UploadClientStateMachine.Configuration
  ) -> any StreamStateMachine {
    guard configuration.resumable != .never else { return plainRules(configuration, isLive: chosen.length == nil) }
    var upload = chosen
    upload.discovers = configuration.resumable == .auto
    upload.requiresProtocol = configuration.resumable == .always
    upload.retriesRefusals = configuration.retry.retriesRefusals
    upload.appendSize = configuration.rollOver.size
    upload.smallestLimit = smallestLimit
    if configuration.mayUsePOST, configuration.request.method != "POST" {
      upload.replaceableMethod = configuration.request.method
    }
    upload.hasCondition = configuration.request.hasCondition
    upload.streamID = configuration.streamID
    upload.digestAlgorithm = configuration.digest?.name
    var resumed = configuration.resumeData
    // With the user and password of this request, if they belong to that origin.
    let request = configuration.request
    let url = resumed.flatMap {
      configuration.keepsOrigin
        ? request.keepingOrigin(ofLocation: $0.upload) : request.resolving(location: $0.upload)
    }
    if let url { resumed?.upload = url }
    return ResumableStream(
      upload, target: configuration.request.url, policy: configuration.retry, resuming: resumed,
      acknowledged: configuration.acknowledged)
  }

  /// - Parameter former: the rules that the stream has followed before.
  static func plainRules(
    _ configuration: LiveStreamConfiguration, isLive: Bool, method: String? = nil,
    after former: (any StreamStateMachine)? = nil
  ) -> any StreamStateMachine {
    PlainStream(
      policy: configuration.retry, streamID: configuration.streamID, target: configuration.request.url, isLive: isLive,
      method: method ?? configuration.request.method, mayUsePOST: configuration.mayUsePOST,
      acknowledged: configuration.acknowledged, after: former)
  }

  // MARK: Start and end

  func start(_ handler: @escaping @Sendable (LiveStreamEvent) -> Void) {
    guard !isStarted else { return }
    isStarted = true
    self.handler = handler
    startTime = .now
    // Otherwise, a stream that waits for bytes or for its next attempt would never end.
    closing = session.whenClosing { [weak self] in self?.sessionCloses() }
    // The session is about to close.
    if closing == nil {
      isSessionClosing = true
      _ = machine.stop(Self.cancelled)
    }
    if live?.isSpooled == false { describer = configuration.description.map { StreamDescriber($0, now: .now) } }
    if let description = describer?.value(at: 0, now: .now) { live?.spool?.note(description: description) }
    guard !machine.isEnded else { return end(Self.cancelled) }
    keptAlive = self
    if isAbandoned { return perform(machine.abandon(Self.cancelled)) }
    if let field = configuration.request.fields.all.first(where: { UploadRequest.isReserved(fieldName: $0.name) }) {
      return perform(
        machine.stop(
          LiveStreamError(
            .invalidRequest, "the field \(field.rawName) cannot be set: the stream sets it itself or excludes it")))
    }
    if live?.isSpooled == false, configuration.resumeData != nil {
      return perform(
        machine.stop(
          LiveStreamError(
            .invalidRequest,
            "only the upload of a file can be resumed: another source does not produce the same bytes again")
        ))
    }
    do {
      try live?.start(on: loop, context: sourceContext(), dataArrived: { [unowned self] in dataArrived() })
    } catch let error as LiveStreamError {
      return perform(machine.stop(error))
    } catch {
      return perform(machine.stop(LiveStreamError(.source, "\(error)")))
    }
    if live?.isSpooled == true { passPauses(before: configuration.acknowledged) }
    writer?.didWrite = { [unowned self] in didWrite() }
    writer?.didReachPause = { [unowned self] in reachedPause() }
    tickProgress()
    perform(machine.start(content.supply, now: startTime))
    if finishesAtStart { finish(within: finishLimit) }
  }

  func finish(within limit: Duration? = nil) {
    guard !machine.isEnded else { return }
    // A source can be stopped only after its start.
    guard isStarted else {
      (finishesAtStart, finishLimit) = (true, finishLimit ?? limit)
      return
    }
    live?.finish()
    guard let limit, finishTimer == nil else { return }
    finishLimit = limit
    awaitProgress(
      within: limit, since: .now, beyond: machine.acknowledged, from: machine.base, of: machine.acknowledged)
    // The next attempt is due now, because a stream that finishes does not wait for the end of a pause.
    retryNow()
  }

  func retryNow() {
    guard let retryTimer else { return }
    loop.cancel(retryTimer)
    retry()
  }

  /// Ends the stream if the server acknowledges nothing within `limit`. On a slow line, sending the buffered bytes may
  /// take longer than that.
  ///
  /// - Parameters:
  ///   - since: the time of the last progress. Progress is noticed at most an eighth of the limit later.
  ///   - last: the number of acknowledged bytes at that time.
  ///   - base: where the upload resource of that time begins. Another one may have fewer bytes, and a return to the
  ///     former one is no progress.
  ///   - most: the largest number of acknowledged bytes at any time.
  private func awaitProgress(
    within limit: Duration, since: MonotonicInstant, beyond last: UInt64, from base: UInt64, of most: UInt64
  ) {
    finishTimer = loop.schedule(at: min(.now + limit / 8, since + limit)) { [weak self] in
      guard let self else { return }
      if trustsTransport { checkTransport() }
      let (now, acknowledged) = (MonotonicInstant.now, machine.acknowledged)
      let isProgress = acknowledged > (machine.base == base ? last : most)
      if isProgress || now < since + limit {
        if !isProgress { replaceSilentRequest(within: limit, since: since) }
        return awaitProgress(
          within: limit, since: isProgress ? now : since, beyond: acknowledged, from: machine.base,
          of: max(most, acknowledged))
      }
      perform(machine.stop(unfinished(after: limit)))
    }
  }

  /// Replaces a request whose connection may have died silently, so that there is time for another one: after half of
  /// the time if TCP delivers nothing of the request, and in the last eighth if the server answers nothing. A plain
  /// server may be about to confirm what it has received, and cannot be asked.
  private func replaceSilentRequest(within limit: Duration, since: MonotonicInstant) {
    guard let request, !trustsTransport, !isSuspended, let traffic = request.task.traffic else { return }
    let now = MonotonicInstant.now
    guard let before = silence, before.request == request.number, before.traffic == traffic else {
      silence = (request.number, traffic, now)
      return
    }
    // A slow network needs seconds for a repetition.
    let patience = max(limit / 2, Self.leastPatience)
    guard now - before.since >= patience, traffic.queued > 0 || now >= since + limit * 7 / 8 else { return }
    silence = nil
    let sentUpTo = request.sentUpTo
    request.task.cancelWithConnection()
    dropRequest()
    let words = "nothing has arrived at the server or from it for \(Self.text(patience)) at the end of the stream"
    finished(.failure(UploadError(.timedOut, words)), request, sentUpTo: sentUpTo)
  }

  private static let leastPatience = Duration.seconds(2)

  private func unfinished(after limit: Duration) -> LiveStreamError {
    let time = Self.text(limit)
    if let machineError {
      var error = LiveStreamError(.unreachable, "the stream could not be finished within \(time): \(machineError)")
      error.machineError = machineError
      return error
    }
    guard hasConnected else {
      return LiveStreamError(.unreachable, "the server could not be reached within \(time) at the end of the stream")
    }
    return LiveStreamError(
      .unfinished, "the server did not confirm the end of the stream, and acknowledged nothing for \(time)")
  }

  private static func text(_ limit: Duration) -> String {
    limit < .seconds(1) ? "\(limit.nanoseconds / 1_000_000) ms" : "\(limit.nanoseconds / 1_000_000_000) s"
  }

  func cancel() {
    let step = machine.stop(Self.cancelled)
    // A stream that is not started has nothing to end. `start` reports the end.
    if isStarted { perform(step) }
  }

  private func sessionCloses() {
    isSessionClosing = true
    cancel()
    // The stream may have ended before.
    endWithoutSpool?()
  }

  /// Ends the stream, and asks the server to delete its bytes (section "Upload Cancellation").
  func abandon() {
    isAbandoned = true
    // A stream that is not started does this when it starts.
    guard isStarted else { return }
    (isSuspended, heldStep) = (false, nil)
    perform(machine.abandon(Self.cancelled))
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

  static let cancelled = LiveStreamError(.cancelled, "stopped before everything was sent")

  func sourceContext() -> SourceContext {
    SourceContext(
      loop: loop, overflow: configuration.overflow,
      report: { [weak self, loop] event in
        loop.execute { [weak self] in
          guard let self else { return }
          sourceLost += event.lost
          sourceSkipped += event.skipped
          if event.lost > 0 || event.skipped > 0 { sourceUnit = event.unit }
          handler(.source(event))
        }
      },
      fail: { [weak self, loop, failure = live?.failure] error in
        guard failure?.note(error) == true else { return }
        loop.execute { [weak self] in
          guard let self else { return }
          // The summary has another error if the stream ends for another reason.
          handler(
            .source(
              SourceEvent(
                kind: "source-failed", description: "the source failed: \(error)", offset: content.newest,
                unit: sourceUnit)))
          // Otherwise, `end` notes it.
          if !machine.isEnded { live?.spool?.noteCutOff() }
        }
      })
  }

  func end(_ error: LiveStreamError?) {
    for timer in [progressTimer, retryTimer, rollOverTimer, pauseTimer, lifetimeTimer, finishTimer, transport.timer] {
      if let timer { loop.cancel(timer) }
    }
    // A suspended stream that has ended must not begin again when it is resumed.
    heldStep = nil
    let resumeData = machine.resumeData
    dropRequest()
    // The source may report its last bytes. The stream no longer waits for them.
    awaitedOffset = nil
    guard let live else { return conclude(error, resumeData) }
    let error = error ?? keepMissing()
    live.stop(on: loop)
    let spool = live.spool
    // After the events that the source has reported so far.
    loop.execute { [self] in
      guard let spool else { return conclude(error, resumeData) }
      // The stream may have ended before it heard of the failure.
      if self.live?.failure.error != nil { spool.noteCutOff() }
      end(spool, isDelivered: error == nil || isAbandoned) { [self] in conclude(error, resumeData) }
    }
  }

  private func conclude(_ error: LiveStreamError?, _ resumeData: ResumeData?) {
    noteLastGaps()
    var summary = StreamSummary(
      progress: progress(), gaps: gaps, resent: resentBeforeFallBack + machine.resent, sourceLost: sourceLost,
      response: response,
      missingAtServer: response?["Stream-Missing"].flatMap { UInt64($0) }.map(missingAtServer),
      error: error ?? live?.failure.error ?? digestError)
    if let missing = summary.missingAtServer, missing > summary.progress.lost {
      // TCP acknowledged bytes that the server never stored.
      let more = min(missing - summary.progress.lost, summary.progress.acknowledged)
      summary.progress.acknowledged -= more
      summary.progress.lost += more - min(more, missingInSpool)
      if more > 0 {
        summary.gaps += 1
        handler(.missingAtServer(more))
      }
    }
    if error == nil, live?.isCutOff == true {
      // A server does not keep an upload without a byte.
      let isKept = summary.progress.acknowledged > 0
      summary.recording = machine.isLeftIncomplete ? (isKept ? .unfinished : nil) : .complete
    }
    summary.responseFailure = responseFailure
    summary.isResumable = !trustsTransport
    // A server that has confirmed the end and counts the missing bytes of the stream has told which ones are lost.
    let isSettled = summary.error == nil && summary.missingAtServer != nil
    summary.unconfirmed = isSettled ? 0 : unconfirmed + machine.unconfirmedAtEnd
    summary.sourceSkipped = sourceSkipped
    summary.sourceUnit = sourceUnit
    summary.resumeData = summary.error == nil ? nil : resumeData
    (summary.verified, summary.digest) = (verified?.upperBound, configuration.digest)
    summary.verifiedFrom = verified?.lowerBound ?? 0
    summary.notSynchronized = notSynchronized
    if let closing { session.forgetClosing(closing) }
    handler(.ended(summary))
    handler = { _ in }
    // Not at once, because the object is still on the stack.
    loop.atEndOfTurn { [self] in keptAlive = nil }
  }

  /// The number of bytes that a server reports as missing. Bytes that the source omitted are missing there, and are not
  /// a loss. Bytes that were never sent cannot be missing.
  func missingAtServer(_ told: UInt64) -> UInt64 {
    let count = min(told, progress().sent)
    return count - min(count, content.pausedByteCount)
  }
}
