// The bytes of an upload on their way to its handler and to the disk: kept, counted, digested, synced, read again.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

/// The handler within an upload and the bytes that it is given: begun when they are needed, given up when they are not,
/// begun again where they stood. Only on the loop's thread.
final class UploadContent {
  private let token: String
  private unowned let resources: UploadResources
  /// What the wrapped handler has of the upload; nil while there is no handler.
  private var exchange: UploadResourceExchange?
  private var handler: RoutedHandler?
  private var body: Body?
  /// Whether the handler that was made last keeps the bytes itself. They are all of one kind: the router makes them for
  /// the same request.
  private(set) var isKeptByHandler = false
  /// Whether the handler has said that it wants the body.
  private(set) var isAccepted = false
  /// Where the bytes lay when the handler was at work last.
  private var place: FilePlace?
  /// What the bytes take of the quotas, if they are spooled.
  private var account: StreamAccount?
  /// The digests of all bytes, if the creation gave one or asked for one.
  private let digests: UploadDigests?

  /// Where bytes go while the handler is there.
  private enum Body {
    case kept(HandlerKeptBody)
    case spooled(SpooledBody)

    var bytes: any UploadBody {
      switch self {
      case .kept(let body): body
      case .spooled(let body): body
      }
    }

    var spooled: SpooledBody? { if case .spooled(let body) = self { body } else { nil } }
  }

  /// - Parameter fields: of the creation.
  init(_ token: String, _ fields: HeaderFields, _ resources: UploadResources) {
    (self.token, self.resources) = (token, resources)
    digests = UploadDigests(fields)
  }

  // MARK: The handler

  /// Whether there is a handler at work.
  var isOpen: Bool { handler != nil }
  private var keeper: (any KeepingRequestHandler)? { handler?.keeper }

  /// A handler for the request, which is not begun; nil if the request is none.
  private func make(_ request: RequestHead?) -> RoutedHandler? {
    let handler = request.map(resources.router)
    isKeptByHandler = handler?.keeper != nil
    return handler
  }

  /// Makes the handler of an upload, and a place for its bytes. ``begin(_:)`` follows.
  ///
  /// - Parameter unreadable: called when bytes that were kept cannot be read again now, or never (`ESTALE`).
  /// - Returns: false if there can be none.
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

  /// The handler is given its request.
  func begin(for upload: UploadResource, _ ledger: UploadLedger) {
    guard let exchange, let handler else { return }
    guard let keeper else { return handler.handler.begin(exchange) }
    if ledger.hasBegun {
      // What others have brought behind it since is compared with what comes.
      keeper.restoreKeeping(exchange, for: upload, at: ledger.state.offset)
    } else {
      keeper.beginKeeping(exchange, for: upload)
    }
  }

  /// The handler wants the body. False if it had said so.
  func accept() -> Bool {
    defer { isAccepted = true }
    return !isAccepted
  }

  /// The handler may have the bytes, and clients may send more.
  func feed() {
    body?.spooled?.accept()
    place = body?.bytes.place
    if let body, let digests {
      digests.catchUpInBackground(with: body.bytes, loop: resources.loop, worker: resources.worker)
    }
  }

  /// The handler takes no more of its body for now. Its bytes are kept all the same, and acknowledged.
  func pause() { body?.spooled?.pause() }
  func resume() { body?.spooled?.resume() }

  /// All bytes are here, and the handler has its turn.
  func end() { body?.bytes.end() }

  /// Has a handler that keeps its bytes let go of them.
  func park() { keeper?.park() }

  /// The handler will never have all bytes, and hears that unless it keeps them.
  func abort(_ reason: String) {
    if let keeper { keeper.park() } else { handler?.handler.aborted(.uploadEnded(reason)) }
  }

  /// Lets go of the handler.
  func release() {
    exchange?.cutOff()
    exchange = nil
    body?.spooled?.stopFeeding()
    body = nil
    handler = nil
    isAccepted = false
  }

