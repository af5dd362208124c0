// A server's listeners, connections and store, joined. After `start` everything here runs on the loop's thread.

internal import EventLoops
internal import Glibc

/// Owned by the ``UploadServer``; unchecked because the loop's thread is the only one that touches it once it runs.
final class ServerCore: @unchecked Sendable {
  private enum Phase { case serving, finishing, lingering, ended }

  let listeners: [Listener]
  private let loop: EventLoop
  private let context: ConnectionContext
  private let emit: (ServerEvent) -> Void
  private let lingerTimeout: Duration
  /// The directory, which is locked until the end; nil where nothing is stored.
  private let files: FileStore?
  private let registry: StreamRegistry
  private let uploads: UploadResources
  private var connections: [Int32: HTTPConnection] = [:]
  private var phase = Phase.serving
  private var stopTimer: EventLoop.Timer?

  init(_ configuration: UploadServer.Configuration, loop: EventLoop) throws(UploadServerError) {
    self.loop = loop
    emit = configuration.onEvent
    lingerTimeout = configuration.lingerTimeout
    let options = Listener.Options(
      receiveBufferSize: configuration.receiveBufferSize, maximumSegmentSize: configuration.maximumSegmentSize)
    var listeners: [Listener] = []
    for address in configuration.listen { listeners += try Self.listen(address, options, loop) }
    self.listeners = listeners

    let storage = try Self.storage(configuration, loop)
    files = storage.files
    let registry = StreamRegistry(
      store: storage.streams, loop: loop, maximumHole: configuration.maximumHoleLength, emit: configuration.onEvent)
    self.registry = registry
    let timeouts = Timeouts(loop: loop) { kind in
      switch kind {
      case .idle: configuration.keepAliveTimeout
      // An answer that the client does not read is given as long as a head that it does not send.
      case .head, .sending: configuration.headTimeout
      case .body: configuration.bodyIdleTimeout
      case .lingering: configuration.lingerTimeout
      }
    }
    let tokens = try configuration.tokenFile.map { path throws(UploadServerError) in
      try TokenFile(path: path) { configuration.onEvent(ServerEvent(.refused, reason: $0)) }
    }
    let uploads = UploadResources(
      loop: loop, store: storage.records, worker: storage.worker, durability: storage.durability,
      usage: UploadUsage(), options: configuration.uploads, finishedLimit: storage.finishedLimit,
      maximumBodyLength: configuration.maximumBodyLength, emit: configuration.onEvent,
      isValid: { tokens?.isValid($0) ?? true },
      router: { head in configuration.handler(head) ?? Self.route(head, registry) })
    self.uploads = uploads
    let resumable = ResumableUploadHandler(uploads)
    var limits = RequestParser.Limits()
    limits.head = configuration.maximumHeadLength
    limits.fields = configuration.maximumFieldCount
    limits.body = configuration.maximumBodyLength
    context = ConnectionContext(
      loop: loop, timeouts: timeouts, parserLimits: limits,
      router: { head in
        guard let tokens else { return resumable.handler(for: head) }
        guard let credential = tokens.credential(head.fields.single("authorization")) else { return Self.unauthorized }
        var head = head
        head.credential = credential
        return resumable.handler(for: head)
      },
      refused: { peer, refusal in
        configuration.onEvent(ServerEvent(.refused, peer: peer, status: refusal.status, reason: refusal.reason))
      })
  }

  /// What a server stores with.
  private struct StorageParts {
    var files: FileStore?
    var streams: any StreamStore
    var records: any UploadRecords
    var worker: BackgroundWorker
    var durability: Durability
    /// How many records of uploads that are over are kept.
    var finishedLimit: Int
  }

  private static func storage(
    _ configuration: UploadServer.Configuration, _ loop: EventLoop
  ) throws(UploadServerError) -> StorageParts {
    let uploads = configuration.uploads
    switch configuration.storage {
    case .directory(let path):
      let files = try FileStore(path: path, durability: configuration.durability)
      do throws(SystemError) {
        return StorageParts(
          files: files, streams: files,
          records: try UploadRecordStore(in: files, durability: configuration.durability, loop: loop),
          worker: files.worker, durability: configuration.durability, finishedLimit: uploads.maximumCount)
      } catch {
        throw .unwritableDirectory(path, reason: error.description)
      }
    case .discarding:
      return StorageParts(
        files: nil, streams: CountingStore(maximumCount: uploads.maximumCount, maximumAge: uploads.maximumAge),
        records: UnwrittenUploadRecords(), worker: BackgroundWorker(), durability: .none, finishedLimit: 1000)
    }
  }

