// The content of an upload's requests: accepted up to the limits, and acknowledged.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import ResumableUploads
internal import StreamServing

extension UploadResource {
  // MARK: Content

  func received(_ bytes: Span<UInt8>, pieces: [Range<Int>], by transfer: UploadTransfer) {
    guard resources.isStillAuthorized(transfer, within: .seconds(1)) else { return reject(transfer, .notAuthorized) }
    let count = UInt64(pieces.reduce(0) { $0 + $1.count })
    let intake = ledger.state.received(count, by: transfer.number)
    if ledger.state.isInactive, let refusal = intake.refusal { return exceeded(transfer, refusal) }
    if intake.refusal == .completed {
      ledger.state.ended(transfer.number)
      _ = takeWaiting()
      return refuse(transfer, .completed)
    }
    var error: KeepingError?
    if intake.count > 0 {
      let wanted = intake.count == count ? pieces : pieces.prefix(octets: Int(intake.count))
      error = content.append(bytes, wanted, digest: transfer.digest)
      countKept()
    }
    // The handler may have answered or ended during that call.
    guard self.transfer === transfer else { return }
    if let error {
      if case .disk(let error) = error {
        resources.figures.values.storageFailures += 1
        if error.isForeignChange { return lostFile("\(error)") }
        if undoesCreation(transfer, UploadRefusal(error)) { return }
      }
      return reject(transfer, error.refusal)
    }
    if let refusal = intake.refusal { return reject(transfer, refusal) }
    if intake.count > 0 { bytesKept(intake.count, transfer) }
  }

  /// Updates the offset to the kept bytes.
  func countKept() {
    guard isUnfinished, !isDropDue, let count = content.keptCount, count > ledger.state.keptCount else { return }
    ledger.state.kept(count - ledger.state.keptCount)
  }

  /// The upload is longer than its length, and it is unknown which of the two is wrong.
  private func exceeded(_ transfer: UploadTransfer, _ refusal: UploadRefusal) {
    self.transfer = nil
    transfer.resource = nil
    progress.end()
    wentInactive(peer: transfer.peer, event: .interrupted)
    transfer.respond(ServerAnswer.refused(refusal, transfer.request.version, limits: ledger.state.limits))
  }

  func contentEnded(_ transfer: UploadTransfer) {
    let isCurrent = self.transfer === transfer
    if isCurrent, ledger.state.phase == .incomplete {
      guard judgeContent(transfer) else { return }
      guard resources.isStillAuthorized(transfer, within: .zero) else { return reject(transfer, .notAuthorized) }
      content.describe(transfer.head.fields)
    }
    switch ledger.state.contentEnded(transfer.number) {
    case .ignore: break
    case .refuse(let refusal):
      guard isCurrent else { return }
      _ = takeWaiting()
      refuse(transfer, refusal)
      rest()
    case .acknowledge:
      guard isCurrent else { return }
      _ = takeWaiting()
      let reached = ledger.state.offset
      settle { [self] failure in
        if let failure { return undoesCreation(transfer, failure) ? () : refuse(transfer, failure) }
        // A sync that was under way before has failed: a 2xx would acknowledge what it has lost.
        if ledger.state.offset < reached, let error = refusals.last {
          return refuse(transfer, UploadRefusal(error))
        }
        let version = transfer.request.version
        var answer: ServerAnswer
        if transfer.isCreation {
          answer = ServerAnswer.created(standing(), version)
          answer.fields.append(contentsOf: settled)
        } else {
          answer = ServerAnswer.appended(standing(), version)
        }
        if let field = content.digestField(at: ledger.state.offset) {
          answer.fields.append(DigestField.representation, field)
        }
        transfer.respond(answer)
      }
      rest()
    case .process:
      progress.end()
      process()
    case .replay:
      _ = takeWaiting()
      repeatResponse(to: transfer)
    }
  }

