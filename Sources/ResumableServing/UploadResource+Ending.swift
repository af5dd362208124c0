// The end of an upload that is cancelled, expired or faulty, and of its recording.

internal import EventLoops
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

extension UploadResource {
  // MARK: The end

  /// Deactivates the upload. Its active request ends without a response.
  ///
  /// - Parameter completion: called when its record is written with the durability of records.
  func deactivate(
    _ cause: Deactivation, peer: String?, reason: String? = nil,
    _ completion: @escaping (SystemError?) -> Void = { _ in }
  ) {
    let wasUnfinished = isUnfinished
    do throws(UploadRefusal) {
      // `dropTransfer` ends the transfer that it returns.
      _ = try ledger.state.deactivate(cause)
    } catch {
      return completion(nil)
    }
    dropTransfer()
    ledger.forgetResponse()
    guard wasUnfinished else { return save(completion) }
    let event: ServerEvent.Kind =
      switch cause {
      case .cancelled: .cancelled
      case .expired: .expired
      case .interrupted: .closed
      default: .interrupted
      }
    wentInactive(peer: peer, event: event, reason: reason, completion)
  }

  /// No request has arrived during the upload's lifetime. Bytes of a live stream are never removed because of age.
  func expire() { deactivate(ledger.isLive && ledger.state.offset > 0 ? .interrupted : .expired, peer: nil) }

  /// Ends the active request without a response and without an event, because the end of the upload is reported.
  func dropTransfer() {
    let cut = transfer
    transfer = nil
    progress.end()
    cut?.cutOff()
  }

  /// Called when the state is inactive. Removes, closes or releases the bytes of the upload.
  func wentInactive(
    peer: String?, event kind: ServerEvent.Kind, reason: String? = nil,
    _ completion: @escaping (SystemError?) -> Void = { _ in }
  ) {
    guard case .inactive(let cause) = ledger.state.phase else { return completion(nil) }
    var event = content.event(kind, ledger.request)
    (event.peer, event.offset, event.reason) = (peer, ledger.state.offset, reason ?? cause.description)
    noteOwnOffset()
    // The timer would keep it in memory.
    stopParking()
    // Its file may stay, with bytes that were acknowledged. Nobody syncs it later.
    if isSyncDue { synchronizeLast() }
    removal = RecordingRemoval(waiting: [completion])
    let remains = content.abandon(
      ledger.request, for: self, cause.description, end: { ledger.mayHoldRecording ? recordingEnd(cause) : nil },
      { [self, event] error in removalEnded(event, error) })
    endComparison()
    var outcome: RecordingOutcome?
    switch remains {
    // Before the removal, the record states that the upload is unfinished, so that the next server continues it.
    case .recording(.removing): return
    case .recording(let ended): outcome = ended
    // The spooled bytes are the only copy of a live stream.
    case .spool where cause == .interrupted: event.file = resources.store.bodyName(token)
    case .spool: resources.store.removeBody(token)
    }
    removal = nil
    // The registry reports a closed recording. A recording that others continue has not ended, and one that they have
    // completed was reported then.
    let isSilent = outcome == .closing || (outcome == .notHeld && (cause == .expired || cause == .interrupted))
    isOver(isSilent ? nil : event, completion)
  }

  /// The end of an inactive upload is complete.
  private func isOver(_ event: ServerEvent?, _ completion: @escaping (SystemError?) -> Void) {
    touch()
    resources.finished(self)
    if let event { resources.emit(event) }
    save(completion)
  }

  /// Called after an attempt to remove the recording.
  private func removalEnded(_ event: ServerEvent, _ error: SystemError?) {
    // The next server finds the remaining files.
    guard let waiting = removal?.waiting, !resources.stops else { return }
    removal = error.map { RecordingRemoval(error: $0) }
    if let error { return waiting.forEach { $0(error) } }
    isOver(event) { error in waiting.forEach { $0(error) } }
  }

  /// DELETE of an upload whose recording is being removed. If the removal failed, it is retried.
  func cancelAgain(_ completion: @escaping (SystemError?) -> Void) {
    removal?.waiting.append(completion)
    if content.isEnding(ledger.request, {}) { return }
    let waiting = removal?.waiting ?? []
    removal?.waiting = []
    // The disk refused it a moment ago.
    for completion in waiting { completion(removal?.error) }
  }

