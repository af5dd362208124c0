// A proxy between client and server that injects network faults, at a byte that the test chooses.

import CLinux
import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import Synchronization

/// One thread, one connection at a time, because a stream has only one.
final class FaultyProxy: Sendable {
  /// The fate of a connection. Counts are bytes from the client, including the request's head.
  enum Fate: Sendable {
    case relay
    /// The same, and in the middle, before another byte is forwarded, the closure is called.
    case meanwhile(after: Int, @Sendable () -> Void)
    /// A reset in the middle. Bytes that arrived here and were not forwarded are lost, although TCP has acknowledged
    /// them.
    case reset(after: Int)
    /// A reset that keeps TCP's acknowledgements valid: first it blocks further packets, then it forwards all
    /// acknowledged bytes.
    case resetAfterDelivery(after: Int)
    /// The server sees the end of the connection in the middle of the body, as an orderly close or as a reset.
    case cut(after: Int, isReset: Bool)
    /// The proxy reads the head and answers, and does not forward the request.
    case refuse(String)
    /// The proxy answers in the middle, and forwards everything until the client stops.
    case answer(String, after: Int)
    /// The request arrives. Its answer is dropped, and the client sees a reset.
    case dropAnswer
  }

  let address: String
  private let server: IPv4Address
  private let listener: Int32
  private let fate: @Sendable (Int) -> Fate
  private let stopRequest: EventCounter
  private let count = Atomic<Int>(0)
  private let thread = Mutex<NamedThread?>(nil)
  private let notReached = Mutex<[String]>([])

  /// - Parameters:
  ///   - server: `ADDRESS:PORT`, IPv4.
  ///   - fate: the fate of connection number 0, 1, ….
  init(to server: String, fate: @escaping @Sendable (Int) -> Fate) throws {
    self.server = try IPv4Address(server)
    self.fate = fate
    stopRequest = try EventCounter()
    let local = try IPv4Address("\(ServeProcess.freshHost()):0")
    let listener = try tcpSocket()
    self.listener = listener
    // Limited like the ends. Accepted connections inherit it.
    Self.set(listener, SOL_SOCKET, SO_RCVBUF, 64 << 10)
    Self.set(listener, Int32(IPPROTO_TCP), TCP_MAXSEG, 1448)
    try retryingInterrupts("bind") { local.withPointer { Glibc.bind(listener, $0, $1) } }
    try retryingInterrupts("listen") { listen(listener, 16) }
    address = try IPv4Address(of: listener).description
    let running = try NamedThread("test proxy") { [self] in run() }
    thread.withLock { $0 = running }
  }

  deinit { close(listener) }

  var url: String { "http://\(address)/take" }
  /// The number of connections so far.
  var connections: Int { count.load(ordering: .relaxed) }

  /// The reasons for connections that could not reach the server.
  var failures: [String] { notReached.withLock { $0 } }

  /// Ends the thread and its current connection.
  func stop() {
    stopRequest.signal()
    thread.withLock { thread in
      thread?.join()
      thread = nil
    }
  }

  // MARK: The thread

  private func run() {
    while wait(for: [listener]) != nil {
      // Close-on-exec: if a program started meanwhile had a copy of the socket, a close would have no effect.
      let client = accept4(listener, nil, nil, Int32(SOCK_CLOEXEC.rawValue))
      guard client >= 0 else { continue }
      let number = count.wrappingAdd(1, ordering: .relaxed).oldValue
      serve(client, number, fate(number))
    }
  }

  /// Which of these descriptors are readable; nil when the test is over.
  private func wait(for descriptors: [Int32]) -> [Int32]? {
    var polled = ([stopRequest.descriptor] + descriptors).map { pollfd(fd: $0, events: Int16(POLLIN), revents: 0) }
    while poll(&polled, nfds_t(polled.count), -1) < 0 && errno == EINTR {}
    return polled[0].revents != 0 ? nil : polled.dropFirst().filter { $0.revents != 0 }.map(\.fd)
  }

  private func serve(_ client: Int32, _ number: Int, _ fate: Fate) {
    defer { close(client) }
    if case .refuse(let answer) = fate {
      if readHead(client) { say(answer, to: client) }
      return
    }
    let upstream: Int32
    do {
      upstream = try connect()
    } catch {
      notReached.withLock { $0.append("connection \(number): \(error)") }
      return reset(client)
    }
    defer { close(upstream) }
    switch fate {
    case .refuse: break
    case .relay: relay(client, upstream, limit: .max)
    case .meanwhile(let count, let happen):
      if relay(client, upstream, limit: count) {
        happen()
        relay(client, upstream, limit: .max)
      }
    case .reset(let count):
      if relay(client, upstream, limit: count) {
        reset(client)
        reset(upstream)
      }
    case .resetAfterDelivery(let count):
      if relay(client, upstream, limit: count) {
        deliverAll(from: client, to: upstream)
        reset(client)
      }
    case .cut(let count, let isReset):
      if relay(client, upstream, limit: count) {
        if isReset { reset(upstream) } else { finish(upstream) }
        reset(client)
      }
    case .dropAnswer:
      _ = relay(client, upstream, limit: .max, dropsAnswer: true)
      reset(client)
    case .answer(let answer, let count):
      if relay(client, upstream, limit: count), sendAll(Array(answer.utf8)[...], to: client) {
        // Bytes that arrive until the client has read the answer were acknowledged too.
        relay(client, upstream, limit: .max)
        finish(upstream)
      }
    }
  }

