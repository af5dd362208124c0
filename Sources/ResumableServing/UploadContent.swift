// The bytes of an upload on their way to its handler and to the disk: kept, counted, digested, synced and read again.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

/// The inner handler of an upload and the bytes that it receives. The handler is begun when it is needed and abandoned
/// when it is not. It can be begun again at the same offset. Only on the loop's thread.
final class UploadContent {
  private let token: String
  private unowned let resources: UploadResources
  /// The wrapped handler's view of the upload; nil while there is no handler.
  private var exchange: UploadResourceExchange?
  private var handler: RoutedHandler?
  private var body: Body?
  /// Whether the newest handler keeps the bytes itself. All of them are of one kind, because the router makes them for
  /// the same request.
  private(set) var isKeptByHandler = false
  /// Whether the handler has accepted the body.
  private(set) var isAccepted = false
  /// Where the bytes were when the handler was last active.
  private var place: FilePlace?
  /// The bytes' share of the quotas, if they are spooled.
  private var account: StreamAccount?
  /// The digests of all bytes, if the creation contained or requested one.
  private let digests: UploadDigests?

  /// Where bytes go while a handler exists.
  private enum Body {
    case kept(HandlerKeptBody)
    case spooled(SpooledBody)

    var bytes: any KeptBody {
      switch self {
      case .kept(let body): body
      case .spooled(let body): body
      }
    }

    var spooled: SpooledBody? { if case .spooled(let body) = self { body } else { nil } }
  }

  /// - Parameter fields: the fields of the creation.
  init(_ token: String, _ fields: HeaderFields, _ resources: UploadResources) {
    (self.token, self.resources) = (token, resources)
    digests = UploadDigests(fields)
  }

  // MARK: The handler

  /// Whether a handler is active.
  var isOpen: Bool { handler != nil }
  private var keeper: (any KeepingRequestHandler)? { handler?.keeper }

  /// A handler for the request, not begun yet; nil if the request is invalid.
  private func make(_ request: RequestHead?) -> RoutedHandler? {
    let handler = request.map(resources.router)
    isKeptByHandler = handler?.keeper != nil
    return handler
  }

  /// Makes the handler of an upload, and a body for its bytes. ``begin(_:)`` follows.
  ///
  /// - Parameter unreadable: called when kept bytes cannot be read again, now or ever (`ESTALE`).
  /// - Returns: false if no handler can be made.
  func open(
    for upload: UploadResource, _ ledger: UploadLedger, share: UploadUsage.Share?,
    unreadable: @escaping (SystemError) -> Void
  ) throws(SystemError) -> Bool {
    guard let made = make(ledger.request) else { return false }
    handler = made
    exchange = UploadResourceExchange(upload, peer: upload.peer)
    if let keeper {
      body = .kept(HandlerKeptBody(keeper))
      return true
    }
    let (file, count) = try resources.store.openBody(token, creating: !ledger.hasBegun)
    guard let share else { return false }
    body = .spooled(
      SpooledBody(
        file, keptCount: count, account: charge(count, to: share), share: share, handler: made.handler,
        loop: resources.loop, records: resources.store, unreadable: unreadable))
    return true
  }

  /// Begins the handler with its request.
  func begin(for upload: UploadResource, _ ledger: UploadLedger) {
    guard let exchange, let handler else { return }
    guard let keeper else { return handler.handler.begin(exchange) }
    if ledger.hasBegun {
      // The bytes that others have stored behind it are compared with the ones that arrive.
      keeper.restoreKeeping(exchange, for: upload, at: ledger.state.offset)
    } else {
      keeper.beginKeeping(exchange, for: upload)
    }
  }

  /// The handler accepts the body. Returns false if it had accepted it before.
  func accept() -> Bool {
    defer { isAccepted = true }
    return !isAccepted
  }

  /// The handler may receive the bytes, and clients may send more.
  func feed() {
    body?.spooled?.accept()
    place = body?.bytes.place
    if let body, let digests {
      digests.catchUpInBackground(with: body.bytes, loop: resources.loop, worker: resources.worker)
    }
  }

  /// The handler accepts no more of its body for now. The bytes are still kept and acknowledged.
  func pause() { body?.spooled?.pause() }
  func resume() { body?.spooled?.resume() }

  /// All bytes are here, so the handler can process them.
  func end() {
    guard let body = body?.bytes else { return }
    body.end(sha256: digests?.sha256(at: body.keptCount))
  }

  /// A handler that keeps its bytes closes them.
  func park() { keeper?.park() }

  /// The handler will never receive all bytes. It is notified unless it keeps them.
  func abort(_ reason: String) {
    if let keeper { keeper.park() } else { handler?.handler.aborted(.uploadEnded(reason)) }
  }

  /// Releases the handler.
  func release() {
    exchange?.cutOff()
    exchange = nil
    body?.spooled?.stopFeeding()
    body = nil
    handler = nil
    isAccepted = false
  }

