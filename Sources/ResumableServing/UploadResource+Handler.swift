// The inner handler of an upload: begun when needed, abandoned when not, and begun again at the same offset.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

extension UploadResource {
  // MARK: Beginning

  /// Makes sure that bytes can be kept and that the handler accepts them. Continues in ``proceed()``.
  func openBody() {
    if content.isOpen {
      // The handler may not have decided yet.
      if content.isAccepted { recordBeginning() }
      return
    }
    do throws(SystemError) {
      let isOpen = try content.open(
        for: self, ledger, share: share, unreadable: { [unowned self] error in unreadable(error) })
      guard isOpen else { return deactivate(.stateLost, peer: nil) }
    } catch {
      return rejectBeginning(UploadRefusal(error))
    }
    // A handler that keeps its bytes reports its recording itself.
    if !content.isKeptByHandler, !ledger.hasBegun, let transfer { emit(.begun, transfer) }
    content.begin(for: self, ledger)
  }

  /// The kept bytes cannot be read. If they still exist, the handler is begun again when the disk recovers.
  func unreadable(_ error: SystemError) {
    if error.isForeignChange, !isOnlyMoved { return lostFile("\(error)") }
    resources.figures.values.storageFailures += 1
    let reason = "the stored bytes of the upload cannot be read now: \(error)"
    if transfer == nil { resources.emit(ServerEvent(.warning, reason: reason)) }
    content.abort(reason)
    postpone(503, reason)
  }

  /// Whether the growing file is unchanged. Then an earlier one has only received its final name, and can be found by
  /// it.
  private var isOnlyMoved: Bool {
    guard content.isKeptByHandler else { return false }
    do throws(SystemError) { try content.checkFile() } catch { return false }
    return true
  }

  /// The inner handler accepts its body.
  func handlerAccepts() {
    if isUnfinished, content.accept() { recordBeginning() }
  }

  /// Before the first byte: a later server must know that there is something to continue. If the disk refuses that, the
  /// next request tries again.
  private func recordBeginning() {
    guard !ledger.isBeginningWritten else { return wanted() }
    ledger.begin()
    saveBeginning { [self] error in
      ledger.beginningWritten(error == nil)
      guard let error else { return wanted() }
      rejectBeginning(UploadRefusal(error))
    }
  }

  /// Bytes can be kept now.
  private func wanted() {
    content.feed()
    // There may be fewer kept bytes than a moment ago, and more spooled ones than expected.
    if let kept = content.keptCount, ledger.state.phase == .incomplete, kept != ledger.state.offset {
      do throws(UploadRefusal) {
        try ledger.state.foundKept(kept)
        hasOthersBytes = true
        if let transfer, transfer.request.offset != ledger.state.offset {
          return reject(
            transfer, .mismatchingOffset(expected: ledger.state.offset, provided: transfer.request.offset))
        }
      } catch {
        // Answer the request that has asked for it.
        let waiting = takeWaiting()
        wentInactive(peer: waiting?.peer, event: .interrupted)
        if let waiting { refuse(waiting, error) }
        return
      }
    }
    proceed()
  }

  /// An upload of an earlier server may have to end its recording.
  func restoreHolding() {
    guard isUnfinished, ledger.hasBegun else { return }
    content.restoreHolding(ledger.request, for: self)
  }

  /// Called before an offset is reported or compared, because another request for the same stream may have added bytes.
  ///
  /// - Parameter told: where an append begins. If that is the offset that was announced to its client, the append may
  ///   follow there, even if others have added bytes since. Those are compared with the ones that arrive.
  func lookAfterBytes(following told: UInt64? = nil) throws(UploadRefusal) {
    guard ledger.state.phase == .incomplete else { return }
    guard !content.isOpen else { return try lookAfterFile() }
    if ledger.state.announced > 0, content.isReplaced {
      lostFile("another program has replaced the file of the stream")
      throw .deactivated(.stateLost)
    }
    var kept: KeptExtent
    do throws(SystemError) {
      kept = try content.measure(ledger)
      // Another request of the stream has ended and, because no byte was stored, left no recording.
      if case .gone = kept, ledger.hasAnnouncedNothing {
        ledger.forgetBeginning()
        // Otherwise the next server would miss the recording.
        save()
        kept = try content.measure(ledger)
      }
    } catch {
      throw UploadRefusal(error)
    }
    // Bytes that others added before a restart count as theirs, too.
    if let told, case .bytes = kept, content.isKeptByHandler { ledger.state.goBack(to: told) }
    let before = ledger.state.offset
    if case .bytes(let count) = kept, count > before, told == before { return }
    do throws(UploadRefusal) {
      try ledger.state.found(kept)
      if ledger.state.offset > before { hasOthersBytes = true }
    } catch {
      wentInactive(peer: nil, event: .interrupted)
      throw error
    }
    if case .complete(let count, let response) = kept { try completedByOthers(count, response) }
  }

