// Which streams have a request at work on them, so that a newer request can take over from an older one, and which have
// been left unfinished, so that their recordings are closed one day.

internal import DiskFiles
internal import EventLoops
internal import Glibc
package import StreamServing

/// A request that is at work on a stream.
protocol StreamWorker: AnyObject {
  /// A newer request takes the stream over: stores what has arrived by now, and ends.
  func yieldStream()
}

/// What all requests of a server share that store streams. Only on the loop's thread.
package final class StreamRegistry {
  /// A recording that no request is at work on, and no upload holds.
  private struct Unattended {
    var name: StreamName
    var owner: UploadOwner?
    var deadline: MonotonicInstant
    /// The upload that has discarded it, if it had it for itself: it is removed if no other one has bytes in it.
    var discarder: Contributor?
  }

  /// Who has stored bytes.
  struct Contributor {
    var owner: UploadOwner
    var isLive: Bool

    init(_ holder: any RecordingHolder) { (owner, isLive) = (holder.owner, holder.isLive) }

    /// Whether a recording stays one upload's alone when that upload goes on with it. Bytes of a live stream do not become
    /// those of a file, which may expire.
    func passesOn(to next: Contributor) -> Bool { owner == next.owner && (next.isLive || !isLive) }
  }

  let store: any StreamStore
  let loop: EventLoop
  let limits: StreamLimits
  /// The largest hole that a request may leave, in bytes.
  let maximumHole: UInt64
  /// How long a stream may be silent before its recording is closed.
  let finishAfter: Duration
  let emit: (ServerEvent) -> Void
  let assignment: LoopAssignment
  let figures: LoopFigures
  /// Whether a credential is valid now.
  let isValid: ([UInt8]) -> Bool

  private var workers: [StreamName: any StreamWorker] = [:]
  /// The upload that was the last to be at work on the stream, while it is unfinished and no plain request came after
  /// it.
  private var holders: [StreamName: any RecordingHolder] = [:]
  /// The unfinished uploads whose bytes are in the growing recording, the last one at work at the end.
  private var sharers: [StreamName: [any RecordingHolder]] = [:]
  private var unattended: [StreamName: Unattended] = [:]
  /// Streams whose growing recordings have bytes that the disk has refused. The kernel tells of that only once: without
  /// this, the next one to complete the stream would be told that all is well.
  private var distrusted: [StreamName: SystemError] = [:]
  /// Who was at work on a stream before all uploads of the earlier server were known.
  private enum Taker {
    /// Uploads to which the recording of an earlier one may pass.
    case uploads(first: Contributor, last: Contributor)
    /// An upload of this server has begun the recording, which is its own.
    case beginner
    case others
  }
  private var takers: [StreamName: Taker] = [:]
  /// Whether uploads of the earlier server may go into a stream that are not known yet.
  private var hasUnknownUploads: (StreamName) -> Bool = { _ in true }
  private var timer: (timer: EventLoop.Timer, deadline: MonotonicInstant)?
  private var stops = false
  /// Streams whose end is on its way to the disk, and who waits for it.
  private var finishing: [StreamName: [() -> Void]] = [:]
  /// The end of the server does not wait for them: the next one goes on.
  let removals: StreamRemovals
  /// How many recordings are being finished whose streams continue in others.
  private var splitCount = 0
  private var idle: (() -> Void)?

  package init(_ context: ServingContext, store: any StreamStore, limits: StreamLimits, maximumHole: UInt64) {
    (loop, assignment, figures) = (context.loop, context.assignment, context.figures)
    (finishAfter, isValid, emit) = (context.finishAfter, context.isValid, context.emit)
    self.store = store
    removals = StreamRemovals(store, loop, emit: emit)
    self.limits = limits
    self.maximumHole = maximumHole
  }

  // MARK: Requests at work

  /// Ends the request that is at work on the stream now, if there is one.
  func takeOver(_ name: StreamName) { workers[name]?.yieldStream() }

  /// A request is at work on the stream from now on.
  ///
  /// - Parameters:
  ///   - holder: the upload that the request is; nil for a plain one.
  ///   - isNew: whether it has begun the recording.
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
      // It passes from upload to upload of one owner.
      let owner = left == nil ? former.flatMap { $0.ownsFile ? Contributor($0) : nil } : left?.discarder
      holder.tookRecording(ownsFile: owner?.passesOn(to: Contributor(holder)) == true)
    }
    if let former, former !== holder { former.lostRecording() }
  }

  /// The recording must not be removed with an upload of the earlier server, which is not known, nor by a server that
  /// comes after this one.
  private func share(_ name: StreamName) {
    if case .others? = takers[name] { return }
    takers[name] = .others
    do throws(SystemError) {
      try store.note(.shared, on: name)
    } catch {
      emit(
        ServerEvent(
          .warning,
          reason:
            "if the server restarts now, a DELETE may remove bytes of \(name.partial) that others sent: \(error)"))
    }
  }

  private func note(_ holder: (any RecordingHolder)?, isNew: Bool, takes name: StreamName) {
    switch (takers[name], holder.map { Contributor($0) }) {
    case (_, .some) where isNew: takers[name] = .beginner
    case (.beginner?, .some): break
    case (nil, let next?): takers[name] = .uploads(first: next, last: next)
    case (.uploads(let first, let last)?, let next?) where last.passesOn(to: next):
      takers[name] = .uploads(first: first, last: next)
    default: share(name)
    }
  }

  /// Whether the recording is an unfinished upload's.
  func isHeld(_ name: StreamName) -> Bool { holders[name] != nil }

  func release(_ name: StreamName, by worker: any StreamWorker) {
    if workers[name] === worker { workers[name] = nil }
  }

  /// Whether `action` will be called later, because the stream is just being completed or removed.
  func waits(for name: StreamName, _ action: @escaping () -> Void) -> Bool {
    if removals.waits(for: name, action) { return true }
    guard finishing[name] != nil else { return false }
    finishing[name]?.append(action)
    return true
  }

  /// Whether the stream is just being completed.
  func isFinishing(_ name: StreamName) -> Bool { finishing[name] != nil }

  /// Completes the stream; `completion` first, then those who wait for it.
  ///
  /// - Parameter isLive: whether nobody had said how long it would be.
  func finish(_ stream: any StoredStream, isLive: Bool, completion: @escaping (UnfinishedStream?) -> Void) {
    if !stream.isComplete, let error = distrusted[stream.name] { return completion(UnfinishedStream(error: error)) }
    finishing[stream.name] = []
    stream.finish(.complete(isLive: isLive), on: loop) { [self] failure in
      if failure == nil {
        // Complete, it is nobody's concern here any more.
        limits.accounts?.remove(stream.name)
        holders[stream.name] = nil
        sharers[stream.name] = nil
        unattended[stream.name] = nil
      }
      finished(stream.name) { completion(failure) }
    }
  }

  private func finished(_ name: StreamName, _ completion: () -> Void) {
    let waiting = finishing.removeValue(forKey: name) ?? []
    completion()
    for action in waiting { action() }
    checkIdle()
  }

  private func checkIdle() {
    guard finishing.isEmpty, splitCount == 0, let idle else { return }
    self.idle = nil
    idle()
  }

  /// Finishes a recording whose stream continues in another.
  ///
  /// - Parameters:
  ///   - complaint: what was said last of why it is not finished.
  ///   - pause: after what time it is tried again.
  func finishSplit(
    _ split: SplitRecording, peer: String, complaint: String? = nil, pause: Duration = RecordingSplit.retryPauses.first
  ) {
    splitCount += 1
    split.finish(loop) { [self] outcome in
      splitCount -= 1
      let name = split.name
      switch outcome {
      case .discarded: break
      case .failed(let error, let isDataLost):
        if complaint != "\(error)" { emit(ServerEvent(.warning, reason: "\(name.partial) is not finished: \(error)")) }
        if isDataLost {
          // The stream continues in a next part.
          distrust(name, error)
        } else if !error.isForeignChange {
          // The disk may have room later. The next server finishes what this one does not.
          loop.schedule(after: pause) { [weak self] in
            guard let self, !stops else { return }
            finishSplit(
              split, peer: peer, complaint: "\(error)", pause: min(pause * 2, RecordingSplit.retryPauses.longest))
          }
        }
      case .finished:
        var event = ServerEvent(.split, peer: peer)
        event.stream = name.streamID.isEmpty ? nil : name.streamID
        event.file = name.final
        event.offset = split.length
        event.bytes = split.length - min(split.length, split.start)
        event.missing = split.missing
        emit(event)
      }
      checkIdle()
    }
  }

  /// Calls `action` when no stream is being completed: now, or when the last one is.
  package func whenNothingFinishes(_ action: @escaping () -> Void) {
    if finishing.isEmpty, splitCount == 0 { action() } else { idle = action }
  }

  // MARK: Uploads

  /// An upload of an earlier server may have been the last that was at work on the stream.
  func restore(_ holder: any RecordingHolder, of name: StreamName) {
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
      // These uploads are over, and none of their bytes has to stay.
    }
    // Only the last one has a recording of its own.
    if holders[name]?.ownsFile != true { holders[name] = holder }
    // The file was found before the upload was.
    let left = unattended.removeValue(forKey: name)
    if left?.discarder?.passesOn(to: Contributor(holder)) == true { holder.tookRecording(ownsFile: true) }
  }

  /// The uploads of an earlier server are known, or more of them than before.
  ///
  /// - Parameter hasUnknownUploads: whether some may go into a stream that are not known yet. Its recordings are neither
  ///   closed nor removed until this is called again.
  package func restored(but hasUnknownUploads: @escaping (StreamName) -> Bool = { _ in false }) {
    self.hasUnknownUploads = hasUnknownUploads
    takers = takers.filter { hasUnknownUploads($0.key) }
    for (name, entry) in unattended where entry.discarder != nil && !hasUnknownUploads(name) {
      unattended[name] = nil
      if !passOn(name, ownsFile: true), !discard(name, { _ in }) { leave(name, for: entry.owner) }
    }
    if !unattended.isEmpty { closeSilent() }
  }

  /// An upload is over, and its recording unfinished.
  ///
  /// - Parameter removal: told the end of each attempt to remove the recording, nil of the one that succeeded.
  func end(
    _ end: RecordingEnd, _ name: StreamName, by holder: any RecordingHolder,
    _ removal: @escaping (SystemError?) -> Void
  ) -> RecordingOutcome {
    if case .distrust(let error) = end { distrust(name, error) }
    let isSharer = removeSharer(holder, of: name)
    if !end.discardsBytes, takers[name] != nil { share(name) }
    guard holders[name] === holder else {
      // What it leaves behind is not removed with the others either.
      if isSharer, !end.discardsBytes { holders[name]?.lostRecording() }
      return .notHeld
    }
    holders[name] = nil
    // Whoever is at work on it now, or is just completing it, has made it his own.
    guard workers[name] == nil, finishing[name] == nil, unattended[name] == nil else { return .notHeld }
    // A recording that cannot be counted on is nobody's to continue.
    if distrusted[name] == nil, passOn(name, ownsFile: end.discardsBytes && holder.ownsFile) { return .notHeld }
    guard !hasUnknownUploads(name) else {
      // One that is not known yet may have bytes in it.
      leave(name, for: holder.owner, discardedBy: end.discardsBytes && holder.ownsFile ? Contributor(holder) : nil)
      if case .close = end { return .closing }
      return .left
    }
    // What cannot be counted on passes to nobody, but may hold bytes that the client of another was told are stored.
    let isCountedOn = sharers[name]?.contains { $0.continuesRecording } ?? false
    if end.discardsBytes, holder.ownsFile, !isCountedOn, discard(name, removal) { return .removing }
    switch end {
    case .expire: return close(name, for: holder.owner, because: "its upload is over") ? .closing : .left
    case .close: return close(name, for: holder.owner) ? .closing : .left
    case .discard, .leave, .distrust:
      leave(name, for: holder.owner)
      return .left
    }
  }

  /// Removes a recording that is one upload's alone. False if others may have written to it before this server came.
  private func discard(_ name: StreamName, _ removal: @escaping (SystemError?) -> Void) -> Bool {
    guard removals.begin(.ownRecording, of: name, removal) else { return false }
    distrusted[name] = nil
    return true
  }

  /// Whether an unfinished upload has bytes in the growing recording.
  func hasUploads(of name: StreamName, besides holder: (any RecordingHolder)?) -> Bool {
    sharers[name]?.contains { $0 !== holder } ?? false
  }

  /// A request has made a hole in the recording: every upload that stands in front of it is over.
  func overtake(_ name: StreamName, by newer: (any RecordingHolder)?) {
    for sharer in sharers[name] ?? [] where sharer !== newer { sharer.overtaken() }
  }

  /// Gives a recording to an upload that has acknowledged bytes in it. False if there is none.
  private func passOn(_ name: StreamName, ownsFile: Bool) -> Bool {
    guard let heir = sharers[name]?.last(where: { $0.continuesRecording }) else { return false }
    holders[name] = heir
    heir.tookRecording(ownsFile: ownsFile)
    return true
  }

  /// Whether it was one.
  @discardableResult
  private func removeSharer(_ holder: any RecordingHolder, of name: StreamName) -> Bool {
    guard let index = sharers[name]?.firstIndex(where: { $0 === holder }) else { return false }
    sharers[name]?.remove(at: index)
    if sharers[name]?.isEmpty == true { sharers[name] = nil }
    return true
  }

  // MARK: What the disk refused

  /// The disk has refused bytes of the stream's growing recording, and perhaps lost others.
  func distrust(_ name: StreamName, _ error: SystemError) {
    distrusted[name] = error
    do throws(SystemError) {
      try store.note(.distrusted, on: name)
    } catch {
      emit(
        ServerEvent(
          .warning,
          reason: "if the server restarts, it counts on bytes of \(name.partial) that the disk refused: \(error)"))
    }
  }

  /// Whether an earlier server has noted, and this one did not know yet, that the disk has refused bytes of a growing
  /// recording.
  func noticeDistrust(_ stream: any StoredStream) -> Bool {
    guard stream.gaps.isDistrusted, !stream.isComplete, distrusted[stream.name] == nil else { return false }
    distrusted[stream.name] = SystemError(operation: "write \(stream.name.partial) in an earlier server", code: EIO)
    return true
  }

  /// Why the stream's growing recording cannot be continued; nil if it can.
  func distrust(of name: StreamName) -> SystemError? { distrusted[name] }

  /// Closes a recording that cannot be counted on, so that the stream continues in a next part: ``waits(for:_:)``.
  func closeDistrusted(_ name: StreamName, for owner: UploadOwner?) {
    guard distrusted[name] != nil, workers[name] == nil, finishing[name] == nil else { return }
    holders.removeValue(forKey: name)?.lostRecording()
    unattended[name] = nil
    close(name, for: owner)
  }

  // MARK: Silence

  /// No request is at work on an unfinished recording any more, and no upload holds it.
  ///
  /// - Parameters:
  ///   - time: how long it may stay so; nil for as long as is usual.
  ///   - discarder: the upload that has discarded it, if it had it for itself.
  func leave(
    _ name: StreamName, for owner: UploadOwner?, atMost time: Duration? = nil, discardedBy discarder: Contributor? = nil
  ) {
    guard workers[name] == nil, finishing[name] == nil, holders[name] == nil else { return }
    let entry = Unattended(
      name: name, owner: owner, deadline: .now + (time ?? finishAfter), discarder: discarder)
    unattended[name] = entry
    arm(entry.deadline)
  }

  /// An earlier server has left a recording unfinished, which was written that many seconds ago by the wall clock.
  package func found(_ name: StreamName, silentFor seconds: Int64) {
    guard assignment.owns(name), unattended[name] == nil else { return }
    // Clients that the server's end has cut off are given time to come back; a clock that was wrong takes none from
    // anybody.
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
    // An upload that is not known yet may continue one of the others: ``restored(but:)``.
    let known = unattended.filter { !hasUnknownUploads($0.key) }
    for (name, entry) in known where entry.deadline <= now {
      unattended[name] = nil
      // An upload lives for as long as its client was told, whoever else has brought bytes of the stream.
      if distrusted[name] != nil || !passOn(name, ownsFile: false) { close(entry.name, for: entry.owner) }
    }
    // Not one by one, where many were left at nearly the same time.
    let soonest = now + .nanoseconds(finishAfter.nanoseconds / 64)
    let next = unattended.values.lazy.filter { [self] in !hasUnknownUploads($0.name) }.map(\.deadline).min()
    if let next { arm(max(next, soonest)) }
  }

  /// Gives a recording whose client did not come back its final name. False if there is none.
  ///
  /// - Parameter cause: what the log says of it; nil if it was silent for too long.
  @discardableResult
  private func close(_ name: StreamName, for owner: UploadOwner?, because cause: String? = nil) -> Bool {
    guard workers[name] == nil, finishing[name] == nil, holders[name] == nil else { return false }
    let stream: any StoredStream
    do throws(SystemError) {
      guard let found = try store.open(name, for: .closing) else {
        distrusted[name] = nil
        return false
      }
      stream = found
      _ = noticeDistrust(stream)
    } catch {
      notClosed(name, owner, error)
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
      distrusted[name] = nil
      event.kind = .expired
      event.file = stream.name.partial
      removals.begin(.growingRecording, of: name) { [self, event] in if $0 == nil { emit(event) } }
      return true
    }
    finishing[name] = []
    stream.finish(.interrupted(owner: owner, isTrusted: refusal == nil), on: loop) { [self] failure in
      if failure == nil {
        // It counts against the quotas until somebody removes it.
        limits.accounts?.closed(stream.name)
        distrusted[name] = nil
        sharers[name] = nil
      }
      finished(name) { if let failure { notClosed(name, owner, failure.error) } else { emit(event) } }
    }
    return true
  }

  /// The recordings of a stream that an earlier server has closed are gone, as far as anybody has seen, or it was
  /// removing them.
  package func forgetClosed(_ base: String) {
    let name = StreamName(base: base)
    guard assignment.owns(name), workers[name] == nil, finishing[name] == nil else { return }
    removals.begin(.record, of: name)
  }

  private func notClosed(_ name: StreamName, _ owner: UploadOwner?, _ error: SystemError) {
    emit(ServerEvent(.warning, reason: "\(name.partial) cannot be closed, and stays unfinished: \(error)"))
    leave(name, for: owner)
  }

  /// The server ends: nothing is closed any more.
  package func stop() {
    stops = true
    if let timer { loop.cancel(timer.timer) }
    timer = nil
    removals.stop()
    holders = [:]
    sharers = [:]
    // It may have been refused before.
    for name in distrusted.keys { try? store.note(.distrusted, on: name) }
    for entry in unattended.values { try? store.note(.unfinished(owner: entry.owner), on: entry.name) }
  }
}
