// The end of a request with content: the response to the client, and the event.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import JSONLines
internal import JetStream
internal import ResumableUploads
internal import StreamServing

extension LogTransfer {
  func finish(_ ending: Ending) {
    // The client may leave while its response waits for the brokers.
    guard var state, !isFinishing else { return }
    isFinishing = true
    _ = acknowledging { state.announceOffset() }
    self.state = state
    let standing = standing(state)
    let offset = standing.offset
    switch ending {
    case .acknowledge:
      var answer =
        isCreation ? ServerAnswer.created(standing, request.version) : ServerAnswer.appended(standing, request.version)
      if isCreation { answer.fields.append("stream-id", streamID) }
      respond(Response(answer), withDigestUpTo: offset)
    case .complete:
      emit(.ended, offset: offset, bytes: plain == nil ? offset : streamStart + offset)
      respond(finalResponse())
    case .refuse(.representationDigest):
      // No byte of it is kept, as with a directory.
      log.purge(token) { [self] in if !isOver { refuse(.representationDigest) } }
    case .refuse(let refusal):
      if let loss { log.context.emit(ServerEvent(.warning, reason: loss)) }
      refuse(refusal, standing: state.isInactive ? nil : standing)
    case .interrupted(let reason):
      // The request may only have asked for the response once more.
      if state.phase != .complete {
        emit(.interrupted, offset: offset, bytes: offset - min(startOffset, offset), reason: reason)
      }
      over()
    }
  }

  /// Another request has changed the upload, here or at another server. It replaces this one.
  func takenOver() {
    emit(
      .interrupted, offset: append.durable, bytes: append.durable - min(startOffset, append.durable),
      reason: "another request has changed the upload")
    let exchange = exchange
    over()
    exchange?.disconnect()
  }

  func failed(_ error: BrokerError) {
    guard exchange != nil else {
      emit(.interrupted, offset: append.durable, reason: "\(error)")
      return over()
    }
    // The message in flight may still be stored, so no offset is certain, and the client must ask.
    refuse(UploadRefusal(error))
  }

  func refuse(_ refusal: UploadRefusal, standing: ServerAnswer.Standing? = nil) {
    if plain != nil { return refusePlain(refusal, isCertain: standing != nil) }
    let status = refusal.status(request.version)
    var event = ServerEvent(.refusal(status: status), peer: peer, status: status, reason: refusal.reason)
    event.stream = streamID.isEmpty ? nil : streamID
    log.context.emit(event)
    respond(Response(ServerAnswer.refused(refusal, request.version, limits: log.limits, standing: standing)))
  }

  /// The response to the request that completes the upload, and to those that repeat it.
  func finalResponse() -> Response {
    if plain != nil { return plainResponse() }
    let length = state?.offset ?? 0
    var body = JSONLine(event: "stored")
    body.add("stream", streamID)
    body.add("bytes", length)
    var response = Response(
      201, ["stream-id": streamID, "stream-offset": String(streamStart + length)], body: body.line + "\n",
      type: "application/json")
    response.add(ServerAnswer.completedFields(request.version, offset: length))
    if let computed { response.add([DigestField.representation.lowercased(): computed]) }
    return response
  }

  /// Adds the requested digest of the first bytes of the upload.
  private func respond(_ response: Response, withDigestUpTo offset: UInt64) {
    func add(_ field: String?) {
      var response = response
      if let field { response.add([DigestField.representation.lowercased(): field]) }
      respond(response)
    }
    if let whole = digests.ofRequest { return add(whole.field) }
    guard digests.wanted != nil else { return respond(response) }
    var entry = LogEntry(
      offset: offset, count: 0, streamID: streamID, streamStart: streamStart, owner: owner,
      mark: .init(publisher: publisher, number: 0))
    (entry.wanted, entry.link) = (digests.wanted, link)
    log.digest(of: entry, at: append.sequence, token) { [self] field in if !isOver { add(field) } }
  }

  func respond(_ response: Response) {
    // It is released first, because the connection then releases this request, which must not call it any more.
    let exchange = exchange
    over()
    exchange?.respond(response)
  }

  func over() {
    isOver = true
    allowance.leave(append)
    log.usage.unfollow(token, for: publisher)
    digests.drop()
    exchange = nil
    plain?.claim?.abandon()
    plain?.comparison?.abandon()
    stopTelling()
  }
}
