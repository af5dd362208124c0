// One request that brings bytes of a stream: performs what `StreamRequestState` says is to be done.

internal import DiskFiles
internal import EventLoops
internal import Glibc
package import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
package import StreamServing

/// Stores the body of a POST or PUT at its place in its stream.
///
/// Request fields: `Stream-ID` (one to 64 of `[A-Za-z0-9._-]`, not beginning with a dot; made by the server if missing)
/// and `Stream-Offset` (where the body begins in the stream, in bytes; 0 if missing). Answer fields: `Stream-ID`,
/// `Stream-Offset` (how many bytes are stored: go on from there) and `Stream-Missing` (how many of them are holes).
package final class StreamStoreHandler: StreamWorker {
  let head: RequestHead
  let registry: StreamRegistry
  let allowance: StreamAllowance
  var state = StreamRequestState()
  var exchange: (any Exchange)?
  var peer = ""
  var name: StreamName?
  /// The upload that the request is, which tells itself of what becomes of its connections; nil for a plain request.
  var holder: (any RecordingHolder)?
  /// The stream that the body belongs to, while the state says where.
  private(set) var stream: (any StoredStream)?
  /// What the content of a plain request must be, if it says so.
  private(set) var digest: ContentDigest?
  private var saysSplitFailure = false
  /// When the token was last known to be valid.
  private var authorized = MonotonicInstant.now
  /// What the disk, or somebody else, has done to the stream.
  var trouble = StreamTrouble()

  package init(head: RequestHead, registry: StreamRegistry) {
    self.head = head
    self.registry = registry
    allowance = StreamAllowance(registry.limits)
  }

  var isUpload: Bool { holder != nil }
  /// Whether nobody has said how long the stream will be.
  private var isLive: Bool { holder?.isLive ?? (head.framing == .chunked) }

  // MARK: Beginning

  /// - Parameter count: how many bytes of its body have come, of a request that was begun before.
  func enter(_ exchange: any Exchange, restoredCount count: UInt64?) {
    self.exchange = exchange
    peer = exchange.peer
    if let reason = readFields() { return refuse(400, reason) }
    if !isUpload {
      digest = ContentDigest(head.fields, isWhole: state.offset == 0)
      if digest != nil { state.holds() }
    }
    claim(restoredCount: count)
  }

  /// Draws name and offset from the fields; returns what is wrong with them.
  func readFields() -> String? {
    do throws(StreamRequestFields.Flaw) {
      let fields = try StreamRequestFields(head.fields)
      state.begins(at: fields.offset)
      name = StreamName(
        path: head.target.path, streamID: fields.id ?? registry.assignment.newStreamID(path: head.target.path),
        mediaType: head.fields.single("content-type"))
      return nil
    } catch {
      return error.reason
    }
  }

  /// Finds the place of the body in the stream.
  ///
  /// - Parameter count: how many bytes of it have come, of a request that was begun before.
  /// - Returns: false if the request is answered.
  func enter(_ stream: any StoredStream, restoredCount count: UInt64?) -> Bool {
    if let count {
      // The file was there a moment ago, when the upload looked how much it holds.
      let firstOffset = max(stream.seriesStart, stream.gaps.holesEnd)
      guard state.reopened(Self.recording(stream), at: count, firstOffset: firstOffset) else {
        endState()
        allowance.leave()
        answer(503, nil, "the stream is gone", retries: true)
        return false
      }
      self.stream = stream
      return true
    }
    let beginning = state.opened(
      Self.recording(stream), seriesStart: stream.seriesStart, maximumHole: registry.maximumHole)
    self.stream = stream
    switch beginning {
    case .conflict(let conflict):
      self.conflict(stream, conflict)
      return false
    case .accept: return true
    case .acceptBehindHole(let length):
      let hasRoom = allowance.reserve(length) == length
      allowance.settle(stream)
      if !hasRoom { turnAway(stream, .quotaExhausted) }
      return hasRoom
    }
  }

  private static func recording(_ stream: any StoredStream) -> StreamRequestState.Recording {
    .init(length: stream.length, isComplete: stream.isComplete)
  }

  /// The request has nothing more to do with the stream.
  func endState() {
    state.ends()
    stream = nil
  }

  // MARK: Bytes

  /// Compares and stores; what the disk does not take is told to the caller.
  package func keep(_ bytes: Span<UInt8>, pieces: [Range<Int>]) -> KeepingError? {
    guard let stream else { return nil }
    let count = pieces.reduce(0) { $0 + $1.count }
    // Of an upload, its resource judges the size.
    let sizeRoom = isUpload ? nil : allowance.sizeRoom(at: state.offset + state.keptCount)
    var step = state.received(count, Self.recording(stream), sizeRoom: sizeRoom)
    while true {
      switch step {
      case .compare(let count, let offset):
        let isSame: Bool
        do throws(SystemError) {
          isSame = try stream.matches(bytes, pieces, count: count, at: offset)
        } catch {
          return .disk(error)
        }
        step = state.compared(isSame, Self.recording(stream))
      case .reserve(let room):
        step = state.reserved(allowance.reserve(room), Self.recording(stream))
      case .write(let limit, let skipped, let offset):
        let pieces = limit < count ? pieces.prefix(octets: limit) : pieces
        return store(bytes, pieces, skipping: skipped, at: offset, in: stream)
      case .done(let limit): return limit.map(KeepingError.init)
      case .settle(let limit):
        allowance.settle(stream)
        return limit.map(KeepingError.init)
      case .conflict(let conflict):
        self.conflict(stream, conflict)
        return nil
      }
    }
  }

  private func store(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64,
    in stream: any StoredStream
  ) -> KeepingError? {
    let former = Self.recording(stream)
    let result = stream.write(bytes, pieces, skipping: skipped, at: offset, maySplit: isLive && !state.isHeld)
    let stored = state.wrote(result.count, former)
    let error = result.error.map { KeepingError.disk($0) } ?? stored.limit.map(KeepingError.init)
    guard !stored.isNothing else {
      allowance.settle(stream)
      return error
    }
    if stored.reportsBeginning { reportBeginning(stream) }
    if stream.isKept { registry.figures.values.storedBytes += UInt64(result.count) }
    finish(result.splits, result.splitFailure, of: stream)
    allowance.settle(stream)
    if stored.overtakes { registry.overtake(stream.name, by: holder) }
    return error
  }

  /// Finishes the files that the stream has left behind.
  private func finish(_ splits: [SplitRecording], _ failure: SystemError?, of stream: any StoredStream) {
    defer { saysSplitFailure = failure != nil }
    if let error = failure, !saysSplitFailure {
      registry.emit(
        ServerEvent(.warning, reason: "\(stream.fileName) cannot be split, and becomes longer: \(error)"))
    }
    for split in splits {
      allowance.moved(from: split.name, to: stream)
      registry.finishSplit(split, peer: peer)
    }
  }

  // MARK: End

  /// The body is complete.
  func endBody() {
    guard let stream else { return }
    if let digest, !digest.isRight { return refuseContent(stream) }
    func judge() -> StreamRequestState.End {
      state.ended(
        Self.recording(stream), mayBeFilled: name.map { registry.hasUploads(of: $0, besides: holder) } ?? true)
    }
    var end = judge()
    if case .makeHole(let length) = end {
      guard makeHole(length, in: stream) else { return }
      end = judge()
    }
    switch end {
    case .conflict(let conflict): return self.conflict(stream, conflict)
    // Only a stream that is there as a whole is acknowledged.
    case .makeHole: return fail(stream, .disk(SystemError(operation: "making a hole", code: EIO)))
    case .ignore: return
    case .finish, .acknowledge: break
    }
    self.stream = nil
    // An upload ends with another connection than it began with.
    if let exchange { peer = exchange.peer }
    if end == .finish { finish(stream) } else { acknowledge(stream, 200) }
  }

  private func makeHole(_ length: UInt64, in stream: any StoredStream) -> Bool {
    guard allowance.reserve(length) == length else {
      allowance.settle(stream)
      turnAway(stream, .quotaExhausted)
      return false
    }
    do throws(SystemError) {
      try stream.makeHole(length: length)
      state.madeHole()
      return true
    } catch {
      allowance.settle(stream)
      fail(stream, .disk(error))
      return false
    }
  }

  private func finish(_ stream: any StoredStream) {
    leave(stream)
    // Asked before it ends: then it is nobody's any more.
    let isNew = stream.isNew || holder?.ownsFile == true
    registry.finish(stream, isLive: isLive) { [self] failure in
      guard let failure else {
        reportEnd(stream)
        // An upload may have made the file long ago, and an earlier server with it.
        return acknowledge(stream, isNew ? 201 : 200)
      }
      let error = failure.error
      // A name that is refused says nothing of the bytes: the same request may get it later.
      if failure.isNameRefused { return fail(stream, .disk(error)) }
      trouble.end = (error, stream)
      if !isUpload, !stream.isComplete, !error.isForeignChange, !error.isShortage { return refuseEnd(stream, error) }
      fail(stream, .disk(error))
    }
  }

  /// The content of a plain request is not what the request says. Nothing of it stays.
  private func refuseContent(_ stream: any StoredStream) {
    if !stream.isComplete {
      do throws(SystemError) {
        try drop(to: state.countBefore)
      } catch {
        return fail(stream, .disk(error))
      }
    }
    refuseContent(of: stream)
  }

  // MARK: Authorization

  /// Whether the token is valid, or was valid so short a time ago. An upload's is judged by its resource.
  func isStillAuthorized(within patience: Duration) -> Bool {
    guard !isUpload, let credential = head.credential else { return true }
    let now = MonotonicInstant.now
    guard now - authorized >= patience else { return true }
    authorized = now
    return registry.isValid(credential)
  }
}

/// What the disk, or somebody else, has done to a stream.
struct StreamTrouble {
  /// Whether something else has changed its file.
  var hasLostFile = false
  /// Why it does not take the body.
  var refusal: StreamRefusal?
  /// The error of the disk that the answer is about.
  var disk: SystemError?
  /// Why the disk did not take its end, and the stream that has none.
  var end: (error: SystemError, stream: any StoredStream)?
  /// Whether this request has closed a recording of it that cannot be counted on.
  var hasClosed = false
}

extension KeepingError {
  init(_ limit: StreamRequestState.Limit) {
    switch limit {
    case .size: self = .size
    case .quota: self = .quota
    }
  }
}