  /// No request needs the file. False if the handler is to be let go: another one goes on behind what it has kept. One
  /// that keeps nothing was promised one request without a break, and stays.
  func rest() -> Bool {
    guard keeper == nil else { return false }
    body?.spooled?.closeFile()
    return true
  }

  /// The server has ended: an upload and its handler, which refer to each other, part. What is on the disk stays.
  func part() {
    keeper?.park()
    digests?.abandon()
    let handler = keeper == nil ? handler : nil
    release()
    handler?.handler.aborted(.uploadEnded("the server is stopping"))
  }

  // MARK: What the handler says

  /// Whether `action` will be called later, because the handler just gives the bytes their final form, or removes them.
  func isEnding(_ action: @escaping () -> Void) -> Bool { keeper?.isEnding(action) == true }

  /// As ``isEnding(_:)``, where no handler is at work: another request may be at it.
  func isEnding(_ request: RequestHead?, _ action: @escaping () -> Void) -> Bool {
    make(request)?.keeper?.isEnding(action) == true
  }

  /// What a response of the handler is about.
  enum Verdict {
    case lostFile
    /// The stream does not take the upload.
    case refused(StreamRefusal)
    /// The disk did not take the end.
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
    // What it keeps is there to be completed, whatever the status says of the reason.
    return response.hasRetryTime ? .later : .processed(isTold: true)
  }

  /// Whether the handler's response is about an error of the disk.
  var isRefusedByDisk: Bool { keeper?.diskError != nil }

  /// What a later request of the upload says of its stream.
  func describe(_ fields: HeaderFields) { keeper?.describe(fields) }

  /// An event about the upload, as the handler tells it that is at work, or would be.
  func event(_ kind: ServerEvent.Kind, _ request: RequestHead?) -> ServerEvent {
    (handler ?? make(request))?.keeper?.describe(kind) ?? ServerEvent(kind)
  }

  // MARK: Recordings

  /// The upload is one of an earlier server, and has begun.
  func restoreHolding(_ request: RequestHead?, for upload: UploadResource) {
    make(request)?.keeper?.restoreHolding(upload)
  }

  /// The upload will never be complete, or is so without its handler.
  func endHolding(_ request: RequestHead?, _ end: RecordingEnd, for upload: UploadResource) {
    make(request)?.keeper?.end(end, for: upload)
  }

  /// The same for the handler at work, which is let go.
  ///
  /// - Parameter removal: told the end of each attempt to remove the recording, nil of the one that succeeded.
  func release(
    ending end: RecordingEnd, for upload: UploadResource, _ removal: @escaping (SystemError?) -> Void
  ) -> RecordingOutcome? {
    let ending = keeper
    release()
    return ending?.end(end, for: upload, removal)
  }

  /// What is left of an upload that is over.
  enum Remains {
    /// What became of the handler's recording; nil if nothing was kept in one.
    case recording(RecordingOutcome?)
    /// What was spooled.
    case spool
  }

  /// The upload is inactive: the handler is let go, and what it keeps is ended.
  ///
  /// - Parameter end: what becomes of the recording, asked once the handler is off it, because others may have it then;
  ///   nil if no byte was to be kept.
  /// - Parameter removal: told the end of each attempt to remove the recording, nil of the one that succeeded.
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

  /// How many bytes are kept, while a handler is at work.
  var keptCount: UInt64? { body?.bytes.keptCount }
  /// Whether what is kept ends before the end of what is stored; nil where the bytes are not the handler's to keep.
  var isInside: Bool? { keeper?.isInside }
  /// Whether something else has replaced the file where the bytes lay last.
  var isReplaced: Bool { place?.isReplaced == true }

  /// Keeps bytes, as many as the limits and the disk allow, and says what kept the rest from it.
  func append(_ bytes: Span<UInt8>, _ pieces: [Range<Int>], digest: ContentDigest?) -> KeepingError? {
    guard let body = body?.bytes else { return nil }
    let before = body.keptCount
    let error = body.append(bytes, pieces: pieces)
    if digest != nil || digests != nil {
      // Not those that the disk did not take, nor those that the handler turned down.
      let kept = pieces.prefix(octets: Int(body.keptCount - before))
      digest?.update(bytes, kept)
      digests?.update(bytes, kept, at: before)
    }
    return error
  }