  /// A name can stand for several addresses (`localhost` is `::1` and `127.0.0.1`): all that this machine has are taken.
  private static func listen(
    _ address: ListenAddress, _ options: Listener.Options, _ loop: EventLoop
  ) throws(UploadServerError) -> [Listener] {
    var listeners: [Listener] = []
    var absent: UploadServerError?
    for candidate in try SocketAddress.resolve(address) {
      do throws(UploadServerError) {
        listeners.append(try Listener(address, candidate, options: options, loop: loop))
      } catch {
        guard case .notOurAddress = error else { throw error }
        absent = error
      }
    }
    if listeners.isEmpty { throw absent ?? .notOurAddress("\(address)") }
    return listeners
  }

  // MARK: Requests

  private static var unauthorized: FixedResponseHandler {
    FixedResponseHandler(
      Response(
        401, ["www-authenticate": "Bearer"], body: "This server asks for a token: Authorization: Bearer TOKEN.\n"))
  }

  private static func route(_ head: RequestHead, _ registry: StreamRegistry) -> any RequestHandler {
    switch head.method {
    case "POST", "PUT": return StreamStoreHandler(head: head, registry: registry)
    case "GET", "HEAD":
      guard head.target.path == "/" else {
        return FixedResponseHandler(Response(404, body: "This server receives streams; it does not hand them out.\n"))
      }
      return FixedResponseHandler(
        Response(
          200, body: "Sluice receives streams here: POST or PUT to any path, chunked or with a Content-Length.\n"))
    case "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT":
      return FixedResponseHandler(
        Response(405, ["allow": "GET, HEAD, POST, PUT, OPTIONS"], body: "Streams are sent with POST or PUT.\n"))
    default: return FixedResponseHandler(Response(501, body: "This server does not know that method.\n"))
    }
  }

  // MARK: Connections

  /// On the thread that is about to run the loop.
  func start() {
    uploads.load()
    context.closed = { [unowned self] descriptor in
      connections[descriptor] = nil
      for listener in listeners { listener.resume() }
      endIfDone()
    }
    for listener in listeners {
      listener.accepted = { [unowned self] descriptor, peer in accepted(descriptor, peer) }
      listener.exhausted = { [unowned self] reason in
        emit(ServerEvent(.refused, reason: "no connection can be accepted: \(reason)"))
      }
      do throws(SystemError) {
        try listener.start()
      } catch {
        // The loop takes the listeners first of all; if even that fails, this is said, and the others go on.
        emit(ServerEvent(.refused, reason: "\(listener.address) is not served: \(error)"))
      }
    }
  }

  private func accepted(_ descriptor: Int32, _ peer: String) {
    do throws(SystemError) {
      connections[descriptor] = try HTTPConnection(descriptor: descriptor, peer: peer, context: context)
    } catch {
      close(descriptor)
      emit(ServerEvent(.refused, peer: peer, reason: error.description))
    }
  }

  // MARK: Stopping

  func stop(grace: Duration) {
    guard phase == .serving || phase == .finishing else { return }
    if let stopTimer { loop.cancel(stopTimer) }
    if phase == .serving {
      phase = .finishing
      context.stops = true
      for listener in listeners { listener.stop() }
      for connection in connections.values where !connection.hasOpenRequest { connection.serverStops() }
    }
    endIfDone()
    if phase == .finishing { stopTimer = loop.schedule(after: grace) { [unowned self] in turnAway() } }
  }

  /// The grace is over: who is still sending is told where it stands, and given time to read that.
  private func turnAway() {
    phase = .lingering
    for connection in connections.values { connection.serverStops() }
    endIfDone()
    if phase == .lingering { stopTimer = loop.schedule(after: lingerTimeout) { [unowned self] in end() } }
  }

  private func endIfDone() {
    if (phase == .finishing || phase == .lingering) && connections.isEmpty { end() }
  }

  private func end() {
    guard phase != .ended else { return }
    phase = .ended
    if let stopTimer { loop.cancel(stopTimer) }
    for connection in connections.values { connection.abandon() }
    context.timeouts.cancel()
    // The disk may still be at work on a stream that has ended: its file gets its name, and its event, first.
    registry.whenNothingFinishes { [self] in
      uploads.end { [self] in
        files?.unlock()
        loop.stop()
      }
    }
  }
}
