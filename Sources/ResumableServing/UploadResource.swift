// An upload resource: its requests and their answers, above what is known of it and above its bytes. Everything here
// runs on the loop's thread.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import Metrics
internal import ResumableUploads
internal import StreamServing

/// One resumable upload from its creation until it is forgotten, however many requests and servers that takes.
///
/// ``UploadLedger`` knows where it stands, ``UploadContent`` has its bytes and the handler within. This decides neither:
/// it tells the one what happens and has the other do what follows.
final class UploadResource {
  let token: String
  let owner: UploadOwner
  /// Its owner's part of what the server's limits allow; nil when it is unfinished no more.
  var share: UploadUsage.Share?
  /// Fields of the creation's answers that are the handler's.
  let settled: HeaderFields
  unowned let resources: UploadResources
  var ledger: UploadLedger
  let content: UploadContent

  /// The request at work.
  var transfer: UploadTransfer?
  /// The clocks of the transfer at work.
  let progress: UploadProgress
  /// Whether a transfer broke off since the last one went on.
  var wasInterrupted = false
  /// Whether others have brought bytes of the same stream that the record does not speak of.
  var hasOthersBytes = false
  /// Whether bytes are kept that do not count, because they could not be dropped yet.
  var isDropDue = false
  /// What waits for the disk, and what waits for that.
  var gate = SettlingGate()
  /// What the disk has refused.
  var refusals = DiskRefusals()
  /// Who waits while what others have completed is compared with the digest that the creation gave.
  var comparison = WholeComparison()
  /// nil unless the upload is over, and its recording is not removed yet.
  var removal: RecordingRemoval?
  /// Whether the next round of syncs has this upload in it.
  var isSyncDue = false
  private var parkTimer: EventLoop.Timer?
  private var age: UploadAge

  /// A new resource.
  ///
  /// - Parameters:
  ///   - settled: what the handler wants its request to have, and the creation's answers to tell.
  ///   - needed: the fields that the handler needs; nil for all.
  init(
    _ token: String, _ state: UploadResourceState, _ transfer: UploadTransfer, settled: HeaderFields,
    needed: Set<String>?, _ resources: UploadResources
  ) {
    (self.token, self.settled, self.resources) = (token, settled, resources)
    owner = transfer.client
    let head = transfer.head.forUpload(length: nil)
    content = UploadContent(token, head.fields, resources)
    ledger = UploadLedger(
      state, head, of: owner, settled: settled, needed: needed, created: .now, unsyncedSince: resources.unsyncedBoot)
    age = UploadAge(.zero, now: .now)
    progress = UploadProgress(resources.loop)
  }

  /// A resource of an earlier server; nil if its request cannot be made out any more.
  ///
  /// - Throws: ``SystemError`` if nobody can tell now how much of it is kept.
  init?(
    _ token: String, _ record: UploadRecord, _ age: Duration, _ resources: UploadResources
  ) throws(SystemError) {
    (self.token, self.resources) = (token, resources)
    settled = [:]
    owner = UploadOwner(credential: record.credential, address: record.client)
    content = UploadContent(token, record.fields, resources)
    ledger = UploadLedger(
      restoring: record, maximumAge: resources.lifetimes.told(isLive: record.isLive), boot: resources.bootIdentifier,
      awaitsDisk: resources.durability == .always)
    self.age = UploadAge(age, now: .now)
    wasInterrupted = true
    progress = UploadProgress(resources.loop)
    guard ledger.request != nil else { return nil }
    guard UploadLedger.phase(of: record, boot: resources.bootIdentifier) == .incomplete else { return }
    ledger.restored(try content.measure(ledger))
  }

  // MARK: Standing

  /// Whether bytes are kept for it that are not yet anybody's.
  var isUnfinished: Bool { ledger.isUnfinished }
  /// Whether a request, the handler's work on the whole, or the removal of its bytes is under way.
  var isAtWork: Bool { ledger.state.transfer != nil || ledger.state.phase == .processing || removal != nil }
  var lastActivity: MonotonicInstant { age.lastActivity }
  /// When it has been left alone for as long as it lives.
  var deadline: MonotonicInstant { lastActivity + resources.lifetimes.of(isLive: isUnfinished && ledger.isLive) }
  /// Whether its bytes stay although it is over: those of a live stream, for a handler that keeps none.
  var keepsBody: Bool {
    guard ledger.state.phase == .inactive(.interrupted) else { return false }
    do throws(SystemError) {
      _ = try resources.store.measureBody(token)
      return true
    } catch {
      // What cannot be opened now is there all the same.
      return !error.isMissing
    }
  }
  var peer: String { transfer?.peer ?? owner.address }

