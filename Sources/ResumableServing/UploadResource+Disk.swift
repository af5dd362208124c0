// What of an upload the disk has, and who waits until it has more.

internal import DiskFiles
internal import EventLoops
internal import ResumableUploads
internal import StreamServing

extension UploadResource {
  // MARK: Answers

  /// Calls `answer` when the offset may be told: at once, or when the disk has all that is kept. Until then no byte
  /// comes and no request begins, so that the offset which is told is one that an append may follow.
  ///
  /// - Parameter answer: is given what has become of the upload meanwhile, if it is no offset.
  func settle(_ answer: @escaping (UploadRefusal?) -> Void) {
    noteOwnOffset()
    guard ledger.isOwnOffsetWritten || ledger.state.phase != .incomplete else {
      transfer?.pause()
      return saveFirst { [self] error in
        if let error { answer(UploadRefusal(error)) } else { settle(answer) }
      }
    }
    // The record may say that the disk has all of it, which was true of fewer bytes.
    if hasOthersBytes {
      hasOthersBytes = false
      if marksUnsynced() {
        syncSoon()
        return saveFirst(syncing: true) { [self] error in
          if error != nil {
            ledger.unsyncedNotRecorded()
            hasOthersBytes = true
          }
          answer(error.map { UploadRefusal($0) })
        }
      }
    }
    guard ledger.state.awaitsDisk, ledger.state.durable < ledger.state.offset else { return answer(nil) }
    gate.close()
    transfer?.pause()
    synchronizeAll { [self] error in
      var refusal = error.map { UploadRefusal($0) }
      if case .inactive(let cause) = ledger.state.phase { refusal = .deactivated(cause) }
      answer(refusal)
      goOn()
    }
  }

  /// Saves the record before the content of the transfer at work is asked for, and calls `work`. Requests that come
  /// meanwhile wait: they are to find what has arrived of that content.
  func saveFirst(syncing: Bool = false, _ work: @escaping (SystemError?) -> Void) {
    gate.close()
    save(syncing: syncing) { [self] error in
      work(error)
      goOn()
    }
  }

  /// As ``saveFirst(syncing:_:)``, of a record that says that there is a body. With ``Durability/always`` the disk has
  /// the body before: its file and its name, or after a power failure the upload would count as lost.
  func saveBeginning(_ work: @escaping (SystemError?) -> Void) {
    guard resources.durability == .always, content.isOpen else { return saveFirst(work) }
    gate.close()
    content.synchronize(ledger) { [self] _, error in
      if let error { work(error) } else { saveFirst(work) }
      goOn()
    }
  }

  /// Nothing waits for the disk any more, perhaps.
  private func goOn() {
    guard let requests = gate.open() else { return }
    transfer?.resume()
    for request in requests { whenSettled(request) }
  }

  /// Does `work` when nothing waits for the disk.
  func whenSettled(_ work: @escaping () -> Void) {
    if gate.admits(work) { work() }
  }

  // MARK: The record

  /// - Parameter syncing: whether the disk must have the record in any case before `completion` is called.
  func save(syncing: Bool = false, _ completion: @escaping (SystemError?) -> Void = { _ in }) {
    noteOwnOffset()
    let entry = ledger.entry()
    resources.store.write(entry, token, syncing: syncing) { [self] error in
      if error == nil { ledger.written(entry) }
      completion(error)
    }
  }

  /// Brings the record in line with where the offset lies.
  func noteOwnOffset() {
    guard content.isAccepted, let isInside = content.isInside else { return }
    ledger.setOwnOffset(isInside: isInside)
  }

  /// Writes down where the offset lies, if that is not written yet. An offset is announced after that only: the next
  /// server would not know it.
  func saveOwnOffset(_ completion: @escaping (SystemError?) -> Void) {
    noteOwnOffset()
    if ledger.isOwnOffsetWritten { completion(nil) } else { save(completion) }
  }

  // MARK: Syncing

  /// Has the disk take what is kept by now, and what has come meanwhile, until it has all.
  func synchronizeAll(_ completion: @escaping (SystemError?) -> Void) {
    let before = ledger.state.durable
    synchronize { [self] error in
      guard error == nil, ledger.state.durable < ledger.state.offset, ledger.state.durable > before else {
        return completion(error)
      }
      synchronizeAll(completion)
    }
  }

  /// Has the disk take what is kept by now.
  func synchronize(_ completion: @escaping (SystemError?) -> Void) {
    let size = ledger.state.offset
    content.synchronize(ledger) { [self] count, error in
      if let error {
        syncFailed(error)
        return completion(error)
      }
      saveOwnOffset { [self] error in
        if error == nil { ledger.state.synced(to: min(count ?? size, size)) }
        completion(error)
      }
    }
  }

  /// With ``Durability/interval``: the next round of syncs has this upload in it.
  func syncSoon() {
    guard resources.durability == .interval, !isSyncDue, !resources.stops else { return }
    isSyncDue = true
    resources.intervalSync.add(self)
  }

  /// Has the disk take what is kept by now, without anyone waiting for it.
  func synchronizeInBackground(_ completion: @escaping () -> Void) {
    isSyncDue = false
    guard ledger.state.phase == .incomplete else { return completion() }
    synchronize { [self] error in
      if error == nil, ledger.state.transfer == nil { becameClean() }
      // Such as for want of a descriptor for the record: the next round tries again. What the disk itself has refused is
      // not counted any more.
      let isIncomplete = ledger.state.phase == .incomplete && ledger.state.durable < ledger.state.offset
      if error != nil, isIncomplete { syncSoon() }
      completion()
    }
  }

  /// The kernel forgets pages that the disk did not take (fsync(2), "Errors"): what was not synced before cannot be
  /// counted on any more.
  func syncFailed(_ error: SystemError) {
    guard ledger.state.phase == .incomplete else { return }
    if error.isForeignChange { return lostFile("\(error)") }
    resources.figures.values.storageFailures += 1
    if ledger.state.lostUnsynced() != nil {
      refusals.unsynced = error
      // What comes next would take the place of what is dropped: the client begins again where it was told.
      _ = dropUncounted()
      if let transfer { reject(transfer, UploadRefusal(error)) }
    } else {
      refusals.acknowledged = error
      deactivate(.stateLost, peer: nil, reason: "\(error)")
    }
  }

  // MARK: What a power failure would leave

  /// The disk has everything: the record says so, if it said otherwise.
  func becameClean() {
    guard ledger.becomesClean() else { return }
    save { [self] error in
      guard error != nil else { return }
      _ = marksUnsynced()
      syncSoon()
    }
  }

  /// Bytes are about to come that clients are told of before the disk has them. Whether the record did not say so
  /// before; it has to be on the disk, then, before the first of them.
  func marksUnsynced() -> Bool { ledger.marksUnsynced(since: resources.unsyncedBoot) }

  /// Of a resource of an earlier server: whether what was acknowledged is gone, or may be. Says so, and gives it up.
  func reportsLoss() -> Bool {
    guard ledger.state.isInactive, !ledger.isOver else { return false }
    wentInactive(peer: nil, event: .interrupted)
    return true
  }
}

/// What the disk did not take of an upload.
struct DiskRefusals {
  /// Why acknowledged bytes may be lost.
  var acknowledged: SystemError?
  /// Why bytes that were not synced were dropped last.
  var unsynced: SystemError?
}
