// The handler within an upload: begun when it is needed, given up when it is not, begun again where it stood.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

extension UploadResource {
  var keeper: (any KeepingRequestHandler)? { handler?.keeper }

  func makeHandler() -> RoutedHandler? {
    let handler = RequestHead(record).map(resources.router)
    handlerKeepsBytes = handler?.keeper != nil
    return handler
  }

  // MARK: Beginning

  /// Sees to it that bytes can be kept and that the handler wants them; goes on in ``proceed()``.
  func openBody() {
    if handler != nil {
      // It may still be thinking about it.
      if handlerAccepted { recordBeginning() }
      return
    }
    guard let handler = makeHandler() else { return deactivate(.stateLost, peer: nil) }
    self.handler = handler
    let exchange = UploadResourceExchange(self, peer: peer)
    self.exchange = exchange
    if let keeper {
      body = HandlerKeptBody(keeper)
      if record.hasBegun {
        // What others have brought behind it since is compared with what comes.
        keeper.restoreKeeping(exchange, for: self, at: state.offset)
      } else {
        keeper.beginKeeping(exchange, for: self)
      }
      return
    }
    do throws(SystemError) {
      let (file, count) = try resources.store.openBody(token, creating: !record.hasBegun)
      guard let share else { return deactivate(.stateLost, peer: nil) }
      body = SpooledBody(
        file, keptCount: count, account: spoolAccount(of: count, share), share: share, handler: handler.handler,
        loop: resources.loop, records: resources.store,
        unreadable: { [unowned self] in deactivate(.stateLost, peer: nil) })
    } catch {
      release()
      if let transfer { reject(transfer, UploadRefusal(error)) }
      return
    }
    if !record.hasBegun, let transfer { emit(.begun, transfer) }
    handler.handler.begin(exchange)
  }

  /// The handler within wants its body.
  func handlerAccepts() {
    guard !handlerAccepted, isUnfinished else { return }
    handlerAccepted = true
    recordBeginning()
  }

  /// The handler within takes no more of its body for now. Its bytes are kept all the same, and acknowledged.
  func handlerPauses() { (body as? SpooledBody)?.pause() }
  func handlerResumes() { (body as? SpooledBody)?.resume() }

  /// Before the first byte: a server that comes after us must know that there is something to go on with. If the disk
  /// refuses that, the next request tries again.
  private func recordBeginning() {
    guard !isBeginningSaved else { return wanted() }
    record.hasBegun = true
    saveBeginning { [self] error in
      isBeginningSaved = error == nil
      guard let error else { return wanted() }
      if let transfer { reject(transfer, UploadRefusal(error)) }
    }
  }