  /// No request needs the file. Returns false if the handler must be released, because another one continues behind the
  /// bytes that it has kept. A handler that keeps nothing was promised one request without a break, and stays.
  func rest() -> Bool {
    guard keeper == nil else { return false }
    body?.spooled?.closeFile()
    return true
  }

  /// The server has ended. Breaks the reference cycle between an upload and its handler. Bytes on the disk stay.
  func part() {
    keeper?.park()
    digests?.abandon()
    let handler = keeper == nil ? handler : nil
    release()
    handler?.handler.aborted(.uploadEnded("the server is stopping"))
  }

  // MARK: The handler's reports

  /// Whether `action` will be called later, because the handler is completing or removing the bytes at the moment.
  func isEnding(_ action: @escaping () -> Void) -> Bool { keeper?.isEnding(action) == true }

  /// Like ``isEnding(_:)``, if this upload has no active handler. That of another request may be completing the stream.
  func isEnding(_ request: RequestHead?, _ action: @escaping () -> Void) -> Bool {
    make(request)?.keeper?.isEnding(action) == true
  }

  /// What a response of the handler means for the upload.
  enum Verdict {
    case lostFile
    /// The stream does not accept the upload.
    case refused(StreamRefusal)
    /// The end could not be written to the disk.
    case notEnded(SystemError)
    /// It cannot be processed now.
    case later
    /// - Parameter isTold: whether the handler reports the end itself.
    case processed(isTold: Bool)
  }

  func judge(_ response: Response) -> Verdict {
    guard let keeper else { return response.asksToRetry ? .later : .processed(isTold: false) }
    if keeper.hasLostFile { return .lostFile }
    if let refusal = keeper.streamRefusal { return .refused(refusal) }
    if let error = keeper.endError { return .notEnded(error) }
    // The bytes that it keeps can still be completed, whatever the reason for the status.
    return response.hasRetryTime ? .later : .processed(isTold: true)
  }

  /// Whether the handler's response is about an error of the disk.
  var isRefusedByDisk: Bool { keeper?.diskError != nil }

  /// Records what a later request of the upload states about the stream.
  func describe(_ fields: HeaderFields) { keeper?.describe(fields) }

  /// An event about the upload, as its active handler describes it, or the one that would be active.
  func event(_ kind: ServerEvent.Kind, _ request: RequestHead?) -> ServerEvent {
    (handler ?? make(request))?.keeper?.describe(kind) ?? ServerEvent(kind)
  }

  // MARK: Recordings

  /// The upload was begun under an earlier server.
  func restoreHolding(_ request: RequestHead?, for upload: UploadResource) {
    make(request)?.keeper?.restoreHolding(upload)
  }

  /// The upload will never be complete, or is complete without its handler.
  func endHolding(_ request: RequestHead?, _ end: RecordingEnd, for upload: UploadResource) {
    make(request)?.keeper?.end(end, for: upload)
  }

  /// The same for the active handler, which is released.
  ///
  /// - Parameter removal: called after each attempt to remove the recording, with the error or, after success, with
  ///   nil.
  func release(
    ending end: RecordingEnd, for upload: UploadResource, _ removal: @escaping (SystemError?) -> Void
  ) -> RecordingOutcome? {
    let ending = keeper
    release()
    return ending?.end(end, for: upload, removal)
  }

  /// What remains of an upload that is over.
  enum Remains {
    /// The outcome of the handler's recording; nil if nothing was kept in one.
    case recording(RecordingOutcome?)
    /// The spooled bytes.
    case spool
  }

  /// The upload is inactive. The handler is released, and its recording is ended.
  ///
  /// - Parameter end: what to do with the recording; nil if no byte is kept. It is called after the handler was
  ///   released, because the recording may then belong to others.
  /// - Parameter removal: called after each attempt to remove the recording, with the error or, after success, with
  ///   nil.
  func abandon(
    _ request: RequestHead?, for upload: UploadResource, _ reason: String, end: () -> RecordingEnd?,
    _ removal: @escaping (SystemError?) -> Void
  ) -> Remains {
    let isAtWork = handler != nil
    guard let last = handler ?? make(request) else {
      release()
      return .spool
    }
    release()
    guard let keeper = last.keeper else {
      if isAtWork { last.handler.aborted(.uploadEnded(reason)) }
      return .spool
    }
    if isAtWork { keeper.park() }
    return .recording(end().map { keeper.end($0, for: upload, removal) })
  }

  // MARK: Bytes

  /// How many bytes are kept, while a handler is active.
  var keptCount: UInt64? { body?.bytes.keptCount }
  /// Whether the kept bytes end before the stored ones; nil if the handler does not keep the bytes.
  var isInside: Bool? { keeper?.isInside }
  /// What the end of the body means for its stream; nil if the handler does not keep the bytes.
  var bodyEnd: BodyEnd? { keeper?.bodyEnd }
  /// Whether something else has replaced the file where the bytes were last.
  var isReplaced: Bool { place?.isReplaced == true }

