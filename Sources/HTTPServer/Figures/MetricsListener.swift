// GET /metrics on a separate port, so that access to uploads and to metrics can be separated.

public import EventLoops
internal import Glibc
public import Metrics

/// A small HTTP server for Prometheus. It answers `GET /metrics` with the metrics, `GET /healthz` with 200 while its
/// thread runs, and `GET /readyz` with 200 or 503. Any other path gets 404.
///
///     let listener = try MetricsListener(listen: ListenAddress("127.0.0.1:9090")) { answer in
///       var page = MetricsText()
///       page.counter("mine_sent_bytes_total", "Bytes sent.", figures.sent)
///       answer(page)
///     }
///     try listener.start()
///
/// The page also has the metrics of the process (`process_resident_memory_bytes` and others).
public final class MetricsListener: Sendable {
  /// Makes the page and passes it to `answer` once, from any thread. Called for each request, on the loop. Without a
  /// page, it releases `answer`, and the request gets 503.
  public typealias PageMaker = @Sendable (_ answer: @escaping @Sendable (MetricsText) -> Void) -> Void

  private let core: LoopOwned<MetricsCore>
  private let loop: EventLoop
  private let ownsLoop: Bool

  /// The addresses on which it listens, with the ports that the kernel chose for port 0.
  public let localAddresses: [ListenAddress]

  /// Binds the address.
  ///
  /// - Parameters:
  ///   - address: every client that can reach it can read the metrics.
  ///   - loop: the loop to use, which the caller runs. Nil creates a separate thread.
  ///   - isReady: whether `/readyz` is answered with 200. Called on the loop.
  ///   - failed: called with the reason, on the loop, if an address cannot be served yet. The listener retries.
  ///   - makePage: called for each request.
  /// - Throws: ``ListenError``, whose description names the remedy.
  public init(
    listen address: ListenAddress, on loop: EventLoop? = nil, isReady: @escaping @Sendable () -> Bool = { true },
    failed: @escaping @Sendable (String) -> Void = { _ in }, makePage: @escaping PageMaker
  ) throws(ListenError) {
    ownsLoop = loop == nil
    do throws(SystemError) {
      self.loop = if let loop { loop } else { try EventLoop() }
    } catch {
      throw .resources(error.description)
    }
    let core = try MetricsCore(address, self.loop, isReady, failed, makePage)
    localAddresses = core.listeners.map(\.address)
    self.core = LoopOwned(core, on: self.loop)
  }

  /// Starts to answer. Any thread, only once. Throws ``EventLoops/SystemError`` if no thread can be created.
  public func start() throws(SystemError) {
    core.execute { $0.start() }
    if ownsLoop { try NamedThread("sluice-metrics") { self.loop.run() }.detach() }
  }

  /// Stops listening, and closes all connections. Any thread. Returns at once.
  public func stop() {
    core.execute { [loop, ownsLoop] core in
      core.stop()
      if ownsLoop { loop.stop() }
    }
  }
}

/// The listeners and connections. Only on the loop's thread.
private final class MetricsCore {
  /// Prometheus opens one connection. For each further one, the one that has been idle for longest is closed.
  private static let maximumConnections = 16

  let listeners: [Listener]
  private let context: ConnectionContext
  private let failed: (String) -> Void
  private var connections: [Int32: HTTPConnection] = [:]

  init(
    _ address: ListenAddress, _ loop: EventLoop, _ isReady: @escaping @Sendable () -> Bool,
    _ failed: @escaping (String) -> Void, _ makePage: @escaping MetricsListener.PageMaker
  ) throws(ListenError) {
    self.failed = failed
    listeners = try Listener.all(at: address, Listener.Options(), loop)
    let timeouts = Timeouts(loop: loop) { kind in kind == .idle ? .seconds(120) : .seconds(10) }
    var limits = RequestParser.Limits()
    limits.body = 0
    context = ConnectionContext(
      loop: loop, timeouts: timeouts, parserLimits: limits, bufferCapacity: 8 * 1024,
      router: { head in
        let path = head.target.path
        guard ["/metrics", "/healthz", "/readyz"].contains(path) else {
          return FixedResponseHandler(Response(404, body: "The metrics for Prometheus are at /metrics.\n"))
        }
        guard head.method == "GET" || head.method == "HEAD" else {
          return FixedResponseHandler(Response(405, ["allow": "GET, HEAD"], body: "The metrics are read-only.\n"))
        }
        switch path {
        case "/healthz": return FixedResponseHandler(Response(200, body: "alive\n"))
        case "/readyz":
          return FixedResponseHandler(isReady() ? Response(200, body: "ready\n") : Response(503, body: "not ready\n"))
        default: return PageHandler(loop, makePage)
        }
      }, refused: { _, _ in })
  }

  func start() {
    context.closed = { [unowned self] in connections[$0] = nil }
    for listener in listeners {
      listener.accepted = { [unowned self] descriptor, peer in
        if connections.count >= Self.maximumConnections { context.timeouts.mostDispensable?.makeRoom() }
        guard connections.count < Self.maximumConnections,
          let connection = try? HTTPConnection(descriptor: descriptor, peer: peer, context: context)
        else {
          close(descriptor)
          return
        }
        connections[descriptor] = connection
      }
      listener.makeRoom = { [context] in
        guard let connection = context.timeouts.mostDispensable else { return false }
        connection.makeRoom()
        return true
      }
      do throws(SystemError) {
        try listener.start()
      } catch {
        failed("cannot accept connections at \(listener.address): \(error)")
      }
    }
  }

  func stop() {
    for listener in listeners { listener.stop() }
    for connection in connections.values { connection.abandon() }
    context.timeouts.cancel()
  }
}

/// Handles one request.
private final class PageHandler: RequestHandler {
  private let loop: EventLoop
  private let makePage: MetricsListener.PageMaker
  private var exchange: (any Exchange)?

  init(_ loop: EventLoop, _ makePage: @escaping MetricsListener.PageMaker) {
    self.loop = loop
    self.makePage = makePage
  }

  func begin(_ exchange: any Exchange) {
    self.exchange = exchange
    let answer = PageAnswer(LoopOwned(self, on: loop))
    makePage { page in answer.send(page) }
  }

  /// - Parameter page: nil if there will be none. Ignored after the first answer.
  fileprivate func answer(_ page: MetricsText?) {
    guard let exchange else { return }
    // Released first, because the connection then releases us.
    self.exchange = nil
    guard var page else {
      return exchange.respond(Response(503, ["retry-after": "2"], body: "There are no metrics now.\n"))
    }
    ProcessFigures.add(to: &page)
    exchange.respond(Response(200, ["cache-control": "no-store"], body: page.text, type: MetricsText.mediaType))
  }

  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  func end() {}
  func aborted(_ reason: AbortReason) { exchange = nil }
  func serverStops() {}
}

/// Answers a request with its page, or with 503 when the page maker has released it. Otherwise, the client would wait
/// for ever, and its connection would count.
private final class PageAnswer: Sendable {
  private let handler: LoopOwned<PageHandler>

  init(_ handler: LoopOwned<PageHandler>) { self.handler = handler }

  func send(_ page: MetricsText) { handler.execute { $0.answer(page) } }

  deinit { handler.execute { $0.answer(nil) } }
}