  /// Whether the content has no digest or matches it. If not, the transfer is answered and none of its content stays.
  private func judgeContent(_ transfer: UploadTransfer) -> Bool {
    guard let digest = transfer.digest else { return true }
    if digest.isRight {
      ledger.state.contentVerified()
      content.keep()
      return true
    }
    ledger.state.contentRefuted()
    _ = takeWaiting()
    refuse(transfer, dropUncounted() ?? .contentDigest)
    rest()
    return false
  }

  /// Takes back the bytes that do not count. Until that has succeeded, no byte is stored behind them, and the handler
  /// stays.
  ///
  /// - Returns: the answer if it failed. The upload is over then, unless the server only lacked a resource for it.
  func dropUncounted() -> UploadRefusal? {
    do throws(SystemError) {
      try content.drop(to: ledger.state.keptCount)
      isDropDue = false
      guard let error = refusals.undropped else { return nil }
      guard content.droppedRefused() else {
        deactivate(.stateLost, peer: nil, reason: "\(error)")
        return .deactivated(.stateLost)
      }
      refusals.dropped()
      return nil
    } catch {
      isDropDue = error.isShortage
      if isDropDue { return UploadRefusal(error) }
      // Unverified bytes can no longer be distinguished from the others.
      deactivate(.stateLost, peer: nil, reason: "\(error)")
      return .deactivated(.stateLost)
    }
  }

  /// The bytes of the finished transfer stay, whatever arrives next.
  func keepContent() {
    if !isDropDue { content.keep() }
  }

  /// All bytes are here. Compares them with the digest from the creation, and then lets the handler process them.
  private func process() {
    if content.bodyEnd == .outgrown { return outgrown() }
    content.compare { [self] verdict in
      guard ledger.state.phase == .processing else { return }
      switch verdict {
      case .right: content.end()
      case .unknown:
        // An unknown digest is ignored (RFC 9530, section 2).
        resources.emit(
          ServerEvent(
            .warning, peer: peer,
            reason:
              "a complete upload was not compared with its Repr-Digest, because not all of it can be read again"))
        content.end()
      case .wrong: fail()
      case .unreadable(let error): unreadable(error)
      }
    }
  }

  // MARK: Reporting

  /// Bytes of the transfer in progress were kept.
  private func bytesKept(_ count: UInt64, _ transfer: UploadTransfer) {
    syncSoon()
    let now = MonotonicInstant.now
    ledger.bytesCame(at: now)
    guard transfer.tellsProgress else { return }
    tellProgress(progress.schedule.kept(count, now: now.nanoseconds))
  }

  /// - Parameter evenIfKnown: also reports an offset that was reported before, for a request that has not received it.
  func tellProgress(_ action: ProgressSchedule.Action, evenIfKnown: Bool = false) {
    switch action {
    case .nothing: break
    case .setTimer(let time):
      progress.setTimer(at: time) { [self] in tellProgress(progress.schedule.timerFired(now: progress.now)) }
    case .announce:
      guard let transfer, transfer.tellsProgress else { return }
      if !ledger.state.awaitsDisk {
        // Written within the call if nothing waits for the disk.
        saveOwnOffset { _ in }
        guard ledger.isOwnOffsetWritten else { return }
      }
      if let offset = announcing({ $0.announceProgress() }) ?? (evenIfKnown ? ledger.state.announced : nil),
        let fields = ServerAnswer.progress(offset, transfer.request.version)
      {
        transfer.sendInterim(fields)
      }
      // While announcements are due, sync again as soon as the last sync ends. Each sync covers the bytes that arrived
      // meanwhile.
      guard ledger.state.awaitsDisk, ledger.state.durable < ledger.state.offset, !progress.isSyncing else { return }
      progress.isSyncing = true
      synchronize { [self] error in
        progress.isSyncing = false
        // After a shortage, the next announcement syncs again.
        guard error?.isShortage != false, self.transfer === transfer else { return }
        tellProgress(progress.schedule.kept(0, now: progress.now))
      }
    }
  }
}

extension UploadTransfer {
  /// Whether this request gets 104s with its progress, which its version must support.
  var tellsProgress: Bool { request.version.number != nil && request.version.tellsProgress }
}
