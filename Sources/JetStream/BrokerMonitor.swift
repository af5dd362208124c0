// What a broker says of itself at its monitoring port: who it is, and when its disk has what it acknowledges.

internal import EventLoops
internal import Glibc

/// The monitoring port of a broker (`http_port` in its configuration).
public struct BrokerMonitor: Sendable, Equatable {
  /// As it was given.
  public let url: String
  private let host: String
  private let port: String
  private let path: String

  /// - Parameter url: `http://HOST:PORT`, with a path in front of `/varz` if there is one. Without a port it is 8222. nil if
  ///   it is not such a URL.
  public init?(_ url: String) {
    guard url.hasPrefix("http://"), !url.contains("@"), url.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F }) else {
      return nil
    }
    let rest = url.dropFirst("http://".count)
    let authority = rest.prefix { $0 != "/" }
    let path = rest[authority.endIndex...]
    self.path = String(path.hasSuffix("/") ? path.dropLast() : path) + "/varz"
    let colon = authority.lastIndex(of: ":").flatMap { authority[$0...].contains("]") ? nil : $0 }
    var host = colon.map { authority[..<$0] } ?? authority
    port = colon.map { String(authority[authority.index(after: $0)...]) } ?? "8222"
    if host.hasPrefix("["), host.hasSuffix("]") { host = host.dropFirst().dropLast() }
    guard !host.isEmpty, UInt16(port) ?? 0 > 0 else { return nil }
    (self.url, self.host) = (url, String(host))
  }

  /// How long each step may take.
  private static let patience: Int32 = 3000
  private static let longestAnswer = 1 << 20

  /// Asks the broker, and waits for its answer. Not for the thread of a loop.
  ///
  /// - Throws: ``BrokerError/unreachable(_:)`` or ``BrokerError/invalidReply(_:)``.
  package func ask() throws(BrokerError) -> BrokerFacts {
    let answer = try get()
    guard let end = answer.firstRange(of: Array("\r\n\r\n".utf8)),
      let line = String(decoding: answer.prefix(64), as: UTF8.self).split(separator: "\r\n").first
    else { throw .invalidReply("\(url) does not speak HTTP") }
    guard line.hasPrefix("HTTP/1."), line.dropFirst(8).hasPrefix(" 200") else {
      throw .invalidReply("\(url) answers with \(line)")
    }
    return try BrokerFacts(Array(answer[end.upperBound...]))
  }

  private func get() throws(BrokerError) -> [UInt8] {
    let descriptor = try connect()
    defer { close(descriptor) }
    let request = Array("GET \(path) HTTP/1.0\r\nHost: \(host):\(port)\r\n\r\n".utf8)
    guard send(descriptor, request, request.count, Int32(MSG_NOSIGNAL)) == request.count else {
      throw unreachable(errno)
    }
    var (answer, buffer) = ([UInt8](), [UInt8](repeating: 0, count: 64 * 1024))
    while answer.count < Self.longestAnswer {
      guard waitUntilReady(descriptor, for: POLLIN, timeout: Self.patience) else { throw unreachable(ETIMEDOUT) }
      let count = recv(descriptor, &buffer, buffer.count, 0)
      if count == 0 { return answer }
      guard count > 0 else { throw unreachable(errno) }
      answer += buffer[..<count]
    }
    throw .invalidReply("\(url) answers with too much")
  }

  private func connect() throws(BrokerError) -> Int32 {
    var hints = addrinfo()
    hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
    var list: UnsafeMutablePointer<addrinfo>?
    let status = getaddrinfo(host, port, &hints, &list)
    guard status == 0 else { throw .unreachable("\(url): \(String(cString: gai_strerror(status)))") }
    defer { freeaddrinfo(list) }
    var failure = ECONNREFUSED
    var next = list
    while let address = next?.pointee {
      next = address.ai_next
      let kind = Int32(SOCK_STREAM.rawValue) | Int32(SOCK_NONBLOCK.rawValue) | Int32(SOCK_CLOEXEC.rawValue)
      let descriptor = socket(address.ai_family, kind, 0)
      guard descriptor >= 0 else { throw .resources(String(cString: strerror(errno))) }
      if Glibc.connect(descriptor, address.ai_addr, address.ai_addrlen) == 0 { return descriptor }
      failure = errno
      if failure == EINPROGRESS {
        failure = ETIMEDOUT
        if waitUntilReady(descriptor, for: POLLOUT, timeout: Self.patience) {
          var length = socklen_t(MemoryLayout<Int32>.size)
          getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &failure, &length)
          if failure == 0 { return descriptor }
        }
      }
      close(descriptor)
    }
    throw unreachable(failure)
  }

  private func unreachable(_ code: Int32) -> BrokerError { .unreachable("\(url): \(String(cString: strerror(code)))") }
}

/// What a broker says of itself.
package struct BrokerFacts: Sendable, Equatable {
  /// Its `server_name`.
  package var name: String
  /// Its `server_id`, which is another one each time it starts.
  package var identifier: String
  package var version: String
  /// Whether it says that it syncs each message before it acknowledges it. Versions that do not say it may do it.
  package var syncsAlways: Bool
  /// How often it syncs otherwise; nil if it does not say.
  package var syncInterval: Duration?

  /// Versions before this one can lose acknowledged messages when their process is killed (nats-server #7564, Jepsen's
  /// analysis of NATS 2.12.1).
  package static let leastVersion = "2.10.23"

  package init(name: String, identifier: String, version: String, syncsAlways: Bool, syncInterval: Duration?) {
    self.identifier = identifier
    (self.name, self.version, self.syncsAlways, self.syncInterval) = (name, version, syncsAlways, syncInterval)
  }

  /// - Parameter varz: the text at `/varz`.
  init(_ varz: [UInt8]) throws(BrokerError) {
    let reply = try APIReply(varz)
    guard let name = reply.text("server_name"), let identifier = reply.text("server_id"),
      let version = reply.text("version")
    else {
      throw .invalidReply("it does not say who the broker is")
    }
    let settings = reply["jetstream"]?["config"]
    self.init(
      name: name, identifier: identifier, version: version, syncsAlways: settings?.flag("sync_always") ?? false,
      syncInterval: settings?.integer("sync_interval").flatMap { $0 > 0 ? .nanoseconds($0) : nil })
  }

  /// Whether the version is older than ``leastVersion``.
  package var isOutdated: Bool {
    func numbers(_ text: String) -> [Int] {
      text.prefix { $0 != "-" }.split(separator: ".").map { Int($0) ?? 0 }
    }
    return numbers(version).lexicographicallyPrecedes(numbers(Self.leastVersion))
  }
}
