// Which part of an upload the disk has, and which requests wait for it.

internal import DiskFiles
internal import EventLoops
internal import ResumableUploads
internal import StreamServing

extension UploadResource {
  // MARK: Answers

  /// Calls `answer` when the offset may be reported: at once, or when all kept bytes are on the disk. Until then no
  /// byte arrives and no request begins, so that an append may follow at the reported offset.
  ///
  /// - Parameter answer: receives the refusal if the upload has meanwhile ended.
  func settle(_ answer: @escaping (UploadRefusal?) -> Void) {
    noteOwnOffset()
    guard ledger.isOwnOffsetWritten || ledger.state.phase != .incomplete else {
      transfer?.pause()
      return saveFirst { [self] error in
        if let refusal = self.refusal(after: error) { answer(refusal) } else { settle(answer) }
      }
    }
    // The record may state that everything is on the disk, which was true for fewer bytes.
    if hasOthersBytes {
      hasOthersBytes = false
      if marksUnsynced() {
        syncSoon()
        return saveFirst(syncing: true) { [self] error in
          if error != nil {
            ledger.unsyncedNotRecorded()
            hasOthersBytes = true
          }
          answer(self.refusal(after: error))
        }
      }
    }
    guard ledger.state.awaitsDisk, ledger.state.durable < ledger.state.offset else { return answer(nil) }
    gate.close()
    transfer?.pause()
    synchronizeAll { [self] error in
      answer(self.refusal(after: error))
      goOn()
    }
  }

  /// Why a request that has waited for the disk is refused; nil if it is not. The upload may have ended meanwhile.
  private func refusal(after error: SystemError?) -> UploadRefusal? {
    if case .inactive(let cause) = ledger.state.phase { return .deactivated(cause) }
    return error.map { UploadRefusal($0) }
  }

  /// Saves the record, and then calls `work`, which asks for the content of the active transfer. Requests that arrive
  /// meanwhile wait, so that they see what has arrived of that content.
  func saveFirst(syncing: Bool = false, _ work: @escaping (SystemError?) -> Void) {
    gate.close()
    save(syncing: syncing) { [self] error in
      work(error)
      goOn()
    }
  }

  /// Like ``saveFirst(syncing:_:)``, for a record which states that there is a body. With ``Durability/always`` the
  /// disk has the body first, both the file and its name. Otherwise the upload would count as lost after a power
  /// failure.
  func saveBeginning(_ work: @escaping (SystemError?) -> Void) {
    guard resources.durability == .always, content.isOpen else { return saveFirst(work) }
    gate.close()
    content.synchronize(ledger) { [self] _, error in
      if let error {
        refusals.add(error)
        _ = dropUncounted()
        work(error)
      } else {
        saveFirst(work)
      }
      goOn()
    }
  }

  /// Continues if nothing waits for the disk any more.
  private func goOn() {
    guard let requests = gate.open() else { return }
    transfer?.resume()
    for request in requests { whenSettled(request) }
  }

  /// Runs `work` when nothing waits for the disk.
  func whenSettled(_ work: @escaping () -> Void) {
    if gate.admits(work) { work() }
  }

  // MARK: The record

  /// - Parameter syncing: whether the disk must in any case have the record before `completion` is called.
  func save(syncing: Bool = false, _ completion: @escaping (SystemError?) -> Void = { _ in }) {
    noteOwnOffset()
    let entry = ledger.entry()
    resources.store.write(entry, token, syncing: syncing) { [self] error in
      if error == nil { ledger.written(entry) }
      completion(error)
    }
  }

  /// Updates the record's own offset.
  func noteOwnOffset() {
    guard content.isAccepted, let isInside = content.isInside else { return }
    ledger.setOwnOffset(isInside: isInside)
  }

  /// Writes the own offset to the record, if necessary. An offset is announced only after that, because the next server
  /// would not know it otherwise.
  func saveOwnOffset(_ completion: @escaping (SystemError?) -> Void) {
    noteOwnOffset()
    if ledger.isOwnOffsetWritten { completion(nil) } else { save(completion) }
  }

  // MARK: Syncing

  /// Syncs all kept bytes, including those that arrive meanwhile.
  func synchronizeAll(_ completion: @escaping (SystemError?) -> Void) {
    let before = ledger.state.durable
    synchronize { [self] error in
      guard error == nil, ledger.state.durable < ledger.state.offset, ledger.state.durable > before else {
        return completion(error)
      }
      synchronizeAll(completion)
    }
  }

