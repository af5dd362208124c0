// An upload without an active request: its handler is abandoned after a while, and at the end of the server.

internal import EventLoops
internal import ResumableUploads
internal import StreamServing

extension UploadResource {
  // MARK: Parking

  /// No request is active. The handler is abandoned after a time.
  func rest() {
    guard ledger.state.phase == .incomplete, content.isOpen, parkTimer == nil else { return }
    parkTimer = resources.loop.schedule(after: resources.options.parkDelay) { [self] in
      parkTimer = nil
      park()
    }
  }

  private func park() {
    guard ledger.state.phase == .incomplete, ledger.state.transfer == nil, content.isOpen else { return }
    // Without the handler, these bytes would count.
    if isDropDue, dropUncounted() != nil { return rest() }
    guard resources.durability != .none else { return leaveHandler() }
    guard ledger.state.durable < ledger.state.offset else {
      // All bytes were synced while their request was under way.
      becameClean()
      return leaveHandler()
    }
    synchronize { [self] error in
      // If another request has begun and ended meanwhile, the handler is abandoned after that request.
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

  /// A request is active again, or the upload or the server ends.
  func stopParking() {
    if let parkTimer { resources.loop.cancel(parkTimer) }
    parkTimer = nil
  }

  // MARK: The end of the server

  /// Writes the current state, and calls `completion` when the write has begun. If all bytes of the upload are synced,
  /// the record states this, and the upload can be resumed even after a power failure.
  func serverEnds(_ completion: @escaping () -> Void) {
    progress.end()
    stopParking()
    let saved = { [self] in
      if isUnfinished && ledger.hasUnwrittenPromise { save() }
      completion()
    }
    if isDropDue { _ = dropUncounted() }
    guard isUnfinished, ledger.isUnsynced else {
      if isLastSyncOpen { lastSyncEnded = saved } else { saved() }
      return
    }
    let refusalCount = refusals.count
    synchronizeAll { [self] error in
      if error == nil {
        becameClean()
      } else if refusals.count == refusalCount ? ledger.isAnnouncedOffsetUnwritten : ledger.lacksAnnounced {
        // If only the record was refused, the next server measures the synced bytes.
        resources.figures.values.unsyncedUploads += 1
      }
      saved()
    }
  }
}
