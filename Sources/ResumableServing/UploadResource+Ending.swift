// How an upload ends when it is cancelled, expired or faulty, and what happens to its recording.

internal import EventLoops
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

extension UploadResource {
  // MARK: The end

  /// Deactivates the upload. Its active requests end without an answer.
  ///
  /// - Parameter completion: called when the record of it is written, as durably as records are.
  func deactivate(
    _ cause: Deactivation, peer: String?, reason: String? = nil,
    _ completion: @escaping (SystemError?) -> Void = { _ in }
  ) {
    let wasUnfinished = isUnfinished
    do throws(UploadRefusal) {
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

  /// No request has arrived during the upload's lifetime. Age removes no byte of a live stream.
  func expire() { deactivate(ledger.isLive && ledger.state.offset > 0 ? .interrupted : .expired, peer: nil) }

  /// Ends the active request without an answer and without an event, because the upload's own end is reported.
  func dropTransfer() {
    let cut = transfer
    transfer = nil
    progress.end()
    cut?.cutOff()
  }

  /// The state is inactive. Removes, closes or releases what the upload holds.
  func wentInactive(
    peer: String?, event kind: ServerEvent.Kind, reason: String? = nil,
    _ completion: @escaping (SystemError?) -> Void = { _ in }
  ) {
    guard case .inactive(let cause) = ledger.state.phase else { return completion(nil) }
    touch()
    var event = content.event(kind, ledger.request)
    (event.peer, event.offset, event.reason) = (peer, ledger.state.offset, reason ?? cause.description)
    noteOwnOffset()
    removal = RecordingRemoval(waiting: [completion])
    let remains = content.abandon(
      ledger.request, for: self, cause.description, end: { ledger.hasBegun ? recordingEnd(cause) : nil },
      { [self, event] error in removalEnded(event, error) })
    endComparison()
    var outcome: RecordingOutcome?
    switch remains {
    // Until it is removed, the record says that the upload is unfinished: the next server must not forget it.
    case .recording(.removing): return
    case .recording(let ended): outcome = ended
    // What a handler was given of a live stream is all that there is of it.
    case .spool where cause == .interrupted: event.file = resources.store.bodyName(token)
    case .spool: resources.store.removeBody(token)
    }
    removal = nil
    // The registry tells of a recording that is closed, and one that others continue has not ended.
    let isSilent = outcome == .closing || (outcome == .notHeld && (cause == .expired || cause == .interrupted))
    isOver(isSilent ? nil : event, completion)
  }

  /// The server is done with an upload that is inactive.
  private func isOver(_ event: ServerEvent?, _ completion: @escaping (SystemError?) -> Void) {
    resources.finished(self)
    if let event { resources.emit(event) }
    save(completion)
  }

  /// An attempt to remove the recording is over.
  private func removalEnded(_ event: ServerEvent, _ error: SystemError?) {
    // The next server looks what is left.
    guard let waiting = removal?.waiting, !resources.stops else { return }
    removal = error.map { RecordingRemoval(error: $0) }
    if let error { return waiting.forEach { $0(error) } }
    isOver(event) { error in waiting.forEach { $0(error) } }
  }

  /// DELETE of an upload whose recording is being removed, or could not be removed. Then that is tried again.
  func cancelAgain(_ completion: @escaping (SystemError?) -> Void) {
    removal?.waiting.append(completion)
    if content.isEnding(ledger.request, {}) { return }
    let waiting = removal?.waiting ?? []
    removal?.waiting = []
    // The disk has just refused it.
    for completion in waiting { completion(removal?.error) }
  }

  /// The disk does not let the upload begin. If that is not the creation, the next request tries again.
  func rejectBeginning(_ refusal: UploadRefusal) {
    if undoesCreation(transfer, refusal) { return }
    if !content.isAccepted { release() }
    if let transfer { reject(transfer, refusal) }
  }

  /// Whether the disk refuses the creation before a byte of its content is stored. Then nothing of the upload stays.
  func undoesCreation(_ creation: UploadTransfer?, _ refusal: UploadRefusal) -> Bool {
    guard let creation, creation.isCreation, transfer == nil || transfer === creation, ledger.state.keptCount == 0,
      isUnfinished
    else { return false }
    _ = takeWaiting()
    _ = try? ledger.state.deactivate(.abandoned)
    removal = RecordingRemoval()
    let undone = { [self] in
      guard removal != nil, !resources.stops else { return }
      removal = nil
      resources.neverCreated(self)
      refuse(creation, refusal)
    }
    // Only the first attempt is waited for. The handler tries again.
    let remains = content.abandon(
      ledger.request, for: self, refusal.reason, end: { .discard }, { _ in undone() })
    if case .recording(.removing) = remains { return true }
    undone()
    return true
  }

  private func recordingEnd(_ cause: Deactivation) -> RecordingEnd {
    switch cause {
    case .cancelled: .discard
    case .expired: ledger.isLive ? .close : .expire
    case .interrupted: .close
    case .stateLost: refusals.acknowledged.map { .distrust($0) } ?? .leave
    case .lengthExceeded, .outgrown, .unsynced, .overtaken, .misplaced, .contradicted, .refuted,
      .abandoned:
      .leave
    }
  }

  // MARK: Events

  func emit(_ kind: ServerEvent.Kind, _ transfer: UploadTransfer, reason: String? = nil, status: Int? = nil) {
    // Before the first byte was requested, there is no stream to report.
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
  /// Who waits for the end of the attempt at work.
  var waiting: [(SystemError?) -> Void] = []
  /// Why the disk refused the last one.
  var error: SystemError?
}

extension UploadResource: RecordingHolder {
  func overtaken() { deactivate(.overtaken, peer: nil) }
  var ownsFile: Bool { ledger.ownsFile }
  var isLive: Bool { ledger.isLive }
  var continuesRecording: Bool {
    guard ledger.state.announced > 0 else { return false }
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
