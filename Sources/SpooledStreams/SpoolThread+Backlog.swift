// What earlier processes have left. Stretches are examined one after another, and opened one after another.

internal import EventLoops
package import Spool

extension SpoolThread {
  /// Begins to examine the remaining stretches, the newest first, so that bytes which the last process left only in
  /// memory are written to the disk. The live stretch gets its turn between them.
  func begin(with stretches: [LeftStretch]) {
    left = stretches
    lookedFrom = left.count
    lookAtNext()
  }

  private func lookAtNext() {
    guard lookedFrom > 0 else { return }
    lookedFrom -= 1
    // Others may have been removed meanwhile.
    if lookedFrom < left.count { look(at: left[lookedFrom]) }
    loop.execute { [weak self] in self?.lookAtNext() }
  }

  private func look(at stretch: LeftStretch) {
    do throws(SpoolError) {
      try stretch.look(self)
      if !stretch.isSettled || stretch.keptByteCount == 0 { settle(stretch) }
    } catch {
      // It is examined with the next retry.
      if error.mayPass { return failed(error, nil) }
      // It stays unchanged for the operator to examine. The others need not wait for it.
      report(.unreadable(error))
      (stretch.isUnreadable, stretch.problem) = (true, error)
    }
  }

  /// Writes bytes that are only in memory to the disk.
  ///
  /// - Returns: whether the stretch could be opened.
  @discardableResult
  private func settle(_ stretch: LeftStretch) -> Bool {
    guard let writer = open(stretch)?.writer else { return false }
    do throws(SpoolError) {
      if !stretch.isSettled, keep(writer) { try stretch.settle() }
      if stretch.isDone { try stretch.remove() }
    } catch {
      failed(error, nil)
    }
    left.removeAll { $0.isGone }
    closeIdle(but: nil)
    return true
  }

  /// Retries stretches that have failed.
  func settleLeft() {
    for stretch in left[min(lookedFrom, left.count)...] where !stretch.isSettled && !stretch.isUnreadable {
      // The reason why this one cannot be opened may not concern the others.
      guard settle(stretch) else { continue }
      // The disk would refuse the bytes of the others in the same way.
      if !stretch.isSettled { return armTimer() }
    }
  }

  /// Opens a stretch, and closes the previous one if no stream is sending it. Nil if that fails.
  func open(_ stretch: LeftStretch) -> (writer: StretchWriter, backlog: SpooledBacklog)? {
    guard !stretch.isUnreadable else { return nil }
    do throws(SpoolError) {
      let opened = try stretch.open(self)
      closeIdle(but: stretch)
      return opened
    } catch {
      stretch.problem = error
      if error.mayPass {
        failed(error, nil)
      } else {
        report(.unreadable(error))
        stretch.isUnreadable = true
      }
      return nil
    }
  }

  private func closeIdle(but stretch: LeftStretch?) {
    for other in left where other !== stretch && other.opened != nil && !other.isTaken {
      if let writer = other.opened?.writer, writer.holdsEviction { commit(writer, sync: true) }
      other.close()
    }
  }

  /// Opens a stretch for the stream that will send it. If the system refuses this for a reason that may pass, retries
  /// for ``SpoolSettings/readingPatience``. Any thread.
  ///
  /// - Parameter done: called on the spool's thread.
  func take(_ name: String, then done: @escaping @Sendable (OpenedStretch) -> Void) {
    loop.execute { [self] in take(name, until: MonotonicInstant.now + settings.readingPatience, then: done) }
  }

  private func take(
    _ name: String, until end: MonotonicInstant, then done: @escaping @Sendable (OpenedStretch) -> Void
  ) {
    guard let stretch = left.first(where: { $0.name == name }) else { return done(.nothingLeft) }
    if let opened = open(stretch) {
      // Its examination, or the next retry, ends one that has nothing to send.
      return done(stretch.isKeptForOperator ? .nothingLeft : .backlog(take(stretch, opened)))
    }
    guard !stretch.isUnreadable, .now < end else {
      // Always known, because it was not opened.
      return done(.unreadable(stretch.problem ?? SpoolError(.notASpool, path: stretch.path)))
    }
    loop.schedule(after: min(settings.syncInterval, .seconds(1))) { [weak self] in
      self?.take(name, until: end, then: done)
    }
  }

  private func take(
    _ stretch: LeftStretch, _ opened: (writer: StretchWriter, backlog: SpooledBacklog)
  ) -> SpooledBacklog {
    stretch.isTaken = true
    armTimer()
    // Bytes that are only in memory are now written to the disk, or are sent from there.
    if !stretch.isSettled, keep(opened.writer) {
      do throws(SpoolError) { try stretch.settle() } catch { failed(error, opened.writer.stretch) }
    }
    return opened.backlog
  }
}

/// The result of opening a stretch for sending.
package enum OpenedStretch: Sendable {
  case backlog(SpooledBacklog)
  /// The server has stored everything that is known.
  case nothingLeft
  /// It stays unchanged, for this reason.
  case unreadable(SpoolError)
}
