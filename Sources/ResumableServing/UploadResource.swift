// An upload resource: its state machine, its bytes and its handler, joined. Everything here runs on the loop's thread.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

/// One resumable upload from its creation until it is forgotten, however many requests and servers that takes.
final class UploadResource {
  let token: String
  let owner: UploadOwner
  /// Its owner's part of what the server's limits allow; nil when it is unfinished no more.
  var share: UploadUsage.Share?
  /// What its bytes take of the quotas, if they are spooled.
  var spooled: StreamAccount?
  /// Fields of the creation's answers that are the handler's.
  let settled: HeaderFields
  unowned let resources: UploadResources
  var record: UploadRecord
  var state: UploadResourceState
  private(set) var lastActivity: MonotonicInstant

  /// The request at work.
  var transfer: UploadTransfer?
  /// What the wrapped handler has of us; nil while there is no handler.
  var exchange: UploadResourceExchange?
  var handler: RoutedHandler?
  /// Whether the handler that was made last keeps the bytes itself. They are all of one kind: the router makes them for
  /// the same request.
  var handlerKeepsBytes = false
  var body: (any UploadBody)?
  /// Where the bytes lay when the handler was at work last.
  var place: FilePlace?
  /// Whether the handler has said that it wants the body.
  var handlerAccepted = false
  /// Whether a transfer broke off since the last one went on.
  var wasInterrupted = false
  /// The clocks of the transfer at work.
  let progress: UploadProgress
  /// The digests of all bytes, if the creation gave one or asked for one.
  let digests: UploadDigests?
  var parkTimer: EventLoop.Timer?
  /// When the oldest bytes came that no client was told of.
  var unacknowledgedSince: MonotonicInstant?
  /// Whether others have brought bytes of the same stream that the record does not speak of.
  var hasOthersBytes = false
  /// Whether the record that is written says that there are bytes.
  var isBeginningSaved = false
  /// ``UploadRecord/ownOffset`` as it was written last.
  var savedOwnOffset: UInt64?
  /// Who waits while what others have completed is compared with the digest that the creation gave; nil if it is not.
  var comparisonWaiters: [() -> Void]?
  /// Whether that was tried, and could not be done.
  var isIncomparable = false
  /// Why acknowledged bytes may be lost.
  var refusedByDisk: SystemError?
  /// Why bytes that were not synced were dropped last.
  var lostBySync: SystemError?
  /// Whether the disk is to be asked soon to take what was kept.
  var isUnsynced = false
  /// How many answers, and requests before their first byte, wait for the disk.
  var settlingCount = 0
  /// Requests that came meanwhile.
  var waiting: [() -> Void] = []
  private var lastTouch: MonotonicInstant
  /// Whether it is written down that the upload has been left alone for a while.
  private var isAged = false

  /// A new resource.
  ///
  /// - Parameters:
  ///   - settled: what the handler wants its request to have, and the creation's answers to tell.
  ///   - needed: the fields that the handler needs; nil for all.
  init(
    _ token: String, _ state: UploadResourceState, _ transfer: UploadTransfer, settled: HeaderFields,
    needed: Set<String>?, _ resources: UploadResources
  ) {
    self.settled = settled
    self.token = token
    self.state = state
    self.resources = resources
    owner = transfer.client
    var head = transfer.head.forUpload(length: nil)
    digests = UploadDigests(head.fields)
    var target = head.target.text
    if let needed {
      head.fields = head.fields.filter { needed.contains($0) || Self.digestFields.contains($0) }
      // A query may hold a secret, and the handler that needs none of the other fields does not need it either.
      target = head.target.path
    }
    for field in settled.all where head.fields.count(field.name) == 0 { head.fields.append(field.name, field.value) }
    record = UploadRecord(
      method: head.method, target: target, fields: head.fields, created: WallClock.now.seconds,
      credential: owner.credential, client: owner.address, limits: state.limits)
    record.length = state.length
    record.isLive = state.length == nil
    // From its first record on: whatever is written of it needs no further one before the client is told.
    record.unsyncedBoot = resources.durability == .always ? nil : resources.bootIdentifier
    lastActivity = .now
    lastTouch = lastActivity
    progress = UploadProgress(resources.loop)
  }

  private static let digestFields = Set(
    [DigestField.representation, DigestField.wantRepresentation].map { $0.lowercased() })

