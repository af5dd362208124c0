// A request to an upload resource without content: HEAD, GET, DELETE.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import JetStream
internal import ResumableUploads
internal import StreamServing

/// Reports the offset of an upload, or cancels it. Both end a request that appends to it, on any server. A message
/// without bytes is published after the last one, so the broker refuses the next message of the other server.
///
/// So an append may follow at the reported offset. A request that publishes very quickly may be faster than this one
/// many times in a row. After a time, the response requests the client to retry.
final class LogQuery: RequestHandler {
  enum Purpose { case retrieve, cancel }

  private static let patience = Duration.seconds(3)

  private let log: UploadLog
  private let head: RequestHead
  private let token: String
  private let version: InteropVersion
  private let purpose: Purpose
  private var exchange: (any Exchange)?
  private var peer = ""
  private let publisher: String
  private let deadline = MonotonicInstant.now + LogQuery.patience
  private var attempts = 0
  private var pauses = RetryPauses(.milliseconds(2)...(.milliseconds(100)))
  private lazy var confirmation = LogConfirmation(log)

  init(_ log: UploadLog, _ head: RequestHead, token: String, _ version: InteropVersion, _ purpose: Purpose) {
    (self.log, self.head, self.token) = (log, head, token)
    (self.version, self.purpose) = (version, purpose)
    publisher = log.newPublisher(.query)
  }

  func begin(_ exchange: any Exchange) {
    self.exchange = exchange
    peer = exchange.peer
    ask()
  }

  // Content of such a request has no meaning (RFC 9110, section 9.3.1), and is never requested.
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  func end() {}
  func aborted(_ reason: AbortReason) { exchange = nil }
  // The response requires only one more message.
  func serverStops() {}

  private func ask() {
    log.find(token, for: head.credential) { [self, epoch = log.usage.epoch] found in
      // Without a client that waits for the offset, the append need not end.
      guard exchange != nil || purpose == .cancel else { return }
      if case .unavailable(let error) = found, error.isTransient { return askAgain(after: error) }
      if purpose == .cancel, case .entry(let entry, let sequence) = found, entry.deactivation == .cancelled,
        !entry.isComplete
      {
        // It is the message of this request, whose acknowledgement was lost, or the messages before it may still be
        // there.
        return entry.mark.publisher == publisher
          ? changed(entry, at: sequence)
          : log.purgeAgain(token, epoch: epoch) { self.refuse(.deactivated(.cancelled)) }
      }
      if let refusal = found.refusal { return refuse(refusal) }
      guard case .entry(let entry, let sequence) = found else { return }
      guard purpose == .retrieve else { return change(entry, sequence) }
      verify(entry, sequence)
    }
  }

  /// Checks that all messages are there, before an offset or the completion is reported.
  private func verify(_ entry: LogEntry, _ sequence: UInt64) {
    log.verify(entry, at: sequence, of: token) { [self] verdict in
      guard exchange != nil else { return }
      switch verdict {
      case .intact where entry.isComplete: confirm(entry, sequence)
      case .intact: change(entry, sequence)
      case .lost(let reason): change(entry, sequence, lost: reason)
      case .unavailable(let error): error.isTransient ? askAgain(after: error) : refuse(UploadRefusal(error))
      }
    }
  }

  /// Reports the completion, unless the upload was cancelled since then. Nothing is published to a complete upload.
  private func confirm(_ entry: LogEntry, _ sequence: UInt64) {
    confirmation.confirm(entry, at: sequence, of: token, isAwaited: { [self] in exchange != nil }) { [self] in
      retrieved(entry, at: sequence)
    } outdated: { [self] in
      ask()
    } unavailable: { [self] error in
      error.isTransient ? askAgain(after: error) : refuse(UploadRefusal(error))
    }
  }

  /// - Parameter reason: the reason why the upload is over, if the log has lost a part of it.
  private func change(_ last: LogEntry, _ sequence: UInt64, lost reason: String? = nil) {
    attempts += 1
    var entry = last
    (entry.offset, entry.count) = (last.end, 0)
    entry.mark = .init(publisher: publisher, number: UInt64(attempts))
    if purpose == .cancel { entry.deactivation = .cancelled }
    if reason != nil { entry.deactivation = .stateLost }
    let message = entry.message([], behind: last.link)
    log.publish(message, to: token, after: sequence) { [self, entry, epoch = log.usage.epoch] result in
      switch result {
      case .success(let sequence):
        if entry.isOver { log.usage.end(token, at: sequence, epoch: epoch) }
        guard let reason else { return changed(entry, at: sequence) }
        log.context.emit(ServerEvent(.warning, reason: reason))
        refuse(.deactivated(.stateLost))
      case .failure(let error) where error.isWrongLastSequence || error.isTransient: askAgain(after: error)
      case .failure(let error): refuse(UploadRefusal(error))
      }
    }
  }

  /// Called when a request that appends was faster, or when the brokers are not ready.
  private func askAgain(after error: BrokerError) {
    guard exchange != nil else { return }
    guard MonotonicInstant.now < deadline else {
      return refuse(
        error.isWrongLastSequence
          ? .outOfResources("a request that appends to the upload does not come to an end") : UploadRefusal(error))
    }
    log.loop.schedule(after: pauses.next()) { [self] in ask() }
  }

  private func retrieved(_ entry: LogEntry, at sequence: UInt64) {
    log.digest(of: entry, at: sequence, token) { [self] field in
      var answer = ServerAnswer.retrieved(log.standing(entry, token), version)
      if let field { answer.fields.append(DigestField.representation.lowercased(), field) }
      respond(answer)
    }
  }

  private func changed(_ entry: LogEntry, at sequence: UInt64) {
    guard purpose == .cancel else { return retrieved(entry, at: sequence) }
    var event = ServerEvent(.cancelled, peer: peer)
    event.stream = entry.streamID
    event.offset = entry.streamStart + entry.end
    log.context.emit(event)
    // The result of a complete upload is kept.
    guard !entry.isComplete else { return respond(ServerAnswer.cancelled(version)) }
    log.purge(token) { self.respond(ServerAnswer.cancelled(self.version)) }
  }

  private func refuse(_ refusal: UploadRefusal) {
    let status = refusal.status(version)
    log.context.emit(ServerEvent(.refusal(status: status), peer: peer, status: status, reason: refusal.reason))
    respond(ServerAnswer.refused(refusal, version, limits: log.limits))
  }

  private func respond(_ answer: ServerAnswer) {
    // It is released first, because the connection then releases this request.
    let exchange = exchange
    self.exchange = nil
    exchange?.respond(Response(answer))
  }
}
