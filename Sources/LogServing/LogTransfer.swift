// One request that brings bytes: what the protocol allows, what goes into the log, what the client is told.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import JSONLines
internal import JetStream
internal import Metrics
internal import ResumableUploads
internal import StreamServing

/// A creation, an append or a plain stream. It outlives its connection until everything that came is stored.
final class LogTransfer: RequestHandler {
  /// How many unstored bytes stop the reading of the connection, and how few let it continue.
  private static let (highWater, lowWater) = (512 * 1024, 128 * 1024)

  /// What remains to be done when everything that came is stored.
  private enum Ending {
    /// The content is complete, and more will follow.
    case acknowledge
    /// The upload is complete.
    case complete
    case refuse(UploadRefusal)
    /// The client has gone.
    case interrupted(String)
  }

  private let log: UploadLog
  private let head: RequestHead
  private let token: String
  private var request: UploadTransferRequest
  private let isCreation: Bool
  /// Whether the client knows nothing of uploads.
  private let isPlain: Bool
  private let publisher: String
  private var streamID: String
  private var streamStart: UInt64
  private var exchange: (any Exchange)?
  private var peer = ""
  /// nil until the log has said where the upload stands.
  private var state: UploadResourceState?
  private var append = LogAppend(after: 0, at: 0, announcing: true)
  /// Of the last message that is stored, and of the one under way.
  private var (link, nextLink) = (LogEntry.Link(), LogEntry.Link())
  private let digests: LogDigests
  /// Whether the log has what the upload is to be complete with; nil before somebody has asked.
  private var isVerified: Bool?
  /// Why the upload is over: the log has lost a part of it.
  private var loss: String?
  private var ending: Ending?
  private var isOver = false
  private var isPaused = false
  private var hasPublished = false
  private var isAnnounced = false
  private var schedule: ProgressSchedule
  private var announcement: EventLoop.Timer?
  private var unacknowledgedSince: MonotonicInstant?
  private var startOffset: UInt64 = 0

  init(_ log: UploadLog, _ head: RequestHead, _ request: UploadTransferRequest, creatingIn token: String) {
    (self.log, self.head, self.request, self.token) = (log, head, request, token)
    publisher = log.newPublisher()
    (isCreation, isPlain) = (true, false)
    streamID = head.fields.single("stream-id") ?? StreamName.randomID()
    streamStart = Self.streamStart(head) ?? 0
    schedule = ProgressSchedule(
      limit: Self.interimLimit(log, head).map { max(0, $0 - 1) }, interval: UploadFields.progressInterval(head.fields))
    digests = LogDigests(log, creatingWith: head.fields, isWhole: request.completes)
    self.request.hasDigest = digests.holdsContent
  }

  init(plain log: UploadLog, _ head: RequestHead, creatingIn token: String) {
    (self.log, self.head, self.token) = (log, head, token)
    publisher = log.newPublisher()
    request = UploadTransferRequest(version: .none, offset: 0, completes: true, content: .init(head.framing))
    (isCreation, isPlain) = (true, true)
    streamID = head.fields.single("stream-id") ?? StreamName.randomID()
    streamStart = 0
    schedule = ProgressSchedule(limit: 0)
    digests = LogDigests(log, plain: head.fields)
  }

  init(_ log: UploadLog, _ head: RequestHead, _ request: UploadTransferRequest, appendingTo token: String) {
    (self.log, self.head, self.request, self.token) = (log, head, request, token)
    publisher = log.newPublisher()
    (isCreation, isPlain) = (false, false)
    (streamID, streamStart) = ("", 0)
    schedule = ProgressSchedule(
      limit: Self.interimLimit(log, head), interval: UploadFields.progressInterval(head.fields))
    digests = LogDigests(log, appendingWith: head.fields)
    self.request.hasDigest = digests.holdsContent
  }

