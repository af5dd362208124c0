// The requests of an upload resource and their responses. Its state and its bytes are in other types. Everything here
// runs on the loop's thread.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import Metrics
internal import ResumableUploads
internal import StreamServing

/// One resumable upload, from its creation to the removal of its record, across all its requests and servers.
///
/// ``UploadLedger`` has its state. ``UploadContent`` has its bytes and its handler. This type makes no decisions. It
/// passes events to the ledger, and makes the content perform the results.
final class UploadResource {
  let token: String
  let owner: UploadOwner
  /// Its owner's share of the server's limits. Nil after its end.
  var share: UploadUsage.Share?
  /// The handler's fields in the responses to the creation.
  let settled: HeaderFields
  unowned let resources: UploadResources
  var ledger: UploadLedger
  let content: UploadContent

  /// The active request.
  var transfer: UploadTransfer?
  /// The clocks of the active transfer.
  let progress: UploadProgress
  /// Whether a transfer was interrupted since the last one continued.
  var wasInterrupted = false
  /// Whether other requests have added bytes to the stream that the record does not mention.
  var hasOthersBytes = false
  /// Whether there are stored bytes that do not count, because they could not be dropped yet.
  var isDropDue = false
  /// The writes that wait for the disk, and the requests that wait for them.
  var gate = SettlingGate()
  /// The operations that the disk refused.
  var refusals = DiskRefusals()
  /// Requests that wait while the bytes that other requests completed are compared with the digest of the creation.
  var comparison = WholeComparison()
  /// The removal of its recording. Nil unless the upload is over and the recording is not removed yet.
  var removal: RecordingRemoval?
  /// Whether the next round of syncs includes this upload.
  var isSyncDue = false
  /// Whether the last bytes of an upload that has ended are being synced.
  var isLastSyncOpen = false
  /// Called when they are.
  var lastSyncEnded: (() -> Void)?
  /// When the handler is abandoned. Nil if that is not planned.
  var parkTimer: EventLoop.Timer?
  private var age: UploadAge

  /// A new resource.
  ///
  /// - Parameters:
  ///   - settled: the fields that the handler requires in its request, and that the responses to the creation contain.
  ///   - needed: the names of the fields that the handler needs. Nil for all.
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

  /// A resource of an earlier server. Nil if its request is no longer readable.
  ///
  /// - Throws: ``SystemError`` if the number of its kept bytes cannot be determined now.
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

  // MARK: State