  /// Syncs the bytes kept so far.
  func synchronize(_ completion: @escaping (SystemError?) -> Void) {
    let (size, refusalCount) = (ledger.state.offset, refusals.count)
    content.synchronize(ledger) { [self] count, error in
      if let error {
        syncFailed(error)
        return completion(error)
      }
      // Its bytes may be those that were dropped since.
      if refusalCount != refusals.count, let error = refusals.last { return completion(error) }
      saveOwnOffset { [self] error in
        if error == nil { ledger.state.synced(to: min(count ?? size, size)) }
        completion(error)
      }
    }
  }

  /// With ``Durability/interval``: adds this upload to the next round of syncs.
  func syncSoon() {
    guard resources.durability == .interval, !isSyncDue, !resources.stops else { return }
    isSyncDue = true
    resources.intervalSync.add(self)
  }

  /// Syncs the bytes of an upload that ends.
  func synchronizeLast() {
    isLastSyncOpen = true
    content.synchronize(ledger) { [self] _, _ in
      isLastSyncOpen = false
      lastSyncEnded.take()?()
    }
  }

  /// Syncs the bytes kept so far, without anyone waiting for it.
  func synchronizeInBackground(_ completion: @escaping () -> Void) {
    isSyncDue = false
    guard ledger.state.phase == .incomplete else { return completion() }
    synchronize { [self] error in
      if error == nil, ledger.state.transfer == nil { becameClean() }
      // The sync may have failed for lack of a descriptor for the record, so the next round tries again. Bytes that the
      // disk itself has refused no longer count.
      let isIncomplete = ledger.state.phase == .incomplete && ledger.state.durable < ledger.state.offset
      if error != nil, isIncomplete { syncSoon() }
      completion()
    }
  }

  /// The kernel drops pages that it could not write to the disk (fsync(2), "Errors"), so bytes that were not synced
  /// before are unreliable. A shortage has prevented the sync, and refused none of them.
  func syncFailed(_ error: SystemError) {
    guard !error.isShortage else { return }
    refusals.add(error)
    guard ledger.state.phase == .incomplete else { return }
    if error.isForeignChange { return lostFile("\(error)") }
    resources.figures.values.storageFailures += 1
    // Only bytes that were not announced can be dropped, and only by a handler.
    guard ledger.state.lostUnsynced() != nil, content.isOpen else {
      return deactivate(.stateLost, peer: nil, reason: "\(error)")
    }
    // The next bytes would take the place of the dropped ones, so the client continues from the offset that was
    // announced to it.
    _ = dropUncounted()
    if let transfer { reject(transfer, UploadRefusal(error)) }
  }

  // MARK: The state after a power failure

  /// Everything is on the disk. Updates the record if it states otherwise.
  func becameClean() {
    guard ledger.becomesClean() else { return }
    save { [self] error in
      guard error != nil else { return }
      _ = marksUnsynced()
      syncSoon()
    }
  }

  /// Bytes are about to arrive that are announced to clients before they are on the disk. Returns whether the record
  /// did not state this yet. It must then be on the disk before the first of these bytes.
  func marksUnsynced() -> Bool { ledger.marksUnsynced(since: resources.unsyncedBoot) }

  /// For a resource of an earlier server: whether it cannot be continued, usually because acknowledged bytes are gone,
  /// or may be. If so, reports it and abandons the upload.
  func reportsLoss() -> Bool {
    guard ledger.state.isInactive, !ledger.isOver else { return false }
    // All of its bytes are there, and must not be removed with the upload that added the others.
    if ledger.state.phase == .inactive(.lengthExceeded), ledger.hasBegun {
      content.restoreHolding(ledger.request, for: self)
    }
    wentInactive(peer: nil, event: .interrupted)
    return true
  }
}

/// The syncs of an upload that the disk has refused.
struct DiskRefusals {
  /// Their number.
  private(set) var count = 0
  /// The error of the last one.
  private(set) var last: SystemError?
  /// Why the file contains bytes that may not be on the disk; nil if it does not.
  private(set) var undropped: SystemError?

  mutating func add(_ error: SystemError) {
    count += 1
    last = error
    // The bytes of a file that something else has changed are not those of the upload.
    if !error.isForeignChange { undropped = error }
  }

  /// The refused bytes are no longer in the file.
  mutating func dropped() { undropped = nil }
}
