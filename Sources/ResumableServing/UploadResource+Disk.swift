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
    guard record.ownOffset == savedOwnOffset || state.phase != .incomplete else {
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
        return saveFirst(syncing: true) { error in answer(error.map { UploadRefusal($0) }) }
      }
    }
    guard state.awaitsDisk, state.durable < state.offset else { return answer(nil) }
    settlingCount += 1
    transfer?.pause()
    synchronizeAll { [self] error in
      var refusal = error.map { UploadRefusal($0) }
      if case .inactive(let cause) = state.phase { refusal = .deactivated(cause) }
      answer(refusal)
      goOn()
    }
  }

  /// Saves the record before the content of the transfer at work is asked for, and calls `work`. Requests that come
  /// meanwhile wait: they are to find what has arrived of that content.
  func saveFirst(syncing: Bool = false, _ work: @escaping (SystemError?) -> Void) {
    settlingCount += 1
    save(syncing: syncing) { [self] error in
      work(error)
      goOn()
    }
  }

  /// As ``saveFirst(syncing:_:)``, of a record that says that there is a body. With ``Durability/always`` the disk has
  /// the body before: its file and its name, or after a power failure the upload would count as lost.
  func saveBeginning(_ work: @escaping (SystemError?) -> Void) {
    guard resources.durability == .always, let body else { return saveFirst(work) }
    settlingCount += 1
    body.synchronize { [self] _, error in
      if let error { work(error) } else { saveFirst(work) }
      goOn()
    }
  }

  /// Nothing waits for the disk any more, perhaps.
  private func goOn() {
    settlingCount -= 1
    guard settlingCount == 0 else { return }
    transfer?.resume()
    let requests = waiting
    waiting = []
    for request in requests { whenSettled(request) }
  }

  /// Does `work` when nothing waits for the disk.
  func whenSettled(_ work: @escaping () -> Void) {
    if settlingCount == 0 { work() } else { waiting.append(work) }
  }

  // MARK: Syncing

  /// Has the disk take what is kept by now, and what has come meanwhile, until it has all.
  func synchronizeAll(_ completion: @escaping (SystemError?) -> Void) {
    let before = state.durable
    synchronize { [self] error in
      guard error == nil, state.durable < state.offset, state.durable > before else { return completion(error) }
      synchronizeAll(completion)
    }
  }

  /// Has the disk take what is kept by now.
  func synchronize(_ completion: @escaping (SystemError?) -> Void) {
    let size = state.offset
    let synced = { [self] (count: UInt64, error: SystemError?) in
      if let error {
        syncFailed(error)
        return completion(error)
      }
      saveOwnOffset { [self] error in
        if error == nil { state.synced(to: min(count, size)) }
        completion(error)
      }
    }
    if let body { return body.synchronize(synced) }
    guard record.hasBegun else { return synced(size, nil) }
    // Nobody has the bytes open: an earlier server brought them, or they were left alone for long.
    if let keeper = makeHandler()?.keeper {
      keeper.synchronizeKept { synced(size, $0) }
    } else {
      resources.store.synchronizeBody(of: token) { synced(size, $0) }
    }
  }

  /// With ``Durability/interval``: the next round of syncs has this upload in it.
  func syncSoon() {
    guard resources.durability == .interval, !isUnsynced else { return }
    isUnsynced = true
    resources.intervalSync.add(self)
  }

  /// Has the disk take what is kept by now, without anyone waiting for it.
  func synchronizeInBackground(_ completion: @escaping () -> Void) {
    isUnsynced = false
    guard state.phase == .incomplete else { return completion() }
    synchronize { [self] error in
      if error == nil, state.transfer == nil { becameClean() }
      completion()
    }
  }

  /// The kernel forgets pages that the disk did not take (fsync(2), "Errors"): what was not synced before cannot be
  /// counted on any more.
  func syncFailed(_ error: SystemError) {
    guard state.phase == .incomplete else { return }
    if error.isForeignChange { return lostFile("\(error)") }
    resources.figures.values.storageFailures += 1
    if state.lostUnsynced() != nil {
      lostBySync = error
      // What comes next would take the place of what is dropped: the client begins again where it was told.
      if dropUncounted(), let transfer { reject(transfer, UploadRefusal(error)) }
    } else {
      refusedByDisk = error
      deactivate(.stateLost, peer: nil, reason: "\(error)")
    }
  }

  // MARK: What a power failure would leave

  /// The disk has everything: the record says so, if it said otherwise.
  func becameClean() {
    guard record.unsyncedBoot != nil, isUnfinished, state.durable == state.keptCount else { return }
    record.unsyncedBoot = nil
    save()
  }

  /// Bytes are about to come that clients are told of before the disk has them. Whether the record did not say so
  /// before; it has to be on the disk, then, before the first of them.
  func marksUnsynced() -> Bool {
    guard resources.durability != .always, record.unsyncedBoot == nil else { return false }
    record.unsyncedBoot = resources.bootIdentifier
    return true
  }

  /// Of a resource of an earlier server: whether what was acknowledged is gone, or may be. Says so, and gives it up.
  func reportsLoss() -> Bool {
    guard state.isInactive, record.deactivation == nil else { return false }
    wentInactive(peer: nil, event: .interrupted)
    return true
  }
}
