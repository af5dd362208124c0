// A transparent proxy that reports each message.

internal import CLinux
internal import EventLoops
internal import Glibc

/// Forwards HTTP/1.1 between clients and servers, which get the connections in rotation. One thread with an
/// ``EventLoop``.
package final class RecordingProxy: Sendable {
  package enum Event: Sendable {
    /// The head of a request is about to go to the server.
    case request(MessageHead)
    /// This number of the request's content bytes is about to go to the server.
    case content(Int)
    /// The request is complete.
    case requestEnded
    /// The head of a response, interim or final, is about to go to the client.
    case response(MessageHead)
    /// No final response will follow.
    case broken
  }

  /// `ADDRESS:PORT` that clients connect to.
  package let address: String
  private let loop: EventLoop
  private let traffic: RecordedTraffic
  private let thread: Lock<NamedThread?>

  /// - Parameters:
  ///   - servers: `ADDRESS:PORT`, IPv4. Any of them may be down.
  ///   - listen: where to listen; port 0 lets the kernel choose.
  ///   - record: called on the proxy's thread, with the number of the exchange.
  package init(
    to servers: [String], listen: String = "127.0.0.1:0", record: @escaping @Sendable (Int, Event) -> Void
  ) throws {
    let servers = try servers.map { try IPv4Address($0) }
    let (local, loop) = (try IPv4Address(listen), try EventLoop())
    let listener = try BoundedSocket.make()
    do {
      try retryingInterrupts("bind \(local)") { local.withPointer { Glibc.bind(listener, $0, $1) } }
      try retryingInterrupts("listen") { Glibc.listen(listener, 1024) }
      address = try IPv4Address(of: listener).description
    } catch {
      close(listener)
      throw error
    }
    let traffic = RecordedTraffic(listener: listener, servers: servers, loop: loop, record: record)
    (self.loop, self.traffic) = (loop, traffic)
    thread = Lock(
      try NamedThread("recording proxy") {
        traffic.start()
        loop.run()
        traffic.stop()
      })
  }

  deinit { stop() }

  /// Ends all connections and the thread, after which nothing is recorded. Not on the proxy's own thread.
  package func stop() {
    loop.stop()
    thread.withLock { thread in
      thread?.join()
      thread = nil
    }
  }
}

/// Unchecked, because only the loop's thread uses it once it runs.
private final class RecordedTraffic: @unchecked Sendable {
  private let listener: Int32
  private let servers: [IPv4Address]
  private let loop: EventLoop
  let record: (Int, RecordingProxy.Event) -> Void
  private var connections: [Int: RecordedConnection] = [:]
  private var (connectionCount, exchangeCount) = (0, 0)

  init(
    listener: Int32, servers: [IPv4Address], loop: EventLoop, record: @escaping (Int, RecordingProxy.Event) -> Void
  ) {
    (self.listener, self.servers, self.loop, self.record) = (listener, servers, loop, record)
  }

  func start() {
    // Fails only for a descriptor of the wrong kind.
    try? loop.register(listener, .readable) { [unowned self] _ in acceptAll() }
  }

  func stop() {
    loop.deregister(listener)
    for connection in connections.values { connection.abandon() }
    connections = [:]
    close(listener)
  }

  private func acceptAll() {
    while true {
      let descriptor = accept4(listener, nil, nil, Int32(SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue))
      guard descriptor >= 0 else { return }
      guard let client = try? ProxySocket(descriptor, loop) else {
        close(descriptor)
        continue
      }
      connectionCount += 1
      guard let server = try? ProxySocket(connectingTo: servers[connectionCount % servers.count], loop) else {
        client.reset()
        continue
      }
      connections[connectionCount] = RecordedConnection(connectionCount, client, server, self)
    }
  }

  func nextExchange() -> Int {
    exchangeCount += 1
    return exchangeCount
  }

  func ended(_ number: Int) {
    guard let gone = connections.removeValue(forKey: number) else { return }
    // Not while it is still on the stack.
    loop.atEndOfTurn { withExtendedLifetime(gone) {} }
  }
}

/// A client's connection and its connection to a server.
private final class RecordedConnection {
  private let number: Int
  private let client: ProxySocket
  private let server: ProxySocket
  private unowned let traffic: RecordedTraffic
  private var requests = MessageScanner(.requests)
  private var responses = MessageScanner(.responses)
  /// Requests whose final response is not over, the oldest first.
  private var exchanges: [(number: Int, method: String)] = []

  init(_ number: Int, _ client: ProxySocket, _ server: ProxySocket, _ traffic: RecordedTraffic) {
    (self.number, self.client, self.server, self.traffic) = (number, client, server, traffic)
    client.received = { [unowned self] in fromClient($0) }
    server.received = { [unowned self] in fromServer($0) }
    client.drained = { [unowned server] in server.wantsBytes = true }
    server.drained = { [unowned client] in client.wantsBytes = true }
    client.ended = { [unowned server] in server.finish() }
    server.ended = { [unowned client] in client.finish() }
    client.closed = { [unowned self] in closed(self.server, $0) }
    server.closed = { [unowned self] in closed(self.client, $0) }
  }

  private func fromClient(_ bytes: Span<UInt8>) {
    var position = 0
    scanning: while true {
      switch requests.next(bytes, &position) {
      case .incomplete: break scanning
      case .head(let head):
        exchanges.append((traffic.nextExchange(), head.method))
        tell(exchanges.last, .request(head))
      case .content(let range): tell(exchanges.last, .content(range.count))
      case .framing: break
      case .end: tell(exchanges.last, .requestEnded)
      }
    }
    server.send(bytes.withUnsafeBufferPointer { Array($0) })
    client.wantsBytes = !server.hasUnsent
  }

  private func fromServer(_ bytes: Span<UInt8>) {
    var position = 0
    scanning: while true {
      switch responses.next(bytes, &position, answering: exchanges.first?.method) {
      case .incomplete: break scanning
      case .head(let head): tell(exchanges.first, .response(head))
      case .content, .framing: break
      case .end: if !exchanges.isEmpty { exchanges.removeFirst() }
      }
    }
    client.send(bytes.withUnsafeBufferPointer { Array($0) })
    server.wantsBytes = !client.hasUnsent
  }

  private func tell(_ exchange: (number: Int, method: String)?, _ event: RecordingProxy.Event) {
    if let exchange { traffic.record(exchange.number, event) }
  }

  private func closed(_ other: ProxySocket, _ isBroken: Bool) {
    if isBroken { other.reset() } else { other.finish() }
    other.wantsBytes = true
    guard !client.isOpen, !server.isOpen else { return }
    for exchange in exchanges { tell(exchange, .broken) }
    exchanges = []
    traffic.ended(number)
  }

  /// The proxy stops.
  func abandon() {
    client.close()
    server.close()
  }
}