  /// Bytes can be kept now.
  private func wanted() {
    (body as? SpooledBody)?.accept()
    place = body?.file?.file.place
    if let body, let digests { digests.catchUpInBackground(with: body, loop: resources.loop, worker: resources.worker) }
    // Less may be kept than there was a moment ago, and what was spooled may be more.
    if let body, state.phase == .incomplete, body.keptCount != state.offset {
      do throws(UploadRefusal) {
        try state.foundKept(body.keptCount)
        hasOthersBytes = true
        if let transfer, transfer.request.offset != state.offset {
          return reject(
            transfer, .mismatchingOffset(expected: state.offset, provided: transfer.request.offset))
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

  /// Looks how many bytes are kept while no handler is there to say so.
  func measureKept() throws(SystemError) -> KeptExtent {
    guard record.hasBegun else {
      return try makeHandler()?.keeper?.isOvertaken() == true ? .overtaken : .bytes(0)
    }
    guard let handler = makeHandler() else { return .gone }
    if let keeper = handler.keeper {
      let kept = try keeper.measureKept()
      guard let ownOffset = record.ownOffset else { return kept }
      switch kept {
      // What others have brought is compared with what this upload brings.
      case .bytes(let count), .complete(let count, _): return .bytes(min(count, ownOffset))
      case .gone, .closed, .overtaken: return kept
      }
    }
    do throws(SystemError) {
      return .bytes(try resources.store.measureBody(token))
    } catch {
      if error.isMissing { return .gone }
      throw error
    }
  }

  /// An upload of an earlier server may be the one that ends its recording.
  func restoreHolding() {
    guard isUnfinished, record.hasBegun else { return }
    makeHandler()?.keeper?.restoreHolding(self)
  }

  /// Before an offset is told or compared: what is kept may have grown by another request for the same stream.
  ///
  /// - Parameter told: where an append begins. If it is the offset that its client was told, it may follow there,
  ///   whatever others have brought since: that is compared with what comes.
  func lookAfterBytes(following told: UInt64? = nil) throws(UploadRefusal) {
    guard state.phase == .incomplete else { return }
    guard handler == nil else { return try lookAfterFile() }
    if state.announced > 0, place?.isReplaced == true {
      lostFile("something else has replaced the file of the stream")
      throw .deactivated(.stateLost)
    }
    let kept: KeptExtent
    do throws(SystemError) {
      kept = try measureKept()
    } catch {
      throw UploadRefusal(error)
    }
    // What others have brought before a restart counts as theirs, too.
    if let told, case .bytes = kept, handlerKeepsBytes { state.goBack(to: told) }
    let before = state.offset
    if case .bytes(let count) = kept, count > before, told == before {
      hasOthersBytes = true
      return
    }
    do throws(UploadRefusal) {
      try state.found(kept)
      if state.offset > before { hasOthersBytes = true }
    } catch {
      wentInactive(peer: nil, event: .interrupted)
      throw error
    }
    if case .complete(let count, let response) = kept { try completedByOthers(count, response) }
  }

  /// The file is open: it must be the one that its name stands for, and as long as it was left.
  private func lookAfterFile() throws(UploadRefusal) {
    do throws(SystemError) {
      try keeper?.checkFile()
    } catch {
      guard error.isForeignChange else { throw UploadRefusal(error) }
      lostFile("\(error)")
      throw .deactivated(.stateLost)
    }
  }

  /// Another request has completed the stream, and with it this upload. One that was to have another length ends.
  private func completedByOthers(_ count: UInt64, _ response: Response) throws(UploadRefusal) {
    guard state.length == nil || state.length == count else {
      deactivate(.abandoned, peer: nil)
      throw .deactivated(.abandoned)
    }
    // What cannot be read now is compared when the upload is completed once more.
    guard digests == nil else { return }
    _ = makeHandler()?.keeper?.end(.leave, for: self)
    conclude(response, nil)
  }

  /// Whether `action` will be called later, because another request has completed the stream: before the upload is
  /// complete with it, the whole is compared with the digest that the creation gave.
  func compare(_ action: @escaping () -> Void) -> Bool {
    guard let digests, !isIncomparable, case .complete(let count, let response)? = try? measureKept(),
      state.length == nil || state.length == count, (try? state.foundKept(count)) != nil
    else { return false }
    openBody()
    guard let body, handlerAccepted, body.keptCount == count else {
      keeper?.park()
      release()
      return false
    }
    comparisonWaiters = [action]
    digests.catchUp(with: body, loop: resources.loop, worker: resources.worker) { [self] verdict in
      guard state.phase == .incomplete else { return }
      switch verdict {
      case .right:
        keeper?.park()
        conclude(response, nil)
      case .wrong: fail()
      case .unreadable:
        isIncomparable = true
        keeper?.park()
        release()
      }
      endComparison()
    }
    return true
  }

  private func endComparison() {
    let waiters = comparisonWaiters ?? []
    comparisonWaiters = nil
    for waiter in waiters { waiter() }
  }

  /// Brings the record in line with where the offset lies.
  func noteOwnOffset() {
    guard let keeper, handlerAccepted else { return }
    record.ownOffset = keeper.isInside ? state.offset : nil
  }

  /// Writes down where the offset lies, if that is not written yet. An offset is announced after that only: the next
  /// server would not know it.
  func saveOwnOffset(_ completion: @escaping (SystemError?) -> Void) {
    noteOwnOffset()
    if record.ownOffset == savedOwnOffset { completion(nil) } else { save(completion) }
  }

  /// What the spooled bytes take of the quotas. A handler that keeps its bytes counts them itself.
  private func spoolAccount(of count: UInt64, _ share: UploadUsage.Share) -> StreamAccount {
    let account = spooled ?? resources.newAccount()
    account.shrink(to: count)
    if account.bytes < count { account.charge(count - account.bytes, to: share) }
    spooled = account
    return account
  }

  /// Counts what an earlier server has left of the upload.
  func countRestored() {
    guard let share, record.hasBegun, makeHandler()?.keeper == nil else { return }
    _ = spoolAccount(of: state.offset, share)
  }

  // MARK: What the handler asks for

  func handlerSendsInterim(_ status: Int, _ fields: HeaderFields) { transfer?.exchange?.sendInterim(status, fields) }

  /// The handler's answer: the response to the whole upload, early or in time.
  func handlerResponds(_ response: Response) {
    var response = response
    if response.flaw(inAnswerTo: record.method) != nil {
      response = Response(500, body: "The response to this upload cannot be sent.\n")
    }
    if keeper?.hasLostFile == true { return lostFile(String(decoding: response.body, as: UTF8.self).firstLine) }
    if let error = keeper?.endError { return endRefused(error) }
    countKept()
    let waiting = takeWaiting()
    if keeper?.isRefusedForNow(response) ?? response.asksToRetry {
      let reason = String(decoding: response.body, as: UTF8.self).firstLine
      return postpone(response.status, reason.isEmpty ? "not now" : reason, waiting)
    }
    let isInTime = state.phase == .processing
    // A handler that keeps its bytes tells of them itself.
    let isKeeping = keeper != nil
    conclude(response, waiting)
    if !isKeeping, isInTime { emitEnded(response, waiting) }
  }

  /// The request whose client waits for an answer.
  private func takeWaiting() -> UploadTransfer? {
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
    _ = state.processingPostponed()
    wasInterrupted = true
    syncFailed(error)
    release()
    guard let waiting else { return }
    if case .inactive(let cause) = state.phase { return refuse(waiting, .deactivated(cause)) }
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
  func outgrown() {
    let waiting = takeWaiting()
    // A server that comes after this one must know it as well.
    deactivate(.outgrown, peer: waiting?.peer) { [self] _ in
      if let waiting { refuse(waiting, .deactivated(.outgrown)) }
    }
  }

  /// The representation is not the one that was announced: it is not processed (section "Representation Digests").
  func fail() {
    let waiting = takeWaiting()
    let reason = "the representation is not what the Repr-Digest of the upload's creation says; it is not processed"
    if let waiting { emit(.interrupted, waiting, reason: reason, status: 400) }
    if let keeper { keeper.park() } else { handler?.handler.aborted(.uploadEnded(reason)) }
    conclude(Response(400, body: reason + "\n"), waiting, end: .reject)
  }

  /// The upload is complete by this response.
  private func conclude(_ response: Response, _ waiting: UploadTransfer?, end: RecordingEnd = .leave) {
    var response = response
    if let field = digests?.field(at: state.offset) { response.fields.append("repr-digest", field) }
    _ = state.responded()
    let ending = keeper
    release()
    record.response = UploadRecord.Response(
      status: response.status, fields: response.fields, body: response.body)
    record.promised = max(record.promised, state.offset)
    // What has come stays, whatever the handler says of it: the store has completed it, or it may be continued.
    if let ending { _ = ending.end(end, for: self) }
    resources.finished(self)
    save { [self, response] error in
      if let error { resources.emit(ServerEvent(.warning, reason: "\(error)")) }
      resources.store.removeBody(token)
      guard let waiting else { return }
      var response = response
      response.add(ServerAnswer.completedFields(waiting.request.version, offset: announcing { state.announceOffset() }))
      waiting.respond(response)
    }
  }

  /// The upload cannot be processed now, and stays where it is.
  func postpone(_ status: Int, _ reason: String) {
    keeper?.park()
    postpone(status, reason, takeWaiting())
  }

  private func postpone(_ status: Int, _ reason: String, _ waiting: UploadTransfer?) {
    _ = state.processingPostponed()
    release()
    wasInterrupted = true
    if let waiting { refuse(waiting, .handlerNotReady(status: status, reason: reason)) }
  }

  /// The handler has let go without an answer.
  func handlerLeaves() {
    countKept()
    guard keeper != nil else { return deactivate(.abandoned, peer: nil) }
    // Another request goes on with the same stream. What it adds are bytes of this upload too, for a byte of a stream
    // is the same whoever brings it: the next request of ours looks how many there are.
    release()
    if state.phase == .processing { _ = state.processingPostponed() }
    guard let transfer else { return }
    reject(transfer, .handlerNotReady(status: 503, reason: "another request continues the stream"))
  }

  /// Lets go of the handler; the state stands as it is.
  private func release() {
    noteOwnOffset()
    exchange?.cutOff()
    exchange = nil
    (body as? SpooledBody)?.stopFeeding()
    body = nil
    handler = nil
    handlerAccepted = false
  }

  /// The server has ended: an upload and its handler, which refer to each other, part. What is on the disk stays.
  func partFromHandler() {
    keeper?.park()
    _ = takeWaiting()
    digests?.abandon()
    let handler = keeper == nil ? handler : nil
    release()
    handler?.handler.aborted(.uploadEnded("the server ends"))
  }

  // MARK: Rest

  /// No request is at work: after a while the handler is given up.
  func rest() {
    guard state.phase == .incomplete, handler != nil, parkTimer == nil else { return }
    parkTimer = resources.loop.schedule(after: resources.options.parkDelay) { [self] in
      parkTimer = nil
      park()
    }
  }

  private func park() {
    guard state.phase == .incomplete, state.transfer == nil, handler != nil else { return }
    guard resources.durability != .none, state.durable < state.offset else { return leaveHandler() }
    synchronize { [self] error in
      guard state.phase == .incomplete, state.transfer == nil, handler != nil else { return }
      if error == nil { becameClean() }
      leaveHandler()
    }
  }

  private func leaveHandler() {
    if let keeper {
      keeper.park()
      release()
    } else {
      // A handler that keeps nothing was promised one request without a break: it stays, and only its file is closed.
      (body as? SpooledBody)?.closeFile()
    }
    if state.announced > record.promised { save() }
  }

  // MARK: The end

  /// Gives the upload up. Requests at work on it end without an answer.
  ///
  /// - Parameter completion: called when the record says so, as durable as records are.
  func deactivate(
    _ cause: Deactivation, peer: String?, reason: String? = nil,
    _ completion: @escaping (SystemError?) -> Void = { _ in }
  ) {
    let wasUnfinished = isUnfinished
    do throws(UploadRefusal) {
      _ = try state.deactivate(cause)
    } catch {
      return completion(nil)
    }
    dropTransfer()
    record.response = nil
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

  /// Nobody has come for as long as the upload lives. Age removes no byte of a live stream.
  func expire() { deactivate(record.isLive && keptCount > 0 ? .interrupted : .expired, peer: nil) }

  /// Ends the request at work without an answer, and without a word: what becomes of the upload is said.
  func dropTransfer() {
    let cut = transfer
    transfer = nil
    progress.end()
    cut?.cutOff()
  }

  /// The state is inactive: what the upload holds is removed, closed or left to others.
  func wentInactive(
    peer: String?, event kind: ServerEvent.Kind, reason: String? = nil,
    _ completion: @escaping (SystemError?) -> Void = { _ in }
  ) {
    guard case .inactive(let cause) = state.phase else { return completion(nil) }
    touch()
    let kept = state.offset
    let handler = handler ?? makeHandler()
    var event = handler?.keeper?.describe(kind) ?? ServerEvent(kind)
    let wasBegun = self.handler != nil
    release()
    var outcome = RecordingOutcome.removed
    if let keeper = handler?.keeper {
      if wasBegun { keeper.park() }
      if record.hasBegun { outcome = keeper.end(recordingEnd(cause), for: self) }
    } else {
      if wasBegun { handler?.handler.aborted(.uploadEnded(cause.description)) }
      // What a handler was given of a live stream is all that there is of it.
      if cause == .interrupted {
        event.file = resources.store.bodyName(token)
      } else {
        resources.store.removeBody(token)
      }
    }
    // The registry tells of a recording that is closed, and one that others continue has not ended.
    let isSilent = outcome == .closing || (outcome == .notHeld && (cause == .expired || cause == .interrupted))
    resources.finished(self)
    if !isSilent {
      event.peer = peer
      event.offset = kept
      event.reason = reason ?? cause.description
      resources.emit(event)
    }
    save(completion)
    endComparison()
  }

  private func recordingEnd(_ cause: Deactivation) -> RecordingEnd {
    switch cause {
    case .cancelled: record.ownsFile ? .remove : .leave
    case .expired: record.isLive ? .close : .remove
    case .interrupted: .close
    case .stateLost: refusedByDisk.map { .distrust($0) } ?? .leave
    case .lengthExceeded, .outgrown, .unsynced, .overtaken, .abandoned: .leave
    }
  }

  // MARK: Events

  func emit(_ kind: ServerEvent.Kind, _ transfer: UploadTransfer, reason: String? = nil, status: Int? = nil) {
    // Before the first byte was asked for there is no stream to speak of.
    guard handler != nil || record.hasBegun else { return }
    let described = (handler ?? makeHandler())?.keeper
    var event = described?.describe(kind) ?? ServerEvent(kind)
    event.peer = transfer.peer
    event.offset = state.offset
    if kind == .interrupted { event.bytes = state.offset - min(state.offset, transfer.request.offset) }
    event.reason = reason
    event.status = status
    resources.emit(event)
  }

  private func emitEnded(_ response: Response, _ transfer: UploadTransfer?) {
    var event = ServerEvent(.ended, peer: transfer?.peer ?? owner.address, status: response.status)
    event.bytes = state.offset
    resources.emit(event)
  }
}

extension Response {
  /// Whether the same request may succeed later: then it does not answer for an upload that can be resumed.
  fileprivate var asksToRetry: Bool { (status == 503 || status == 507) && hasRetryTime }
  fileprivate var hasRetryTime: Bool { fields.count("retry-after") > 0 }
}

extension KeepingRequestHandler {
  /// As ``Response/asksToRetry``: what it keeps is there to be completed, whatever the status says of the reason.
  fileprivate func isRefusedForNow(_ response: Response) -> Bool { response.hasRetryTime }
}

extension String {
  /// By octets: to Swift, CR LF is one character and no line feed.
  fileprivate var firstLine: String {
    let line = utf8.split { $0 == Octet.lineFeed || $0 == Octet.carriageReturn }.first
    return line.map { String(Substring($0)) } ?? ""
  }
}

extension UploadResource: RecordingHolder {
  func overtaken() { deactivate(.overtaken, peer: nil) }
  var ownsFile: Bool { record.ownsFile }
  var isLive: Bool { record.isLive }
  var continuesRecording: Bool {
    guard state.announced > 0 else { return false }
    // What others have brought may have made it longer than it was announced.
    guard let length = state.length, case .bytes(let kept)? = try? measureKept() else { return true }
    return kept <= length
  }

  func lostRecording() {
    guard record.ownsFile else { return }
    record.ownsFile = false
    save()
  }

  func tookRecording(ownsFile: Bool) {
    guard record.ownsFile != ownsFile else { return }
    record.ownsFile = ownsFile
    // The record of an upload that begins is written before its first byte comes.
    if record.hasBegun { save() }
  }
}

extension UploadResourceState {
  mutating func found(_ extent: KeptExtent) throws(UploadRefusal) {
    switch extent {
    case .bytes(let count), .complete(let count, _): try foundKept(count)
    case .gone: try foundKept(nil)
    case .closed: try end(.interrupted)
    case .overtaken: try end(.overtaken)
    }
  }

  private mutating func end(_ cause: Deactivation) throws(UploadRefusal) {
    guard phase == .incomplete else { return }
    _ = try deactivate(cause)
    throw .deactivated(cause)
  }
}
