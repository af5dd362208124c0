// A request without the protocol of resumable uploads: the comparison of repeated bytes, the storage of new ones, and
// the responses to the client.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import JSONLines
internal import JetStream
internal import ResumableUploads
internal import StreamServing

/// The state of a plain request.
struct PlainRequest {
  /// The end of the content.
  enum Conclusion {
    case ended
    case refused(UploadRefusal)
    case interrupted(String)
  }

  let name: StreamName
  /// The offset of the content in the stream.
  let offset: UInt64
  var claim: PlainClaim?
  /// Whether the stream contained no byte before this request.
  var isNew = false
  /// Set if the stream was complete before this request.
  var complete: StreamAnswer.Standing?
  /// The comparison of the beginning of the content with the stored bytes. Nil if there are none to compare.
  var comparison: LogComparison?
  var conclusion: Conclusion?

  init(_ name: StreamName, at offset: UInt64) { (self.name, self.offset) = (name, offset) }
}

extension LogTransfer {
  // MARK: The beginning

  func begin(_ plain: PlainRequest) {
    guard head.framing != .absent else { return answer(411, StreamAnswer.withoutLength, nil) }
    if let refusal = digests.refusal(request.content) { return refuse(refusal) }
    allowance.whenKnown(isCreation: true) { [self] refusal in
      guard exchange != nil else { return }
      if let refusal { refuse(refusal) } else { claim(plain) }
    }
  }

  private func claim(_ plain: PlainRequest) {
    let claim = PlainClaim(
      log, allowance, head, plain.name, at: plain.offset, representation: digests.representation)
    self.plain?.claim = claim
    claim.start { [self] outcome in
      self.plain?.claim = nil
      switch outcome {
      case .begin(let entry, let sequence, let token, let state): begun(plain, entry, at: sequence, token, state)
      case .complete(let entry, let sequence, let token): repeats(plain, entry, at: sequence, token)
      case .refuse(let refusal): refuse(refusal)
      case .answer(let status, let reason, let standing): answer(status, reason, standing)
      }
    }
  }

  /// The content continues the stream after that message, except for a beginning that repeats stored bytes.
  private func begun(
    _ plain: PlainRequest, _ entry: LogEntry, at sequence: UInt64, _ token: String, _ state: UploadResourceState
  ) {
    (self.token, self.state, owner, link) = (token, state, entry.owner, entry.link)
    append = LogAppend(after: sequence, at: entry.end, announcing: false)
    follow()
    (hasPublished, startOffset) = (true, entry.end)
    self.plain?.isNew = entry.end == 0
    // The following bytes begin after the hole.
    streamStart = entry.streamStart + (plain.offset - min(plain.offset, entry.streamEnd))
    if plain.offset < entry.streamEnd { compare(plain, with: entry, at: sequence) }
    report(entry.end == 0 ? .begun : .continued, at: plain.offset)
    exchange?.acceptBody()
    watch()
  }

  /// The stream is complete. A client that did not receive the response repeats its request.
  private func repeats(_ plain: PlainRequest, _ entry: LogEntry, at sequence: UInt64, _ token: String) {
    (self.token, streamStart) = (token, entry.streamStart)
    self.plain?.complete = StreamAnswer.Standing(entry)
    if plain.offset < entry.streamEnd { compare(plain, with: entry, at: sequence) }
    report(.continued, at: plain.offset, "the stream is complete already")
    exchange?.acceptBody()
    watch()
  }

  private func compare(_ plain: PlainRequest, with entry: LogEntry, at sequence: UInt64) {
    self.plain?.comparison = LogComparison(log, token, entry, at: sequence, from: plain.offset) { [self] in
      resumeIfDrained()
    } _: { [self] verdict in
      self.plain?.comparison = nil
      guard !isOver else { return }
      compared(verdict)
    }
  }

  // MARK: Content

  func receivePlain(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
    for piece in pieces where !isOver && ending == nil && plain?.conclusion == nil {
      switch digests.take(bytes.extracting(piece)) {
      case .append: bytes.extracting(piece).withUnsafeBufferPointer { feed($0) }
      case .hold: break
      case .refuse(let refusal):
        digests.drop()
        conclude(.refused(refusal))
      }
    }
    guard !isOver else { return }
    proceed()
    pauseIfFull()
  }

