// One request that brings bytes of a stream: found its place, compared, stored, acknowledged.

package import DiskFiles
package import EventLoops
internal import Glibc
package import HTTPMessages
package import HTTPServer
internal import JSONLines
internal import ResumableUploads
package import StreamServing

/// Stores the body of a POST or PUT at its place in its stream.
///
/// Request fields: `Stream-ID` (one to 64 of `[A-Za-z0-9._-]`, not beginning with a dot; made by the server if missing)
/// and `Stream-Offset` (where the body begins in the stream, in bytes; 0 if missing). Answer fields: `Stream-ID`,
/// `Stream-Offset` (how many bytes are stored: go on from there) and `Stream-Missing` (how many of them are holes).
package final class StreamStoreHandler: KeepingRequestHandler, StreamWorker {
  private enum State {
    case new
    /// The stream is being completed by another request.
    case waiting
    case streaming(any StoredStream, StreamPlacement)
    case done
  }

  private let head: RequestHead
  let registry: StreamRegistry
  private var exchange: (any Exchange)?
  private var state = State.new
  private var name: StreamName?
  private var offset: UInt64 = 0
  private var peer = ""
  /// Bytes of this request that were stored.
  private var stored: UInt64 = 0
  /// How many bytes of the body are compared or stored.
  package private(set) var keptCount: UInt64 = 0
  package private(set) var isInside = false
  /// The upload that the request is, which tells itself of what becomes of its connections; nil for a plain request.
  private var holder: (any RecordingHolder)?
  private var isUpload: Bool { holder != nil }
  private let allowance: StreamAllowance
  /// Whether nobody has said how long the stream will be.
  private var isLive: Bool { holder?.isLive ?? (head.framing == .chunked) }
  private var saysSplitFailure = false
  /// Whether the request was begun before, and goes on behind what is stored.
  private var isRestored = false
  /// How many bytes of a restored request's body have come.
  private var restoredCount: UInt64 = 0
  /// When the token was last known to be valid.
  private var authorized = MonotonicInstant.now
  /// Whose end the disk did not take.
  private var unended: (any StoredStream)?
  /// Whether it has had a recording closed that cannot be counted on.
  private var hasClosed = false
  /// What the content of a plain request must be, if it says so.
  private var digest: ContentDigest?
  /// How long the stream was when this request took it over.
  private var lengthBefore: UInt64 = 0
  /// Whether what comes now may be dropped again, because its digest is not checked yet.
  private var isHeld = false
  /// Whether the request has made a hole of which the uploads in front of it were not told.
  private var hasMadeHole = false
  /// Whether the request begins behind a hole that it has not made yet, and was not reported therefore.
  private var isUnreported = false

  package init(head: RequestHead, registry: StreamRegistry) {
    self.head = head
    self.registry = registry
    allowance = StreamAllowance(registry.limits)
  }

  // MARK: RequestHandler

  package func begin(_ exchange: any Exchange) {
    guard head.framing != .absent else {
      self.exchange = exchange
      peer = exchange.peer
      return refuse(411, "a stream needs Transfer-Encoding: chunked or a Content-Length")
    }
    enter(exchange, isRestored: false)
  }

  private func enter(_ exchange: any Exchange, isRestored: Bool) {
    self.exchange = exchange
    peer = exchange.peer
    self.isRestored = isRestored
    if let reason = readFields() { return refuse(400, reason) }
    if !isUpload {
      digest = ContentDigest(head.fields, isWhole: offset == 0)
      isHeld = digest != nil
    }
    claim()
  }

  /// Draws name and offset from the fields; returns what is wrong with them.
  private func readFields() -> String? {
    guard let id = optionalField("stream-id"), let position = optionalField("stream-offset") else {
      return "Stream-ID and Stream-Offset may be given once"
    }
    if let text = id, !StreamName.isValidID(text) {
      return
        "a Stream-ID is one to 64 letters, digits, dots, underscores and hyphens, and does not begin with a dot"
    }
    if let position {
      guard !position.isEmpty, position.utf8.allSatisfy({ Octet.isDigit($0) }), let number = UInt64(position) else {
        return "a Stream-Offset is a number of bytes below 2^64"
      }
      guard id != nil || number == 0 else {
        return "a Stream-Offset needs a Stream-ID to say of which stream"
      }
      offset = number
    }
    name = StreamName(
      path: head.target.path, streamID: id ?? registry.assignment.newStreamID(path: head.target.path),
      mediaType: head.fields.single("content-type"))
    return nil
  }

  package func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
    guard isStillAuthorized(within: .seconds(1)) else { return withdraw() }
    digest?.update(bytes, pieces)
    guard let error = keep(bytes, pieces: pieces), case .streaming(let stream, _) = state else { return }
    fail(stream, error)
  }

  /// Compares and stores; what the disk does not take is told to the caller.
  package func keep(_ bytes: Span<UInt8>, pieces: [Range<Int>]) -> KeepingError? {
    guard case .streaming(let stream, var placement) = state else { return nil }
    var pieces = pieces
    var count = pieces.reduce(0) { $0 + $1.count }
    var failure: KeepingError?
    func limit(to allowed: Int, _ error: KeepingError) {
      guard allowed < count else { return }
      (pieces, count, failure) = (pieces.prefix(octets: allowed), allowed, error)
    }
    // Of an upload, its resource judges the size.
    if !isUpload { limit(to: Int(clamping: allowance.sizeRoom(at: placement.cursor)), .size) }
    let repeated = placement.repeated(count)
    if repeated > 0 {
      do throws(SystemError) {
        guard try stream.matches(bytes, pieces, count: repeated, at: placement.cursor) else {
          conflict(stream, "the bytes differ from those that are stored at the same offset")
          return nil
        }
      } catch {
        return .disk(error)
      }
      placement.verified(repeated)
    }
    if count > repeated {
      guard !stream.isComplete else {
        conflict(stream, "the stream is complete and has no such bytes")
        return nil
      }
      // It counts like bytes that were sent.
      let hole = placement.cursor - min(placement.cursor, stream.length)
      let granted = allowance.reserve(hole + UInt64(count - repeated))
      limit(to: repeated + Int(clamping: granted - min(granted, hole)), .quota)
      guard hole == 0 || count > repeated else {
        allowance.settle(stream)
        return failure
      }
      let result = stream.write(
        bytes, pieces, skipping: repeated, at: placement.cursor, maySplit: isLive && !isHeld)
      if result.count == 0, hole > 0 {
        allowance.settle(stream)
        return result.error.map { .disk($0) } ?? failure
      }
      if hole > 0 { hasMadeHole = true }
      if isUnreported {
        isUnreported = false
        reportBeginning(stream)
      }
      placement.stored(result.count)
      stored += UInt64(result.count)
      if stream.isKept { registry.figures.values.storedBytes += UInt64(result.count) }
      finish(result.splits, result.splitFailure, of: stream)
      allowance.settle(stream)
      if !isHeld { tellOvertaken(stream) }
      if let error = result.error { failure = .disk(error) }
    }
    enter(placement, of: stream)
    return failure
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

  /// The next byte of the body belongs there.
  private func enter(_ placement: StreamPlacement, of stream: any StoredStream) {
    state = .streaming(stream, placement)
    keptCount = placement.cursor - offset
    isInside = placement.cursor < placement.length
  }

  package func end() {
    guard isStillAuthorized(within: .zero) else { return withdraw() }
    guard case .streaming(let stream, let placement) = state else { return }
    if let digest, !digest.isRight { return refuseContent(stream) }
    if placement.cursor > stream.length, !endBehindHole(stream, placement.cursor) { return }
    // An upload ends with another connection than it began with.
    if let exchange { peer = exchange.peer }
    state = .done
    // A client that lost the answer asks again, and gets it.
    if stream.isComplete { return acknowledge(stream, 200) }
    leave(stream)
    // Asked before it ends: then it is nobody's any more.
    let isNew = stream.isNew || holder?.ownsFile == true
    registry.finish(stream, isLive: isLive) { [self] failure in
      if let failure {
        let error = failure.error
        // A name that is refused says nothing of the bytes: the same request may get it later.
        if failure.isNameRefused { return fail(stream, .disk(error)) }
        (endError, unended) = (error, stream)
        if !isUpload, !stream.isComplete, !error.isForeignChange, !error.isShortage { return refuseEnd(stream, error) }
        return fail(stream, .disk(error))
      }
      var event = event(.ended, stream)
      event.file = stream.name.final
      event.bytes = stream.length
      event.missing = stream.missing
      registry.emit(event)
      // An upload may have made the file long ago, and an earlier server with it.
      acknowledge(stream, isNew ? 201 : 200)
    }
  }

  /// The stream ends behind bytes that never came, without a byte after them. False if that is refused.
  private func endBehindHole(_ stream: any StoredStream, _ offset: UInt64) -> Bool {
    guard let name, !registry.hasUploads(of: name, besides: holder) else {
      conflict(stream, "the request has no content, and an upload may still bring the bytes before its offset")
      return false
    }
    let hole = offset - stream.length
    guard allowance.reserve(hole) == hole else {
      allowance.settle(stream)
      turnAway(stream, .quotaExhausted)
      return false
    }
    do throws(SystemError) {
      try stream.makeHole(length: hole)
      hasMadeHole = true
      return true
    } catch {
      allowance.settle(stream)
      fail(stream, .disk(error))
      return false
    }
  }

  /// Every upload that stands in front of the hole is over.
  private func tellOvertaken(_ stream: any StoredStream) {
    guard hasMadeHole else { return }
    hasMadeHole = false
    registry.overtake(stream.name, by: holder)
  }

  package func aborted(_ reason: AbortReason) {
    if case .streaming(let stream, _) = state { interrupt(stream, reason.description) }
    state = .done
    exchange = nil
  }

  /// The client of a live stream that has named it can continue it (`Stream-Offset`).
  package var canBeContinued: Bool { head.framing == .chunked && head.fields.count("stream-id") > 0 }

  package func serverStops() {
    switch state {
    case .streaming(let stream, _) where !stream.isComplete:
      // TCP has told the client that we have these bytes.
      exchange?.takeArrived()
      guard case .streaming = state else { return }
      turnAway(stream, 503, "the server stops")
    case .new, .waiting:
      state = .done
      answer(503, nil, "the server stops", retries: true)
    case .streaming, .done: break
    }
  }

  // MARK: KeepingRequestHandler

  package private(set) var hasLostFile = false
  package private(set) var endError: SystemError?
  package private(set) var diskError: SystemError?

  package func settle() -> Settlement {
    if let reason = readFields() { return .response(Response(400, body: reason + "\n")) }
    do throws(SystemError) {
      if let name, try !registry.store.admits(head.credential, to: name) {
        return .response(Response(403, body: Self.notYours + "\n"))
      }
      if try isOvertaken() {
        return .response(Response(409, body: Self.beginsBeforeHole + "\n"))
      }
      if let name, try beginsBeyondSize(name) {
        return .response(Response(413, body: Self.reason(.representationTooLarge) + "\n"))
      }
    } catch {
      diskError = error
      return .response(Response(Self.unknownStatus, ["retry-after": "2"], body: error.reason + "\n"))
    }
    // Made up once, and the same ever after; the client sees by it that parts of one stream are joined here.
    return .fields(
      ["stream-id": name?.streamID ?? StreamName.randomID()],
      needed: ["stream-id", "stream-offset", "content-type", "stream-description"])
  }

  /// Whether an upload would begin with a hole that is larger than an upload may be.
  private func beginsBeyondSize(_ name: StreamName) throws(SystemError) -> Bool {
    guard let room = registry.limits.options.maximumSize, offset > room else { return false }
    switch try registry.store.measure(name) {
    case .stored(_, let length, _), .complete(_, _, let length, _): return offset - min(offset, length) > room
    case .absent: return true
    // The next part begins where the upload does.
    case .closed: return false
    }
  }

  package func isOvertaken() throws(SystemError) -> Bool {
    guard name != nil || readFields() == nil, let name else { return false }
    guard let gaps = try registry.store.measure(name).gaps else { return false }
    return offset < gaps.holesEnd
  }

  package func beginKeeping(_ exchange: any Exchange, for holder: any RecordingHolder) {
    self.holder = holder
    enter(exchange, isRestored: false)
  }

  package func restoreKeeping(_ exchange: any Exchange, for holder: any RecordingHolder, at count: UInt64) {
    self.holder = holder
    restoredCount = count
    enter(exchange, isRestored: true)
  }

  package func measureKept() throws(SystemError) -> KeptExtent {
    guard readFields() == nil, let name else { return .gone }
    // A stream that was removed, and begun anew by somebody else, holds nothing of this upload.
    guard try registry.store.admits(head.credential, to: name) else { return .gone }
    registry.takeOver(name)
    switch try registry.store.measure(name) {
    case .closed: return .closed
    // The recording that the upload was in was closed, where it begins before the present one.
    case .stored(let start, let length, let gaps):
      if offset < start { return .closed }
      // Nobody knows which bytes the disk has.
      if gaps.isDistrusted || registry.distrust(of: name) != nil { return .gone }
      if offset < gaps.holesEnd { return .overtaken }
      // Nothing of it was stored yet if the stream ends before it begins.
      return .bytes(length - min(length, offset))
    case .complete(let name, let start, let length, let gaps):
      if offset < start { return .closed }
      if gaps.isDistrusted || registry.distrust(of: name) != nil { return .gone }
      if offset < gaps.holesEnd { return .overtaken }
      guard length >= offset else { return .gone }
      return .complete(length - offset, Self.response(200, name, length: length, missing: gaps.missing))
    case .absent: return .gone
    }
  }

  package func checkFile() throws(SystemError) {
    if case .streaming(let stream, _) = state { try stream.check() }
  }

  package func synchronizeKept(_ completion: @escaping (SystemError?) -> Void) {
    guard readFields() == nil, let name else { return completion(nil) }
    registry.store.synchronize(name, on: registry.loop, completion)
  }

  package func describe(_ fields: HeaderFields) {
    guard case .streaming(let stream, _) = state, !stream.isComplete,
      let description = fields.single("stream-description").flatMap({ StreamDescription(parsing: $0) })
    else { return }
    // Without it only the sidecar says less.
    try? stream.describe(description)
  }

  package func isEnding(_ action: @escaping () -> Void) -> Bool {
    guard name != nil || readFields() == nil, let name else { return false }
    return registry.waits(for: name, action)
  }

  package func synchronize(_ completion: @escaping (UInt64, SystemError?) -> Void) {
    guard case .streaming(let stream, _) = state else {
      // The end is on its way to the disk: with it comes all that there is.
      let waits = isEnding { [self] in completion(keptCount, endError) }
      return waits ? () : completion(keptCount, nil)
    }
    let count = keptCount
    stream.synchronize(on: registry.loop) { completion(count, $0) }
  }

  package func drop(to count: UInt64) throws(SystemError) {
    let stream: any StoredStream
    if case .streaming(let current, _) = state {
      stream = current
    } else if let unended {
      stream = unended
    } else {
      return
    }
    // What was there before this request stays: of that, bytes were only compared.
    // A hole goes with the bytes behind it.
    let length = count == 0 ? lengthBefore : max(offset + count, lengthBefore)
    if length < stream.length { try stream.truncate(to: length) }
    if length < offset { hasMadeHole = false }
    allowance.settle(stream)
    if case .streaming = state {
      enter(StreamPlacement(cursor: offset + count, length: max(length, offset + count)), of: stream)
    }
    keptCount = count
  }

  package func hold() { isHeld = true }

  package func release() {
    isHeld = false
    if case .streaming(let stream, _) = state { tellOvertaken(stream) }
  }

  package var keptFile: (file: OpenFile, start: UInt64)? {
    guard case .streaming(let stream, _) = state, offset >= stream.start, let place = stream.place(of: offset) else {
      return nil
    }
    return (place.file, place.position)
  }

  package func park() {
    if case .streaming(let stream, _) = state { leave(stream) }
    state = .done
    exchange = nil
  }

  package func restoreHolding(_ holder: any RecordingHolder) {
    guard readFields() == nil, let name else { return }
    registry.restore(holder, of: name)
    // What cannot be counted now is when the stream is opened next.
    try? registry.store.note(.stored(by: holder.owner), on: name)
  }

  package func end(_ end: RecordingEnd, for holder: any RecordingHolder) -> RecordingOutcome {
    guard name != nil || readFields() == nil, let name else { return .notHeld }
    return registry.end(end, name, by: holder)
  }

  package func describe(_ kind: ServerEvent.Kind) -> ServerEvent {
    if name == nil { _ = readFields() }
    if case .streaming(let stream, _) = state {
      var event = event(kind, stream)
      event.missing = stream.missing
      return event
    }
    var event = ServerEvent(kind, peer: peer)
    event.stream = name?.streamID
    event.file = name?.partial
    return event
  }

  // MARK: Beginning

  /// The value of a field; `.some(nil)` if it is not there, nil if it is there more than once.
  private func optionalField(_ name: String) -> String?? {
    switch head.fields.count(name) {
    case 0: .some(nil)
    case 1: .some(head.fields.single(name))
    default: nil
    }
  }

  /// Takes the stream over, finds the place of the body in it, and asks for the body.
  private func claim() {
    guard let name, let exchange else { return }
    do throws(SystemError) {
      guard try registry.store.admits(head.credential, to: name) else {
        state = .done
        return refuse(403, Self.notYours)
      }
    } catch {
      (state, diskError) = (.done, error)
      emitRefusal(Self.unknownStatus, "\(error)")
      return answer(Self.unknownStatus, nil, error.reason, retries: true)
    }
    registry.takeOver(name)
    // Once: a disk that refuses that too is full still.
    if !hasClosed, registry.distrust(of: name) != nil {
      hasClosed = true
      registry.closeDistrusted(name, for: quotaOwner(exchange))
    }
    let waits = registry.waits(for: name) { [self] in
      if case .waiting = state { claim() }
    }
    if waits {
      state = .waiting
      return
    }
    if let error = registry.distrust(of: name) {
      (state, diskError) = (.done, error)
      emitRefusal(Self.status(of: error), "\(error)")
      return answer(Self.status(of: error), nil, error.reason, retries: true)
    }
    do throws(UploadRefusal) {
      try enterLimits(name, exchange)
    } catch {
      state = .done
      let reason = Self.reason(error)
      emitRefusal(error.status(.none), reason)
      return answer(error.status(.none), nil, reason, retries: error.allowsRetry)
    }
    let stream: any StoredStream
    do throws(SystemError) {
      let purpose = StreamPurpose.request(credential: head.credential, offset: offset, creating: !isRestored)
      guard let found = try registry.store.open(name, for: purpose) else {
        throw SystemError(operation: "open \(name.partial)", code: ENOENT)
      }
      stream = found
    } catch {
      (state, diskError) = (.done, error)
      allowance.leave()
      // The recording was closed while this request waited. The next one is told so.
      if isRestored, error.isMissing { return answer(503, nil, "the stream is gone", retries: true) }
      let remedy = error.code == EMFILE ? DescriptorLimit.remedy(waiting: 1) : ""
      emitRefusal(Self.status(of: error), "\(error)\(remedy)")
      return answer(Self.status(of: error), nil, error.reason, retries: true)
    }
    if registry.noticeDistrust(stream) {
      allowance.leave()
      return claim()
    }
    lengthBefore = stream.length
    // What is not counted yet is an earlier server's. With a credential the stream is nobody else's.
    let isOwn = isRestored || stream.isNew || head.credential != nil
    allowance.open(stream, owner: isOwn ? quotaOwner(exchange) : nil)
    if isRestored { return goOn(stream, exchange) }
    guard offset >= stream.seriesStart else {
      return conflict(stream, "the recording begins behind this offset: the one before it is closed")
    }
    let beginning = StreamPlacement.begin(
      offset: offset, length: stream.length, isComplete: stream.isComplete, maximumHole: registry.maximumHole)
    switch beginning {
    case .beyondEnd: return conflict(stream, "the stream is complete and ends before this offset")
    case .holeTooLarge: return conflict(stream, "the hole before this offset would be larger than the server allows")
    case .at(let placement): enter(placement, of: stream)
    case .afterHole(let placement, let length):
      isUnreported = true
      let hasRoom = allowance.reserve(length) == length
      // It is made with the first byte behind it: until then others may bring what is missing.
      allowance.settle(stream)
      guard hasRoom else { return turnAway(stream, .quotaExhausted) }
      enter(placement, of: stream)
    }
    // A file without a byte, which a server that died had just made, is as good as a new one.
    let isNew = stream.isNew || !registry.isHeld(name) && stream.isEmpty
    registry.claim(name, for: self, holder: holder, isNew: isNew)
    if !isUnreported { reportBeginning(stream) }
    describe(head.fields)
    if !isUpload {
      allowance.watchRate(
        received: { [unowned self] in keptCount },
        tooSlow: { [unowned self] in
          if case .streaming(let stream, _) = state { turnAway(stream, .tooSlow) }
        })
    }
    exchange.acceptBody()
  }

  /// Lets the request into the server's limits.
  private func enterLimits(_ name: StreamName, _ exchange: any Exchange) throws(UploadRefusal) {
    let owner = quotaOwner(exchange)
    if isUpload { return allowance.enterUpload(of: owner) }
    if allowance.refuses(head.framing, at: offset) { throw .representationTooLarge }
    guard registry.limits.accounts != nil else { return try allowance.enter(owner, needsRoom: false) }
    // A stream that is there may be repeated by a client that lost the answer, and that takes no room.
    var stored: UInt64?
    var begins: UInt64 = 0
    switch try? registry.store.measure(name) {
    case .stored(_, let length, _), .complete(_, _, let length, _): stored = length
    // The next part begins where the request does.
    case .closed: begins = offset
    case .absent, nil: break
    }
    try allowance.enter(owner, needsRoom: stored == nil)
    // Refused before there is a file, and before the client sends what finds no room.
    guard allowance.hasRoom(for: head.framing, at: offset, storedLength: stored ?? begins) else {
      allowance.leave()
      throw .quotaExhausted
    }
  }

  /// Whose quota the bytes of this request count against.
  private func quotaOwner(_ exchange: any Exchange) -> UploadOwner {
    holder?.owner ?? UploadOwner(credential: head.credential, address: UploadOwner.address(of: exchange.peer))
  }

  private static func reason(_ refusal: UploadRefusal) -> String {
    // The answer to a plain request has no Upload-Limit.
    refusal == .representationTooLarge ? "the stream is larger than this server accepts" : refusal.reason
  }

  /// Goes on with an upload's body where its stored bytes end: they were compared, or stored, when they came.
  private func goOn(_ stream: any StoredStream, _ exchange: any Exchange) {
    // The file was there a moment ago, when the upload looked how much it holds.
    guard offset >= max(stream.seriesStart, stream.gaps.holesEnd), stream.length >= offset || !stream.isComplete else {
      state = .done
      allowance.leave()
      return answer(503, nil, "the stream is gone", retries: true)
    }
    let count = min(restoredCount, stream.length - min(stream.length, offset))
    enter(StreamPlacement(cursor: offset + count, length: max(offset, stream.length)), of: stream)
    registry.claim(stream.name, for: self, holder: holder, isNew: false)
    describe(head.fields)
    exchange.acceptBody()
  }

  /// A newer request goes on with the stream: everything that has arrived here is stored, then this connection ends.
  func yieldStream() {
    exchange?.takeArrived()
    guard case .streaming(let stream, _) = state else { return }
    if isUpload { leave(stream) } else { interrupt(stream, "a newer request goes on with the stream") }
    state = .done
    exchange?.disconnect()
    exchange = nil
  }

  // MARK: Ending

  private func leave(_ stream: any StoredStream) {
    tellOvertaken(stream)
    registry.release(stream.name, by: self)
    allowance.leave()
  }

  /// As ``leave(_:)``, where the stream goes on with another request or not at all.
  private func leaveUnfinished(_ stream: any StoredStream) {
    leave(stream)
    guard !isUpload, !stream.isComplete else { return }
    // Nobody has to come back to a stream without a byte.
    registry.leave(
      stream.name, for: UploadOwner(credential: head.credential, address: UploadOwner.address(of: peer)),
      atMost: stream.isEmpty && stream.start == 0 ? .zero : nil)
  }

  private func interrupt(_ stream: any StoredStream, _ reason: String, status: Int? = nil) {
    leaveUnfinished(stream)
    // Asking for the answer again interrupts nothing.
    if stream.isComplete || isUpload { return }
    var event = event(.interrupted, stream)
    event.offset = stream.length
    event.bytes = stored
    event.missing = stream.missing
    event.reason = reason
    event.status = status
    registry.emit(event)
  }

  /// The bytes contradict what is stored. The file is not touched.
  private func conflict(_ stream: any StoredStream, _ reason: String) {
    leaveUnfinished(stream)
    state = .done
    emitRefusal(409, reason, stream)
    answer(409, stream, reason, retries: false)
  }

  /// The disk did not take the bytes. What it took is counted, the rest is the client's still.
  private func fail(_ stream: any StoredStream, _ error: KeepingError) {
    guard case .disk(let error) = error else { return turnAway(stream, error.refusal) }
    registry.figures.values.storageFailures += 1
    (hasLostFile, diskError) = (error.isForeignChange, error)
    turnAway(
      stream, Self.status(of: error),
      hasLostFile ? "something else has changed, replaced or removed the file of the stream" : error.reason)
  }

  /// The disk did not take the end of a plain stream. Which bytes it lacks nobody knows: all are to be sent again, into
  /// a file of their own, and the one that is there is closed as it is.
  private func refuseEnd(_ stream: any StoredStream, _ error: SystemError) {
    registry.figures.values.storageFailures += 1
    registry.distrust(stream.name, error)
    interrupt(stream, "\(error)", status: Self.status(of: error))
    respond(
      Response(
        Self.status(of: error),
        [
          "stream-id": stream.name.streamID, "stream-offset": String(stream.start), "stream-missing": "0",
          "retry-after": "2",
        ], body: error.reason + "\n"))
  }

  /// The content of a plain request is not what the request says. Nothing of it stays.
  private func refuseContent(_ stream: any StoredStream) {
    if !stream.isComplete {
      do throws(SystemError) {
        try drop(to: lengthBefore - min(lengthBefore, offset))
      } catch {
        return fail(stream, .disk(error))
      }
    }
    let reason = "the content differs from the Content-Digest or Repr-Digest of the request; nothing of it is stored"
    interrupt(stream, reason, status: 400)
    state = .done
    removeIfUnused(stream)
    answer(400, stream, reason, retries: false)
  }

  /// Whether the token is valid, or was valid so short a time ago. An upload's is judged by its resource.
  private func isStillAuthorized(within patience: Duration) -> Bool {
    guard !isUpload, let credential = head.credential else { return true }
    let now = MonotonicInstant.now
    guard now - authorized >= patience else { return true }
    authorized = now
    return registry.isValid(credential)
  }

  /// The token was withdrawn within the request: what is stored stays, and the stream is not complete.
  private func withdraw() {
    guard case .streaming(let stream, _) = state else { return }
    let reason = "the token is not valid any more"
    interrupt(stream, reason, status: 401)
    state = .done
    var fields = fields(stream)
    fields.append("www-authenticate", "Bearer")
    respond(Response(401, fields, body: reason + "\n"))
  }

  private func turnAway(_ stream: any StoredStream, _ refusal: UploadRefusal) {
    turnAway(stream, refusal.status(.none), Self.reason(refusal), retries: refusal.allowsRetry)
    removeIfUnused(stream)
  }

  /// Where nothing was stored, no later request has use for the file.
  private func removeIfUnused(_ stream: any StoredStream) {
    if stream.isNew, stream.isEmpty, stream.missing == 0 { registry.store.discard(.growingRecording, of: stream.name) }
  }

  private func turnAway(_ stream: any StoredStream, _ status: Int, _ reason: String, retries: Bool = true) {
    interrupt(stream, reason, status: status)
    state = .done
    answer(status, stream, reason, retries: retries)
  }

  private static let beginsBeforeHole = "bytes of the stream behind this offset never came, and later ones are stored"
  private static let notYours = "the stream belongs to another token"
  /// The owner of the stream cannot be read now: nobody is admitted, and nobody gets a 403.
  private static let unknownStatus = 503

  private func refuse(_ status: Int, _ reason: String) {
    state = .done
    emitRefusal(status, reason)
    answer(status, nil, reason, retries: false)
  }

  private static func status(of error: SystemError) -> Int {
    if error.isFull { return 507 }
    // A recording is there that this stream did not make.
    if error.code == EEXIST { return 409 }
    return error.isShortage ? 503 : 500
  }

  private func acknowledge(_ stream: any StoredStream, _ status: Int) {
    leave(stream)
    // Of an upload, its resource counts what it tells.
    if !isUpload { registry.figures.values.acknowledgedBytes += keptCount }
    respond(
      Self.response(
        status, stream.name, length: stream.length, missing: stream.missing, isStored: stream.isKept))
  }

  /// The response to the request that has completed a stream, and to those that repeat it.
  private static func response(
    _ status: Int, _ name: StreamName, length: UInt64, missing: UInt64, isStored: Bool = true
  ) -> Response {
    var body = JSONLine(event: isStored ? "stored" : "discarded")
    if isStored { body.add("name", name.final) }
    body.add("bytes", length)
    body.add("missing", missing)
    return Response(
      status, fields(name, length: length, missing: missing), body: body.line + "\n", type: "application/json")
  }

  private func answer(_ status: Int, _ stream: (any StoredStream)?, _ reason: String, retries: Bool) {
    var fields = stream.map(fields) ?? [:]
    if retries { fields.append("retry-after", "2") }
    respond(Response(status, fields, body: reason + "\n"))
  }

  private func respond(_ response: Response) {
    // Let go of first: the connection lets go of us in turn, and hears nothing more.
    let exchange = exchange
    self.exchange = nil
    exchange?.respond(response)
  }

  private func fields(_ stream: any StoredStream) -> HeaderFields {
    Self.fields(stream.name, length: stream.length, missing: stream.missing)
  }

  private static func fields(_ name: StreamName, length: UInt64, missing: UInt64) -> HeaderFields {
    ["stream-id": name.streamID, "stream-offset": String(length), "stream-missing": String(missing)]
  }

  // MARK: Telling

  private func reportBeginning(_ stream: any StoredStream) {
    var event = event(stream.isNew ? .begun : .continued, stream)
    event.offset = offset
    event.missing = stream.missing
    if stream.isComplete { event.reason = "the stream is complete already" }
    registry.emit(event)
  }

  private func event(_ kind: ServerEvent.Kind, _ stream: any StoredStream) -> ServerEvent {
    var event = ServerEvent(kind, peer: peer)
    event.stream = stream.name.streamID
    event.file = stream.fileName
    return event
  }

  private func emitRefusal(_ status: Int, _ reason: String, _ stream: (any StoredStream)? = nil) {
    var event = ServerEvent(.refusal(status: status), peer: peer, status: status, reason: reason)
    event.stream = name?.streamID
    event.file = stream?.fileName
    event.offset = stream?.length
    registry.emit(event)
  }
}
