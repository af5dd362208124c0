// The ways in which a request leaves its stream: answered, interrupted, or followed by the next request; and the
// reports.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

extension StreamStoreHandler {
  // MARK: Letting go

  func leave(_ stream: any StoredStream) {
    // All uploads before a hole of this request are over.
    if state.leaves() { registry.overtake(stream.name, by: holder) }
    registry.release(stream.name, by: self)
    allowance.leave()
  }

  /// Like ``leave(_:)``, if the stream continues with another request or not at all.
  private func leaveUnfinished(_ stream: any StoredStream) {
    leave(stream)
    guard !isUpload, !stream.isComplete else { return }
    // No client needs to return to a stream without a byte.
    registry.leave(
      stream.name, for: UploadOwner(credential: head.credential, address: peer),
      atMost: stream.isEmpty && stream.start == 0 ? .zero : nil)
  }

  func interrupt(_ stream: any StoredStream, _ reason: String, status: Int? = nil) {
    leaveUnfinished(stream)
    // A request that asks for the answer again is not interrupted.
    if stream.isComplete || isUpload { return }
    var event = event(.interrupted, stream)
    event.offset = stream.length
    event.bytes = state.storedCount
    event.missing = stream.missing
    event.reason = reason
    event.status = status
    registry.emit(event)
  }

  // MARK: Refusals

  /// The bytes contradict what is stored. The file is not touched.
  func conflict(_ stream: any StoredStream, _ conflict: StreamConflict) {
    trouble.refusal = conflict.refusal
    leaveUnfinished(stream)
    endState()
    emitRefusal(409, conflict.reason, stream)
    answer(409, stream, conflict.reason, retries: false)
  }

  /// The disk refused bytes. Those that it accepted are counted, and the client still has to send the rest.
  func fail(_ stream: any StoredStream, _ error: KeepingError) {
    guard case .disk(let error) = error else { return turnAway(stream, error.refusal) }
    registry.figures.values.storageFailures += 1
    (trouble.hasLostFile, trouble.disk) = (error.isForeignChange, error)
    turnAway(
      stream, StreamAnswer.status(of: error), trouble.hasLostFile ? StreamAnswer.lostFile : error.cause)
  }

  /// The disk refused the end of a plain stream. It is unknown which bytes it lacks, so all must be sent again, into a
  /// separate file. The existing file is closed as it is.
  func refuseEnd(_ stream: any StoredStream, _ error: SystemError) {
    registry.figures.values.storageFailures += 1
    registry.distrusted.add(stream.name, error)
    interrupt(stream, "\(error)", status: StreamAnswer.status(of: error))
    let standing = StreamAnswer.Standing(stream.name.streamID, length: stream.start, missing: 0)
    respond(StreamAnswer.refused(StreamAnswer.status(of: error), standing, error.reason, retries: true))
  }

  /// No content of the request is stored, because it does not match its digest.
  func refuseContent(of stream: any StoredStream) {
    interrupt(stream, StreamAnswer.otherContent, status: 400)
    endState()
    removeIfUnused(stream) { [self] in answer(400, stream, StreamAnswer.otherContent, retries: false) }
  }

  /// The token was withdrawn during the request. The stored bytes stay, and the stream is not complete.
  func withdraw() {
    guard let stream else { return }
    interrupt(stream, StreamAnswer.withdrawn, status: 401)
    endState()
    respond(StreamAnswer.withdrawn(StreamAnswer.Standing(stream)))
  }

  func turnAway(_ stream: any StoredStream, _ refusal: UploadRefusal) {
    let (status, reason) = (refusal.status(.none), StreamAnswer.reason(refusal))
    interrupt(stream, reason, status: status)
    endState()
    removeIfUnused(stream) { [self] in answer(status, stream, reason, retries: refusal.allowsRetry) }
  }

  func turnAway(_ stream: any StoredStream, _ status: Int, _ reason: String, retries: Bool = true) {
    interrupt(stream, reason, status: status)
    endState()
    answer(status, stream, reason, retries: retries)
  }

  /// Where nothing was stored, no later request has use for the file. Then calls `action`.
  private func removeIfUnused(_ stream: any StoredStream, _ action: @escaping () -> Void) {
    guard stream.isNew, stream.isEmpty, stream.missing == 0 else { return action() }
    var answer: (() -> Void)? = action
    let isRemoved = registry.removals.begin(.growingRecording, of: stream.name) { _ in
      // At the end of the first attempt. The registry tries again.
      answer?()
      answer = nil
    }
    if !isRemoved { action() }
  }

  /// The client's request is impossible.
  func refuse(_ status: Int, _ reason: String) {
    endState()
    emitRefusal(status, reason)
    answer(status, nil, reason, retries: false)
  }

  /// The stream cannot be opened because of the disk, or because the server lacks a resource.
  func refuse(_ error: SystemError, _ remedy: String = "") {
    endState()
    trouble.disk = error
    emitRefusal(StreamAnswer.status(of: error), "\(error)\(remedy)")
    answer(StreamAnswer.status(of: error), nil, error.cause, retries: true)
  }

  // MARK: Answers

  /// - Parameter openEnd: the stream offset at which a stream that stays open continues; nil if it is complete, so that
  ///   the recording has its final name.
  func acknowledge(_ stream: any StoredStream, _ status: Int, openEnd: UInt64? = nil) {
    leave(stream)
    // The bytes of an upload are counted by its resource.
    if !isUpload { registry.figures.values.acknowledgedBytes += state.keptCount }
    let standing = StreamAnswer.Standing(
      stream.name.streamID, length: openEnd ?? stream.length, missing: stream.missing)
    respond(
      StreamAnswer.complete(
        status, standing, isKept: stream.isKept, file: openEnd == nil ? stream.name.final : nil))
  }

  func answer(_ status: Int, _ stream: (any StoredStream)?, _ reason: String, retries: Bool) {
    respond(StreamAnswer.refused(status, stream.map { StreamAnswer.Standing($0) }, reason, retries: retries))
  }

  private func respond(_ response: Response) {
    // Leave the exchange first, because the connection then releases this handler and sends it no further events.
    let exchange = exchange
    self.exchange = nil
    exchange?.respond(response)
  }

  // MARK: Reports

  func reportBeginning(_ stream: any StoredStream) {
    var event = event(stream.isNew ? .begun : .continued, stream)
    event.offset = state.offset
    event.missing = stream.missing
    if stream.isComplete { event.reason = "the stream is complete already" }
    registry.emit(event)
  }

  func reportEnd(_ stream: any StoredStream) {
    var event = event(.ended, stream)
    event.file = stream.name.final
    event.bytes = stream.length
    event.missing = stream.missing
    registry.emit(event)
  }

  func event(_ kind: ServerEvent.Kind, _ stream: any StoredStream) -> ServerEvent {
    var event = ServerEvent(kind, peer: peer)
    event.stream = stream.name.streamID
    event.file = stream.fileName
    return event
  }

  func emitRefusal(_ status: Int, _ reason: String, _ stream: (any StoredStream)? = nil) {
    var event = ServerEvent(.refusal(status: status), peer: peer, status: status, reason: reason)
    event.stream = name?.streamID
    event.file = stream?.fileName
    event.offset = stream?.length
    registry.emit(event)
  }
}
