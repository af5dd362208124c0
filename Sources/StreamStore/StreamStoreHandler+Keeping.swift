// The side of an upload resource for an upload whose bytes the store keeps.

package import DiskFiles
package import EventLoops
package import HTTPMessages
package import HTTPServer
internal import ResumableUploads
package import StreamServing

extension StreamStoreHandler: KeepingRequestHandler {
  package var keptCount: UInt64 { state.keptCount }
  package var isInside: Bool { state.isInside }
  package var hasLostFile: Bool { trouble.hasLostFile }
  package var streamRefusal: StreamRefusal? { trouble.refusal }
  package var endError: SystemError? { trouble.end?.error }
  package var diskError: SystemError? { trouble.disk }

  // MARK: Before it begins

  package func settle() -> Settlement {
    if let reason = readFields() { return .response(Response(400, body: reason + "\n")) }
    do throws(SystemError) {
      if let name {
        guard try registry.store.admits(head.credential, to: name) else {
          return .response(Response(403, body: StreamAnswer.notYours + "\n"))
        }
        let extent = try registry.store.measure(name)
        if isOvertaken(extent) { return misplaced(StreamAnswer.beginsBeforeHole, name, extent) }
        if let conflict = misplacement(name, extent) { return misplaced(conflict.reason, name, extent) }
      }
    } catch {
      trouble.disk = error
      return .response(Response(StreamAnswer.unknownStatus, ["retry-after": "2"], body: error.cause + "\n"))
    }
    // Generated once and then constant. It shows the client that parts of one stream are joined here.
    return .fields(
      ["stream-id": name?.streamID ?? StreamName.randomID()],
      needed: ["stream-id", "stream-offset", "content-type", "stream-description"])
  }

  /// The answer reports how much is stored, so that a client can continue there.
  private func misplaced(_ reason: String, _ name: StreamName, _ extent: StreamExtent) -> Settlement {
    let standing = StreamAnswer.Standing(name.streamID, length: extent.length, missing: extent.gaps?.missing ?? 0)
    return .response(StreamAnswer.refused(409, standing, reason, retries: false))
  }

  package func measureUnbegun() throws(SystemError) -> KeptExtent {
    guard name != nil || readFields() == nil, let name else { return .bytes(0) }
    // Another token has begun the stream since.
    guard try registry.store.admits(head.credential, to: name) else { return .misplaced }
    let extent = try registry.store.measure(name)
    if isOvertaken(extent) { return .overtaken }
    return switch misplacement(name, extent) {
    case nil: .bytes(0)
    case .beforeRecording: .closed
    default: .misplaced
    }
  }

  /// Whether bytes after the beginning of the body are missing, and later ones are stored.
  private func isOvertaken(_ extent: StreamExtent) -> Bool { extent.gaps.map { state.offset < $0.holesEnd } ?? false }

  /// Why a body that has not begun has no place in the stream; nil if it has one.
  private func misplacement(_ name: StreamName, _ extent: StreamExtent) -> StreamConflict? {
    let (start, isComplete): (UInt64, Bool)
    switch extent {
    // The next part begins where the body does. The recording is closed, or will be before the body begins.
    case .closed: return state.offset <= StreamPlacement.largestOffset ? nil : .largeHole
    case .stored(_, _, let gaps) where gaps.isDistrusted || registry.distrusted[name] != nil: return nil
    case .absent: (start, isComplete) = (0, false)
    case .stored(let first, _, _): (start, isComplete) = (first, false)
    case .complete(_, let first, _, _): (start, isComplete) = (first, true)
    }
    var state = state
    let beginning = state.opened(
      .init(length: extent.length, isComplete: isComplete), seriesStart: start, maximumHole: registry.maximumHole)
    guard case .conflict(let conflict) = beginning else { return nil }
    return conflict
  }

  package func measureKept() throws(SystemError) -> KeptExtent {
    guard readFields() == nil, let name else { return .gone }
    // A stream that was removed and begun again by another token contains no byte of this upload.
    guard try registry.store.admits(head.credential, to: name) else { return .gone }
    registry.takeOver(name)
    let offset = state.offset
    switch try registry.store.measure(name) {
    case .closed: return .closed
    // The recording of the upload was closed if it begins before the present one.
    case .stored(let start, let length, let gaps):
      if offset < start { return .closed }
      // It is unknown which bytes are on the disk.
      if gaps.isDistrusted || registry.distrusted[name] != nil { return .gone }
      if offset < gaps.holesEnd { return .overtaken }
      // If the stream ends before the upload begins, none of the upload is stored yet.
      return .bytes(length - min(length, offset))
    case .complete(let name, let start, let length, let gaps):
      if offset < start { return .closed }
      if gaps.isDistrusted || registry.distrusted[name] != nil { return .gone }
      if offset < gaps.holesEnd { return .overtaken }
      guard length >= offset else { return .gone }
      let standing = StreamAnswer.Standing(name.streamID, length: length, missing: gaps.missing)
      return .complete(length - offset, StreamAnswer.complete(200, standing, file: name.final))
    case .absent: return .gone
    }
  }

