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
  static let (highWater, lowWater) = (512 * 1024, 128 * 1024)

  /// What remains to be done when everything that came is stored.
  enum Ending {
    /// The content is complete, and more will follow.
    case acknowledge
    /// The upload is complete.
    case complete
    case refuse(UploadRefusal)
    /// The client has gone.
    case interrupted(String)
  }

  let log: UploadLog
  let head: RequestHead
  let token: String
  var request: UploadTransferRequest
  let isCreation: Bool
  /// Whether the client knows nothing of uploads.
  let isPlain: Bool
  let publisher: String
  var streamID: String
  var streamStart: UInt64
  var exchange: (any Exchange)?
  var peer = ""
  /// nil until the log has said where the upload stands.
  var state: UploadResourceState?
  var append = LogAppend(after: 0, at: 0, announcing: true)
  /// Of the last message that is stored, and of the one under way.
  var (link, nextLink) = (LogEntry.Link(), LogEntry.Link())
  let digests: LogDigests
  /// Whether the log has what the upload is to be complete with; nil before somebody has asked.
  var isVerified: Bool?
  /// Why the upload is over: the log has lost a part of it.
  var loss: String?
  var ending: Ending?
  var isOver = false
  var isPaused = false
  var hasPublished = false
  var isAnnounced = false
  var schedule: ProgressSchedule
  var announcement: EventLoop.Timer?
  var unacknowledgedSince: MonotonicInstant?
  var startOffset: UInt64 = 0
  lazy var allowance = LogAllowance(log, token)

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

  static func interimLimit(_ log: UploadLog, _ head: RequestHead) -> Int? {
    head.wasForwarded ? log.options.maximumForwardedInterimCount : nil
  }

  var now: Int64 { MonotonicInstant.now.nanoseconds }

  // MARK: The beginning

  func begin(_ exchange: any Exchange) {
    self.exchange = exchange
    peer = exchange.peer
    guard log.isReady else { return refuse(UploadRefusal(.disconnected)) }
    allowance.whenKnown(isCreation: isCreation) { [self] refusal in
      guard self.exchange != nil else { return }
      if let refusal { return refuse(refusal) }
      if isCreation { create() } else { log.find(token, for: head.credential) { [self] in found($0) } }
    }
  }

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
      length: entry.length, limits: log.limits(isLive: entry.length == nil), awaitsDisk: true)
    let action = state.append(request)
    self.state = state
    // A length that is new is on record before it counts.
    append = LogAppend(after: sequence, at: entry.end, announcing: state.length != entry.length)
    switch action {
    case .begin:
      do throws(UploadRefusal) { try allowance.enter(request, entry, at: sequence) } catch {
        return refuse(error, standing: standing(state))
      }
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
    watch()
    proceed()
  }

  /// The log has the upload that this request creates.
  func created() {
    emit(.begun, offset: 0)
    if !isPlain, Self.interimLimit(log, head) != 0, let state,
      var fields = ServerAnswer.announcement(standing(state), request.version)
    {
      isAnnounced = true
      fields.append("stream-id", streamID)
      exchange?.sendInterim(UploadFields.resumptionSupported, fields)
    }
    exchange?.acceptBody()
    watch()
  }

  /// While the brokers are slow, nobody can be too slow.
  private func watch() {
    allowance.watch(request.content, received: { [self] in state?.transfer?.received ?? 0 }) { [self] in
      if isPaused { watch() } else { stop(.tooSlow) }
    } silent: { [self] in
      append.announce()
      proceed()
    }
  }
}
