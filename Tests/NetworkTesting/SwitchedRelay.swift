// A path from clients to a server that is open, broken, silent, or ends at something else, as the test requests.

internal import CLinux
internal import EventLoops
internal import Glibc
internal import PropertyTesting

/// Forwards connections to a server as long as it is configured to. One thread, with orders from any other.
package final class SwitchedRelay: Sendable {
  package enum Mode: Sendable {
    case passes
    /// Every connection is reset, including new ones.
    case resets
    /// Nothing is forwarded in either direction, and nobody is notified.
    case silent
    /// The present connections become silent, and stay so. New ones pass.
    case strands
    /// Something in the server's place answers every request like this.
    case answers(String)
  }

  /// `ADDRESS:PORT` that clients connect to.
  package let address: String
  private let loop: EventLoop
  private let traffic: RelayedTraffic
  private let thread: NamedThread

  /// - Parameter server: `ADDRESS:PORT`, IPv4. It may stop and return.
  package init(to server: String) throws {
    let (server, loop) = (try IPv4Address(server), try EventLoop())
    let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
    let listener = try retryingInterrupts("socket") { socket(AF_INET, type, 0) }
    do {
      let local = try IPv4Address("127.0.0.1:0")
      try retryingInterrupts("bind") { local.withPointer { Glibc.bind(listener, $0, $1) } }
      try retryingInterrupts("listen") { Glibc.listen(listener, 128) }
      address = try IPv4Address(of: listener).description
    } catch {
      close(listener)
      throw error
    }
    let traffic = RelayedTraffic(listener: listener, server: server, loop: loop)
    self.loop = loop
    self.traffic = traffic
    thread = try NamedThread("relay") {
      traffic.start()
      loop.run()
      traffic.stop()
    }
  }

  deinit {
    loop.stop()
    thread.join()
  }

  /// Returns when the mode has changed. Connections are reset, unless the relay becomes silent or was.
  package func set(_ mode: Mode) throws {
    let done = try EventCounter()
    loop.execute { [traffic] in
      traffic.set(mode)
      done.signal()
    }
    guard waitUntilReadable(done.descriptor) else { throw TestFailure("the relay's thread has ended") }
  }
}

/// The relay's connections. Unchecked, because only the loop's thread uses them once it runs.
private final class RelayedTraffic: @unchecked Sendable {
  private let listener: Int32
  private let server: IPv4Address
  private let loop: EventLoop
  private var mode = SwitchedRelay.Mode.passes
  /// Each connection's sockets: the client's, and the server's if there is one. Not those that are stranded.
  private var sockets: [Int: [ProxySocket]] = [:]
  private var stranded: [ProxySocket] = []
  private var count = 0

  init(listener: Int32, server: IPv4Address, loop: EventLoop) {
    self.listener = listener
    self.server = server
    self.loop = loop
  }

  func start() {
    // Fails only for a descriptor of the wrong kind.
    try? loop.register(listener, .readable) { [unowned self] _ in acceptAll() }
  }

  func stop() {
    loop.deregister(listener)
    for socket in sockets.values.joined() { socket.close() }
    for socket in stranded { socket.close() }
    (sockets, stranded) = ([:], [])
    close(listener)
  }

  func set(_ mode: SwitchedRelay.Mode) {
    if case .strands = mode {
      for socket in sockets.values.joined() { socket.isHeld = true }
      stranded += sockets.values.joined()
      (sockets, self.mode) = ([:], .passes)
      return
    }
    var keepsConnections = false
    if case .silent = mode { keepsConnections = true }
    if case .silent = self.mode { keepsConnections = true }
    self.mode = mode
    if !keepsConnections { for number in sockets.keys { reset(number) } }
    var isSilent = false
    if case .silent = mode { isSilent = true }
    for socket in sockets.values.joined() { socket.isHeld = isSilent }
  }

  private func acceptAll() {
    while true {
      let descriptor = accept4(listener, nil, nil, Int32(SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue))
      guard descriptor >= 0 else { return }
      var on: Int32 = 1
      setsockopt(descriptor, Int32(IPPROTO_TCP), TCP_NODELAY, &on, socklen_t(MemoryLayout<Int32>.size))
      guard let client = try? ProxySocket(descriptor, loop) else {
        close(descriptor)
        continue
      }
      count += 1
      sockets[count] = [client]
      switch mode {
      case .resets: reset(count)
      case .answers(let answer): reply(answer, client, count)
      case .passes, .silent, .strands: connect(client, count)
      }
    }
  }

  private func connect(_ client: ProxySocket, _ number: Int) {
    guard let server = try? ProxySocket(connectingTo: server, loop) else { return reset(number) }
    sockets[number] = [client, server]
    for (one, other) in [(client, server), (server, client)] {
      one.received = { [unowned one, unowned other] bytes in
        other.send(bytes.withUnsafeBufferPointer { Array($0) })
        one.wantsBytes = !other.hasUnsent
      }
      one.drained = { [unowned other] in other.wantsBytes = true }
      one.ended = { [unowned other] in other.finish() }
      one.closed = { [unowned self, unowned other] isBroken in
        if isBroken { other.reset() }
        if !other.isOpen { forget(number) }
      }
    }
    if case .silent = mode { (client.isHeld, server.isHeld) = (true, true) }
  }

  /// Answers the head of a request, and ends. Later bytes are read, so that no reset overtakes the answer.
  private func reply(_ answer: String, _ client: ProxySocket, _ number: Int) {
    var head: [UInt8] = []
    var isAnswered = false
    client.received = { [unowned client] bytes in
      guard !isAnswered else { return }
      head += bytes.withUnsafeBufferPointer { Array($0) }
      guard String(decoding: head, as: UTF8.self).contains("\r\n\r\n") else { return }
      isAnswered = true
      client.send(answer.utf8)
      client.finish()
    }
    client.ended = { [unowned client] in client.finish() }
    client.closed = { [unowned self] _ in forget(number) }
  }

  private func reset(_ number: Int) {
    for socket in sockets[number] ?? [] { socket.reset() }
    forget(number)
  }

  private func forget(_ number: Int) {
    guard let gone = sockets.removeValue(forKey: number) else { return }
    // Not while one of them is still on the stack.
    loop.atEndOfTurn { withExtendedLifetime(gone) {} }
  }
}