  /// The disk refused the beginning of the upload. After the creation, the next request retries it.
  func rejectBeginning(_ refusal: UploadRefusal) {
    if undoesCreation(transfer, refusal) { return }
    if !content.isAccepted { release() }
    if let transfer { reject(transfer, refusal) }
  }

  /// Whether the disk refused the creation before a byte of its content was stored. Then the upload is removed.
  func undoesCreation(_ creation: UploadTransfer?, _ refusal: UploadRefusal) -> Bool {
    guard let creation, creation.isCreation, transfer == nil || transfer === creation, ledger.state.keptCount == 0,
      isUnfinished
    else { return false }
    _ = takeWaiting()
    // The transfer that it returns is the creation, which `undone` answers.
    _ = try? ledger.state.deactivate(.abandoned)
    removal = RecordingRemoval()
    let undone = { [self] (error: SystemError?) in
      guard let waiting = removal?.waiting, !resources.stops else { return }
      removal = nil
      resources.neverCreated(self)
      refuse(creation, refusal)
      // A DELETE that came meanwhile.
      for completion in waiting { completion(error) }
    }
    // The request waits only for the first attempt. The registry retries the removal.
    let remains = content.abandon(
      ledger.request, for: self, refusal.reason, end: { .discard }, { undone($0) })
    if case .recording(.removing) = remains { return true }
    undone(nil)
    return true
  }

  private func recordingEnd(_ cause: Deactivation) -> RecordingEnd {
    switch cause {
    case .cancelled: .discard
    case .expired: ledger.isLive ? .close() : .expire
    case .interrupted: .close()
    case .stateLost: refusals.undropped.map { .distrust($0) } ?? .leave
    case .lengthExceeded, .outgrown, .unsynced, .overtaken, .misplaced, .contradicted, .refuted,
      .abandoned:
      .leave
    }
  }

  // MARK: Events

  func emit(_ kind: ServerEvent.Kind, _ transfer: UploadTransfer, reason: String? = nil, status: Int? = nil) {
    // There is no stream to report before the content was requested.
    guard content.isOpen || ledger.hasBegun else { return }
    var event = content.event(kind, ledger.request)
    event.peer = transfer.peer
    event.offset = ledger.state.offset
    if kind == .interrupted { event.bytes = ledger.state.offset - min(ledger.state.offset, transfer.request.offset) }
    event.reason = reason
    event.status = status
    resources.emit(event)
  }

  func emitEnded(_ response: Response, _ transfer: UploadTransfer?) {
    var event = ServerEvent(.ended, peer: transfer?.peer ?? owner.address, status: response.status)
    event.bytes = ledger.state.offset
    resources.emit(event)
  }
}

/// The removal of the recording of an upload that is over.
struct RecordingRemoval {
  /// Called after the current attempt.
  var waiting: [(SystemError?) -> Void] = []
  /// The error of the last attempt.
  var error: SystemError?
}

extension UploadResource: RecordingHolder {
  func overtaken() { deactivate(.overtaken, peer: nil) }
  /// Its next request finds this, and its client continues elsewhere.
  func recordingWasClosed() {}
  var ownsFile: Bool { ledger.ownsFile }
  var isLive: Bool { ledger.isLive }
  var hasAcknowledgedBytes: Bool { ledger.state.announced > 0 }
  var continuesRecording: Bool {
    guard hasAcknowledgedBytes else { return false }
    // Bytes of others may have made it longer than announced.
    guard let length = ledger.state.length, case .bytes(let kept)? = try? content.measure(ledger) else { return true }
    return kept <= length
  }

  func lostRecording() {
    guard ledger.ownsFile else { return }
    ledger.setOwnsFile(false)
    save()
  }

  func tookRecording(ownsFile: Bool) {
    guard ledger.ownsFile != ownsFile else { return }
    ledger.setOwnsFile(ownsFile)
    // The record of an upload that begins is written before its first byte arrives.
    if ledger.hasBegun { save() }
  }
}
