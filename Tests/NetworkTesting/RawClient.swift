// A client that sends exactly the test's bytes, and nothing by itself.

internal import Glibc
package import HTTPServer

/// One blocking connection. Every wait is limited, so that a broken server fails a test instead of blocking it.
package final class RawClient {
  /// Close-on-exec, because a program that another test starts must not keep the connection open.
  private static let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue)

  package let descriptor: Int32
  private var received: [UInt8] = []

  package struct Answer: CustomStringConvertible {
    package let status: Int
    package let fields: [(name: String, value: String)]
    package let body: String
    package subscript(name: String) -> String? { fields.first { $0.name == name.lowercased() }?.value }
    package var description: String { "\(status) \(fields) \(body)" }
  }

  /// A socket that is created before its connection, with a number beyond any later limit of descriptors.
  package static func reservedSocket(above number: Int32 = 1000) throws -> Int32 {
    let low = socket(AF_INET, type, 0)
    let high = fcntl(low, F_DUPFD_CLOEXEC, number)
    close(low)
    guard high >= 0 else { throw TestFailure("fcntl: \(String(cString: strerror(errno)))") }
    return high
  }

  /// - Parameter reserved: a result of ``reservedSocket(above:)``.
  package init(_ address: ListenAddress, reserved: Int32? = nil) throws {
    switch address {
    case .tcp(let host, let port):
      var hints = addrinfo()
      hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
      var list: UnsafeMutablePointer<addrinfo>?
      // A server that listens on every address is reached at the loopback address.
      guard getaddrinfo(host == "::" ? "::1" : host, String(port), &hints, &list) == 0, let list else {
        throw TestFailure("no such address")
      }
      defer { freeaddrinfo(list) }
      descriptor = reserved ?? socket(list.pointee.ai_family, Self.type, 0)
      guard connect(descriptor, list.pointee.ai_addr, list.pointee.ai_addrlen) == 0 else {
        throw TestFailure("connect: \(String(cString: strerror(errno)))")
      }
      var on: Int32 = 1
      setsockopt(descriptor, Int32(IPPROTO_TCP), TCP_NODELAY, &on, 4)
    case .unix(let path):
      var name = sockaddr_un()
      name.sun_family = sa_family_t(AF_UNIX)
      withUnsafeMutableBytes(of: &name.sun_path) { $0.copyBytes(from: path.utf8) }
      descriptor = socket(AF_UNIX, Self.type, 0)
      let status = withUnsafePointer(to: name) {
        $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
          connect(descriptor, $0, socklen_t(MemoryLayout<sockaddr_un>.size))
        }
      }
      guard status == 0 else { throw TestFailure("connect: \(String(cString: strerror(errno)))") }
    }
    var limit = timeval(tv_sec: 60, tv_usec: 0)
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
    setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
  }

  deinit { if isOpen { close(descriptor) } }

  private var isOpen = true
  package func disconnect() {
    if isOpen { close(descriptor) }
    isOpen = false
  }

  /// Closes with a reset instead of an orderly end.
  package func reset() {
    var option = linger(l_onoff: 1, l_linger: 0)
    setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &option, socklen_t(MemoryLayout<linger>.size))
    disconnect()
  }

  package func shutdownWriting() { shutdown(descriptor, Int32(SHUT_WR)) }

  package func send(_ text: String) throws { try send(Array(text.utf8)) }

  package func send(_ bytes: [UInt8]) throws {
    var sent = 0
    while sent < bytes.count {
      let count = bytes.withUnsafeBytes { all in
        Glibc.send(descriptor, all.baseAddress! + sent, all.count - sent, Int32(MSG_NOSIGNAL))
      }
      guard count > 0 else { throw TestFailure("send: \(String(cString: strerror(errno)))") }
      sent += count
    }
  }

  package func sendChunk(_ bytes: [UInt8]) throws {
    try send(Array("\(String(bytes.count, radix: 16))\r\n".utf8) + bytes + [13, 10])
  }
  package func sendChunk(_ text: String) throws { try sendChunk(Array(text.utf8)) }

  /// Bytes that the server's TCP has not acknowledged yet.
  package var unacknowledged: Int {
    var count: Int32 = 0
    withUnsafeMutablePointer(to: &count) { _ = ioctl(descriptor, UInt(TIOCOUTQ), $0) }
    return Int(count)
  }

  /// Whether the server has reset the connection. What it had not acknowledged by then stays ``unacknowledged``.
  package var isReset: Bool {
    var entry = pollfd(fd: descriptor, events: 0, revents: 0)
    return poll(&entry, 1, 0) == 1 && entry.revents & Int16(POLLERR) != 0
  }

  /// The next answer, including interim ones. `withBody` is false for the answer to HEAD.
  package func answer(withBody: Bool = true) throws -> Answer {
    while true {
      if let end = received.firstRange(of: Array("\r\n\r\n".utf8)) {
        let lines = String(decoding: received[..<end.lowerBound], as: UTF8.self).split(separator: "\r\n")
        let fields = lines.dropFirst().map { line -> (name: String, value: String) in
          let parts = line.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
          return (String(parts[0]).lowercased(), String(parts.count > 1 ? parts[1].drop { $0 == " " } : ""))
        }
        let length = withBody ? fields.first { $0.name == "content-length" }.flatMap { Int($0.value) } ?? 0 : 0
        if received.count >= end.upperBound + length {
          let body = String(decoding: received[end.upperBound..<(end.upperBound + length)], as: UTF8.self)
          received.removeFirst(end.upperBound + length)
          let status = lines[0].split(separator: " ").dropFirst().first.flatMap { Int($0) } ?? 0
          return Answer(status: status, fields: fields, body: body)
        }
      }
      guard try receive() else {
        throw TestFailure("the server closed; had \(String(decoding: received, as: UTF8.self))")
      }
    }
  }

  /// Whether there are unread bytes.
  package var hasAnswer: Bool {
    var entry = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
    return poll(&entry, 1, 0) == 1
  }

  /// Whether the server closes without sending another byte.
  package func isClosedByServer() -> Bool { ((try? receive()) ?? true) == false && received.isEmpty }

  /// Whether the server closes the connection without a final response. Waits for either.
  package func isCutOff() -> Bool { (try? final()) == nil && hasEnded }

  /// The final response; nil if the server closes the connection without one. Waits for either.
  package func finalUnlessCutOff(withBody: Bool = true) throws -> Answer? {
    try unlessCutOff { try final(withBody: withBody).answer }
  }

  /// What `receive` waits for; nil if the server closes the connection before it comes.
  package func unlessCutOff<Received>(_ receive: () throws -> Received) throws -> Received? {
    do { return try receive() } catch {
      guard hasEnded else { throw error }
      return nil
    }
  }

  private var hasEnded = false

  /// Returns false at the end.
  private func receive() throws -> Bool {
    var buffer = [UInt8](repeating: 0, count: 65_536)
    let count = recv(descriptor, &buffer, buffer.count, 0)
    hasEnded = count == 0 || (count < 0 && errno == ECONNRESET)
    if count < 0 { throw TestFailure("recv: \(String(cString: strerror(errno)))") }
    received += buffer[..<count]
    return count > 0
  }
}

extension TestFailure {
  /// Whether a connection has reached the limit of its wait.
  package var isTimeout: Bool { description.contains(String(cString: strerror(EAGAIN))) }
}
