// The steps by which a request gets its stream: admission, takeover, opening, and finding its place.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

extension StreamStoreHandler {
  /// Takes the stream over, finds the place of the body in it, and requests the body.
  ///
  /// - Parameter count: how many bytes of the body have arrived, for a request that was begun before.
  func claim(restoredCount count: UInt64?) {
    guard let name, let exchange, isAdmitted(to: name) else { return }
    registry.takeOver(name)
    // Only once: a disk that refuses that too is still full.
    if !trouble.hasClosed, registry.distrusted[name] != nil {
      trouble.hasClosed = true
      registry.closeDistrusted(name, for: quotaOwner(exchange))
    }
    if waits(for: name, restoredCount: count) { return }
    if let error = registry.distrusted[name] { return refuse(error) }
    // The next part would begin there, and its log could not state where it ends.
    if state.offset > StreamPlacement.largestOffset, (try? registry.store.measure(name)) == .closed {
      return refuse(409, StreamConflict.largeHole.reason)
    }
    do throws(UploadRefusal) {
      try enterLimits(name, exchange)
    } catch {
      endState()
      let reason = StreamAnswer.reason(error)
      emitRefusal(error.status(.none), reason)
      return answer(error.status(.none), nil, reason, retries: error.allowsRetry)
    }
    guard let stream = open(name, restoredCount: count) else { return }
    if registry.distrusted.notice(stream) {
      allowance.leave()
      return claim(restoredCount: count)
    }
    if hasTooManyGaps(stream) {
      allowance.leave()
      guard !trouble.hasClosed else {
        endState()
        emitRefusal(503, StreamAnswer.tooManyGaps, stream)
        return answer(503, nil, StreamAnswer.tooManyGaps, retries: true)
      }
      trouble.hasClosed = true
      registry.closeFull(stream.name, for: quotaOwner(exchange))
      // The recording has none of its bytes, so it begins in the next part.
      return claim(restoredCount: nil)
    }
    // Bytes that are not counted yet are from an earlier server. With a credential, the stream belongs to nobody else.
    let isOwn = count != nil || stream.isNew || head.credential != nil
    allowance.open(stream, owner: isOwn ? quotaOwner(exchange) : nil)
    guard enter(stream, restoredCount: count) else { return }
    begin(stream, name, isRestored: count != nil)
    exchange.acceptBody()
  }

  /// Whether the request would leave a hole in a recording that may not get another one. The next part begins after the
  /// hole.
  private func hasTooManyGaps(_ stream: any StoredStream) -> Bool {
    let extent = stream.extent
    guard !stream.isComplete, state.offset > extent.length else { return false }
    // A hole that is too large is refused as such.
    return state.offset - extent.length <= registry.maximumHole && extent.gapLines >= registry.maximumGapLines
  }

  /// Whether the stream does not belong to another token. If it does, the request is answered.
  private func isAdmitted(to name: StreamName) -> Bool {
    do throws(SystemError) {
      if try registry.store.admits(head.credential, to: name) { return true }
      trouble.refusal = .misplaced
      refuse(403, StreamAnswer.notYours)
    } catch {
      endState()
      trouble.disk = error
      emitRefusal(StreamAnswer.unknownStatus, "\(error)")
      answer(StreamAnswer.unknownStatus, nil, error.cause, retries: true)
    }
    return false
  }

  /// Whether the request claims the stream later, because that is just being completed or removed.
  private func waits(for name: StreamName, restoredCount count: UInt64?) -> Bool {
    let waits = registry.waits(for: name) { [self] in
      if state.phase == .waiting { claim(restoredCount: count) }
    }
    if waits { state.waits() }
    return waits
  }

  /// Opens the stream, or begins it. If that fails, the request is answered, or waits.
  private func open(_ name: StreamName, restoredCount count: UInt64?) -> (any StoredStream)? {
    let isRestored = count != nil
    do throws(SystemError) {
      let purpose = StreamPurpose.request(
        credential: head.credential, offset: state.offset, creating: !isRestored, isUpload: isUpload)
      if let stream = try registry.store.open(name, for: purpose) { return stream }
      throw SystemError(operation: "open \(name.partial)", code: ENOENT)
    } catch {
      allowance.leave()
      // An earlier server has begun to remove it.
      if error == .isBeingRemoved, registry.removals.resumes(name) {
        if waits(for: name, restoredCount: count) { return nil }
      }
      // The recording was closed while this request waited. The next request learns this.
      if isRestored, error.isMissing {
        endState()
        trouble.disk = error
        answer(503, nil, "the stream is gone", retries: true)
      } else {
        refuse(error, error.code == EMFILE ? DescriptorLimit.remedy(waiting: 1) : "")
      }
      return nil
    }
  }

  /// The body has its place. From now on, this request of the stream is in progress.
  private func begin(_ stream: any StoredStream, _ name: StreamName, isRestored: Bool) {
    guard !isRestored else {
      registry.claim(stream.name, for: self, holder: holder, isNew: false)
      return describe(head.fields)
    }
    // A file without a byte, which a server had just made when it died, counts as new.
    let isNew = stream.isNew || !registry.isHeld(name) && stream.isEmpty
    registry.claim(name, for: self, holder: holder, isNew: isNew)
    if state.reportsBeginning { reportBeginning(stream) }
    describe(head.fields)
    guard !isUpload else { return }
    allowance.watchRate(
      received: { [unowned self] in state.keptCount },
      tooSlow: { [unowned self] in
        if let stream = self.stream { turnAway(stream, .tooSlow) }
      })
  }

  /// Admits the request to the server's limits.
  private func enterLimits(_ name: StreamName, _ exchange: any Exchange) throws(UploadRefusal) {
    let owner = quotaOwner(exchange)
    if isUpload { return allowance.enterUpload(of: owner) }
    if allowance.refuses(head.framing, at: state.offset) { throw .representationTooLarge }
    guard registry.limits.accounts != nil else { return try allowance.enter(owner, needsRoom: false) }
    // A client that lost the answer may repeat an existing stream, which takes no space.
    var stored: UInt64?
    var begins: UInt64 = 0
    switch try? registry.store.measure(name) {
    case .stored(_, let length, _), .complete(_, _, let length, _): stored = length
    // The next part begins where the request does.
    case .closed: begins = state.offset
    case .absent, nil: break
    }
    try allowance.enter(owner, needsRoom: stored == nil)
    // The request is refused before there is a file, and before the client sends bytes for which there is no space.
    guard allowance.hasRoom(for: head.framing, at: state.offset, storedLength: stored ?? begins) else {
      allowance.leave()
      throw .quotaExhausted
    }
  }

  /// The owner whose quota the bytes of this request count against.
  private func quotaOwner(_ exchange: any Exchange) -> UploadOwner {
    holder?.owner ?? UploadOwner(credential: head.credential, address: exchange.peer)
  }
}
