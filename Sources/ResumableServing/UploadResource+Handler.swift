// The handler within an upload: begun when it is needed, given up when it is not, begun again where it stood.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

extension UploadResource {
  // MARK: Beginning

  /// Sees to it that bytes can be kept and that the handler wants them; goes on in ``proceed()``.
  func openBody() {
    if content.isOpen {
      // It may still be thinking about it.
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

  /// What is kept cannot be read. If it is there, a disk that recovers gives it back: the handler is begun again then.
  func unreadable(_ error: SystemError) {
    if error.isForeignChange, !isOnlyMoved { return lostFile("\(error)") }
    resources.figures.values.storageFailures += 1
    let reason = "the stored bytes of the upload cannot be read now: \(error)"
    if transfer == nil { resources.emit(ServerEvent(.warning, reason: reason)) }
    content.abort(reason)
    postpone(503, reason, takeWaiting())
  }

  /// Whether the file that grows is as it was left: then an earlier one has only got its final name, and is found by that.
  private var isOnlyMoved: Bool {
    guard content.isKeptByHandler else { return false }
    do throws(SystemError) { try content.checkFile() } catch { return false }
    return true
  }

  /// The handler within wants its body.
  func handlerAccepts() {
    if isUnfinished, content.accept() { recordBeginning() }
  }

  /// Before the first byte: a server that comes after us must know that there is something to go on with. If the disk
  /// refuses that, the next request tries again.
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
    // Less may be kept than there was a moment ago, and what was spooled may be more.
    if let kept = content.keptCount, ledger.state.phase == .incomplete, kept != ledger.state.offset {
      do throws(UploadRefusal) {
        try ledger.state.foundKept(kept)
        hasOthersBytes = true
        if let transfer, transfer.request.offset != ledger.state.offset {
          return reject(
            transfer, .mismatchingOffset(expected: ledger.state.offset, provided: transfer.request.offset))
        }
      } catch {
        // Whoever has asked for it is told.
        let waiting = takeWaiting()
        wentInactive(peer: waiting?.peer, event: .interrupted)
        if let waiting { refuse(waiting, error) }
        return
      }
    }
    proceed()
  }

  /// An upload of an earlier server may be the one that ends its recording.
  func restoreHolding() {
    guard isUnfinished, ledger.hasBegun else { return }
    content.restoreHolding(ledger.request, for: self)
  }

  /// Before an offset is told or compared: what is kept may have grown by another request for the same stream.
  ///
  /// - Parameter told: where an append begins. If it is the offset that its client was told, it may follow there,
  ///   whatever others have brought since: that is compared with what comes.
  func lookAfterBytes(following told: UInt64? = nil) throws(UploadRefusal) {
    guard ledger.state.phase == .incomplete else { return }
    guard !content.isOpen else { return try lookAfterFile() }
    if ledger.state.announced > 0, content.isReplaced {
      lostFile("another program has replaced the file of the stream")
      throw .deactivated(.stateLost)
    }
    let kept: KeptExtent
    do throws(SystemError) {
      kept = try content.measure(ledger)
    } catch {
      throw UploadRefusal(error)
    }
    // What others have brought before a restart counts as theirs, too.
    if let told, case .bytes = kept, content.isKeptByHandler { ledger.state.goBack(to: told) }
    let before = ledger.state.offset
    if case .bytes(let count) = kept, count > before, told == before {
      hasOthersBytes = true
      return
    }
    do throws(UploadRefusal) {
      try ledger.state.found(kept)
      if ledger.state.offset > before { hasOthersBytes = true }
    } catch {
      wentInactive(peer: nil, event: .interrupted)
      throw error
    }
    if case .complete(let count, let response) = kept { try completedByOthers(count, response) }
  }

  /// The file is open: it must be the one that its name stands for, and as long as it was left.
  private func lookAfterFile() throws(UploadRefusal) {
    do throws(SystemError) {
      try content.checkFile()
    } catch {
      guard error.isForeignChange else { throw UploadRefusal(error) }
      lostFile("\(error)")
      throw .deactivated(.stateLost)
    }
  }

  /// Another request has completed the stream, and with it this upload. One that was to have another length ends.
  private func completedByOthers(_ count: UInt64, _ response: Response) throws(UploadRefusal) {
    guard ledger.state.length == nil || ledger.state.length == count else {
      deactivate(.abandoned, peer: nil)
      throw .deactivated(.abandoned)
    }
    // What cannot be read now is compared when the upload is completed once more.
    guard !content.hasDigests else { return }
    content.endHolding(ledger.request, .leave, for: self)
    conclude(response, nil)
  }

  /// Whether `action` will be called later, because another request has completed the stream: before the upload is
  /// complete with it, the whole is compared with the digest that the creation gave.
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

  /// Counts what an earlier server has left of the upload.
  func countRestored() { content.countRestored(ledger, share) }

  // MARK: What the handler asks for

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
      postpone(503, reason, takeWaiting())
    case .notEnded(let error): endRefused(error)
    case .later:
      countKept()
      let reason = reason.isEmpty ? "not now" : reason
      let refusal = UploadRefusal.handlerNotReady(status: response.status, reason: reason)
      if content.isRefusedByDisk, undoesCreation(transfer, refusal) { return }
      postpone(response.status, reason, takeWaiting())
    case .processed(let isTold):
      countKept()
      let waiting = takeWaiting()
      let isInTime = ledger.state.phase == .processing
      conclude(response, waiting)
      if !isTold, isInTime { emitEnded(response, waiting) }
    }
  }

  /// The stream has other bytes than the upload. This request gets the handler's response, and later ones are told that
  /// the upload is over.
  private func contradicted(_ response: Response) {
    let waiting = takeWaiting()
    deactivate(.contradicted, peer: waiting?.peer) { _ in waiting?.respond(response) }
  }

  /// The request whose client waits for an answer.
  func takeWaiting() -> UploadTransfer? {
    let waiting = transfer
    transfer = nil
    waiting?.resource = nil
    progress.end()
    return waiting
  }

  /// The disk did not take the end: what it has not taken before cannot be counted on, and completing again would not
  /// find out.
  private func endRefused(_ error: SystemError) {
    let waiting = takeWaiting()
    _ = ledger.state.processingPostponed()
    wasInterrupted = true
    syncFailed(error)
    if isDropDue {
      // Without the handler the bytes that the disk has refused would count.
      isDropDue = false
      refusals.acknowledged = error
      deactivate(.stateLost, peer: nil, reason: "\(error)")
    }
    release()
    guard let waiting else { return }
    if case .inactive(let cause) = ledger.state.phase { return refuse(waiting, .deactivated(cause)) }
    refuse(waiting, UploadRefusal(error))
  }

  /// Something else has changed what was kept: none of it can be vouched for.
  func lostFile(_ reason: String) {
    resources.emit(ServerEvent(.warning, reason: "an upload cannot be continued: \(reason)"))
    let waiting = takeWaiting()
    deactivate(.stateLost, peer: waiting?.peer, reason: reason)
    if let waiting { refuse(waiting, .deactivated(.stateLost)) }
  }

  /// Others have stored more of the stream than this upload has: it does not end where the upload does.
  func outgrown() { end(.outgrown) }

  /// The upload is over, and the request at work is told why.
  private func end(_ cause: Deactivation) {
    let waiting = takeWaiting()
    // A server that comes after this one must know it as well.
    deactivate(cause, peer: waiting?.peer) { [self] _ in
      if let waiting { refuse(waiting, .deactivated(cause)) }
    }
  }

  /// The representation is not the one that was announced: it is not processed (section "Representation Digests").
  func fail() {
    let waiting = takeWaiting()
    let reason = "the representation does not match the Repr-Digest of the upload's creation. It is not processed"
    if let waiting { emit(.interrupted, waiting, reason: reason, status: 400) }
    content.abort(reason)
    conclude(Response(400, body: reason + "\n"), waiting, end: .discard)
  }

  /// The upload is complete by this response.
  private func conclude(_ response: Response, _ waiting: UploadTransfer?, end: RecordingEnd = .leave) {
    var response = response
    if let field = content.digestField(at: ledger.state.offset) { response.fields.append("repr-digest", field) }
    _ = ledger.state.responded()
    noteOwnOffset()
    ledger.complete(response)
    // Only the first attempt is waited for. The handler tries again.
    var isFirst = true
    // What has come stays, whatever the handler says of it: the store has completed it, or it may be continued.
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
  func postpone(_ status: Int, _ reason: String) {
    content.park()
    postpone(status, reason, takeWaiting())
  }

  private func postpone(_ status: Int, _ reason: String, _ waiting: UploadTransfer?) {
    _ = ledger.state.processingPostponed()
    release()
    wasInterrupted = true
    if let waiting { refuse(waiting, .handlerNotReady(status: status, reason: reason)) }
  }

  /// The handler has let go without an answer.
  func handlerLeaves() {
    countKept()
    guard content.isKeptByHandler else { return deactivate(.abandoned, peer: nil) }
    // Another request goes on with the same stream. What it adds are bytes of this upload too, for a byte of a stream
    // is the same whoever brings it: the next request of ours looks how many there are.
    release()
    if ledger.state.phase == .processing { _ = ledger.state.processingPostponed() }
    guard let transfer else { return }
    reject(transfer, .handlerNotReady(status: 503, reason: "another request continues the stream"))
  }

  /// Lets go of the handler; the state stands as it is.
  func release() {
    noteOwnOffset()
    content.release()
  }

  /// The server has ended: an upload and its handler, which refer to each other, part. What is on the disk stays.
  func partFromHandler() {
    _ = takeWaiting()
    content.part()
  }
}

/// Who waits while the bytes that others have brought are compared with a digest.
struct WholeComparison {
  /// nil if nothing is compared.
  private var waiters: [() -> Void]?
  /// Whether that was tried, and could not be done.
  var isImpossible = false

  /// Whether `action` is among them now.
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
  /// By octets: to Swift, CR LF is one character and no line feed.
  fileprivate var firstLine: String {
    let line = utf8.split { $0 == Octet.lineFeed || $0 == Octet.carriageReturn }.first
    return line.map { String(Substring($0)) } ?? ""
  }
}