  var location: String { resources.options.publicURL + ResumableUploadHandler.prefix + token }

  func standing() -> ServerAnswer.Standing {
    let offset = announcing { $0.announceOffset() }
    return ServerAnswer.Standing(
      offset: offset, length: ledger.state.length, isComplete: ledger.state.phase == .complete,
      limits: ledger.state.limits, location: location)
  }

  /// Counts what `announce` has the state say to a client.
  func announcing<Result>(_ announce: (inout UploadResourceState) -> Result) -> Result {
    let (result, news) = ledger.announcing(at: .now, announce)
    guard let news else { return result }
    resources.figures.values.acknowledgedBytes += news.count
    if let delay = news.delay {
      resources.figures.values.acknowledgementDelays.record(Double(delay.nanoseconds) / 1e9)
    }
    return result
  }

  /// Puts the end of the resource's life as far away as it was at the beginning.
  func touch() {
    if age.touch(now: .now) { resources.store.touch(token) }
  }

  /// How long it has been left alone, to be written down.
  func age(now: MonotonicInstant) -> Duration { age.written(now: now) }

  // MARK: Requests

  /// The request that created the resource.
  func create(_ new: UploadTransfer) {
    adopt(new)
    save { [self] error in
      if let error {
        // Without its record an upload would not outlive the server, and nobody knows its URL yet.
        transfer = nil
        resources.neverCreated(self)
        return refuse(new, UploadRefusal(error))
      }
      guard ledger.state.transfer?.number == new.number else { return }
      if interimLimit(new) != 0, var fields = ServerAnswer.announcement(standing(), new.request.version) {
        fields.append(contentsOf: settled)
        new.sendInterim(fields)
      }
      start(new)
    }
  }

  /// PATCH.
  func append(_ new: UploadTransfer) { whenSettled { [self] in append(new, isLate: false) } }

  /// - Parameter isLate: whether it waited for what had been sent before it.
  private func append(_ new: UploadTransfer, isLate: Bool) {
    // Its client may have gone while it waited.
    guard new.isOpen else { return }
    if isStreamEnding({ [self] in whenSettled { [self] in append(new, isLate: isLate) } }) { return }
    touch()
    if isDropDue, let refusal = dropUncounted() { return refuse(new, refusal) }
    // TCP has told the client of the transfer at work that we have these bytes.
    takeArrived()
    do throws(UploadRefusal) {
      try lookAfterBytes(following: new.request.offset)
    } catch {
      return refuse(new, error)
    }
    let lengthBefore = ledger.state.length
    switch ledger.state.append(new.request) {
    case .refuse(.mismatchingOffset) where !isLate:
      // The bytes that are missing may be under way from another loop.
      resources.whenArrived { [self] in whenSettled { [self] in append(new, isLate: true) } }
    case .refuse(let refusal): refuse(new, refusal)
    case .invalidate(let refusal, _):
      dropTransfer()
      wentInactive(peer: new.peer, event: .interrupted)
      refuse(new, refusal)
    case .replay:
      var response = ledger.response ?? Response(204)
      response.add(ServerAnswer.completedFields(new.request.version, offset: ledger.state.offset))
      new.respond(response)
    case .awaitResponse(let replaced):
      if replaced != nil { cutOff() }
      adopt(new)
      new.exchange?.acceptBody()
    case .begin(let replaced):
      if replaced != nil {
        cutOff()
        if let refusal = dropUncounted() {
          if let begun = ledger.state.transfer { ledger.state.ended(begun.number) }
          return refuse(new, refusal)
        }
      }
      adopt(new)
      let isFirstUnsynced = new.request.content.mayHaveBytes && marksUnsynced()
      guard ledger.state.length != lengthBefore || isFirstUnsynced else { return start(new) }
      // The length is a promise that holds for all requests to come (section "Upload Append").
      saveFirst(syncing: isFirstUnsynced) { [self] error in
        if error != nil {
          ledger.state.lengthNotRecorded(lengthBefore)
          if isFirstUnsynced { ledger.unsyncedNotRecorded() }
        }
        guard ledger.state.transfer?.number == new.number else { return }
        if let error { reject(new, UploadRefusal(error)) } else { start(new) }
      }
    }
  }