  /// A resource of an earlier server; nil if its request cannot be made out any more.
  ///
  /// - Throws: ``SystemError`` if nobody can tell now how much of it is kept.
  init?(
    _ token: String, _ record: UploadRecord, _ age: Duration, _ resources: UploadResources
  ) throws(SystemError) {
    self.token = token
    var record = record
    // What is configured now holds, however long an earlier server wanted to wait.
    record.limits.maximumAge = resources.told(isLive: record.isLive)
    self.record = record
    (savedOwnOffset, isBeginningSaved) = (record.ownOffset, record.hasBegun)
    settled = [:]
    digests = UploadDigests(record.fields)
    self.resources = resources
    owner = UploadOwner(credential: record.credential, address: record.client)
    lastActivity = MonotonicInstant(nanoseconds: MonotonicInstant.now.nanoseconds - age.nanoseconds)
    lastTouch = lastActivity
    isAged = age > .zero
    wasInterrupted = true
    progress = UploadProgress(resources.loop)
    var phase = UploadResourceState.Phase.incomplete
    if record.response != nil { phase = .complete }
    if let cause = record.deactivation { phase = .inactive(cause) }
    if phase == .incomplete, let boot = record.unsyncedBoot, boot != resources.bootIdentifier {
      phase = .inactive(.unsynced)
    }
    func state(_ offset: UInt64) -> UploadResourceState {
      UploadResourceState(
        restoring: phase, offset: offset, promised: record.promised,
        synced: record.unsyncedBoot == nil ? record.promised : 0, length: record.length, limits: record.limits,
        awaitsDisk: resources.durability == .always)
    }
    self.state = state(record.promised)
    guard RequestHead(record) != nil else { return nil }
    guard phase == .incomplete else { return }
    switch try measureKept() {
    case .bytes(let kept), .complete(let kept, _): self.state = state(kept)
    // Begun, and nothing is there: whatever was acknowledged is lost. Or an earlier server has closed the recording,
    // and died.
    case let extent: try? self.state.found(extent)
    }
  }

  // MARK: Standing

  /// Whether bytes are kept for it that are not yet anybody's.
  var isUnfinished: Bool { state.phase == .incomplete || state.phase == .processing }
  /// Whether a request, or the handler's work on the whole, is under way.
  var isAtWork: Bool { state.transfer != nil || state.phase == .processing }
  var keptCount: UInt64 { state.offset }
  /// When it has been left alone for as long as it lives.
  var deadline: MonotonicInstant { lastActivity + resources.lifetime(isLive: isUnfinished && record.isLive) }
  /// Whether its bytes stay although it is over: those of a live stream, for a handler that keeps none.
  var keepsBody: Bool {
    guard state.phase == .inactive(.interrupted) else { return false }
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
    let offset = announcing { state.announceOffset() }
    return ServerAnswer.Standing(
      offset: offset, length: state.length, isComplete: state.phase == .complete, limits: state.limits,
      location: location)
  }

  /// Puts the end of the resource's life as far away as it was at the beginning.
  func touch() {
    lastActivity = .now
    // For the next server, and not with every request.
    guard isAged || lastActivity - lastTouch > .seconds(30) else { return }
    isAged = false
    lastTouch = lastActivity
    resources.store.touch(token)
  }

  /// How long it has been left alone, to be written down.
  func age(now: MonotonicInstant) -> Duration {
    isAged = true
    return now - lastActivity
  }