  package func synchronizeKept(_ completion: @escaping (SystemError?) -> Void) {
    guard readFields() == nil, let name else { return completion(nil) }
    registry.store.synchronize(name, on: registry.loop, completion)
  }

  package func restoreHolding(_ holder: any RecordingHolder) {
    guard readFields() == nil, let name else { return }
    registry.restore(holder, of: name)
    // If this cannot be counted now, it is counted when the stream is opened next.
    try? registry.store.note(.stored(by: holder.owner), on: name)
  }

  // MARK: In progress

  package func beginKeeping(_ exchange: any Exchange, for holder: any RecordingHolder) {
    self.holder = holder
    enter(exchange, restoredCount: nil)
  }

  package func restoreKeeping(_ exchange: any Exchange, for holder: any RecordingHolder, at count: UInt64) {
    self.holder = holder
    enter(exchange, restoredCount: count)
  }

  package func checkFile() throws(SystemError) { try stream?.check() }

  package func end(sha256: [UInt8]?) {
    uploadSHA256 = sha256
    end()
  }

  package func describe(_ fields: HeaderFields) {
    guard let stream, !stream.isComplete,
      let description = fields.single("stream-description").flatMap({ StreamDescription(parsing: $0) })
    else { return }
    // If this fails, only the sidecar is less complete.
    try? stream.describe(description)
  }

  package func isEnding(_ action: @escaping () -> Void) -> Bool {
    guard name != nil || readFields() == nil, let name else { return false }
    return registry.waits(for: name, action)
  }

  package func synchronize(_ completion: @escaping (UInt64, SystemError?) -> Void) {
    guard let stream else {
      // An end is being written to the disk, perhaps that of another request. If it fails, it may have synced nothing.
      let waits = isEnding { [self] in
        if let endError { completion(keptCount, endError) } else { synchronize(completion) }
      }
      guard !waits else { return }
      // Another request may have taken over the stream, before the bytes of this one were synced.
      guard let name, keptCount > 0 else { return completion(keptCount, nil) }
      let count = keptCount
      return registry.store.synchronize(name, on: registry.loop) { completion(count, $0) }
    }
    let count = keptCount
    stream.synchronize(on: registry.loop) { completion(count, $0) }
  }

  package func drop(to count: UInt64) throws(SystemError) {
    guard let stream = stream ?? trouble.end?.stream else { return }
    let length = state.length(droppingTo: count)
    if length < max(stream.length, stream.gaps.holesEnd) { try stream.truncate(to: length) }
    state.dropped(to: count)
    allowance.settle(stream)
  }

  package func droppedRefused() -> Bool { (stream ?? trouble.end?.stream)?.removedRefused() ?? false }

  package func hold() { state.holds() }

  package func release() {
    if state.releases(), let stream { registry.overtake(stream.name, by: holder) }
  }

  package var keptPlace: FilePlace? { stream?.place }

  package func stretches(of range: Range<UInt64>) throws(SystemError) -> [FileStretch]? {
    try stream?.stretches(of: (state.offset + range.lowerBound)..<(state.offset + range.upperBound)) ?? nil
  }

  // MARK: Afterwards

  package func park() {
    if let stream { leave(stream) }
    endState()
    exchange = nil
  }

  package func end(
    _ end: RecordingEnd, for holder: any RecordingHolder, _ removal: @escaping (SystemError?) -> Void
  ) -> RecordingOutcome {
    guard name != nil || readFields() == nil, let name else { return .notHeld }
    return registry.end(end, name, by: holder, removal)
  }

  package func describe(_ kind: ServerEvent.Kind) -> ServerEvent {
    if name == nil { _ = readFields() }
    if let stream {
      var event = event(kind, stream)
      event.missing = stream.missing
      return event
    }
    var event = ServerEvent(kind, peer: peer)
    event.stream = name?.streamID
    event.file = name?.partial
    return event
  }
}