  /// The file is open. It must be the one with its name, and have its former length.
  private func lookAfterFile() throws(UploadRefusal) {
    do throws(SystemError) {
      try content.checkFile()
    } catch {
      guard error.isForeignChange else { throw UploadRefusal(error) }
      lostFile("\(error)")
      throw .deactivated(.stateLost)
    }
  }

  /// Another request has completed the stream and this upload with it. An upload with another announced length ends.
  private func completedByOthers(_ count: UInt64, _ response: Response) throws(UploadRefusal) {
    guard ledger.state.length == nil || ledger.state.length == count else {
      deactivate(.abandoned, peer: nil)
      throw .deactivated(.abandoned)
    }
    // Bytes that cannot be read now are compared when the upload is completed again.
    guard !content.hasDigests else { return }
    content.endHolding(ledger.request, .leave, for: self)
    conclude(response, nil)
  }

  /// Whether `action` will be called later, because another request has completed the stream. Before that completes the
  /// upload, the whole is compared with the digest from the creation.
  func compare(_ action: @escaping () -> Void) -> Bool {
    guard content.hasDigests, !comparison.isImpossible,
      case .complete(let count, let response)? = try? content.measure(ledger),
      ledger.state.length == nil || ledger.state.length == count, (try? ledger.state.foundKept(count)) != nil
    else { return false }
    openBody()
    guard content.isAccepted, content.keptCount == count else {
      content.park()
      release()
      return false
    }
    comparison.begin(for: action)
    content.compare { [self] verdict in
      guard ledger.state.phase == .incomplete else { return }
      switch verdict {
      case .right:
        content.park()
        conclude(response, nil)
      case .wrong: fail()
      case .unknown, .unreadable:
        comparison.isImpossible = true
        content.park()
        release()
      }
      endComparison()
    }
    return true
  }

  func endComparison() {
    for waiter in comparison.end() { waiter() }
  }

  /// Counts the upload's bytes that an earlier server has left.
  func countRestored() { content.countRestored(ledger, share) }

  // MARK: The handler's calls

  func handlerSendsInterim(_ status: Int, _ fields: HeaderFields) { transfer?.exchange?.sendInterim(status, fields) }

  /// The handler's answer: the response to the whole upload, early or in time.
  func handlerResponds(_ response: Response) {
    var response = response
    if response.flaw(inAnswerTo: ledger.method) != nil {
      response = Response(500, body: "The response to this upload cannot be sent.\n")
    }
    var reason: String { String(decoding: response.body, as: UTF8.self).firstLine }
    switch content.judge(response) {
    case .lostFile: lostFile(reason)
    case .refused(.misplaced): end(.misplaced)
    case .refused(.contradicted): contradicted(response)
    case .refused(.early):
      countKept()
      postpone(503, reason)
    case .notEnded(let error): endRefused(error)
    case .later:
      countKept()
      let reason = reason.isEmpty ? "not now" : reason
      let refusal = UploadRefusal.handlerNotReady(status: response.status, reason: reason)
      if content.isRefusedByDisk, undoesCreation(transfer, refusal) { return }
      postpone(response.status, reason)
    case .processed(let isTold):
      countKept()
      let waiting = takeWaiting()
      let isInTime = ledger.state.phase == .processing
      conclude(response, waiting, end: isInTime && content.bodyEnd == .insideStream ? .closeShort : .leave)
      if !isTold, isInTime { emitEnded(response, waiting) }
    }
  }

  /// The stream does not contain the bytes of the upload. This request gets the handler's response, and later ones
  /// learn that the upload is over.
  private func contradicted(_ response: Response) {
    let waiting = takeWaiting()
    deactivate(.contradicted, peer: waiting?.peer) { _ in waiting?.respond(response) }
  }

  /// The work for the active request has ended. Returns that request, if its client still waits for an answer.
  func takeWaiting() -> UploadTransfer? {
    // The work may have taken longer than a lifetime, and the client may have been asked to try again.
    touch()
    return detachTransfer()
  }

  private func detachTransfer() -> UploadTransfer? {
    let waiting = transfer
    transfer = nil
    waiting?.resource = nil
    progress.end()
    return waiting
  }

  /// The end could not be written to the disk. Bytes that were not synced before are unreliable, and completing again
  /// would not detect that.
  private func endRefused(_ error: SystemError) {
    let waiting = takeWaiting()
    ledger.state.processingPostponed()
    wasInterrupted = true
    syncFailed(error)
    if isDropDue {
      // Without the handler, the refused bytes would count.
      isDropDue = false
      deactivate(.stateLost, peer: nil, reason: "\(error)")
    }
    release()
    guard let waiting else { return }
    if case .inactive(let cause) = ledger.state.phase { return refuse(waiting, .deactivated(cause)) }
    refuse(waiting, UploadRefusal(error))
  }