  /// - Parameter syncing: whether the disk must have the record in any case before `completion` is called.
  func save(syncing: Bool = false, _ completion: @escaping (SystemError?) -> Void = { _ in }) {
    record.length = state.length
    record.promised = max(record.promised, state.promised)
    if case .inactive(let cause) = state.phase { record.deactivation = cause }
    noteOwnOffset()
    let ownOffset = record.ownOffset
    resources.store.write(record, token, syncing: syncing) { [self] error in
      if error == nil { savedOwnOffset = ownOffset }
      completion(error)
    }
  }

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
      guard state.transfer?.number == new.number else { return }
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
    // TCP has told the client of the transfer at work that we have these bytes.
    takeArrived()
    do throws(UploadRefusal) {
      try lookAfterBytes(following: new.request.offset)
    } catch {
      return refuse(new, error)
    }
    let lengthBefore = state.length
    switch state.append(new.request) {
    case .refuse(.mismatchingOffset) where !isLate:
      // The bytes that are missing may be under way from another loop.
      resources.whenArrived { [self] in whenSettled { [self] in append(new, isLate: true) } }
    case .refuse(let refusal): refuse(new, refusal)
    case .invalidate(let refusal, _):
      dropTransfer()
      wentInactive(peer: new.peer, event: .interrupted)
      refuse(new, refusal)
    case .replay:
      var response = record.response.map { Response($0) } ?? Response(204)
      response.add(ServerAnswer.completedFields(new.request.version, offset: state.offset))
      new.respond(response)
    case .awaitResponse(let replaced):
      if replaced != nil { cutOff() }
      adopt(new)
      new.exchange?.acceptBody()
    case .begin(let replaced):
      if replaced != nil {
        cutOff()
        guard dropUncounted() else { return refuse(new, .deactivated(.stateLost)) }
      }
      adopt(new)
      let isFirstUnsynced = new.request.content.mayHaveBytes && marksUnsynced()
      guard state.length != lengthBefore || isFirstUnsynced else { return start(new) }
      // The length is a promise that holds for all requests to come (section "Upload Append").
      saveFirst(syncing: isFirstUnsynced) { [self] error in
        if error != nil { state.lengthNotRecorded(lengthBefore) }
        guard state.transfer?.number == new.number else { return }
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
      if try state.retrieve() != nil { cutOff() }
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
    if case .inactive(let cause) = state.phase {
      return request.respond(refusal(.deactivated(cause), request.version))
    }
    // In-flight requests are terminated before the response is sent (section "Upload Cancellation").
    deactivate(.cancelled, peer: request.peer) { [self] error in
      // A server that comes after this one must know it as well.
      if let error { return request.respond(refusal(UploadRefusal(error), request.version)) }
      request.respond(ServerAnswer.cancelled(request.version))
    }
  }

  /// Whether `action` will be called later, because the representation just gets its final form.
  private func isEnding(_ action: @escaping () -> Void) -> Bool {
    state.phase == .processing && keeper?.isEnding(action) == true
  }

  /// Whether `action` will be called later, because another request completes the stream or has completed it.
  private func isStreamEnding(_ action: @escaping () -> Void) -> Bool {
    guard state.phase == .incomplete, record.hasBegun else { return false }
    if comparisonWaiters != nil {
      comparisonWaiters?.append(action)
      return true
    }
    guard handler == nil else { return false }
    return makeHandler()?.keeper?.isEnding(action) == true || compare(action)
  }

  func refuse(_ transfer: UploadTransfer, _ refusal: UploadRefusal) {
    let version = transfer.request.version
    let status = refusal.status(version)
    resources.emit(
      ServerEvent(.refusal(status: status), peer: transfer.peer, status: status, reason: refusal.reason))
    guard refusal.tellsOffset, !state.isInactive else { return transfer.respond(self.refusal(refusal, version)) }
    settle { [self] failure in transfer.respond(self.refusal(failure ?? refusal, version)) }
  }

  private func refusal(_ refusal: UploadRefusal, _ version: InteropVersion) -> ServerAnswer {
    var refusal = refusal
    // The offset that is told is the one of this moment, in the body as in the field.
    if case .mismatchingOffset(_, let provided) = refusal {
      refusal = .mismatchingOffset(expected: state.offset, provided: provided)
    }
    return ServerAnswer.refused(
      refusal, version, limits: state.limits,
      standing: refusal.tellsOffset && !state.isInactive ? standing() : nil)
  }

  // MARK: The transfer at work

  /// How many interim responses the request may be sent; nil for any number.
  private func interimLimit(_ transfer: UploadTransfer) -> Int? {
    transfer.head.wasForwarded ? resources.options.maximumForwardedInterimCount : nil
  }

  private func adopt(_ new: UploadTransfer) {
    transfer = new
    new.resource = self
    new.number = state.transfer?.number ?? 0
    // The creation's announcement is one of them.
    progress.begin(limit: interimLimit(new).map { new.isCreation ? max(0, $0 - 1) : $0 })
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
    if let body, body.keptCount == state.keptCount { body.release() }
    leftBehind(transfer, "a newer request goes on with the upload")
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
    guard let transfer, state.transfer != nil, state.phase == .incomplete else { return }
    if wasInterrupted {
      wasInterrupted = false
      emit(.continued, transfer)
    }
    if !transfer.isCreation { tellProgress(progress.schedule.accepted(now: progress.now), evenIfKnown: true) }
    if let rate = resources.options.minimumRate, transfer.request.content.mayHaveBytes {
      progress.watchRate(
        minimum: rate, window: resources.options.rateWindow,
        received: { [self] in state.transfer?.received ?? 0 }, tooSlow: { [self] in reject(transfer, .tooSlow) })
    }
    if transfer.digest != nil {
      body?.hold()
      digests?.save()
    }
    transfer.exchange?.acceptBody()
  }

  /// Transfer `transfer` is over without its content being complete.
  func interrupted(_ transfer: UploadTransfer, _ reason: String) {
    guard state.ended(transfer.number) else { return }
    if self.transfer === transfer { self.transfer = nil }
    body?.release()
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
    state.ended(transfer.number)
    self.transfer = nil
    transfer.resource = nil
    body?.release()
    let version = transfer.request.version
    leftBehind(transfer, refusal.reason, status: refusal.status(version))
    settle { [self] failure in transfer.respond(self.refusal(failure ?? refusal, version)) }
  }

  func serverStops(_ transfer: UploadTransfer) {
    // TCP has told the client that we have these bytes.
    takeArrived()
    // A representation that is being processed is waited for.
    guard self.transfer === transfer, state.phase == .incomplete else { return }
    reject(transfer, .serverStops)
  }

  /// Writes down what is known; calls `completion` when that is on its way. Of an upload whose bytes the disk has all,
  /// the record says so: it can be resumed, whatever happens to the machine.
  func serverEnds(_ completion: @escaping () -> Void) {
    progress.end()
    if let parkTimer { resources.loop.cancel(parkTimer) }
    parkTimer = nil
    let saved = { [self] in
      if isUnfinished && state.promised > record.promised { save() }
      completion()
    }
    guard isUnfinished, record.unsyncedBoot != nil else { return saved() }
    synchronizeAll { [self] error in
      if error == nil { becameClean() }
      saved()
    }
  }
}
