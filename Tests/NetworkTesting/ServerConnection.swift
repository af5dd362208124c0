// The server's side of one connection, controlled by the test.

internal import EventLoops
internal import Glibc
internal import PropertyTesting

/// A connection that a script serves: blocking, each wait limited so that a broken client fails a test instead of
/// hanging it. Used by one thread at a time.
public final class ServerConnection: @unchecked Sendable {
  public struct Head: Sendable, CustomStringConvertible {
    /// Method, target and version.
    public var line: String
    public var fields: [(name: String, value: String)]
    /// The first field of that name.
    public subscript(name: String) -> String? { fields.first { $0.name.lowercased() == name.lowercased() }?.value }
    /// `Stream-Offset`, 0 without it.
    public var offset: UInt64 { self["Stream-Offset"].flatMap { UInt64($0) } ?? 0 }
    public var description: String { ([line] + fields.map { "\($0.name): \($0.value)" }).joined(separator: "\n") }
  }

  public let descriptor: Int32
  /// Whether it is open, and whether the last operation on it was to send.
  private let state = Lock((isOpen: true, hasSentLast: false))
  private var received: [UInt8] = []
  private var position = 0
  private var tls: TLSSession?
  /// Whether the last attempt to receive has found that the peer has ended the connection, orderly or not. Otherwise it
  /// may have reached the limit of its wait.
  public private(set) var isEnded = false

  init(_ descriptor: Int32) {
    self.descriptor = descriptor
    var limit = timeval(tv_sec: 30, tv_usec: 0)
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
    setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
  }

  deinit { close() }

  public func close() {
    state.withLock { state in
      if state.isOpen { Glibc.close(descriptor) }
      state.isOpen = false
    }
  }

  /// From here on, sends and receives through TLS. Waits for the handshake.
  package func startTLS(_ context: TLSContext) throws { tls = try TLSSession(context, descriptor) }

  /// Ends the connection after a script. Its last bytes should be read. Closing with unread bytes, or before the last
  /// bytes arrive, is a reset, which a sending client may see before it reads. So a FIN comes first, and bytes in
  /// flight are read.
  func end() {
    if state.withLock({ $0.isOpen && $0.hasSentLast }) {
      shutdownWriting()
      _ = readToEnd()
    }
    close()
  }