  /// `Stream-Offset`: where the upload begins in its stream; nil if it is missing or invalid.
  static func streamStart(_ head: RequestHead) -> UInt64? {
    guard let text = head.fields.single("stream-offset"), let value = UInt64(text),
      value <= UInt64(BareItem.largestInteger)
    else { return nil }
    return value
  }

  private static func interimLimit(_ log: UploadLog, _ head: RequestHead) -> Int? {
    head.wasForwarded ? log.options.maximumForwardedInterimCount : nil
  }

  private var now: Int64 { MonotonicInstant.now.nanoseconds }

  // MARK: The beginning

  func begin(_ exchange: any Exchange) {
    self.exchange = exchange
    peer = exchange.peer
    guard isCreation else {
      return log.find(token, for: head.credential) { [self] in found($0) }
    }
    guard log.isReady else { return refuse(UploadRefusal(.disconnected)) }
    if let refusal = digests.refusal(request.content) { return refuse(refusal) }
    do throws(UploadRefusal) {
      state = try UploadResourceState(creating: request, limits: log.limits, awaitsDisk: true)
    } catch {
      return refuse(error)
    }
    proceed()
  }

  private func found(_ found: UploadLog.Found) {
    guard exchange != nil else { return }
    if let refusal = found.refusal { return refuse(refusal) }
    guard case .entry(let entry, let sequence) = found else { return }
    if let refusal = digests.refusal(request.content) { return refuse(refusal) }
    (link, digests.representation) = (entry.link, entry.digest)
    (streamID, streamStart, startOffset) = (entry.streamID, entry.streamStart, entry.end)
    var state = UploadResourceState(
      restoring: entry.isComplete ? .complete : .incomplete, offset: entry.end, promised: entry.end, synced: entry.end,
      length: entry.length, limits: log.limits, awaitsDisk: true)
    let action = state.append(request)
    self.state = state
    // A length that is new is on record before it counts.
    append = LogAppend(after: sequence, at: entry.end, announcing: state.length != entry.length)
    switch action {
    case .begin:
      // One request after another of a connection is nothing to report.
      if !log.isOwn(entry.mark) { emit(.continued, offset: entry.end) }
      accepted()
    case .replay: replay(entry, sequence)
    case .refuse(let refusal): refuse(refusal, standing: standing(state))
    case .invalidate(let refusal, _):
      append.deactivate(.lengthExceeded)
      ending = .refuse(refusal)
      proceed()
    // Nothing waits for a response that is being made: a complete upload has its response.
    case .awaitResponse: refuse(.completed)
    }
  }

  /// The response is given again if the upload is still there, or a collector has taken it.
  private func replay(_ entry: LogEntry, _ sequence: UInt64) {
    log.verify(entry, at: sequence, of: token) { [self] verdict in
      guard exchange != nil else { return }
      switch verdict {
      case .intact: respond(finalResponse())
      case .lost(let reason):
        log.context.emit(ServerEvent(.warning, reason: reason))
        refuse(.deactivated(.stateLost))
      case .unavailable(let error): refuse(UploadRefusal(error))
      }
    }
  }

  /// The append begins where the upload ends.
  private func accepted() {
    isAnnounced = true
    tell(schedule.accepted(now: now), evenIfKnown: true)
    exchange?.acceptBody()
    proceed()
  }

  /// The log has the upload that this request creates.
  private func created() {
    emit(.begun, offset: 0)
    if !isPlain, Self.interimLimit(log, head) != 0, let state,
      var fields = ServerAnswer.announcement(standing(state), request.version)
    {
      isAnnounced = true
      fields.append("stream-id", streamID)
      exchange?.sendInterim(UploadFields.resumptionSupported, fields)
    }
    exchange?.acceptBody()
  }

