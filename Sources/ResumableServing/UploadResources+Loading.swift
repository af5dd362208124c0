// The uploads that an earlier server has left: listed and read in slices, while requests are served.

internal import EventLoops
internal import ResumableUploads
package import StreamServing

/// The uploads of an earlier server that are not in the table of a server yet.
struct EarlierUploads {
  /// Whether there may be records that were not listed yet.
  var isUnlisted = true
  /// Listed tokens that are still to be read.
  var unread: [String] = []
  /// The pauses before an unreadable list is tried again.
  var pauses = RetryPauses(.milliseconds(250)...(.seconds(30)))
  /// The last reported reason why the uploads could not be listed.
  var complaint: String?
  /// Uploads that were listed and could not be restored. They are read again and again.
  var postponed = PostponedUploads()
  /// Work that waits until all uploads were listed, or listing has failed.
  var waiting: [() -> Void] = []
  /// Whether it will be reported in this turn that more uploads were read.
  var isNewsDue = false
  /// Tokens forgotten while records are read, because one may be listed before its file is gone.
  var forgotten: Set<String> = []
}

extension UploadResources {
  /// Restores the uploads of an earlier server: at once for as long as `patience` allows, and the rest in slices, with
  /// requests served in between. An upload that a request names is restored when the request arrives.
  package func load(patience: Duration) {
    let end = MonotonicInstant.now + patience
    var pause = Duration.zero
    while pause == .zero, MonotonicInstant.now < end {
      guard let next = loadSlice() else { return }
      pause = next
    }
    loadOn(after: pause)
  }

  private func loadOn(after pause: Duration) {
    loop.schedule(after: pause) { [unowned self] in
      guard !stops, let pause = loadSlice() else { return }
      loadOn(after: pause)
    }
  }

  /// Returns the pause before the next slice; nil after the last one.
  private func loadSlice() -> Duration? {
    let end = MonotonicInstant.now + Self.slice
    repeat {
      if earlier.unread.isEmpty {
        guard earlier.isUnlisted else { return readAgain() }
        do throws(SystemError) {
          guard let tokens = try store.nextTokens() else { return listed() }
          earlier.unread = tokens
        } catch {
          return cannotList(error)
        }
      }
      if let token = earlier.unread.popLast(), table[token] == nil { takeUpListed(token) }
    } while MonotonicInstant.now < end
    return .zero
  }

  /// Every upload was listed.
  private func listed() -> Duration? {
    earlier.isUnlisted = false
    earlier.forgotten = []
    earlier.pauses.reset()
    moreIsKnown()
    return readAgain()
  }

  /// Reads those that could not be read once more, after a pause.
  private func readAgain() -> Duration? {
    guard !earlier.postponed.isEmpty else { return nil }
    earlier.unread = Array(earlier.postponed.tokens)
    return earlier.pauses.next()
  }

  private func moreIsKnown() {
    becameKnown()
    releaseWaiting()
    armNext()
  }

  private func releaseWaiting() {
    let released = earlier.waiting
    earlier.waiting = []
    for work in released { work() }
  }

  private func cannotList(_ error: SystemError) -> Duration {
    if earlier.complaint != "\(error)" {
      earlier.complaint = "\(error)"
      emit(
        ServerEvent(
          .warning,
          reason: "cannot list the uploads in .uploads. The server retries. Until then, each upload waits until a "
            + "request names it, no upload expires, and no silent recording is closed: \(error)"))
    }
    releaseWaiting()
    return earlier.pauses.next()
  }

  private func takeUpListed(_ token: String) {
    do throws(SystemError) {
      try takeUp(token, complains: true)
    } catch {
      guard earlier.postponed.insert(token) else { return }
      emit(
        ServerEvent(
          .warning,
          reason: "cannot read the upload of \(store.recordName(token)): \(error). The server retries. Until "
            + "then, it answers requests for it with 503, and closes or removes no recording that may belong to it. Repair "
            + "the disk, or move the file away to abandon the upload."))
    }
  }

  /// Restores an upload of an earlier server; nil if there is none of that name, or its record is invalid.
  @discardableResult
  func takeUp(_ token: String, complains: Bool) throws(SystemError) -> UploadResource? {
    let resource = try restored(token, complains: complains)
    if earlier.postponed.remove(token), !earlier.isUnlisted, !earlier.isNewsDue {
      // Notify once for all that are read in this turn.
      earlier.isNewsDue = true
      loop.schedule(after: .zero) { [unowned self] in
        earlier.isNewsDue = false
        if !stops { moreIsKnown() }
      }
    }
    return resource
  }

  private func restored(_ token: String, complains: Bool) throws(SystemError) -> UploadResource? {
    // Its file may be about to be removed.
    guard !earlier.forgotten.contains(token), let stored = try store.read(token) else { return nil }
    guard let record = stored.record, let resource = try UploadResource(token, record, stored.age, self) else {
      if complains {
        emit(
          ServerEvent(
            .warning, reason: "cannot parse the record of an upload in .uploads. The record is left unchanged"))
      }
      return nil
    }
    table[token] = resource
    if resource.isUnfinished {
      resource.restoreHolding()
      unfinishedCount += 1
      resource.share = usage.add(resource.owner)
      resource.countRestored()
      // The earlier server was killed. If no client returns, nothing else lets the record state that all is synced.
      if durability == .interval, resource.ledger.isUnsynced { intervalSync.addLeft(resource) }
    } else if !resource.reportsLoss() {
      keepFinished(resource, bytes: stored.size)
    }
    armExpiry(for: resource)
    armAges()
    return resource
  }

  // MARK: Uploads that are not known yet

  /// Whether uploads of an earlier server that are not known yet may belong to that stream.
  package func mayHaveUnknownUploads(of name: StreamName) -> Bool {
    earlier.isUnlisted || earlier.postponed.mayGoInto(LoopAssignment.key(name))
  }

  /// Whether unknown uploads may have stored bytes in the recording that is removed with an upload.
  func mayShare(_ resource: UploadResource) -> Bool {
    let key = LoopAssignment.key(ofToken: resource.token)
    return resource.ownsFile && (earlier.isUnlisted || earlier.postponed.mayGoInto(key))
  }

  /// Whether `work` is called later. The recording of an upload may be removed only once all uploads that may have
  /// stored bytes in it are known.
  ///
  /// - Throws: ``UploadRefusal`` if it is unknown when that will be.
  func waits(toRemove resource: UploadResource, _ work: @escaping () -> Void) throws(UploadRefusal) -> Bool {
    guard mayShare(resource) else { return false }
    let key = LoopAssignment.key(ofToken: resource.token)
    guard earlier.isUnlisted, earlier.complaint == nil, !earlier.postponed.mayGoInto(key) else {
      throw .outOfResources("other uploads of the same stream cannot be read now")
    }
    earlier.waiting.append(work)
    return true
  }
}
