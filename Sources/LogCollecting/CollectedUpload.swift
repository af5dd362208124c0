// One upload of the log. For the store, it is a request whose connection is never lost.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import HTTPServer
internal import JetStream
internal import LogServing
internal import ResumableUploads
internal import StreamServing
internal import StreamStore

/// An upload that is stored while its messages are read. It holds its recording, and is the connection of its store's
/// handler. Only on the loop's thread.
final class CollectedUpload: RecordingHolder, Exchange {
  /// The result of a step.
  enum Outcome: Equatable {
    case done
    /// The same may succeed later.
    case later(String)
    /// It will never succeed.
    case refused(String)
    /// The disk has lost bytes or is broken, so later results cannot be trusted.
    case failed(SystemError)
  }

  /// The address of all owners without a credential.
  static let address = "jetstream"

  /// Whether the store reports a response to an upload. The upload reports each refusal itself, and its lane each wait
  /// once, regardless of the number of attempts.
  static func isResponse(_ event: ServerEvent) -> Bool { event.peer == address && event.status != nil }

  let token: String
  private(set) var origin: UploadOrigin
  let name: StreamName
  let loop: EventLoop
  private let registry: StreamRegistry
  private let emit: (ServerEvent) -> Void
  private(set) var phase = CollectorCheckpoint.Upload.Phase.open
  private(set) var offset: UInt64
  private(set) var segmentStart: UInt64
  /// Whether there is a recording that may contain bytes of the current segment.
  private var hasBegun = false
  private(set) var ownsFile = false
  /// Whether it has passed over bytes without a comparison, because the closed recording that contains them was moved
  /// away. The log may have the only copy of them, so its messages are not purged.
  private(set) var isUncompared = false
  private var handler: (any KeepingRequestHandler)?
  /// Whether the stored bytes can be continued.
  private enum Standing {
    case kept
    /// Its recording was closed, or later bytes were stored after a hole.
    case elsewhere
    case over(Outcome)
  }

  /// Whether the handler has requested bytes.
  private var isAccepted = false
  /// Where the place ends that ``findPlace(upTo:in:)`` has found, in offsets of the upload.
  private var placeEnd: UInt64 = 0
  /// Called when the handler requests bytes, or at the end.
  private var waiting: ((Outcome) -> Void)?
  /// The response of the handler.
  private var answer: Response?
  /// The sequence of the newest message of the upload that this collector has applied. 0 for none.
  var appliedSequence: UInt64 = 0
  /// The link of the last message of the upload that was applied. Nil if it is unknown.
  var link: LogEntry.Link? {
    didSet {
      // A message with the same number has the same predecessor.
      if link == nil { former = nil } else if link?.number != oldValue?.number { former = oldValue }
    }
  }
  /// The link before ``link``.
  private var former: LogEntry.Link?
  /// When a message of it was read.
  var lastActivity = MonotonicInstant.now

  init(
    _ token: String, _ origin: UploadOrigin, at offset: UInt64 = 0, registry: StreamRegistry, loop: EventLoop,
    emit: @escaping (ServerEvent) -> Void
  ) {
    (self.token, self.origin, name) = (token, origin, origin.name)
    (self.registry, self.loop, self.emit) = (registry, loop, emit)
    (self.offset, segmentStart) = (offset, offset)
  }

  /// An upload in the state in which an earlier collector left it.
  convenience init(
    _ upload: CollectorCheckpoint.Upload, registry: StreamRegistry, loop: EventLoop,
    emit: @escaping (ServerEvent) -> Void
  ) {
    self.init(upload.token, upload.origin, at: upload.offset, registry: registry, loop: loop, emit: emit)
    (segmentStart, ownsFile, phase) = (upload.segmentStart, upload.ownsFile, upload.phase)
    isUncompared = upload.isUncompared
    link = upload.link
    hasBegun = phase == .open && offset > segmentStart
    guard hasBegun else { return }
    makeHandler()?.restoreHolding(self)
  }

  /// The state for the next collector. Nil if the log has all of it.
  var checkpoint: CollectorCheckpoint.Upload? {
    guard phase != .open || offset > segmentStart || isUncompared else { return nil }
    return .init(
      token: token, origin: origin, segmentStart: segmentStart, offset: offset, ownsFile: ownsFile, phase: phase,
      isUncompared: isUncompared, link: link?.isStorable == true ? link : nil)
  }

