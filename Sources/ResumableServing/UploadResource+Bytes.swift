// The content of an upload's requests: taken as far as it may be, kept, synced, told of.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import Metrics
internal import ResumableUploads
internal import StreamServing

extension UploadResource {
  // MARK: Content

  func received(_ bytes: Span<UInt8>, pieces: [Range<Int>], by transfer: UploadTransfer) {
    let count = UInt64(pieces.reduce(0) { $0 + $1.count })
    let intake = state.received(count, by: transfer.number)
    if state.isInactive, let refusal = intake.refusal { return exceeded(transfer, refusal) }
    var error: KeepingError?
    if intake.count > 0, let body {
      let wanted = intake.count == count ? pieces : pieces.prefix(octets: Int(intake.count))
      let before = body.keptCount
      error = body.append(bytes, pieces: wanted)
      if transfer.digest != nil || digests != nil {
        // Not those that the disk did not take, nor those that the handler turned down.
        let kept = wanted.prefix(octets: Int(body.keptCount - before))
        transfer.digest?.update(bytes, kept)
        digests?.update(bytes, kept, at: before)
      }
      countKept()
    }
    // The handler may have answered, or left, within that.
    guard self.transfer === transfer else { return }
    if let error {
      if case .disk(let error) = error {
        resources.figures.values.storageFailures += 1
        if error.isForeignChange { return lostFile("\(error)") }
      }
      return reject(transfer, error.refusal)
    }
    if let refusal = intake.refusal { return reject(transfer, refusal) }
    if intake.count > 0 { bytesKept(intake.count, transfer) }
  }

  /// Brings the offset in line with what is kept.
  func countKept() {
    guard let body, isUnfinished, body.keptCount > state.keptCount else { return }
    state.kept(body.keptCount - state.keptCount)
  }

  /// The upload is longer than its length: nobody can tell which of the two is wrong.
  private func exceeded(_ transfer: UploadTransfer, _ refusal: UploadRefusal) {
    self.transfer = nil
    transfer.resource = nil
    progress.end()
    wentInactive(peer: transfer.peer, event: .interrupted)
    transfer.respond(ServerAnswer.refused(refusal, transfer.request.version, limits: state.limits))
  }

  func contentEnded(_ transfer: UploadTransfer) {
    let isCurrent = self.transfer === transfer
    if isCurrent, state.phase == .incomplete {
      guard judgeContent(transfer) else { return }
      if transfer.request.completes, !resources.isStillAuthorized(owner) { return reject(transfer, .notAuthorized) }
      keeper?.describe(transfer.head.fields)
    }
    switch state.contentEnded(transfer.number) {
    case .ignore: break
    case .refuse(let refusal):
      guard isCurrent else { return }
      self.transfer = nil
      transfer.resource = nil
      progress.end()
      refuse(transfer, refusal)
      rest()
    case .acknowledge:
      guard isCurrent else { return }
      self.transfer = nil
      transfer.resource = nil
      progress.end()
      touch()
      let reached = state.offset
      settle { [self] failure in
        if let failure { return refuse(transfer, failure) }
        // A sync that was under way before has failed: a 2xx would acknowledge what it has lost.
        if state.offset < reached, let lostBySync { return refuse(transfer, UploadRefusal(lostBySync)) }
        let version = transfer.request.version
        var answer: ServerAnswer
        if transfer.isCreation {
          answer = ServerAnswer.created(standing(), version)
          answer.fields.append(contentsOf: settled)
        } else {
          answer = ServerAnswer.appended(standing(), version)
        }
        if let field = digests?.field(at: state.offset) { answer.fields.append(DigestField.representation, field) }
        transfer.respond(answer)
      }
      rest()
    case .process:
      progress.end()
      process()
    }
  }