  /// Keeps bytes, as many as the limits and the disk allow. Returns the reason if any are not kept.
  func append(_ bytes: Span<UInt8>, _ pieces: [Range<Int>], digest: ContentDigest?) -> KeepingError? {
    guard let body = body?.bytes else { return nil }
    let before = body.keptCount
    let error = body.append(bytes, pieces: pieces)
    // The first byte may begin a recording elsewhere, and any byte may be in the next file of its stream.
    if let place = body.place { self.place = place }
    if digest != nil || digests != nil {
      // Without the bytes that the disk or the handler refused.
      let kept = pieces.prefix(octets: Int(body.keptCount - before))
      digest?.update(bytes, kept)
      digests?.update(bytes, kept, at: before)
    }
    return error
  }

  /// Bytes that arrive from now on may be taken back.
  func hold() {
    body?.bytes.hold()
    digests?.save()
  }

  /// They can no longer be taken back.
  func keep() { body?.bytes.release() }

  /// Takes back the bytes beyond `count`.
  func drop(to count: UInt64) throws(SystemError) {
    guard let body = body?.bytes, body.keptCount > count else { return }
    try body.drop(to: count)
    body.release()
    digests?.rewind(to: count)
  }

  /// The bytes were dropped that the disk has refused to sync. Returns false if it may also lack bytes of others.
  func droppedRefused() -> Bool { keeper?.droppedRefused() ?? true }

  /// Checks that nothing else has changed the active handler's file, or the one of its spooled bytes.
  func checkFile() throws(SystemError) {
    try keeper?.checkFile()
    try body?.spooled?.checkFile()
  }

  /// Measures how many bytes are kept while no handler is active.
  func measure(_ ledger: UploadLedger) throws(SystemError) -> KeptExtent {
    let made = make(ledger.request)
    guard ledger.hasBegun else { return try made?.keeper?.measureUnbegun() ?? .bytes(0) }
    guard let made else { return .gone }
    if let keeper = made.keeper {
      let kept = try keeper.measureKept()
      guard let ownOffset = ledger.ownOffset else { return kept }
      switch kept {
      // The bytes of others are compared with the ones that this upload brings.
      case .bytes(let count), .complete(let count, _): return .bytes(min(count, ownOffset))
      case .gone, .closed, .overtaken, .misplaced: return kept
      }
    }
    do throws(SystemError) {
      return try resources.store.measureBody(token).map(KeptExtent.bytes) ?? .gone
    } catch {
      if error.isMissing { return .gone }
      throw error
    }
  }

  /// Syncs the bytes kept so far. Calls `completion` on the loop's thread with their number, or nil for all.
  func synchronize(_ ledger: UploadLedger, _ completion: @escaping (UInt64?, SystemError?) -> Void) {
    if let body { return body.bytes.synchronize { completion($0, $1) } }
    guard ledger.hasBegun else { return completion(nil, nil) }
    // The bytes are not open: an earlier server received them, or they were idle for long.
    if let keeper = make(ledger.request)?.keeper {
      keeper.synchronizeKept { completion(nil, $0) }
    } else {
      resources.store.synchronizeBody(of: token) { completion(nil, $0) }
    }
  }

  // MARK: Digests

  /// Whether the whole representation is compared with a digest, or needs one.
  var hasDigests: Bool { digests != nil }

  /// `Repr-Digest` of the first `offset` bytes, if it was requested and covers all of them.
  func digestField(at offset: UInt64) -> String? { digests?.field(at: offset) }

  /// Compares the whole representation with the digest from the creation. On the loop's thread, now or later.
  func compare(_ completion: @escaping (UploadDigests.Verdict) -> Void) {
    guard let digests, let body else { return completion(.right) }
    digests.catchUp(with: body.bytes, loop: resources.loop, worker: resources.worker, completion)
  }

  /// The digests are no longer needed.
  func abandonDigests() { digests?.abandon() }

  // MARK: Quotas

  /// The spooled bytes' share of the quotas. A handler that keeps its bytes counts them itself.
  private func charge(_ count: UInt64, to share: UploadUsage.Share) -> StreamAccount {
    let account = account ?? resources.newAccount()
    account.shrink(to: count)
    if account.bytes < count { account.charge(count - account.bytes, to: share) }
    self.account = account
    return account
  }

  /// Counts the upload's bytes that an earlier server has left.
  func countRestored(_ ledger: UploadLedger, _ share: UploadUsage.Share?) {
    guard let share, ledger.hasBegun, make(ledger.request)?.keeper == nil else { return }
    _ = charge(ledger.state.offset, to: share)
  }

  /// The bytes no longer count.
  func uncount() { account?.shrink(to: 0) }
}

extension Response {
  /// Whether the same request may succeed later. Such a response is not the answer to a resumable upload.
  fileprivate var asksToRetry: Bool { (status == 503 || status == 507) && hasRetryTime }
  fileprivate var hasRetryTime: Bool { fields.count("retry-after") > 0 }
}