  /// Whether a message may be the one that a server has published after ``link``.
  ///
  /// A message that is read again after a start, or that follows missing ones, cannot be compared.
  func isFollowed(by entry: LogEntry, _ content: MessageContent) -> Bool {
    if let link, link == entry.link { return true }
    // Brokers before NATS 2.9.21 may store the messages of two servers after the same one.
    let known = [LogEntry.Link(), link, former].compactMap { $0 }
    guard let before = known.first(where: { $0.number == entry.link.number - 1 }) else { return true }
    return before.next(content) == entry.link
  }

  // MARK: Bytes

  /// Continues at a later offset. The bytes before it will not arrive, or their recording is closed.
  func skip(to offset: UInt64) {
    park()
    (self.offset, segmentStart, hasBegun, ownsFile, phase) = (offset, offset, false, false, .open)
  }

  /// Continues after a hole in the stream.
  ///
  /// - Parameter streamStart: the stream offset at which the upload would begin without the hole.
  func move(to streamStart: UInt64, at offset: UInt64) {
    skip(to: offset)
    origin.streamStart = streamStart
  }

  /// Continues at a later offset, and leaves the recording of the bytes before it to the other uploads.
  private func leave(for offset: UInt64) {
    leave()
    skip(to: offset)
  }

  /// Leaves its recording to the other uploads of the stream. Nothing of it is removed or reported.
  func leave() {
    park()
    makeHandler()?.end(.leave, for: self)
  }

  /// Where the next bytes of the upload belong.
  enum Place: Equatable {
    /// In the recording that ``open(_:)`` opens. It takes ``room`` bytes.
    case recording
    /// Closed recordings contain all of them.
    case closedRecordings
    /// In the next part, which begins after the growing recording was closed: ``closeRecording()``.
    case nextPart
    case unknown(Outcome)
  }

  /// How many bytes the recording takes.
  var room: UInt64 { placeEnd - min(placeEnd, offset) }

  /// Passes over bytes that closed recordings of the stream contain, and finds the place of those behind them.
  ///
  /// A server would tell its client where to continue, but a server with a log has acknowledged these bytes.
  ///
  /// - Parameter bytes: those that have arrived from ``offset`` on.
  func findPlace(of bytes: ArraySlice<UInt8>, in store: FileStore) -> Place {
    if isAccepted, offset < placeEnd { return .recording }
    let stored: StoredRanges
    do throws(SystemError) {
      guard try store.admits(origin.owner, to: name) else {
        // The recordings contain nothing of it. It is refused when it opens one.
        placeEnd = .max
        return .recording
      }
      stored = try store.storedRanges(of: name)
    } catch {
      return .unknown(judge(error))
    }
    let position = origin.streamStart + offset
    let streamEnd = position + UInt64(bytes.count)
    // The recording of its last bytes was closed.
    if hasBegun, offset > segmentStart, stored.isClosed(before: position) { leave(for: offset) }
    let next = stored.firstUnclosed(from: position)
    if next > position {
      let repeated = bytes.prefix(Int(clamping: next - position))
      if let outcome = compareClosed(repeated, in: store) { return .unknown(outcome) }
      if hasBegun, stored.isGrowing(at: position) { return .nextPart }
      leave(for: min(next, streamEnd) - origin.streamStart)
      if next >= streamEnd { return .closedRecordings }
    } else if position == streamEnd, offset > 0, !hasBegun, stored.isClosed(before: position) {
      return .closedRecordings
    }
    // An end without bytes closes nothing.
    if next < streamEnd, !stored.hasPlace(at: next) { return .nextPart }
    placeEnd = stored.limit(from: next) - origin.streamStart
    return .recording
  }

  /// Compares bytes at ``offset`` with the closed recordings that contain them. Returns nil if the upload may pass over
  /// them.
  private func compareClosed(_ bytes: ArraySlice<UInt8>, in store: FileStore) -> Outcome? {
    let comparison: ClosedComparison
    do throws(SystemError) {
      comparison = try bytes.withUnsafeBufferPointer { (buffer) throws(SystemError) in
        try store.compareClosed(Span(_unsafeElements: buffer), at: origin.streamStart + offset, of: name)
      }
    } catch {
      // Whatever the error is, nothing was written, and other streams can continue.
      return .later("\(error)")
    }
    switch comparison {
    case .same: return nil
    case .different: return refuse("the bytes differ from those of a closed recording at the same offset")
    case .unknown:
      // The stream's log states that the recording has received these offsets. That permits not to store them again,
      // but it does not prove that the bytes are the same.
      isUncompared = true
      return nil
    }
  }