  /// Ends the connection with a reset.
  public func reset() {
    var option = linger(l_onoff: 1, l_linger: 0)
    setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &option, socklen_t(MemoryLayout<linger>.size))
    close()
  }

  /// Ends the connection in both directions, whatever another thread is doing with it.
  package func breakOff() { state.withLock { if $0.isOpen { shutdown(descriptor, Int32(SHUT_RDWR)) } } }

  /// Sends a FIN, and continues to read.
  public func shutdownWriting() {
    tls?.end()
    shutdown(descriptor, Int32(SHUT_WR))
  }

  public func send(_ text: String) throws { try send(Array(text.utf8)) }

  public func send(_ bytes: [UInt8]) throws {
    var rest = bytes[...]
    while !rest.isEmpty {
      let count =
        tls?.send(rest)
        ?? rest.withUnsafeBytes { Glibc.send(descriptor, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL)) }
      guard count > 0 else { throw TestFailure("send: \(String(cString: strerror(errno)))") }
      state.withLock { $0.hasSentLast = true }
      rest = rest.dropFirst(count)
    }
  }

  /// A complete response with a body of known length.
  public func respond(_ status: String, _ fields: [String] = [], body: String = "") throws {
    let lines = ["HTTP/1.1 \(status)"] + fields + ["Content-Length: \(body.utf8.count)"]
    try send(lines.map { "\($0)\r\n" }.joined() + "\r\n" + body)
  }

  /// Forwards bytes between this connection and a loopback port, both ways, until either side ends.
  public func relay(toPort port: UInt16) throws {
    let other = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
    setCloseOnExec(other)
    // It closes the descriptor in every case.
    let far = ServerConnection(other)
    var name = sockaddr_in()
    name.sin_family = sa_family_t(AF_INET)
    name.sin_port = port.bigEndian
    name.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
    let status = withUnsafePointer(to: name) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
        connect(other, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
      }
    }
    guard status == 0 else { throw TestFailure("connect: \(String(cString: strerror(errno)))") }
    while true {
      var entries = [
        pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0), pollfd(fd: other, events: Int16(POLLIN), revents: 0),
      ]
      guard poll(&entries, 2, 30_000) > 0 else { return }
      for (entry, ends) in zip(entries, [(self, far), (far, self)]) where entry.revents != 0 {
        guard let bytes = try ends.0.receive() else { return }
        try ends.1.send(Array(bytes))
      }
    }
  }

  // MARK: Reading

  /// The next bytes as they come, at most `maximum`; nil at the end.
  public func receive(_ maximum: Int = 65_536) throws -> ArraySlice<UInt8>? {
    guard position < received.count else { return try receiveFromSocket(maximum) }
    let end = min(received.count, position + maximum)
    defer { position = end }
    return received[position..<end]
  }

  /// All that comes until the peer ends the connection, orderly or not.
  public func readToEnd() -> [UInt8] {
    var all: [UInt8] = []
    while let bytes = try? receive() { all += bytes }
    return all
  }

  /// Sends pieces, one every 20 ms or as many as the peer takes, until it has ended the connection.
  public func sendUntilEnd(slowly: Bool, _ piece: [UInt8]) {
    while (try? send(piece)) != nil { if slowly, poll(nil, 0, 20) != 0 { return } }
  }

  /// Waits until at least a byte is there to be read, and reads none.
  public func waitForBytes() -> Bool { position < received.count || waitUntilReadable(descriptor) }

  /// Waits, without reading anything, until the peer has ended the connection.
  public func waitForEnd(limit: Duration = .seconds(30)) -> Bool {
    // POLLRDHUP (poll(2)): the peer has sent its FIN. POLLHUP and POLLERR are reported without a request.
    var entry = pollfd(fd: descriptor, events: 0x2000, revents: 0)
    return poll(&entry, 1, Int32(limit.components.seconds * 1000)) > 0
  }

  /// Bytes in the kernel's receive queue: FIONREAD, tcp(7).
  public var queuedByteCount: Int {
    var count: Int32 = 0
    withUnsafeMutablePointer(to: &count) { _ = ioctl(descriptor, UInt(FIONREAD), $0) }
    return Int(count)
  }

  /// From here on, this side's kernel drops all incoming packets, unseen and unacknowledged, like a machine that has
  /// died. Bytes in the receive queue stay. SO_ATTACH_FILTER, socket(7), with the program "return 0".
  public func goDeaf() throws {
    // struct sock_filter: code (BPF_RET | BPF_K), jt, jf, k.
    var program: [UInt8] = [0x06, 0, 0, 0, 0, 0, 0, 0]
    let status = program.withUnsafeMutableBytes { bytes -> Int32 in
      // struct sock_fprog: the number of instructions, and their address.
      var descriptor = (count: UInt(1), address: UInt(bitPattern: bytes.baseAddress))
      return withUnsafeBytes(of: &descriptor) {
        setsockopt(self.descriptor, SOL_SOCKET, SO_ATTACH_FILTER, $0.baseAddress, 16)
      }
    }
    guard status == 0 else { throw TestFailure("SO_ATTACH_FILTER: \(String(cString: strerror(errno)))") }
  }

  /// The present content of the receive queue, without waiting for more.
  public func takeQueued() -> [UInt8] {
    var all = Array(received[position...])
    position = received.count
    var buffer = [UInt8](repeating: 0, count: 65_536)
    while case let count = recv(descriptor, &buffer, buffer.count, Int32(MSG_DONTWAIT)), count > 0 {
      all += buffer[..<count]
    }
    return all
  }

  private func more() throws {
    guard let bytes = try receiveFromSocket(65_536) else { throw TestFailure("the client ended the connection") }
    if position > 1 << 16 {
      received.removeFirst(position)
      position = 0
    }
    received += bytes
  }

  private func receiveFromSocket(_ maximum: Int) throws -> ArraySlice<UInt8>? {
    var buffer = [UInt8](repeating: 0, count: maximum)
    let count = tls?.receive(&buffer) ?? recv(descriptor, &buffer, maximum, 0)
    isEnded = count == 0 || count < 0 && errno == ECONNRESET
    guard count >= 0 else { throw TestFailure("recv: \(String(cString: strerror(errno)))") }
    state.withLock { $0.hasSentLast = false }
    return count == 0 ? nil : buffer[..<count]
  }

  private func line() throws -> String {
    var start = position
    while true {
      if let end = received[start...].firstIndex(of: 0x0A) {
        defer { position = end + 1 }
        let line = received[position..<end]
        return String(decoding: line.last == 0x0D ? line.dropLast() : line, as: UTF8.self)
      }
      let scanned = received.count - position
      try more()
      start = position + scanned
    }
  }

  /// The next request's head.
  public func head() throws -> Head {
    var head = Head(line: try line(), fields: [])
    while case let text = try line(), !text.isEmpty {
      let parts = text.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
      head.fields.append((String(parts[0]), parts.count > 1 ? String(parts[1].drop { $0 == " " }) : ""))
    }
    return head
  }

  /// The next request's head at a server without resumable uploads. It answers each OPTIONS before that request.
  ///
  /// - Parameter status: the answer to OPTIONS.
  public func headAfterDiscovery(answering status: String = "404 Not Found") throws -> Head {
    while true {
      let next = try head()
      guard next.line.hasPrefix("OPTIONS ") else { return next }
      try respond(status)
    }
  }

  /// Reads the whole content of the request with this head.
  public func receiveContent(of head: Head) throws {
    if head["Transfer-Encoding"] != nil { _ = try body() }
    var rest = head["Content-Length"].flatMap { Int($0) } ?? 0
    while rest > 0, let piece = try receive(min(rest, 65_536)) { rest -= piece.count }
  }

  /// The next chunk's bytes (RFC 9112, section 7.1); nil for the last chunk.
  ///
  /// - Parameter brokenOff: given what has come of a chunk in which the connection ends.
  public func chunk(brokenOff: ([UInt8]) -> Void = { _ in }) throws -> [UInt8]? {
    guard let size = Int(try line(), radix: 16) else { throw TestFailure("this is not a chunk size") }
    do {
      while received.count - position < size + 2 { try more() }
    } catch {
      brokenOff(Array(received[position..<min(position + size, received.count)]))
      throw error
    }
    defer { position += size + 2 }
    return size == 0 ? nil : Array(received[position..<position + size])
  }

  /// The whole chunked body.
  public func body() throws -> [UInt8] {
    var all: [UInt8] = []
    while let chunk = try chunk() { all += chunk }
    return all
  }
}

