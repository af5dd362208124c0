// The address of a server: parsed from text, resolved for bind(2), and converted to text.

internal import Glibc

/// An address to listen on: a TCP host and port, or a Unix domain socket.
public enum ListenAddress: Sendable, Equatable, CustomStringConvertible {
  /// `host` is an IPv4 or IPv6 address without brackets, a name, or empty for every address of the machine. With port
  /// 0, the kernel chooses the port.
  case tcp(host: String, port: UInt16)
  /// A Unix domain socket at this path.
  case unix(path: String)

  /// Parses `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, `:8080` or `unix:/run/sluice.socket`.
  ///
  /// - Throws: ``ListenError/malformedAddress(_:)``
  public init(_ text: String) throws(ListenError) {
    if text.hasPrefix("unix:") {
      let path = String(text.dropFirst(5))
      // sun_path has 108 bytes, including its NUL.
      guard !path.isEmpty, path.utf8.count < 108, !path.utf8.contains(0) else { throw .malformedAddress(text) }
      self = .unix(path: path)
      return
    }
    guard let colon = text.lastIndex(of: ":") else { throw .malformedAddress(text) }
    let digits = text[text.index(after: colon)...]
    guard !digits.isEmpty, digits.utf8.allSatisfy({ Octet.isDigit($0) }), let port = UInt16(digits) else {
      throw .malformedAddress(text)
    }
    var host = text[..<colon]
    if host.hasPrefix("[") && host.hasSuffix("]") {
      host = host.dropFirst().dropLast()
      guard !host.isEmpty else { throw .malformedAddress(text) }
    } else if host.contains(":") {
      // An IPv6 address without brackets: it is ambiguous where it ends and the port begins.
      throw .malformedAddress(text)
    }
    self = .tcp(host: String(host), port: port)
  }

  /// The address in the format of ``init(_:)``.
  public var description: String {
    switch self {
    case .tcp(let host, let port): host.contains(":") ? "[\(host)]:\(port)" : "\(host):\(port)"
    case .unix(let path): "unix:\(path)"
    }
  }

  /// The TCP port. Nil for a Unix domain socket.
  public var port: UInt16? {
    if case .tcp(_, let port) = self { port } else { nil }
  }
}

/// A socket address in the kernel's form.
struct SocketAddress {
  var storage = sockaddr_storage()
  var length = socklen_t(MemoryLayout<sockaddr_storage>.size)

  var family: Int32 { Int32(storage.ss_family) }

  /// Passes the address to a call that reads it.
  func withPointer<Result>(_ body: (UnsafePointer<sockaddr>, socklen_t) -> Result) -> Result {
    withUnsafePointer(to: storage) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { body($0, length) }
    }
  }

  /// Passes it to a call that fills it in.
  mutating func withMutablePointer<Result>(
    _ body: (UnsafeMutablePointer<sockaddr>, UnsafeMutablePointer<socklen_t>) -> Result
  ) -> Result {
    var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
    defer { self.length = length }
    return withUnsafeMutablePointer(to: &storage) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { body($0, &length) }
    }
  }

  init() {}

  /// Resolves `address` with getaddrinfo(3) and `AI_PASSIVE`. A name can have several addresses.
  static func resolve(_ address: ListenAddress) throws(ListenError) -> [SocketAddress] {
    switch address {
    case .unix(let path):
      var name = sockaddr_un()
      name.sun_family = sa_family_t(AF_UNIX)
      withUnsafeMutableBytes(of: &name.sun_path) { $0.copyBytes(from: path.utf8.prefix($0.count - 1)) }
      var result = SocketAddress()
      withUnsafeMutableBytes(of: &result.storage) { storage in
        withUnsafeBytes(of: &name) { storage.copyMemory(from: $0) }
      }
      result.length = socklen_t(MemoryLayout<sockaddr_un>.size)
      return [result]
    case .tcp(let host, let port):
      var hints = addrinfo()
      hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV
      hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
      var list: UnsafeMutablePointer<addrinfo>?
      // An empty host means every address, with an IPv6 socket that also accepts IPv4 if the kernel supports IPv6.
      let status = getaddrinfo(host.isEmpty ? nil : host, String(port), &hints, &list)
      guard status == 0 else { throw .unknownHost(host, reason: String(cString: gai_strerror(status))) }
      defer { freeaddrinfo(list) }
      var results: [SocketAddress] = []
      var next = list
      while let entry = next {
        var result = SocketAddress()
        result.length = entry.pointee.ai_addrlen
        withUnsafeMutableBytes(of: &result.storage) {
          $0.copyMemory(from: UnsafeRawBufferPointer(start: entry.pointee.ai_addr, count: Int(result.length)))
        }
        results.append(result)
        next = entry.pointee.ai_next
      }
      if host.isEmpty, let dual = results.first(where: { $0.family == AF_INET6 }) { return [dual] }
      return results
    }
  }

  /// The numeric address of a TCP peer or listener; nil for a Unix domain socket, whose other end has no name.
  var numeric: ListenAddress? {
    guard family == AF_INET || family == AF_INET6 else { return nil }
    var host = [CChar](repeating: 0, count: 128)
    var service = [CChar](repeating: 0, count: 8)
    let status = withPointer {
      getnameinfo(
        $0, $1, &host, socklen_t(host.count), &service, socklen_t(service.count), NI_NUMERICHOST | NI_NUMERICSERV)
    }
    guard status == 0, let port = UInt16(Self.text(service)) else { return nil }
    return .tcp(host: Self.text(host), port: port)
  }

  private static func text(_ characters: [CChar]) -> String {
    String(decoding: characters.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
  }
}