  /// Closes the growing recording of the stream, so that the bytes of this upload begin the next part.
  func closeRecording() {
    park()
    registry.closeMisplaced(name, for: owner)
  }

  /// Opens the recording, so that bytes can be stored from ``offset`` on.
  func open(_ completion: @escaping (Outcome) -> Void) {
    if isAccepted { return completion(.done) }
    guard let made = makeHandler() else { return completion(refuse("its path is invalid")) }
    if !hasBegun {
      // An upload before a hole may have sent its bytes earlier. They are compared as usual.
      if case .response(let response) = made.settle(), hasPlace(made) {
        return completion(judge(response, made))
      }
    } else {
      switch lookAfterBytes(made) {
      case .kept: break
      case .over(let outcome): return completion(outcome)
      case .elsewhere:
        // The following bytes are another segment with another handler.
        skip(to: offset)
        return open(completion)
      }
    }
    (handler, waiting) = (made, completion)
    if hasBegun {
      made.restoreKeeping(self, for: self, at: offset - segmentStart)
    } else {
      made.beginKeeping(self, for: self)
    }
  }

  /// Whether the recording accepts bytes at the offset. Also true if this is unknown.
  private func hasPlace(_ handler: any KeepingRequestHandler) -> Bool {
    guard let extent = try? handler.measureUnbegun() else { return true }
    if case .bytes = extent { return true }
    return false
  }

  /// Whether the stored bytes are still there.
  private func lookAfterBytes(_ handler: any KeepingRequestHandler) -> Standing {
    do throws(SystemError) {
      switch try handler.measureKept() {
      case .bytes(let count), .complete(let count, _):
        guard count < offset - segmentStart else { return .kept }
        return .over(refuse("bytes that were stored are no longer in its recording"))
      case .gone:
        return .over(
          refuse(
            "its recording is no longer in the directory. A program has removed it, or it was complete and was moved away "
              + "before the collector had recorded this"))
      case .closed, .overtaken, .misplaced: return .elsewhere
      }
    } catch {
      return .over(judge(error))
    }
  }

  /// Stores the next bytes of the upload. Call it after ``open(_:)``. With ``Outcome/later(_:)``, ``offset`` shows how
  /// many were stored.
  func keep(_ bytes: ArraySlice<UInt8>) -> Outcome {
    guard let handler else { return .later("another upload continues the stream") }
    let error = bytes.withUnsafeBufferPointer { handler.keep(Span(_unsafeElements: $0), pieces: [0..<$0.count]) }
    // The handler may have responded during that, because the bytes differ from the stored ones.
    if let answer {
      self.answer = nil
      return judge(answer, handler)
    }
    offset = segmentStart + handler.keptCount
    switch error {
    case nil: return .done
    case .disk(let error):
      let isLost = handler.hasLostFile || error.isForeignChange
      park()
      return isLost ? refuse("another program has changed its recording") : judge(error)
    case .quota, .size: return refuse("it is larger than allowed")
    }
  }

  /// Adds the description of the stream in a later request of the upload.
  func describe(_ text: String) { handler?.describe(["stream-description": text]) }

  /// Gives the recording its final name after all bytes were stored. Call it after ``open(_:)``.
  ///
  /// - Parameter sha256: the SHA-256 of the whole upload; nil if it is unknown.
  func complete(sha256: [UInt8]?, _ completion: @escaping (Outcome) -> Void) {
    guard let handler else { return completion(.later("another upload continues the stream")) }
    guard handler.bodyEnd != .outgrown else {
      // As with a server.
      return completion(refuse("it is complete, and other uploads have stored more of the stream"))
    }
    waiting = { [self] outcome in
      if outcome == .done { handler.end(.leave, for: self) }
      completion(outcome)
    }
    handler.end(sha256: sha256)
  }

  // MARK: Ends

  /// Ends an upload that is incomplete.
  ///
  /// - Parameter kind: the kind of the event that reports it.
  func end(_ kind: ServerEvent.Kind, _ end: RecordingEnd, _ reason: String) {
    guard let ending = handler ?? makeHandler() else { return }
    var event = ending.describe(kind)
    park()
    let outcome = hasBegun ? ending.end(end, for: self) : nil
    // The registry reports closed recordings.
    if outcome == .closing || outcome == .notHeld && (kind == .closed || kind == .expired) { return }
    (event.peer, event.offset, event.reason) = (Self.address, offset, reason)
    emit(event)
  }

