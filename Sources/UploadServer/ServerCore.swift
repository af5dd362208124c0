// One loop of a server, which combines its connections and its part of the streams and uploads. After `start`, all of
// it runs on the loop's thread.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import StreamServing

/// Owned by the ``UploadServer``.
final class ServerCore {
  private let loop: EventLoop
  /// The connections of this loop.
  let connections: ServerConnections
  private let emit: (ServerEvent) -> Void
  private let service: any LoopService
  /// nil if nothing is stored in files.
  private let directory: DirectoryService?
  private let counter: ServerLoopFigures
  /// The token file if it has no tokens at the start. nil for all loops but the first.
  private let emptyTokenFile: String?
  /// The number of parts that have not ended: the connections, and the service behind them.
  private var unended = 2

  /// Performs work on this loop once each request that has reached the server by now has reached its loop.
  func gather(by gather: @escaping (@escaping @Sendable () -> Void) -> Void) {
    directory?.gather(by: gather)
  }
  /// Called with the last metrics of this loop when everything has ended here.
  var ended: (ServerFigures) -> Void = { _ in }

  init(
    _ configuration: UploadServer.Configuration, _ shared: SharedStorage, _ assignment: LoopAssignment,
    loop: EventLoop
  ) throws(UploadServerError) {
    self.loop = loop
    let figures = ServerLoopFigures()
    counter = figures
    let emit = { (event: ServerEvent) in
      figures.values.happened(event.kind)
      configuration.onEvent(event)
    }
    self.emit = emit
    let tokens = try configuration.tokenFile.map { path throws(UploadServerError) in
      try TokenFile(path: path) { emit(ServerEvent(.warning, reason: $0)) }
    }
    emptyTokenFile = assignment.index == 0 && tokens?.isEmpty == true ? configuration.tokenFile : nil
    let isValid = { (credential: [UInt8]) in tokens?.isValid(credential) ?? true }
    let context = ServingContext(
      loop: loop, assignment: assignment, figures: figures, finishAfter: configuration.finishAfter, isValid: isValid,
      emit: emit)
    if let brokers = shared.brokers {
      directory = nil
      service = LogService(context, configuration, brokers)
    } else {
      let directory = try DirectoryService(context, configuration, shared)
      self.directory = directory
      service = directory
    }
    let service = service
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
        guard let tokens else { return service.handler(for: head) }
        guard let credential = tokens.credential(head.fields.single("authorization")) else { return Self.unauthorized }
        var head = head
        head.credential = credential
        return service.handler(for: head)
      },
      refused: { peer, refusal, reason in
        emit(ServerEvent(.refused, peer: peer, status: refusal?.status, reason: reason))
      })
    connections.otherLoop = { service.otherLoop(of: $0) }
  }

  // MARK: Requests

  private static var unauthorized: FixedResponseHandler {
    FixedResponseHandler(
      Response(
        401, ["www-authenticate": "Bearer"], body: "This server requires a token: Authorization: Bearer TOKEN.\n"))
  }

  // MARK: Beginning

  /// Takes up the state of an earlier server, for as long as `patience` allows. The loop does the rest. Before any loop
  /// runs.
  func load(patience: Duration) { service.load(patience: patience) }

  /// An earlier server has left a recording unfinished.
  func found(_ name: StreamName, silentFor seconds: Int64) { directory?.registry.found(name, silentFor: seconds) }

  /// The search for unfinished recordings of an earlier server has failed.
  func cannotFind(_ error: SystemError) {
    say("cannot find unfinished recordings: \(error). The server retries. Until then, some of them stay unfinished.")
  }

  /// The closed recordings of a stream from an earlier server were removed.
  func forgetClosed(_ base: String) { directory?.registry.forgetClosed(base) }

  /// Before the first connection.
  func start() {
    // The disk receives the uploaded bytes while downloads continue.
    connections.requestsEnded = { [unowned self] in service.end { [self] in partEnded() } }
    connections.ended = { [unowned self] in partEnded() }
    if let path = emptyTokenFile {
      say(
        "the token file \"\(path)\" has no tokens, so every request gets 401. Write the SHA-256 of each token into it, "
          + "as sha256sum prints it. The server reads the file again when it changes.")
    }
    connections.start()
  }

  /// Reports an action of another thread.
  func report(_ event: ServerEvent) { emit(event) }

  /// Reports an event of the server that does not concern a connection.
  func say(_ reason: String) { emit(ServerEvent(.warning, reason: reason)) }

  // MARK: Figures

  /// The metrics of this loop.
  ///
  /// - Parameter asked: when another thread asked for them, to measure how late the loop is.
  func figures(asked: MonotonicInstant) -> ServerFigures {
    var values = counter.values
    values.connections = connections.figures
    values.lags = [(MonotonicInstant.now - asked).seconds]
    return values
  }

  // MARK: End

  private func partEnded() {
    unended -= 1
    guard unended == 0 else { return }
    ended(figures(asked: .now))
    loop.stop()
  }
}