  /// Bytes that come from now on may be taken back.
  func hold() {
    body?.bytes.hold()
    digests?.save()
  }

  /// They will not be.
  func keep() { body?.bytes.release() }

  /// Takes back what is kept beyond `count`.
  func drop(to count: UInt64) throws(SystemError) {
    guard let body = body?.bytes, body.keptCount > count else { return }
    try body.drop(to: count)
    body.release()
    digests?.rewind(to: count)
  }

  /// Checks that nothing else has changed what the handler at work keeps.
  func checkFile() throws(SystemError) { try keeper?.checkFile() }

  /// Looks how many bytes are kept while no handler is there to say so.
  func measure(_ ledger: UploadLedger) throws(SystemError) -> KeptExtent {
    let made = make(ledger.request)
    guard ledger.hasBegun else { return try made?.keeper?.measureUnbegun() ?? .bytes(0) }
    guard let made else { return .gone }
    if let keeper = made.keeper {
      let kept = try keeper.measureKept()
      guard let ownOffset = ledger.ownOffset else { return kept }
      switch kept {
      // What others have brought is compared with what this upload brings.
      case .bytes(let count), .complete(let count, _): return .bytes(min(count, ownOffset))
      case .gone, .closed, .overtaken, .misplaced: return kept
      }
    }
    do throws(SystemError) {
      return .bytes(try resources.store.measureBody(token))
    } catch {
      if error.isMissing { return .gone }
      throw error
    }
  }

  /// Has the disk take what is kept by now; calls `completion` on the loop's thread with how many bytes that is, nil
  /// for all.
  func synchronize(_ ledger: UploadLedger, _ completion: @escaping (UInt64?, SystemError?) -> Void) {
    if let body { return body.bytes.synchronize { completion($0, $1) } }
    guard ledger.hasBegun else { return completion(nil, nil) }
    // Nobody has the bytes open: an earlier server brought them, or they were left alone for long.
    if let keeper = make(ledger.request)?.keeper {
      keeper.synchronizeKept { completion(nil, $0) }
    } else {
      resources.store.synchronizeBody(of: token) { completion(nil, $0) }
    }
  }

  // MARK: Digests

  /// Whether the whole is compared with a digest, or is to have one.
  var hasDigests: Bool { digests != nil }

  /// `Repr-Digest` of the first `offset` bytes, if it was asked for and all of them are in.
  func digestField(at offset: UInt64) -> String? { digests?.field(at: offset) }

  /// Compares the whole with the digest that the creation gave. On the loop's thread, now or later.
  func compare(_ completion: @escaping (UploadDigests.Verdict) -> Void) {
    guard let digests, let body else { return completion(.right) }
    digests.catchUp(with: body.bytes, loop: resources.loop, worker: resources.worker, completion)
  }

  /// Nobody will ask for them.
  func abandonDigests() { digests?.abandon() }

  // MARK: Quotas

  /// What the spooled bytes take of the quotas. A handler that keeps its bytes counts them itself.
  private func charge(_ count: UInt64, to share: UploadUsage.Share) -> StreamAccount {
    let account = account ?? resources.newAccount()
    account.shrink(to: count)
    if account.bytes < count { account.charge(count - account.bytes, to: share) }
    self.account = account
    return account
  }

  /// Counts what an earlier server has left of the upload.
  func countRestored(_ ledger: UploadLedger, _ share: UploadUsage.Share?) {
    guard let share, ledger.hasBegun, make(ledger.request)?.keeper == nil else { return }
    _ = charge(ledger.state.offset, to: share)
  }

  /// The bytes are nobody's concern any more.
  func uncount() { account?.shrink(to: 0) }
}

extension Response {
  /// Whether the same request may succeed later: then it does not answer for an upload that can be resumed.
  fileprivate var asksToRetry: Bool { (status == 503 || status == 507) && hasRetryTime }
  fileprivate var hasRetryTime: Bool { fields.count("retry-after") > 0 }
}