  /// Something else has changed the kept bytes, so none of them are reliable.
  func lostFile(_ reason: String) {
    resources.emit(ServerEvent(.warning, reason: "cannot continue an upload: \(reason)"))
    let waiting = takeWaiting()
    deactivate(.stateLost, peer: waiting?.peer, reason: reason)
    if let waiting { refuse(waiting, .deactivated(.stateLost)) }
  }

  /// See ``BodyEnd/outgrown``.
  func outgrown() { end(.outgrown) }

  /// The upload is over, and the active request gets the reason.
  private func end(_ cause: Deactivation) {
    let waiting = takeWaiting()
    // A later server must know it as well.
    deactivate(cause, peer: waiting?.peer) { [self] _ in
      if let waiting { refuse(waiting, .deactivated(cause)) }
    }
  }

  /// The representation does not match its announced digest and is not processed (section "Representation Digests").
  func fail() {
    let waiting = takeWaiting()
    let reason = "the representation does not match the Repr-Digest of the upload's creation. It is not processed"
    if let waiting { emit(.interrupted, waiting, reason: reason, status: 400) }
    content.abort(reason)
    conclude(Response(400, body: reason + "\n"), waiting, end: .discard)
  }

  /// This response completes the upload.
  private func conclude(_ response: Response, _ waiting: UploadTransfer?, end: RecordingEnd = .leave) {
    var response = response
    if let field = content.digestField(at: ledger.state.offset) { response.fields.append("repr-digest", field) }
    let answered = ledger.state.responded()
    // If others have completed the stream, this request still waits for its own content.
    let waiting = waiting ?? (answered != nil && transfer?.number == answered ? takeWaiting() : nil)
    noteOwnOffset()
    ledger.complete(response)
    // This waits only for the first attempt. The handler tries again.
    var isFirst = true
    // The received bytes stay, regardless of the handler's report about them: the store has completed it, or it may be
    // continued.
    let outcome = content.release(ending: end, for: self) { [self] _ in
      if isFirst, !resources.stops { concluded(response, waiting) }
      isFirst = false
    }
    if outcome != .removing { concluded(response, waiting) }
  }

  private func concluded(_ response: Response, _ waiting: UploadTransfer?) {
    resources.finished(self)
    save { [self, response] error in
      if let error { resources.emit(ServerEvent(.warning, reason: "\(error)")) }
      resources.store.removeBody(token)
      guard let waiting else { return }
      var response = response
      response.add(ServerAnswer.completedFields(waiting.request.version, offset: announcing { $0.announceOffset() }))
      waiting.respond(response)
    }
  }

  /// The upload cannot be processed now, and stays where it is.
  private func postpone(_ status: Int, _ reason: String) {
    let waiting = takeWaiting()
    ledger.state.processingPostponed()
    release()
    wasInterrupted = true
    if let waiting { refuse(waiting, .handlerNotReady(status: status, reason: reason)) }
  }

  /// The handler has ended without an answer.
  func handlerLeaves() {
    countKept()
    guard content.isKeptByHandler else { return deactivate(.abandoned, peer: nil) }
    // Another request continues the same stream. The bytes that it adds belong to this upload too, because a byte of a
    // stream is the same from every client. Our next request measures how many there are.
    release()
    if ledger.state.phase == .processing {
      ledger.state.processingPostponed()
      touch()
    }
    guard let transfer else { return }
    reject(transfer, .handlerNotReady(status: 503, reason: "another request continues the stream"))
  }

  /// Releases the handler and leaves the state unchanged.
  func release() {
    noteOwnOffset()
    content.release()
    // It is not parked any more. Even if all bytes are synced, only a round of syncs lets the record state it.
    if isUnfinished, ledger.isUnsynced, ledger.state.offset > 0 { syncSoon() }
  }

  /// The server has ended. Breaks the reference cycle between an upload and its handler. Bytes on the disk stay.
  func partFromHandler() {
    // The ages of the uploads are written already.
    _ = detachTransfer()
    content.part()
  }
}

/// Requests that wait while the bytes of others are compared with a digest.
struct WholeComparison {
  /// nil if no comparison is under way.
  private var waiters: [() -> Void]?
  /// Whether a comparison was attempted and was impossible.
  var isImpossible = false

  /// Adds `action` if a comparison is under way. Returns whether it was added.
  mutating func waits(_ action: @escaping () -> Void) -> Bool {
    waiters?.append(action)
    return waiters != nil
  }

  mutating func begin(for action: @escaping () -> Void) { waiters = [action] }

  mutating func end() -> [() -> Void] {
    defer { waiters = nil }
    return waiters ?? []
  }
}

extension String {
  /// By octets, because Swift treats CR LF as one character that is not a line feed.
  fileprivate var firstLine: String {
    let line = utf8.split { $0 == Octet.lineFeed || $0 == Octet.carriageReturn }.first
    return line.map { String(Substring($0)) } ?? ""
  }
}