  /// Whether the content is what its digest says, or has none. If it is not, the transfer is answered and nothing of it
  /// stays.
  private func judgeContent(_ transfer: UploadTransfer) -> Bool {
    guard let digest = transfer.digest else { return true }
    if digest.isRight {
      state.contentVerified()
      body?.release()
      return true
    }
    state.contentRefuted()
    self.transfer = nil
    transfer.resource = nil
    progress.end()
    guard dropUncounted() else { return false }
    refuse(transfer, .contentDigest)
    rest()
    return false
  }

  /// Takes back what is kept and does not count. False if that failed, and the upload with it.
  @discardableResult
  func dropUncounted() -> Bool {
    guard let body, body.keptCount > state.keptCount else { return true }
    do throws(SystemError) {
      try body.drop(to: state.keptCount)
    } catch {
      // Bytes that nobody vouches for cannot be told from the others any more.
      deactivate(.stateLost, peer: nil, reason: "\(error)")
      return false
    }
    body.release()
    digests?.rewind(to: state.keptCount)
    return true
  }

  /// All bytes are here. They are compared with the digest that the creation gave, and then the handler has its turn.
  private func process() {
    if keeper?.isInside == true { return outgrown() }
    guard let digests, let body else {
      self.body?.end()
      return
    }
    digests.catchUp(with: body, loop: resources.loop, worker: resources.worker) { [self] verdict in
      guard state.phase == .processing else { return }
      switch verdict {
      case .right: self.body?.end()
      case .wrong: fail()
      case .unreadable: postpone(500, "what is kept of the upload cannot be read now")
      }
    }
  }

  // MARK: Telling

  /// Bytes of the transfer at work were kept.
  private func bytesKept(_ count: UInt64, _ transfer: UploadTransfer) {
    syncSoon()
    let now = MonotonicInstant.now
    if unacknowledgedSince == nil { unacknowledgedSince = now }
    guard transfer.tellsProgress else { return }
    tellProgress(progress.schedule.kept(count, now: now.nanoseconds))
  }

  /// Counts what `announce` has the state say to a client.
  func announcing<Result>(_ announce: () -> Result) -> Result {
    let before = state.announced
    let result = announce()
    guard state.announced > before else { return result }
    resources.figures.values.acknowledgedBytes += state.announced - before
    if let since = unacknowledgedSince {
      resources.figures.values.acknowledgementDelays.record(
        Double(MonotonicInstant.now.nanoseconds(since: since)) / 1e9)
    }
    // What came meanwhile and waits for the disk is as old as this moment at most.
    unacknowledgedSince = state.announced < state.offset ? .now : nil
    return result
  }

  /// - Parameter evenIfKnown: also an offset that was told before, to a request that has not heard of it.
  func tellProgress(_ action: ProgressSchedule.Action, evenIfKnown: Bool = false) {
    switch action {
    case .nothing: break
    case .setTimer(let time):
      progress.setTimer(at: time) { [self] in tellProgress(progress.schedule.timerFired(now: progress.now)) }
    case .announce:
      guard let transfer, transfer.tellsProgress else { return }
      if !state.awaitsDisk {
        // Written within the call, where nothing waits for the disk.
        saveOwnOffset { _ in }
        guard record.ownOffset == savedOwnOffset else { return }
      }
      if let offset = announcing({ state.announceProgress() }) ?? (evenIfKnown ? state.announced : nil),
        let fields = ServerAnswer.progress(offset, transfer.request.version)
      {
        transfer.sendInterim(fields)
      }
      // The disk is asked for as much as has come while it was busy, again and again: a sync for each announcement.
      guard state.awaitsDisk, state.durable < state.offset, !progress.isSyncing else { return }
      progress.isSyncing = true
      synchronize { [self] error in
        progress.isSyncing = false
        guard error == nil, self.transfer === transfer else { return }
        tellProgress(progress.schedule.kept(0, now: progress.now))
      }
    }
  }
}

extension UploadTransfer {
  /// Whether this request gets 104s with its progress: its version supports them.
  var tellsProgress: Bool { request.version.number != nil && request.version.tellsProgress }
}