  /// Receives bytes that count. Bytes that repeat stored ones are compared first.
  private func feed(_ bytes: UnsafeBufferPointer<UInt8>) {
    guard !bytes.isEmpty else { return }
    if let comparison = plain?.comparison { return comparison.take(bytes) }
    if let standing = plain?.complete { return answer(409, StreamConflict.surplusBytes.reason, standing) }
    guard ending == nil, var state else { return }
    let intake = allowance.limited(state.received(UInt64(bytes.count), by: transferNumber))
    // It is at most the number of bytes.
    let taken = Int(clamping: intake.count)
    append.take(bytes.prefix(taken))
    state.kept(intake.count)
    self.state = state
    if unacknowledgedSince == nil, taken > 0 { unacknowledgedSince = .now }
    if let refusal = intake.refusal { ending = .refuse(refusal) }
  }

  private func compared(_ verdict: LogComparison.Verdict) {
    switch verdict {
    case .same(let rest):
      rest.withUnsafeBufferPointer { feed($0) }
      guard !isOver else { return }
      settle()
      proceed()
      resumeIfDrained()
    case .different:
      answer(409, StreamConflict.differentBytes.reason, plain?.complete ?? standing)
    case .lost(let reason):
      loss = reason
      guard state != nil else { return answer(503, reason, nil, retries: true) }
      append.deactivate(.stateLost)
      ending = .refuse(.deactivated(.stateLost))
      proceed()
    case .unavailable(let error): refuse(UploadRefusal(error))
    }
  }

  /// The content has ended. The conclusion waits for the comparison.
  func conclude(_ conclusion: PlainRequest.Conclusion) {
    guard plain?.conclusion == nil, ending == nil, !isOver else { return }
    plain?.conclusion = conclusion
    if case .ended = conclusion, !digests.isContentRight {
      plain?.conclusion = .refused(.contentDigest)
      digests.drop()
    }
    digests.release().withUnsafeBufferPointer { feed($0) }
    guard !isOver else { return }
    if let comparison = plain?.comparison { return comparison.finish() }
    settle()
    proceed()
  }

  private func settle() {
    guard let conclusion = plain?.conclusion, plain?.comparison == nil, ending == nil else { return }
    let number = transferNumber
    switch conclusion {
    case .ended where plain?.complete != nil: acknowledge()
    case .ended:
      switch state?.contentEnded(number) {
      case .process: ending = isStillAuthorized(within: .zero) ? .complete : .refuse(.notAuthorized)
      case .refuse(let refusal): ending = .refuse(refusal)
      case .acknowledge, .replay, .ignore, nil: break
      }
    case .refused(let refusal): state == nil ? refuse(refusal) : (ending = .refuse(refusal))
    case .interrupted(let reason): state == nil ? over() : (ending = .interrupted(reason))
    }
  }

  // MARK: Answers

  /// The part of the stream that is certainly stored.
  private var standing: StreamAnswer.Standing? {
    guard state != nil else { return nil }
    return StreamAnswer.Standing(streamID, length: streamStart + append.durable, missing: streamStart)
  }

  /// Responds to a request that repeats one of a complete stream.
  private func acknowledge() {
    guard let standing = plain?.complete else { return }
    respond(finalResponse(200, standing))
  }

  func finalResponse(_ status: Int, _ standing: StreamAnswer.Standing) -> Response {
    var body = JSONLine(event: "stored")
    body.add("stream", standing.streamID)
    return StreamAnswer.complete(status, standing, body)
  }

  /// The response to the request that completes the stream.
  func plainResponse() -> Response {
    finalResponse(
      plain?.isNew == true ? 201 : 200,
      StreamAnswer.Standing(streamID, length: streamStart + (state?.offset ?? 0), missing: streamStart))
  }

  /// - Parameter isCertain: whether no message is in flight that may still be stored.
  func refusePlain(_ refusal: UploadRefusal, isCertain: Bool) {
    switch refusal {
    // The next request starts the stream over.
    case .deactivated(let cause): answer(503, cause.description, nil, retries: true)
    case .representationDigest, .contentDigest:
      answer(400, StreamAnswer.otherContent, refusal == .contentDigest ? standing : nil)
    default:
      answer(
        refusal.status(.none), StreamAnswer.reason(refusal), isCertain ? standing : nil, retries: refusal.allowsRetry)
    }
  }

  private func answer(_ status: Int, _ reason: String, _ standing: StreamAnswer.Standing?, retries: Bool = false) {
    var event = ServerEvent(.refusal(status: status), peer: peer, status: status, reason: reason)
    (event.stream, event.offset) = (plain?.name.streamID, standing?.length)
    log.context.emit(event)
    respond(StreamAnswer.refused(status, standing, reason, retries: retries))
  }

  private func report(_ kind: ServerEvent.Kind, at offset: UInt64, _ reason: String? = nil) {
    var event = ServerEvent(kind, peer: peer, reason: reason)
    (event.stream, event.offset, event.missing) = (streamID, offset, streamStart)
    log.context.emit(event)
  }
}