  /// HEAD or GET. What was sent before it, on other connections, counts.
  func retrieve(_ request: UploadQuery) {
    touch()
    resources.whenArrived { [self] in whenSettled { [self] in tellStanding(request) } }
  }

  private func tellStanding(_ request: UploadQuery) {
    if isEnding({ [self] in tellStanding(request) }) { return }
    if isStreamEnding({ [self] in whenSettled { [self] in tellStanding(request) } }) { return }
    takeArrived()
    do throws(UploadRefusal) {
      try lookAfterBytes()
      if try ledger.state.retrieve() != nil { cutOff() }
    } catch {
      return request.respond(refusal(error, request.version))
    }
    settle { [self] refusal in
      if let refusal { return request.respond(self.refusal(refusal, request.version)) }
      request.respond(ServerAnswer.retrieved(standing(), request.version))
    }
  }

  /// DELETE.
  func cancel(_ request: UploadQuery) {
    // What is complete by then is given up as an upload, and stays as what it was for.
    if isEnding({ [self] in cancel(request) }) { return }
    if removal != nil { return cancelAgain { [self] in answerCancellation(request, $0) } }
    if case .inactive(let cause) = ledger.state.phase {
      return request.respond(refusal(.deactivated(cause), request.version))
    }
    do throws(UploadRefusal) {
      if try resources.waits(toRemove: self, { [self] in cancel(request) }) { return }
    } catch {
      return request.respond(refusal(error, request.version))
    }
    // In-flight requests are terminated before the response is sent (section "Upload Cancellation").
    deactivate(.cancelled, peer: request.peer) { [self] in answerCancellation(request, $0) }
  }

  /// - Parameter error: why the bytes are not removed, or a server that comes after this one does not know of it.
  private func answerCancellation(_ request: UploadQuery, _ error: SystemError?) {
    if let error { return request.respond(refusal(UploadRefusal(error), request.version)) }
    request.respond(ServerAnswer.cancelled(request.version))
  }

  /// Whether `action` will be called later, because the representation just gets its final form.
  private func isEnding(_ action: @escaping () -> Void) -> Bool {
    ledger.state.phase == .processing && content.isEnding(action)
  }

  /// Whether `action` will be called later, because another request completes the stream or has completed it.
  private func isStreamEnding(_ action: @escaping () -> Void) -> Bool {
    guard ledger.state.phase == .incomplete, ledger.hasBegun else { return false }
    if comparison.waits(action) { return true }
    guard !content.isOpen else { return false }
    return content.isEnding(ledger.request, action) || compare(action)
  }

  func refuse(_ transfer: UploadTransfer, _ refusal: UploadRefusal) {
    let version = transfer.request.version
    let status = refusal.status(version)
    resources.emit(
      ServerEvent(.refusal(status: status), peer: transfer.peer, status: status, reason: refusal.reason))
    guard refusal.tellsOffset, !ledger.state.isInactive else { return transfer.respond(self.refusal(refusal, version)) }
    settle { [self] failure in transfer.respond(self.refusal(failure ?? refusal, version)) }
  }

  private func refusal(_ refusal: UploadRefusal, _ version: InteropVersion) -> ServerAnswer {
    var refusal = refusal
    // The offset that is told is the one of this moment, in the body as in the field.
    if case .mismatchingOffset(_, let provided) = refusal {
      refusal = .mismatchingOffset(expected: ledger.state.offset, provided: provided)
    }
    return ServerAnswer.refused(
      refusal, version, limits: ledger.state.limits,
      standing: refusal.tellsOffset && !ledger.state.isInactive ? standing() : nil)
  }

  // MARK: The transfer at work

  /// How many interim responses the request may be sent; nil for any number.
  private func interimLimit(_ transfer: UploadTransfer) -> Int? {
    transfer.head.wasForwarded ? resources.options.maximumForwardedInterimCount : nil
  }

  private func adopt(_ new: UploadTransfer) {
    transfer = new
    new.resource = self
    new.number = ledger.state.transfer?.number ?? 0
    // The creation's announcement is one of them.
    progress.begin(
      limit: interimLimit(new).map { new.isCreation ? max(0, $0 - 1) : $0 },
      interval: UploadFields.progressInterval(new.head.fields))
    if let parkTimer { resources.loop.cancel(parkTimer) }
    parkTimer = nil
  }

  /// Reads what has arrived for the transfer at work.
  func takeArrived() { transfer?.exchange?.takeArrived() }

