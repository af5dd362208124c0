// One request with content: the rules of the protocol, the messages in the log, and the responses to the client.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import JSONLines
internal import JetStream
internal import Metrics
internal import ResumableUploads
internal import StreamServing

/// A creation, an append or a plain stream. It exists until all received bytes are stored, even after the end of its
/// connection.
final class LogTransfer: RequestHandler {
  /// The number of unstored bytes at which reading from the connection stops, and at which it continues.
  static let (highWater, lowWater) = (512 * 1024, 128 * 1024)

  /// The step that follows when all received bytes are stored.
  enum Ending {
    /// The content is complete, and more will follow.
    case acknowledge
    /// The upload is complete.
    case complete
    case refuse(UploadRefusal)
    /// The client has disconnected, with this reason.
    case interrupted(String)
  }

  /// The check before the completing message.
  enum Verification {
    case due
    /// The messages are counted, and none may be added.
    case counting
    /// The messages are read for the digests of the upload, which may take long.
    case reading
    case done
  }

  let log: UploadLog
  let head: RequestHead
  var token: String
  var request: UploadTransferRequest
  let isCreation: Bool
  /// Set for a client without the protocol of resumable uploads.
  var plain: PlainRequest?
  let publisher: String
  var streamID: String
  var streamStart: UInt64
  /// The digest of the credential of the upload's creator.
  var owner: [UInt8]?
  var exchange: (any Exchange)?
  var peer = ""
  /// Nil until the log has reported the state of the upload.
  var state: UploadResourceState?
  var append = LogAppend(after: 0, at: 0, announcing: true)
  /// The links of the last stored message and of the one in flight.
  var (link, nextLink) = (LogEntry.Link(), LogEntry.Link())
  let digests: LogDigests
  var verification = Verification.due
  /// The digest of the upload that the client requested, as a field.
  var computed: String?
  /// The reason why the upload is over, if the log has lost a part of it.
  var loss: String?
  var ending: Ending?
  var isOver = false
  /// Whether its end was decided, although it may still wait for the brokers.
  var isFinishing = false
  var isPaused = false
  /// Whether the content had to wait for the brokers since the watch over its rate began.
  var wasPaused = false
  /// The number of bytes that the client has sent, including those that are held back or compared.
  var arrivedCount: UInt64 = 0
  var hasPublished = false
  var isAnnounced = false
  var schedule: ProgressSchedule
  var announcement: EventLoop.Timer?
  var unacknowledgedSince: MonotonicInstant?
  var startOffset: UInt64 = 0
  lazy var allowance = LogAllowance(log, token)
  private lazy var confirmation = LogConfirmation(log)

  init(
    _ log: UploadLog, _ head: RequestHead, _ request: UploadTransferRequest, _ fields: StreamRequestFields,
    creatingIn token: String
  ) {
    (self.log, self.head, self.request, self.token) = (log, head, request, token)
    publisher = log.newPublisher()
    (isCreation, owner) = (true, head.credential)
    (streamID, streamStart) = (fields.id ?? StreamName.randomID(), fields.offset)
    schedule = ProgressSchedule(
      limit: Self.interimLimit(log, head).map { max(0, $0 - 1) }, interval: UploadFields.progressInterval(head.fields))
    digests = LogDigests(log, creatingWith: head.fields)
    self.request.hasDigest = digests.holdsContent
  }

  init(plain log: UploadLog, _ head: RequestHead, _ fields: StreamRequestFields) {
    (self.log, self.head, token) = (log, head, "")
    publisher = log.newPublisher()
    request = UploadTransferRequest(version: .none, offset: 0, completes: true, content: .init(head.framing))
    (isCreation, streamStart) = (false, 0)
    streamID = fields.id ?? StreamName.randomID()
    let name = StreamName(path: head.target.path, streamID: streamID, mediaType: nil)
    plain = PlainRequest(name, at: fields.offset)
    schedule = ProgressSchedule(limit: 0)
    digests =
      fields.offset == 0 ? LogDigests(log, plain: head.fields) : LogDigests(log, appendingWith: head.fields)
  }

  init(_ log: UploadLog, _ head: RequestHead, _ request: UploadTransferRequest, appendingTo token: String) {
    (self.log, self.head, self.request, self.token) = (log, head, request, token)
    publisher = log.newPublisher()
    (isCreation, owner) = (false, head.credential)
    (streamID, streamStart) = ("", 0)
    schedule = ProgressSchedule(
      limit: Self.interimLimit(log, head), interval: UploadFields.progressInterval(head.fields))
    digests = LogDigests(log, appendingWith: head.fields)
    self.request.hasDigest = digests.holdsContent
  }

  static func interimLimit(_ log: UploadLog, _ head: RequestHead) -> Int? {
    head.wasForwarded ? log.options.maximumForwardedInterimCount : nil
  }

  var now: Int64 { MonotonicInstant.now.nanoseconds }

  // MARK: The beginning

  func begin(_ exchange: any Exchange) {
    self.exchange = exchange
    peer = exchange.peer
    if let plain { return begin(plain) }
    guard log.isReady else { return refuse(UploadRefusal(.disconnected)) }
    allowance.whenKnown(isCreation: isCreation) { [self] refusal in
      guard self.exchange != nil else { return }
      if let refusal { return refuse(refusal) }
      if isCreation { create() } else { find() }
    }
  }

  private func find() { log.find(token, for: head.credential) { [self] in found($0) } }

  private func create() {
    if let refusal = digests.refusal(request.content) { return refuse(refusal) }
    do throws(UploadRefusal) {
      let isLive = try request.indicatedLength() == nil
      let created = try UploadResourceState(creating: request, limits: log.limits(isLive: isLive), awaitsDisk: true)
      try allowance.admit(request, of: head.credential)
      state = created
    } catch {
      return refuse(error)
    }
    follow()
    proceed()
  }