extension ServerConnection {
  /// The other side of a connection, for a test that also acts as the client.
  ///
  /// - Parameter address: `ADDRESS:PORT`, IPv4.
  package convenience init(connectingTo address: String) throws {
    let name = try IPv4Address(address)
    let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
    guard name.withPointer({ connect(descriptor, $0, $1) }) == 0 else {
      defer { Glibc.close(descriptor) }
      throw TestFailure("connect \(address): \(String(cString: strerror(errno)))")
    }
    self.init(descriptor)
  }
}

extension ServerConnection {
  /// Sends zeros until none are accepted for `patience`. Returns their number.
  package func sendWithoutWaiting(upTo count: Int, patience: Duration) -> Int {
    let zeros = [UInt8](repeating: 0, count: 64 << 10)
    var sent = 0
    while sent < count {
      let taken = Glibc.send(descriptor, zeros, min(zeros.count, count - sent), Int32(MSG_NOSIGNAL | MSG_DONTWAIT))
      if taken > 0 {
        sent += taken
        continue
      }
      var entry = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
      guard poll(&entry, 1, Int32(patience.milliseconds)) > 0 else { break }
    }
    return sent
  }

  /// The kernel's present size of this side's send buffer, in bytes.
  package var sendBufferCapacity: Int { BoundedSocket.capacity(of: descriptor, SO_SNDBUF) }
}