  /// Ends the transfer at work without an answer: a newer request has come. The state knows already.
  func cutOff() {
    guard let transfer else { return }
    self.transfer = nil
    transfer.cutOff()
    // What came counts, if it is not sent again.
    if content.keptCount == ledger.state.keptCount { keepContent() }
    leftBehind(transfer, "a newer request continues the upload")
  }

  /// Says what the client is to be told of, and asks for its content.
  private func start(_ new: UploadTransfer) {
    // An empty part needs nobody to take it.
    guard new.request.content.mayHaveBytes || new.request.completes else {
      new.exchange?.acceptBody()
      return
    }
    openBody()
  }

  /// The handler wants the body, and its bytes can be kept: the content of the transfer at work may come.
  func proceed() {
    guard let transfer, ledger.state.transfer != nil, ledger.state.phase == .incomplete else { return }
    if wasInterrupted {
      wasInterrupted = false
      emit(.continued, transfer)
    }
    if !transfer.isCreation { tellProgress(progress.schedule.accepted(now: progress.now), evenIfKnown: true) }
    if let rate = resources.options.minimumRate, transfer.request.content.mayHaveBytes {
      progress.watchRate(
        minimum: rate, window: resources.options.rateWindow,
        received: { [self] in ledger.state.transfer?.received ?? 0 }, tooSlow: { [self] in reject(transfer, .tooSlow) })
    }
    if transfer.digest != nil { content.hold() }
    transfer.exchange?.acceptBody()
  }

  /// Transfer `transfer` is over without its content being complete.
  func interrupted(_ transfer: UploadTransfer, _ reason: String) {
    guard ledger.state.ended(transfer.number) else { return }
    if self.transfer === transfer { self.transfer = nil }
    keepContent()
    leftBehind(transfer, reason)
  }

  private func leftBehind(_ transfer: UploadTransfer, _ reason: String, status: Int? = nil) {
    progress.end()
    touch()
    wasInterrupted = true
    emit(.interrupted, transfer, reason: reason, status: status)
    rest()
  }

  /// Ends the transfer at work with an answer of the protocol's.
  func reject(_ transfer: UploadTransfer, _ refusal: UploadRefusal) {
    guard self.transfer === transfer else { return }
    ledger.state.ended(transfer.number)
    self.transfer = nil
    transfer.resource = nil
    keepContent()
    let version = transfer.request.version
    leftBehind(transfer, refusal.reason, status: refusal.status(version))
    settle { [self] failure in transfer.respond(self.refusal(failure ?? refusal, version)) }
  }

  func serverStops(_ transfer: UploadTransfer) {
    // TCP has told the client that we have these bytes.
    takeArrived()
    // A representation that is being processed is waited for.
    guard self.transfer === transfer, ledger.state.phase == .incomplete else { return }
    reject(transfer, .serverStops)
  }

  /// Writes down what is known; calls `completion` when that is on its way. Of an upload whose bytes the disk has all,
  /// the record says so: it can be resumed, whatever happens to the machine.
  func serverEnds(_ completion: @escaping () -> Void) {
    progress.end()
    if let parkTimer { resources.loop.cancel(parkTimer) }
    parkTimer = nil
    let saved = { [self] in
      if isUnfinished && ledger.hasUnwrittenPromise { save() }
      completion()
    }
    if isDropDue { _ = dropUncounted() }
    guard isUnfinished, ledger.isUnsynced else { return saved() }
    synchronizeAll { [self] error in
      if error == nil { becameClean() }
      saved()
    }
  }

  // MARK: Rest

  /// No request is at work: after a while the handler is given up.
  func rest() {
    guard ledger.state.phase == .incomplete, content.isOpen, parkTimer == nil else { return }
    parkTimer = resources.loop.schedule(after: resources.options.parkDelay) { [self] in
      parkTimer = nil
      park()
    }
  }

  private func park() {
    guard ledger.state.phase == .incomplete, ledger.state.transfer == nil, content.isOpen else { return }
    // Without the handler these bytes would count.
    if isDropDue, dropUncounted() != nil { return rest() }
    guard resources.durability != .none, ledger.state.durable < ledger.state.offset else { return leaveHandler() }
    synchronize { [self] error in
      // If a request has come and gone meanwhile, the handler is given up after that one.
      guard ledger.state.phase == .incomplete, ledger.state.transfer == nil, content.isOpen, parkTimer == nil else {
        return
      }
      if error == nil { becameClean() }
      leaveHandler()
    }
  }

  private func leaveHandler() {
    if !content.rest() {
      content.park()
      release()
    }
    if ledger.hasUnwrittenOffset { save() }
  }
}