  private func found(_ found: UploadLog.Found) {
    guard exchange != nil else { return }
    if let refusal = found.refusal { return refuse(refusal) }
    guard case .entry(let entry, let sequence) = found else { return }
    if let refusal = digests.refusal(request.content) { return refuse(refusal) }
    (link, digests.representation, digests.wanted) = (entry.link, entry.digest, entry.wanted)
    (streamID, streamStart, startOffset) = (entry.streamID, entry.streamStart, entry.end)
    var state = UploadResourceState(
      restoring: entry.isComplete ? .complete : .incomplete, offset: entry.end, promised: entry.end, synced: entry.end,
      length: entry.length, limits: log.limits(isLive: entry.length == nil), awaitsDisk: true)
    let action = state.append(request)
    self.state = state
    // A new length is in the log before it counts.
    append = LogAppend(after: sequence, at: entry.end, announcing: state.length != entry.length)
    switch action {
    case .begin:
      do throws(UploadRefusal) { try allowance.enter(request, entry, at: sequence) } catch {
        return refuse(error, standing: standing(state))
      }
      follow()
      // Successive requests of one client are not reported.
      if !log.isOwn(entry.mark) { emit(.continued, offset: entry.end) }
      accepted()
    case .replay: replay(entry, sequence)
    case .refuse(let refusal):
      // The offset of the refusal is not certain yet.
      self.state = nil
      confirmRefusal(refusal, of: entry, at: sequence, state)
    case .invalidate(let refusal, _):
      append.deactivate(.lengthExceeded)
      ending = .refuse(refusal)
      proceed()
    // A complete upload has its response. Content of unknown length may be empty, and then asks for that response.
    case .awaitResponse:
      isAnnounced = true
      exchange?.acceptBody()
      watch()
    }
  }

  /// Learns of messages that other requests publish. With nothing to publish, this one would not notice them.
  func follow() {
    let transfer = LoopOwned(self, on: log.loop)
    let changed: @Sendable (UInt64) -> Void = { sequence in
      transfer.execute { transfer in
        guard !transfer.isOver else { return }
        transfer.perform(transfer.append.read(other: sequence))
      }
    }
    let last = log.usage.follow(token, for: publisher, changed)
    // Another thread has read it after this request asked for the last message.
    if last > append.sequence { changed(last) }
  }

  /// Refuses the append, unless the log has later messages than that one.
  private func confirmRefusal(
    _ refusal: UploadRefusal, of entry: LogEntry, at sequence: UInt64, _ state: UploadResourceState
  ) {
    whenConfirmed(entry, sequence) { [self] in
      self.state = state
      refuse(refusal, standing: standing(state))
    }
  }

  /// Repeats the response if the upload is still there, or if a collector has taken it.
  private func replay(_ entry: LogEntry, _ sequence: UInt64) {
    log.verify(entry, at: sequence, of: token) { [self] verdict in
      guard exchange != nil else { return }
      switch verdict {
      case .intact: confirmCompletion(entry, sequence)
      case .lost(let reason):
        log.context.emit(ServerEvent(.warning, reason: reason))
        refuse(.deactivated(.stateLost))
      case .unavailable(let error): refuse(UploadRefusal(error))
      }
    }
  }

  /// Repeats the response, unless the upload was cancelled since then.
  private func confirmCompletion(_ entry: LogEntry, _ sequence: UInt64) {
    whenConfirmed(entry, sequence) { [self] in
      computed = WholeDigest.field(of: entry.digest, wanted: entry.wanted)
      respond(finalResponse())
    }
  }

  /// Calls `work`, unless the log has later messages than that one. Then the request begins again.
  private func whenConfirmed(_ entry: LogEntry, _ sequence: UInt64, _ work: @escaping () -> Void) {
    confirmation.confirm(entry, at: sequence, of: token, isAwaited: { [self] in exchange != nil }) {
      work()
    } outdated: { [self] in
      find()
    } unavailable: { [self] error in
      refuse(UploadRefusal(error))
    }
  }

  /// The offset of the append matches the end of the upload.
  private func accepted() {
    isAnnounced = true
    tell(schedule.accepted(now: now), evenIfKnown: true)
    exchange?.acceptBody()
    watch()
    proceed()
  }

  /// The log has stored the creation.
  func created() {
    emit(.begun, offset: 0)
    if Self.interimLimit(log, head) != 0, let state,
      var fields = ServerAnswer.announcement(standing(state), request.version)
    {
      isAnnounced = true
      fields.append("stream-id", streamID)
      exchange?.sendInterim(UploadFields.resumptionSupported, fields)
    }
    exchange?.acceptBody()
    watch()
  }

  /// Watches the rate of the client, except while the brokers are slow.
  func watch() {
    // The bytes that came with the head may have ended the request.
    guard !isOver else { return }
    wasPaused = isPaused
    allowance.watch(request.content, received: { [self] in arrivedCount }) { [self] in
      if wasPaused { watch() } else { stop(.tooSlow) }
    } silent: { [self] in
      // No message may follow the last one, after which the bytes of a refuted upload are being removed. A request that
      // repeats a complete stream has none.
      if let state, !append.isLast, state.phase != .complete { showActivity() }
    }
  }

  /// Publishes a message without bytes, because other servers end an upload that seems inactive.
  func showActivity() {
    append.announce()
    guard case .reading = verification else { return proceed() }
    // The digests of the upload need the bytes that wait, so these stay for the completing message.
    perform(append.next(limit: 0))
  }
}