  /// Forwards bytes in both directions. Returns true when `limit` bytes of the client were forwarded, and false when a
  /// side has ended.
  @discardableResult
  private func relay(_ client: Int32, _ upstream: Int32, limit: Int, dropsAnswer: Bool = false) -> Bool {
    var rest = limit
    var buffer = [UInt8](repeating: 0, count: 64 << 10)
    var open = [client, upstream]
    while rest > 0 {
      guard let ready = wait(for: open) else { return false }
      if ready.contains(upstream) {
        let count = recv(upstream, &buffer, buffer.count, 0)
        if dropsAnswer { return false }
        if count == 0 {
          // The client reads everything and ends as well. If the proxy closed with unread bytes, the client would see a
          // reset first.
          shutdown(client, Int32(SHUT_WR))
          open.removeAll { $0 == upstream }
          if open.isEmpty { return false }
          continue
        }
        guard count > 0, sendAll(buffer[..<count], to: client) else { return false }
      }
      if ready.contains(client) {
        let count = recv(client, &buffer, min(buffer.count, rest), 0)
        if count < 0 { return false }
        if count == 0 {
          shutdown(upstream, Int32(SHUT_WR))
          open.removeAll { $0 == client }
          if open.isEmpty { return false }
          continue
        }
        guard sendAll(buffer[..<count], to: upstream) else { return false }
        rest -= count
      }
    }
    return true
  }

  /// Blocks further packets of the client, forwards all bytes that were acknowledged to its TCP, and waits until the
  /// server has read them and closed.
  private func deliverAll(from client: Int32, to upstream: Int32) {
    // A filter that drops everything (`ret 0`). From here on nothing more is acknowledged, including retransmissions.
    var dropAll = sock_filter(code: UInt16(BPF_RET | BPF_K), jt: 0, jf: 0, k: 0)
    let attached = withUnsafeMutablePointer(to: &dropAll) { instruction in
      var program = sock_fprog(len: 1, filter: instruction)
      return setsockopt(client, SOL_SOCKET, SO_ATTACH_FILTER, &program, socklen_t(MemoryLayout<sock_fprog>.size))
    }
    precondition(attached == 0, "no filter could be attached: the test would claim what it does not show")
    var buffer = [UInt8](repeating: 0, count: 64 << 10)
    while case let count = recv(client, &buffer, buffer.count, Int32(MSG_DONTWAIT)), count > 0 {
      guard sendAll(buffer[..<count], to: upstream) else { return }
    }
    finish(upstream)
  }

  /// A complete orderly close, after which the server has read everything.
  private func finish(_ upstream: Int32) {
    shutdown(upstream, Int32(SHUT_WR))
    var buffer = [UInt8](repeating: 0, count: 4096)
    while let ready = wait(for: [upstream]), !ready.isEmpty, recv(upstream, &buffer, buffer.count, 0) > 0 {}
  }

  /// The next close sends a reset, and unread bytes in either direction are lost.
  private func reset(_ descriptor: Int32) {
    var option = linger(l_onoff: 1, l_linger: 0)
    setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &option, socklen_t(MemoryLayout<linger>.size))
  }

  /// Answers, and reads until the client has disconnected. Closing with unread bytes would send a reset that overtakes
  /// the answer.
  private func say(_ answer: String, to client: Int32) {
    guard sendAll(Array(answer.utf8)[...], to: client) else { return }
    shutdown(client, Int32(SHUT_WR))
    var buffer = [UInt8](repeating: 0, count: 64 << 10)
    while let ready = wait(for: [client]), !ready.isEmpty, recv(client, &buffer, buffer.count, 0) > 0 {}
  }

  private func readHead(_ client: Int32) -> Bool {
    var head: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 4096)
    while wait(for: [client]) != nil {
      let count = recv(client, &buffer, buffer.count, 0)
      guard count > 0 else { return false }
      head += buffer[..<count]
      if String(decoding: head, as: UTF8.self).contains("\r\n\r\n") { return true }
    }
    return false
  }

  private func sendAll(_ bytes: ArraySlice<UInt8>, to descriptor: Int32) -> Bool {
    var rest = bytes
    while !rest.isEmpty {
      let count = rest.withUnsafeBytes { send(descriptor, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL)) }
      if count < 0 && errno == EINTR { continue }
      guard count > 0 else { return false }
      rest = rest.dropFirst(count)
    }
    return true
  }

  private func connect() throws -> Int32 {
    let descriptor = try tcpSocket()
    do {
      try retryingInterrupts("connect \(server)") { server.withPointer { Glibc.connect(descriptor, $0, $1) } }
    } catch {
      close(descriptor)
      throw error
    }
    return descriptor
  }

  private static func set(_ descriptor: Int32, _ level: Int32, _ option: Int32, _ value: Int32) {
    var value = value
    setsockopt(descriptor, level, option, &value, socklen_t(MemoryLayout<Int32>.size))
  }
}

private func tcpSocket() throws -> Int32 {
  try retryingInterrupts("socket") { socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0) }
}