  /// Whether the upload is unfinished, so that bytes are kept for it.
  var isUnfinished: Bool { ledger.isUnfinished }
  /// Whether a request, the handler's processing of the complete bytes, or the removal of the bytes is in progress.
  var isAtWork: Bool { ledger.state.transfer != nil || ledger.state.phase == .processing || removal != nil }
  var lastActivity: MonotonicInstant { age.lastActivity }
  /// The end of its lifetime, unless another request arrives. It begins when the work ends, however long that takes.
  var deadline: MonotonicInstant {
    let begin = isAtWork ? MonotonicInstant.now : lastActivity
    return begin + resources.lifetimes.of(isLive: isUnfinished && ledger.isLive)
  }
  /// Whether its spooled bytes are kept although it is over, because they belong to a live stream.
  var keepsBody: Bool {
    guard ledger.state.phase == .inactive(.interrupted) else { return false }
    do throws(SystemError) {
      _ = try resources.store.measureBody(token)
      return true
    } catch {
      // It exists even if it cannot be opened now.
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

  /// Counts the bytes that the state acknowledges to a client in `announce`.
  func announcing<Result>(_ announce: (inout UploadResourceState) -> Result) -> Result {
    let (result, news) = ledger.announcing(at: .now, announce)
    guard let news else { return result }
    resources.figures.values.acknowledgedBytes += news.count
    if let delay = news.delay {
      resources.figures.values.acknowledgementDelays.record(Double(delay.nanoseconds) / 1e9)
    }
    return result
  }

  /// Restarts the resource's lifetime.
  func touch() {
    if age.touch(now: .now) { resources.store.touch(token) }
  }

  /// Its idle time, for the file.
  func age(now: MonotonicInstant) -> Duration { age.written(now: now) }

  // MARK: Requests

  /// The request that created the resource.
  func create(_ new: UploadTransfer) {
    adopt(new)
    save { [self] error in
      if let error {
        // Without its record, the upload would be lost with the server. No client knows its URL yet.
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

  /// - Parameter isLate: whether the request has waited for bytes that were sent before it.
  private func append(_ new: UploadTransfer, isLate: Bool) {
    // The client may have disconnected during the wait.
    guard new.isOpen else { return }
    if isStreamEnding({ [self] in whenSettled { [self] in append(new, isLate: isLate) } }) { return }
    touch()
    if isDropDue, let refusal = dropUncounted() { return refuse(new, refusal) }
    // TCP has acknowledged these bytes to the client of the active transfer.
    takeArrived()
    do throws(UploadRefusal) {
      try lookAfterBytes(following: new.request.offset)
    } catch {
      return refuse(new, error)
    }
    let lengthBefore = ledger.state.length
    switch ledger.state.append(new.request) {
    case .refuse(.mismatchingOffset) where !isLate:
      // The missing bytes may still arrive from another loop.
      resources.whenArrived { [self] in whenSettled { [self] in append(new, isLate: true) } }
    case .refuse(let refusal): refuse(new, refusal)
    case .invalidate(let refusal, _):
      dropTransfer()
      wentInactive(peer: new.peer, event: .interrupted)
      refuse(new, refusal)
    case .replay: repeatResponse(to: new)
    case .awaitResponse(let replaced):
      if replaced != nil { cutOff() }
      adopt(new)
      if ledger.state.phase == .complete { watchRate(of: new) }
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
      // The length is binding for all later requests (section "Upload Append").
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

  /// The final response, once more.
  func repeatResponse(to transfer: UploadTransfer) {
    var response = ledger.response ?? Response(204)
    response.add(ServerAnswer.completedFields(transfer.request.version, offset: ledger.state.offset))
    transfer.respond(response)
  }

  /// HEAD or GET. Bytes that were sent before it on other connections count.
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
      if let refusal { return request.respond(self.refusal(refusal, request.version, isSettled: false)) }
      request.respond(ServerAnswer.retrieved(standing(), request.version))
    }
  }

  /// DELETE.
  func cancel(_ request: UploadQuery) {
    // If the upload is complete by then, only the upload is removed, and the result is kept.
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

  /// - Parameter error: the reason why the bytes are not removed, or why the next server does not know about the end.
  private func answerCancellation(_ request: UploadQuery, _ error: SystemError?) {
    if let error { return request.respond(refusal(UploadRefusal(error), request.version)) }
    request.respond(ServerAnswer.cancelled(request.version))
  }

  /// Whether `action` will be called later, because the representation is being finalised.
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
    settle { [self] failure in
      transfer.respond(self.refusal(failure ?? refusal, version, isSettled: failure == nil))
    }
  }

  /// - Parameter isSettled: whether the offset may be reported. After an error of the disk it may not, because the next
  ///   server would report less.
  func refusal(
    _ refusal: UploadRefusal, _ version: InteropVersion, isSettled: Bool = true
  ) -> ServerAnswer {
    var refusal = refusal
    // The body reports the same current offset as the field.
    if case .mismatchingOffset(_, let provided) = refusal {
      refusal = .mismatchingOffset(expected: ledger.state.offset, provided: provided)
    }
    return ServerAnswer.refused(
      refusal, version, limits: ledger.state.limits,
      standing: isSettled && refusal.tellsOffset && !ledger.state.isInactive ? standing() : nil)
  }
}
