// GET /metrics on a port of its own: whoever may upload need not read it, and whoever reads it cannot upload.

public import EventLoops
internal import Glibc
public import Metrics

/// A small HTTP server that answers `GET /metrics` with a page of figures, for Prometheus, `GET /healthz` with 200
/// while its thread runs, and `GET /readyz` with 200 or 503. Whatever else is asked is 404.
///
///     let listener = try MetricsListener(listen: ListenAddress("127.0.0.1:9090")) { answer in
///       var page = MetricsText()
///       page.counter("mine_sent_bytes_total", "Bytes sent.", figures.sent)
///       answer(page)
///     }
///     try listener.start()
///
/// The page gets the process's own figures (`process_resident_memory_bytes` and the like) added.
public final class MetricsListener: Sendable {
  /// Makes the page, or has it made, and gives it back from any thread, once. Called for each question, on the loop.
  public typealias PageMaker = @Sendable (_ answer: @escaping @Sendable (MetricsText) -> Void) -> Void

  private let core: MetricsCore
  private let loop: EventLoop
  private let ownsLoop: Bool

  /// Where it listens, with the ports that the kernel chose where 0 was asked for.
  public let localAddresses: [ListenAddress]

  /// Binds the address.
  ///
  /// - Parameters:
  ///   - address: who can reach it can read the figures.
  ///   - loop: runs on this one, which somebody else runs; nil for a thread of its own.
  ///   - isReady: whether `/readyz` is to be answered with 200; on the loop.
  ///   - makePage: is called for each question.
  /// - Throws: ``ListenError``, whose description says what to do.
  public init(
    listen address: ListenAddress, on loop: EventLoop? = nil, isReady: @escaping @Sendable () -> Bool = { true },
    makePage: @escaping PageMaker
  ) throws(ListenError) {
    ownsLoop = loop == nil
    do throws(SystemError) {
      self.loop = if let loop { loop } else { try EventLoop() }
    } catch {
      throw .resources(error.description)
    }
    core = try MetricsCore(address, self.loop, isReady, makePage)
    localAddresses = core.listeners.map(\.address)
  }

  /// Begins to answer. Any thread, once. Throws ``EventLoops/SystemError`` if there is no thread to be had.
  public func start() throws(SystemError) {
    loop.execute { self.core.start() }
    if ownsLoop { try NamedThread("sluice-metrics") { self.loop.run() }.detach() }
  }

  /// Stops listening and closes what is open. Any thread; returns at once.
  public func stop() {
    loop.execute { [self] in
      core.stop()
      if ownsLoop { loop.stop() }
    }
  }
}

/// Listeners and connections. After `start` only on the loop's thread, which is why it may be unchecked.
private final class MetricsCore: @unchecked Sendable {
  /// Prometheus opens one. For each one more, the connection that has been idle for longest is closed.
  private static let maximumConnections = 16

  let listeners: [Listener]
  private let context: ConnectionContext
  private var connections: [Int32: HTTPConnection] = [:]

  init(
    _ address: ListenAddress, _ loop: EventLoop, _ isReady: @escaping @Sendable () -> Bool,
    _ makePage: @escaping MetricsListener.PageMaker
  ) throws(ListenError) {
    listeners = try Listener.all(at: address, Listener.Options(), loop)
    let timeouts = Timeouts(loop: loop) { kind in kind == .idle ? .seconds(120) : .seconds(10) }
    var limits = RequestParser.Limits()
    limits.body = 0
    context = ConnectionContext(
      loop: loop, timeouts: timeouts, parserLimits: limits, bufferCapacity: 8 * 1024,
      router: { head in
        let path = head.target.path
        guard ["/metrics", "/healthz", "/readyz"].contains(path) else {
          return FixedResponseHandler(Response(404, body: "Figures for Prometheus are at /metrics.\n"))
        }
        guard head.method == "GET" || head.method == "HEAD" else {
          return FixedResponseHandler(Response(405, ["allow": "GET, HEAD"], body: "Figures are only to be read.\n"))
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
      // Without a descriptor nobody is answered; it is tried again after a while.
      do throws(SystemError) { try listener.start() } catch { listener.stop() }
    }
  }

  func stop() {
    for listener in listeners { listener.stop() }
    for connection in connections.values { connection.abandon() }
    context.timeouts.cancel()
  }
}

/// One question.
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
    // Touched on the loop's thread only; the page's maker merely carries it back there.
    nonisolated(unsafe) let handler = self
    makePage { [loop] page in loop.execute { handler.answer(page) } }
  }

  private func answer(_ page: MetricsText) {
    var page = page
    ProcessFigures.add(to: &page)
    // Let go of first: the connection lets go of us in turn.
    let exchange = exchange
    self.exchange = nil
    exchange?.respond(Response(200, ["cache-control": "no-store"], body: page.text, type: MetricsText.mediaType))
  }

  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  func end() {}
  func aborted(_ reason: AbortReason) { exchange = nil }
  func serverStops() {}
}
