// The streams with an active request, so that a newer request can take over from an older one, and the streams that
// were left unfinished, so that their recordings are closed after a time.

internal import DiskFiles
internal import EventLoops
package import StreamServing

/// An active request of a stream.
protocol StreamWorker: AnyObject {
  /// A newer request takes over the stream. This request stores the bytes that have arrived, and ends.
  func yieldStream()
}

/// The state that all requests of a loop share if they store streams. Only on the loop's thread.
package final class StreamRegistry {
  /// A recording without an active request and without an upload.
  private struct Unattended {
    var name: StreamName
    var owner: UploadOwner?
    var deadline: MonotonicInstant
    /// Why it is closed, if an attempt to close it has failed. Nil if its stream is silent.
    var cause: String?
    /// The upload that has discarded the recording, if it belonged only to that upload. The recording is removed if no
    /// other upload has stored bytes in it.
    var discarder: Contributor?
  }

  let store: any StreamStore
  let loop: EventLoop
  let limits: StreamLimits
  /// The maximum hole that a request may leave, in bytes.
  let maximumHole: UInt64
  /// The number of lines in the record of a recording's gaps with which it is closed before it gets another hole.
  let maximumGapLines: Int
  /// How long a stream may be silent before its recording is closed.
  let finishAfter: Duration
  let emit: (ServerEvent) -> Void
  let assignment: LoopAssignment
  let figures: ServerLoopFigures
  /// Whether a credential is valid now.
  let isValid: ([UInt8]) -> Bool

  private var workers: [StreamName: any StreamWorker] = [:]
  /// The upload that last sent a request for the stream, while the upload is unfinished and no plain request followed.
  private var holders: [StreamName: any RecordingHolder] = [:]
  /// The unfinished uploads whose bytes are in the growing recording. The one that was active last is at the end.
  private var sharers: [StreamName: [any RecordingHolder]] = [:]
  private var unattended: [StreamName: Unattended] = [:]
  /// Why recordings could not be closed. Each reason is reported once.
  private var unclosed: [StreamName: SystemError] = [:]
  /// Who has taken each stream before all uploads of the earlier server were known.
  var takers: [StreamName: Taker] = [:]
  /// Whether uploads of the earlier server that are not known yet may have stored bytes in a stream.
  private var hasUnknownUploads: (StreamName) -> Bool = { _ in true }
  private var timer: (timer: EventLoop.Timer, deadline: MonotonicInstant)?
  private var stops = false
  let distrusted: DistrustedRecordings
  let finishing: FinishingRecordings
  /// The end of the server does not wait for them. The next server completes them.
  let removals: StreamRemovals

  package init(
    _ context: ServingContext, store: any StreamStore, limits: StreamLimits, maximumHole: UInt64,
    maximumGapLines: Int = GapRecord.mostLines
  ) {
    (loop, assignment, figures) = (context.loop, context.assignment, context.figures)
    (finishAfter, isValid, emit) = (context.finishAfter, context.isValid, context.emit)
    self.store = store
    distrusted = DistrustedRecordings(store, emit: emit)
    finishing = FinishingRecordings(loop, distrusted, emit: emit)
    removals = StreamRemovals(store, loop, emit: emit)
    self.limits = limits
    (self.maximumHole, self.maximumGapLines) = (maximumHole, maximumGapLines)
  }

  // MARK: Active requests

  /// Ends the active request of the stream, if there is one.
  func takeOver(_ name: StreamName) { workers[name]?.yieldStream() }

  /// Makes a request the active one of the stream.
  ///
  /// - Parameters:
  ///   - holder: the upload to which the request belongs. Nil for a plain request.
  ///   - isNew: whether the request has begun the recording.
  func claim(_ name: StreamName, for worker: any StreamWorker, holder: (any RecordingHolder)?, isNew: Bool) {
    workers[name] = worker
    if hasUnknownUploads(name) { note(holder, isNew: isNew, takes: name) }
    let left = unattended.removeValue(forKey: name)
    let former = holders[name]
    holders[name] = holder
    if let holder {
      removeSharer(holder, of: name)
      sharers[name, default: []].append(holder)
    }
    if isNew {
      holder?.tookRecording(ownsFile: true)
    } else if let holder, former !== holder || left != nil {
      // The recording stays with uploads of one owner.
      let owner = left == nil ? former.flatMap { $0.ownsFile ? Contributor($0) : nil } : left?.discarder
      holder.tookRecording(ownsFile: owner?.passesOn(to: Contributor(holder)) == true)
    }
    if let former, former !== holder { former.lostRecording() }
  }

  /// Whether the recording belongs to an unfinished upload.
  func isHeld(_ name: StreamName) -> Bool { holders[name] != nil }

  func release(_ name: StreamName, by worker: any StreamWorker) {
    if workers[name] === worker { workers[name] = nil }
  }

  /// Whether `action` will be called later, because the stream is being completed or removed at the moment.
  package func waits(for name: StreamName, _ action: @escaping () -> Void) -> Bool {
    removals.waits(for: name, action) || finishing.waits(for: name, action)
  }

  /// Completes the stream. Calls `completion` first, and then the actions that wait for the end.
  ///
  /// - Parameters:
  ///   - isLive: whether the length of the stream was not announced.
  ///   - sha256: the SHA-256 of its whole recording as it was received; nil if it is unknown.
  func finish(
    _ stream: any StoredStream, isLive: Bool, sha256: [UInt8]?, completion: @escaping (UnfinishedStream?) -> Void
  ) {
    if !stream.isComplete, let error = distrusted[stream.name] { return completion(UnfinishedStream(error: error)) }
    finishing.begin(stream.name)
    stream.finish(.complete(isLive: isLive, sha256: sha256), on: loop) { [self] failure in
      if failure == nil {
        // A complete stream is no longer managed here.
        limits.accounts?.remove(stream.name)
        holders[stream.name] = nil
        sharers[stream.name] = nil
        unattended[stream.name] = nil
        unclosed[stream.name] = nil
      }
      finishing.end(stream.name) { completion(failure) }
    }
  }

  /// Calls `action` when no stream is being completed any more, which may be at once.
  package func whenNothingFinishes(_ action: @escaping () -> Void) {
    finishing.whenNone(action)
  }

  // MARK: Uploads

  /// Adds an upload of an earlier server, which may have been the last one that was active.
  func restore(_ holder: any RecordingHolder, of name: StreamName) {
    defer { checkOwner(of: name) }
    removeSharer(holder, of: name)
    sharers[name, default: []].insert(holder, at: 0)
    if let taker = takers[name] {
      guard case .uploads(let first, _) = taker, holder.ownsFile, Contributor(holder).passesOn(to: first) else {
        return holder.lostRecording()
      }
      if let present = holders[name] {
        holder.lostRecording()
        return present.tookRecording(ownsFile: true)
      }
      // These uploads are over, and none of their bytes must be kept.
    }
    // Only the last upload can own the recording.
    if holders[name]?.ownsFile != true { holders[name] = holder }
    // The file was found before the upload.
    let left = unattended.removeValue(forKey: name)
    if left?.discarder?.passesOn(to: Contributor(holder)) == true { holder.tookRecording(ownsFile: true) }
  }

  /// A server may accept bytes of another owner before it knows to whom the recording belongs. Then the recording must
  /// not be removed with an upload.
  private func checkOwner(of name: StreamName) {
    guard let owner = holders[name], owner.ownsFile else { return }
    let isShared = sharers[name]?.contains { $0 !== owner && !Contributor($0).passesOn(to: Contributor(owner)) }
    if isShared == true { owner.lostRecording() }
  }

  /// Called when the uploads of an earlier server are known, or more of them than before.
  ///
  /// - Parameter hasUnknownUploads: whether uploads that are not known yet may have stored bytes in a stream. The
  ///   recordings of such a stream are neither closed nor removed before the next call.
  package func restored(but hasUnknownUploads: @escaping (StreamName) -> Bool = { _ in false }) {
    self.hasUnknownUploads = hasUnknownUploads
    takers = takers.filter { hasUnknownUploads($0.key) }
    for (name, entry) in unattended where !hasUnknownUploads(name) {
      guard let discarder = entry.discarder else { continue }
      unattended[name] = nil
      if passOn(name, ownsFile: true) || passOnDiscarded(name) { continue }
      if isCountedOn(name) || !discard(name, of: discarder.owner, { _ in }) { leave(name, for: entry.owner) }
    }
    if !unattended.isEmpty { closeSilent() }
  }

  /// Called when an upload is over and its recording is unfinished.
  ///
  /// - Parameter removal: called after each attempt to remove the recording, with the error or, after success, with
  ///   nil.
  func end(
    _ end: RecordingEnd, _ name: StreamName, by holder: any RecordingHolder,
    _ removal: @escaping (SystemError?) -> Void
  ) -> RecordingOutcome {
    if case .distrust(let error) = end { distrusted.add(name, error) }
    let isSharer = removeSharer(holder, of: name)
    // An upload of the earlier server may end without a request that takes the recording.
    if takers[name] != nil || (isSharer && hasUnknownUploads(name)) {
      recordEnd(of: holder, in: name, isSharer: isSharer, discardsBytes: end.discardsBytes)
    }
    guard holders[name] === holder else {
      // The bytes that it leaves must not be removed with the other uploads.
      if isSharer, !end.discardsBytes { holders[name]?.lostRecording() }
      return .notHeld
    }
    holders[name] = nil
    // An active request, or the completion of the stream, has taken over the recording.
    guard workers[name] == nil, !finishing.contains(name), unattended[name] == nil else { return .notHeld }
    // No upload may continue a recording with bytes that the disk refused.
    if distrusted[name] == nil, passOn(name, ownsFile: end.discardsBytes && holder.ownsFile) { return .notHeld }
    guard !hasUnknownUploads(name) else {
      // An upload that is not known yet may have stored bytes in it.
      let isShort = if case .closeShort = end { true } else { false }
      leave(
        name, for: holder.owner, atMost: isShort ? .zero : nil,
        discardedBy: end.discardsBytes && holder.ownsFile ? Contributor(holder) : nil)
      if case .close = end { return .closing }
      return .left
    }
    if end.discardsBytes, holder.ownsFile {
      if passOnDiscarded(name) { return .notHeld }
      if !isCountedOn(name), discard(name, of: holder.owner, removal) { return .removing }
    }
    switch end {
    case .expire: return close(name, for: holder.owner, because: "its upload is over") ? .closing : unclosable(name)
    case .close(let cause): return close(name, for: holder.owner, because: cause) ? .closing : unclosable(name)
    case .closeShort:
      return close(name, for: holder.owner, because: "closed recordings of the stream contain more") ? .closing : .left
    case .discard, .leave, .distrust:
      leave(name, for: holder.owner)
      return .left
    }
  }

  /// What happened to a recording that does not grow.
  private func unclosable(_ name: StreamName) -> RecordingOutcome {
    switch try? store.measure(name) {
    case .complete, .closed: .notHeld
    case .stored, .absent, nil: .left
    }
  }

  /// Gives a recording, whose other bytes nobody relies on, to an upload that has acknowledged bytes in it but cannot
  /// continue it, because it is longer than the upload's announced length. It is removed if that upload is discarded as
  /// well. Returns false if there is none.
  private func passOnDiscarded(_ name: StreamName) -> Bool {
    guard distrusted[name] == nil, let heir = sharers[name]?.last(where: { $0.hasAcknowledgedBytes }) else {
      return false
    }
    holders[name] = heir
    heir.tookRecording(ownsFile: true)
    return true
  }

  /// Whether the recording contains bytes that were acknowledged to the client of an unfinished upload. If the disk has
  /// refused bytes of it, no upload can continue it.
  private func isCountedOn(_ name: StreamName) -> Bool {
    sharers[name]?.contains { $0.hasAcknowledgedBytes } ?? false
  }

  /// Removes a recording that belongs to one upload only. Returns false if other owners may have written to it before
  /// this server started.
  private func discard(
    _ name: StreamName, of owner: UploadOwner, _ removal: @escaping (SystemError?) -> Void
  ) -> Bool {
    guard removals.begin(.ownRecording(of: owner), of: name, removal) else { return false }
    distrusted.remove(name)
    return true
  }

  /// Whether an unfinished upload has stored bytes in the growing recording.
  func hasUploads(of name: StreamName, besides holder: (any RecordingHolder)?) -> Bool {
    sharers[name]?.contains { $0 !== holder } ?? false
  }

  /// Ends the uploads whose offset is before a hole that a request has made in the recording.
  func overtake(_ name: StreamName, by newer: (any RecordingHolder)?) {
    for sharer in sharers[name] ?? [] where sharer !== newer { sharer.overtaken() }
  }

  /// Gives a recording to an upload that has acknowledged bytes in it. Returns false if there is none.
  private func passOn(_ name: StreamName, ownsFile: Bool) -> Bool {
    guard let heir = sharers[name]?.last(where: { $0.continuesRecording }) else { return false }
    holders[name] = heir
    heir.tookRecording(ownsFile: ownsFile)
    return true
  }

  /// Returns false if the upload had stored no bytes in the recording.
  @discardableResult
  private func removeSharer(_ holder: any RecordingHolder, of name: StreamName) -> Bool {
    guard let index = sharers[name]?.firstIndex(where: { $0 === holder }) else { return false }
    sharers[name]?.remove(at: index)
    if sharers[name]?.isEmpty == true { sharers[name] = nil }
    return true
  }

  // MARK: Bytes that the disk refused

  /// Closes a recording with bytes that the disk refused, so that the stream continues in the next part. See
  /// ``waits(for:_:)``.
  func closeDistrusted(_ name: StreamName, for owner: UploadOwner?) {
    if distrusted[name] != nil { closeHeld(name, for: owner) }
  }

  // MARK: Gaps

  /// Closes a recording that may not get another hole, so that the stream continues in the next part. See
  /// ``waits(for:_:)``.
  func closeFull(_ name: StreamName, for owner: UploadOwner?) {
    closeHeld(name, for: owner, because: "it has as many gaps as a recording may have (\(maximumGapLines))")
  }

  // MARK: Overlaps

  /// Closes a recording because the next bytes of the stream have no place in it, so that the stream continues in the
  /// next part. See ``waits(for:_:)``.
  package func closeMisplaced(_ name: StreamName, for owner: UploadOwner?) {
    takeOver(name)
    closeHeld(name, for: owner, because: "the next bytes of the stream have no place in it")
  }

  /// Closes a recording although uploads may continue it.
  private func closeHeld(_ name: StreamName, for owner: UploadOwner?, because cause: String? = nil) {
    guard workers[name] == nil, !finishing.contains(name) else { return }
    holders.removeValue(forKey: name)?.lostRecording()
    unattended[name] = nil
    close(name, for: owner, because: cause)
  }

  // MARK: Silence

  /// Called when an unfinished recording has neither an active request nor an upload any more.
  ///
  /// - Parameters:
  ///   - time: the time after which it is closed. Nil for ``finishAfter``.
  ///   - cause: why it is then closed. Nil if its stream is silent.
  ///   - discarder: the upload that has discarded the recording, if it belonged only to that upload.
  func leave(
    _ name: StreamName, for owner: UploadOwner?, atMost time: Duration? = nil, because cause: String? = nil,
    discardedBy discarder: Contributor? = nil
  ) {
    guard workers[name] == nil, !finishing.contains(name), holders[name] == nil else { return }
    let entry = Unattended(
      name: name, owner: owner, deadline: .now + (time ?? finishAfter), cause: cause, discarder: discarder)
    unattended[name] = entry
    arm(entry.deadline)
  }

  /// Adds a recording that an earlier server left unfinished. By the wall clock, its last byte was written `seconds`
  /// ago.
  package func found(_ name: StreamName, silentFor seconds: Int64) {
    guard assignment.owns(name), unattended[name] == nil else { return }
    // Clients that were disconnected at the end of the server get time to return. A wrong clock must not shorten it.
    let silence = Duration.seconds(max(0, seconds))
    leave(name, for: nil, atMost: max(finishAfter - min(silence, finishAfter), min(finishAfter, .seconds(60))))
  }

  private func arm(_ deadline: MonotonicInstant) {
    guard !stops else { return }
    if let timer {
      if timer.deadline <= deadline { return }
      loop.cancel(timer.timer)
    }
    timer = (loop.schedule(at: deadline) { [unowned self] in closeSilent() }, deadline)
  }

  private func closeSilent() {
    if let timer { loop.cancel(timer.timer) }
    timer = nil
    let now = MonotonicInstant.now
    // An upload that is not known yet may continue one of the others. See ``restored(but:)``.
    let known = unattended.filter { !hasUnknownUploads($0.key) }
    for (name, entry) in known where entry.deadline <= now {
      unattended[name] = nil
      // An upload keeps its announced lifetime, even if other requests have sent bytes of the stream.
      if distrusted[name] != nil || !passOn(name, ownsFile: false) {
        close(entry.name, for: entry.owner, because: entry.cause)
      }
    }
    // Recordings that were left at nearly the same time are closed together.
    let soonest = now + .nanoseconds(finishAfter.nanoseconds / 64)
    let next = unattended.values.lazy.filter { [self] in !hasUnknownUploads($0.name) }.map(\.deadline).min()
    if let next { arm(max(next, soonest)) }
  }

  /// Gives its final name to a recording whose client did not return. Returns false if there is none.
  ///
  /// - Parameter cause: the reason in the log. Nil if the stream was silent for too long.
  @discardableResult
  private func close(_ name: StreamName, for owner: UploadOwner?, because cause: String? = nil) -> Bool {
    guard workers[name] == nil, !finishing.contains(name), holders[name] == nil else { return false }
    let stream: any StoredStream
    do throws(SystemError) {
      guard let found = try store.open(name, for: .closing) else {
        distrusted.remove(name)
        unclosed[name] = nil
        return false
      }
      stream = found
      _ = distrusted.notice(stream)
    } catch {
      notClosed(name, owner, because: cause, error)
      return true
    }
    var event = ServerEvent(.closed)
    event.stream = name.streamID.isEmpty ? nil : name.streamID
    event.file = stream.name.final
    event.offset = stream.length
    event.bytes = stream.contentCount
    event.missing = stream.missing
    let refusal = distrusted[name]
    event.reason =
      refusal.map { "interrupted: the disk has refused bytes of it: \($0)" }
      ?? "interrupted: \(cause ?? "no request came for it in \(finishAfter.nanoseconds / 1_000_000_000) s")"
    if stream.isEmpty {
      distrusted.remove(name)
      event.kind = .expired
      event.file = stream.name.partial
      if refusal == nil, cause == nil { event.reason = "interrupted before its first byte" }
      removals.begin(.growingRecording, of: name) { [self, event] in if $0 == nil { emit(event) } }
      return true
    }
    finishing.begin(name)
    stream.finish(.interrupted(owner: owner, isTrusted: refusal == nil), on: loop) { [self] failure in
      if failure == nil {
        // It counts against the quotas until it is removed.
        limits.accounts?.closed(stream.name)
        distrusted.remove(name)
        unclosed[name] = nil
        for sharer in sharers.removeValue(forKey: name) ?? [] { sharer.recordingWasClosed() }
      }
      // The kernel reports it once, so the next attempt would count on these bytes.
      if let failure, failure.mayLackBytes, !failure.error.isForeignChange { distrusted.add(name, failure.error) }
      finishing.end(name) {
        if let failure { notClosed(name, owner, because: cause, failure.error) } else { emit(event) }
      }
    }
    return true
  }

  /// Called when the closed recordings of a stream are missing, or when an earlier server was removing the stream.
  package func forgetClosed(_ base: String) {
    let name = StreamName(base: base)
    guard assignment.owns(name), workers[name] == nil, !finishing.contains(name) else { return }
    removals.begin(.record, of: name)
  }

  private func notClosed(_ name: StreamName, _ owner: UploadOwner?, because cause: String?, _ error: SystemError) {
    if unclosed.updateValue(error, forKey: name) != error {
      emit(ServerEvent(.warning, reason: "cannot close \(name.partial): \(error). The recording stays unfinished."))
    }
    leave(name, for: owner, because: cause)
  }

  /// Called at the end of the server. No recording is closed after this.
  package func stop() {
    stops = true
    if let timer { loop.cancel(timer.timer) }
    timer = nil
    finishing.stop()
    removals.stop()
    holders = [:]
    sharers = [:]
    distrusted.stop()
    for entry in unattended.values { try? store.note(.unfinished(owner: entry.owner), on: entry.name) }
  }
}