  // MARK: Content

  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
    guard ending == nil, var state else { return }
    for piece in pieces {
      let intake = state.received(UInt64(piece.count), by: transferNumber)
      // No more than the piece has.
      let taken = Int(clamping: intake.count)
      switch digests.take(bytes.extracting(piece).extracting(0..<taken)) {
      case .append: bytes.extracting(piece).extracting(0..<taken).withUnsafeBufferPointer { append.take($0) }
      case .hold: break
      case .refuse(let refusal):
        self.state = state
        return end(with: refusal)
      }
      state.kept(intake.count)
      if unacknowledgedSince == nil, taken > 0 { unacknowledgedSince = .now }
      if let refusal = intake.refusal {
        if state.isInactive { append.deactivate(.lengthExceeded) }
        append.take(digests.release())
        ending = .refuse(refusal)
        break
      }
    }
    self.state = state
    proceed()
    if append.unstoredCount > Self.highWater, !isPaused {
      isPaused = true
      exchange?.pauseBody()
    }
  }

  /// The content is refused before all of it has come: nothing that is held of it counts.
  private func end(with refusal: UploadRefusal) {
    state?.contentRefuted()
    digests.drop()
    ending = .refuse(refusal)
    proceed()
  }

  func end() {
    guard ending == nil else { return }
    let number = transferNumber
    if digests.holdsContent, state?.transfer != nil {
      guard digests.isContentRight else { return end(with: .contentDigest) }
      state?.contentVerified()
      append.take(digests.release())
    }
    switch state?.contentEnded(number) {
    case .acknowledge: ending = .acknowledge
    case .process:
      // The token may have been withdrawn meanwhile.
      if let credential = head.credential, !log.context.isValid(credential) {
        ending = .refuse(.notAuthorized)
        break
      }
      ending = .complete
    case .refuse(let refusal): ending = .refuse(refusal)
    case .ignore, nil: return
    }
    proceed()
  }

  func aborted(_ reason: AbortReason) {
    exchange = nil
    stopTelling()
    // What came is stored all the same; nothing was promised of a request that has not begun. Nobody can compare content
    // with its digest any more: it is kept, as with a directory.
    if ending == nil {
      ending = .interrupted(reason.description)
      keepHeld()
    }
    if state != nil { proceed() }
  }

  var canBeContinued: Bool { !isPlain && request.content == .unsized && isAnnounced }

  func serverStops() {
    guard state != nil, hasPublished || !isCreation else { return refuse(.serverStops) }
    exchange?.takeArrived()
    guard ending == nil else { return }
    keepHeld()
    ending = .refuse(.serverStops)
    proceed()
  }

  /// What came counts, although not all of it has come.
  private func keepHeld() {
    let number = transferNumber
    state?.ended(number)
    append.take(digests.release())
  }

  private var transferNumber: Int { state?.transfer?.number ?? 0 }

  // MARK: The log

  /// Does what is to be done next, until the log has to answer.
  private func proceed() {
    guard !isOver else { return }
    if case .complete = ending, isVerified != true, append.isAtLastMessage(limit: log.batchLimit) { return verify() }
    perform(append.next(limit: log.batchLimit))
    if append.isDrained, let ending { finish(ending) }
  }

  /// The last message is about to go out. It completes the upload if the log still has all messages before it, and the
  /// whole is what was announced.
  private func verify() {
    guard isVerified == nil else { return }
    isVerified = false
    let unread = digests.toBeRead
    let verification = LogVerification(log, token, upTo: link, at: append.sequence) { [self] verdict in
      let waiting = append.waiting
      unread?.update(waiting.span, [0..<waiting.count])
      verified(verdict, isRight: (unread ?? digests.ofRequest)?.isRight ?? true)
    }
    if let unread { verification.read(unread) } else { verification.count() }
  }

  private func verified(_ verdict: LogVerification.Verdict, isRight: Bool) {
    isVerified = true
    switch verdict {
    case .intact where !isRight:
      append.discard(.refuted)
      ending = .refuse(.representationDigest)
    case .intact: append.complete()
    case .lost(let reason):
      loss = reason
      append.deactivate(.stateLost)
      ending = .refuse(.deactivated(.stateLost))
    case .unavailable(let error): return failed(error)
    }
    proceed()
  }

  private func perform(_ action: LogAppend.Action) {
    switch action {
    case .nothing: break
    case .publish(let batch, let sequence): publish(batch, after: sequence)
    case .readLast: readLast()
    case .wait(let time):
      log.loop.schedule(at: MonotonicInstant(nanoseconds: time)) { [self] in perform(append.retry()) }
    case .advanced: advanced()
    case .takenOver: takenOver()
    case .failed(let error): failed(error)
    }
  }

  private func publish(_ batch: LogAppend.Batch, after sequence: UInt64) {
    var entry = LogEntry(
      offset: batch.offset, count: UInt64(batch.bytes.count), streamID: streamID, streamStart: streamStart,
      owner: head.credential, mark: .init(publisher: publisher, number: batch.number))
    entry.length = batch.completes ? batch.end : state?.length
    entry.isComplete = batch.completes
    entry.deactivation = batch.deactivation
    entry.digest = digests.representation
    guard let message = entry.message(batch.bytes, behind: link, more: batch.number == 1 ? description : []) else {
      return perform(append.failed(.timedOut, now: now))
    }
    nextLink = entry.link
    log.publish(message, to: token, after: sequence) { [self] result in
      switch result {
      case .success(let sequence): perform(append.published(sequence: sequence))
      case .failure(let error): perform(append.failed(error, now: now))
      }
    }
  }

  /// What the first message of a request says besides: what the stream is.
  private var description: [MessageContent.Header] {
    var headers: [MessageContent.Header] = []
    if isCreation {
      headers.append(.init(LogHeaders.request, "\(head.method) \(head.target.path)"))
      if let type = head.fields.single("content-type") { headers.append(.init(LogHeaders.mediaType, type)) }
    }
    if let text = head.fields.single("stream-description") { headers.append(.init(LogHeaders.description, text)) }
    return headers
  }

  private func readLast() {
    log.stream.lastMessage(of: token) { [self] answer in
      switch answer {
      case .failure(let error): perform(append.failed(error, now: now))
      case .success(let message):
        let mark = message.flatMap { LogEntry($0.content)?.mark }
        perform(
          append.found(
            sequence: message?.sequence ?? 0, isOwn: mark?.publisher == publisher && mark?.number == append.lastNumber,
            now: now))
      }
    }
  }

  private func advanced() {
    let before = state?.durable ?? 0
    link = nextLink
    state?.synced(to: append.durable)
    log.context.figures.values.storedBytes += append.durable - min(before, append.durable)
    if !hasPublished {
      hasPublished = true
      if isCreation { created() }
    }
    if append.durable > before { tell(schedule.kept(append.durable - before, now: now)) }
    if isPaused, append.unstoredCount < Self.lowWater {
      isPaused = false
      exchange?.resumeBody()
    }
    proceed()
  }

  // MARK: The end

  private func finish(_ ending: Ending) {
    guard var state else { return }
    _ = acknowledging { state.announceOffset() }
    self.state = state
    let standing = standing(state)
    let offset = standing.offset
    switch ending {
    case .acknowledge:
      var answer =
        isCreation ? ServerAnswer.created(standing, request.version) : ServerAnswer.appended(standing, request.version)
      if isCreation { answer.fields.append("stream-id", streamID) }
      respond(Response(answer))
    case .complete:
      emit(.ended, offset: offset, bytes: offset)
      respond(finalResponse())
    case .refuse(.representationDigest):
      // As with a directory: nothing of it is kept.
      log.purge(token) { [self] in refuse(.representationDigest) }
    case .refuse(let refusal):
      if let loss { log.context.emit(ServerEvent(.warning, reason: loss)) }
      refuse(refusal, standing: state.isInactive ? nil : standing)
    case .interrupted(let reason):
      emit(.interrupted, offset: offset, bytes: offset - min(startOffset, offset), reason: reason)
      over()
    }
  }

  /// Another request has changed the upload, here or at another server: this one is a stray.
  private func takenOver() {
    emit(
      .interrupted, offset: append.durable, bytes: append.durable - min(startOffset, append.durable),
      reason: "another request has changed the upload")
    let exchange = exchange
    over()
    exchange?.disconnect()
  }

  private func failed(_ error: BrokerError) {
    guard exchange != nil else {
      emit(.interrupted, offset: append.durable, reason: "\(error)")
      return over()
    }
    // What is under way may still arrive, so no offset is certain: the client asks.
    refuse(UploadRefusal(error))
  }

  private func refuse(_ refusal: UploadRefusal, standing: ServerAnswer.Standing? = nil) {
    let status = refusal.status(request.version)
    var event = ServerEvent(.refusal(status: status), peer: peer, status: status, reason: refusal.reason)
    event.stream = streamID.isEmpty ? nil : streamID
    log.context.emit(event)
    respond(Response(ServerAnswer.refused(refusal, request.version, limits: log.limits, standing: standing)))
  }

  /// The response to the request that completes the upload, and to those that repeat it.
  private func finalResponse() -> Response {
    let length = state?.offset ?? 0
    var body = JSONLine(event: "stored")
    body.add("stream", streamID)
    body.add("bytes", length)
    var response = Response(
      201, ["stream-id": streamID, "stream-offset": String(streamStart + length)], body: body.line + "\n",
      type: "application/json")
    if !isPlain { response.add(ServerAnswer.completedFields(request.version, offset: length)) }
    return response
  }

  private func respond(_ response: Response) {
    // Let go of first: the connection lets go of us in turn, and hears nothing more.
    let exchange = exchange
    over()
    exchange?.respond(response)
  }

  private func over() {
    isOver = true
    digests.drop()
    exchange = nil
    stopTelling()
  }

  // MARK: Telling

  private func standing(_ state: UploadResourceState) -> ServerAnswer.Standing {
    .init(
      offset: state.durable, length: state.length, isComplete: false, limits: log.limits,
      location: log.location(of: token))
  }

  /// - Parameter evenIfKnown: also an offset that was told before, to a request that has not heard of it.
  private func tell(_ action: ProgressSchedule.Action, evenIfKnown: Bool = false) {
    switch action {
    case .nothing: break
    case .setTimer(let time):
      announcement = log.loop.schedule(at: MonotonicInstant(nanoseconds: time)) { [self] in
        announcement = nil
        tell(schedule.timerFired(now: now))
      }
    case .announce:
      guard let exchange, request.version.number != nil, var state else { return }
      let told = acknowledging { state.announceProgress() }
      self.state = state
      guard let offset = told ?? (evenIfKnown ? state.announced : nil),
        let fields = ServerAnswer.progress(offset, request.version)
      else { return }
      exchange.sendInterim(UploadFields.resumptionSupported, fields)
    }
  }

  private func stopTelling() {
    if let announcement { log.loop.cancel(announcement) }
    announcement = nil
  }

  /// Counts what `announce` has the client told.
  private func acknowledging(_ announce: () -> UInt64?) -> UInt64? {
    let before = state?.announced ?? 0
    let result = announce()
    guard let offset = result, offset > before else { return result }
    log.context.figures.values.acknowledgedBytes += offset - before
    if let since = unacknowledgedSince {
      log.context.figures.values.acknowledgementDelays.record(
        Double(MonotonicInstant.now.nanoseconds(since: since)) / 1e9)
    }
    unacknowledgedSince = append.unstoredCount > 0 ? .now : nil
    return result
  }

  private func emit(_ kind: ServerEvent.Kind, offset: UInt64, bytes: UInt64? = nil, reason: String? = nil) {
    var event = ServerEvent(kind, peer: peer, reason: reason)
    event.stream = streamID
    event.offset = streamStart + offset
    event.bytes = bytes
    log.context.emit(event)
  }
}
