// One loop of a server: its connections and its part of the streams and uploads, joined. After `start` everything here
// runs on the loop's thread.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import Metrics
internal import ResumableServing
internal import StreamServing
internal import StreamStore

/// Owned by the ``UploadServer``; unchecked because the loop's thread is the only one that touches it once it runs.
final class ServerCore: @unchecked Sendable {
  private let loop: EventLoop
  /// The connections of this loop.
  let connections: ServerConnections
  private let emit: (ServerEvent) -> Void
  private let registry: StreamRegistry
  private let uploads: UploadResources
  private let counter: LoopFigures

  /// Does work on this loop when each request that has reached the server by now has reached its loop.
  var gather: (@escaping @Sendable () -> Void) -> Void {
    get { uploads.gather }
    set { uploads.gather = newValue }
  }
  /// Everything has ended here.
  var ended: () -> Void = {}

  init(
    _ configuration: UploadServer.Configuration, _ shared: SharedStorage, _ assignment: LoopAssignment,
    loop: EventLoop
  ) throws(UploadServerError) {
    self.loop = loop
    let figures = LoopFigures()
    counter = figures
    let emit = { (event: ServerEvent) in
      figures.values.happened(event.kind)
      configuration.onEvent(event)
    }
    self.emit = emit
    let storage = try shared.parts(assignment, loop)
    let tokens = try configuration.tokenFile.map { path throws(UploadServerError) in
      try TokenFile(path: path) { emit(ServerEvent(.warning, reason: $0)) }
    }
    let isValid = { (credential: [UInt8]) in tokens?.isValid(credential) ?? true }
    let context = ServingContext(
      loop: loop, assignment: assignment, figures: figures, finishAfter: configuration.finishAfter, isValid: isValid,
      emit: emit)
    let registry = StreamRegistry(
      context, store: storage.streams,
      limits: StreamLimits(
        options: configuration.uploads, usage: shared.usage, accounts: storage.accounts, worker: storage.worker,
        loop: loop),
      maximumHole: configuration.maximumHoleLength)
    self.registry = registry
    let uploads = UploadResources(
      context,
      .init(
        options: configuration.uploads, durability: storage.durability,
        bootIdentifier: configuration.bootIdentifier ?? "", finishedLimits: storage.finishedLimits,
        maximumBodyLength: configuration.maximumBodyLength),
      store: storage.records, worker: storage.worker, usage: shared.usage, accounts: storage.accounts,
      router: { head in configuration.handler(head) ?? Self.route(head, registry) })
    self.uploads = uploads
    uploads.loaded = { registry.restored() }
    let resumable = ResumableUploadHandler(uploads)
    var limits = RequestParser.Limits()
    limits.head = configuration.maximumHeadLength
    limits.fields = configuration.maximumFieldCount
    limits.body = configuration.maximumBodyLength
    connections = ServerConnections(
      loop: loop,
      timeLimits: .init(
        head: configuration.headTimeout, body: configuration.bodyIdleTimeout, keepAlive: configuration.keepAliveTimeout,
        linger: configuration.lingerTimeout),
      parserLimits: limits,
      router: { head in
        guard let tokens else { return resumable.handler(for: head) }
        guard let credential = tokens.credential(head.fields.single("authorization")) else { return Self.unauthorized }
        var head = head
        head.credential = credential
        return resumable.handler(for: head)
      },
      refused: { peer, refusal, reason in
        emit(ServerEvent(.refused, peer: peer, status: refusal?.status, reason: reason))
      })
    connections.otherLoop = { head in
      let owner = ResumableUploadHandler.owner(of: head, among: assignment)
      return owner == assignment.index ? nil : owner
    }
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

  // MARK: Beginning

  /// Takes up what an earlier server has left, as far as `patience` goes; the loop does the rest. Before any loop runs.
  func load(patience: Duration) { uploads.load(patience: patience) }

  /// An earlier server has left a recording unfinished. Any thread.
  func found(_ name: StreamName, silentFor seconds: Int64) {
    loop.execute { [self] in registry.found(name, silentFor: seconds) }
  }

  /// What an earlier server has left unfinished cannot be listed. Any thread.
  func cannotFind(_ error: SystemError) {
    loop.execute { [self] in
      say("recordings that were left unfinished cannot be found: \(error). They stay so until the next start.")
    }
  }

  /// The recordings that an earlier server has closed of a stream were removed. Any thread.
  func forgetClosed(_ base: String) { loop.execute { [self] in registry.forgetClosed(base) } }

  /// Before the first connection.
  func start() {
    connections.ended = { [unowned self] in end() }
    connections.start()
  }

  /// Something that another thread has done. Any thread.
  func report(_ event: ServerEvent) { loop.execute { [self] in emit(event) } }

  /// Something about the server and not about a connection.
  func say(_ reason: String) { emit(ServerEvent(.warning, reason: reason)) }

  // MARK: Figures

  /// Gives the figures of this loop to `answer`, on the loop's thread. Any thread.
  func figures(_ answer: @escaping @Sendable (ServerFigures) -> Void) {
    let asked = MonotonicInstant.now
    loop.execute { [self] in
      var values = counter.values
      values.connections = connections.figures
      values.lags = [(MonotonicInstant.now - asked).seconds]
      answer(values)
    }
  }

  // MARK: End

  private func end() {
    registry.stop()
    // The disk may still be at work on a stream that has ended: its file gets its name, and its event, first.
    registry.whenNothingFinishes { [self] in
      uploads.end { [self] in
        ended()
        loop.stop()
      }
    }
  }
}