  /// Closes the recording because the stream was silent for too long. Later bytes continue in the next part.
  func closeSilent() {
    guard phase == .open else { return }
    park()
    phase = .closed
    if hasBegun { makeHandler()?.end(.close(), for: self) }
  }

  /// Records that the upload cannot be stored. Its messages stay in the log.
  func refuse(_ reason: String) -> Outcome {
    guard phase != .refused else { return .refused(reason) }
    if hasBegun, handler == nil { makeHandler()?.end(.leave, for: self) }
    if let handler {
      park()
      handler.end(.leave, for: self)
    }
    phase = .refused
    var event = ServerEvent(.refused, peer: Self.address, reason: "an upload is not stored: \(reason)")
    (event.stream, event.offset) = (origin.streamID, origin.streamStart + offset)
    emit(event)
    return .refused(reason)
  }

  private func judge(_ response: Response, _ handler: any KeepingRequestHandler) -> Outcome {
    if response.status < 300 { return .done }
    // The kernel reports bytes that the disk refused only once. A second sync would succeed.
    if let error = handler.endError, !error.isForeignChange, !error.isShortage { return .failed(error) }
    if let error = handler.diskError, !handler.hasLostFile { return judge(error) }
    let reason = String(decoding: response.body.prefix { $0 != UInt8(ascii: "\n") }, as: UTF8.self)
    return response.fields.count("retry-after") > 0 ? .later(reason) : refuse(reason)
  }

  /// A shortage of the disk, a missing permission, or something else in the place of a file delays the stream until an
  /// operator removes the cause. Another error of a stream's files concerns only this upload.
  private func judge(_ error: SystemError) -> Outcome {
    // A recording that was closed meanwhile is missing. The next attempt finds another one.
    if error.isShortage || error.isMissing || error.isObstacle || error.isFull && error.code != EFBIG {
      return .later("\(error)")
    }
    if error.code == EIO || error.code == EROFS { return .failed(error) }
    return refuse("\(error)")
  }

  /// Releases the file.
  func park() {
    handler?.park()
    release()
  }

  private func release() { (handler, isAccepted) = (nil, false) }

  private func makeHandler() -> (any KeepingRequestHandler)? {
    guard let head = origin.head(from: segmentStart) else { return nil }
    return StreamStoreHandler(head: head, registry: registry)
  }

  private func resolve(_ outcome: Outcome) {
    let completion = waiting
    waiting = nil
    completion?(outcome)
  }

  // MARK: RecordingHolder

  var isLive: Bool { origin.isLive }
  var hasAcknowledgedBytes: Bool { phase == .open && offset > segmentStart }
  var continuesRecording: Bool { hasAcknowledgedBytes }
  var owner: UploadOwner { UploadOwner(credential: origin.owner, address: Self.address) }
  func lostRecording() { ownsFile = false }
  func tookRecording(ownsFile: Bool) { self.ownsFile = ownsFile }
  func recordingWasClosed() {
    // One that waits for its recording is about to open it, and finds the next part.
    if phase == .open, waiting == nil { skip(to: offset) }
  }

  func overtaken() {
    var event = ServerEvent(.interrupted, peer: Self.address, reason: Deactivation.overtaken.description)
    (event.stream, event.offset) = (origin.streamID, origin.streamStart + offset)
    leave(for: offset)
    emit(event)
  }

  // MARK: Exchange

  var peer: String { Self.address }

  func acceptBody() {
    (isAccepted, hasBegun) = (true, true)
    resolve(.done)
  }

  func respond(_ response: Response) {
    // The handler has finished.
    let (wasAccepted, handler) = (isAccepted, handler)
    release()
    if waiting != nil {
      resolve(handler.map { judge(response, $0) } ?? .later("another upload continues the stream"))
    } else if wasAccepted {
      answer = response
    }
  }

  /// Called when another upload continues the stream. This one opens the recording again for more bytes.
  func disconnect() {
    release()
    resolve(.later("another upload continues the stream"))
  }

  func takeArrived() {}
  func sendInterim(_ status: Int, _ fields: HeaderFields) {}
  func pauseBody() {}
  func resumeBody() {}
}
