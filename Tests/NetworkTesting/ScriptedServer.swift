// A server that follows a test's script exactly, with one thread per connection. It may stall, answer early, lie and
// reset.

internal import CLinux
internal import EventLoops
internal import Glibc
internal import Synchronization

/// Listens, and runs the test's script for each connection.
public final class ScriptedServer: Sendable {
  public enum Address: Sendable {
    /// A port that no other server of this process has had, so that no client still connects to it.
    case ipv4
    case ipv6
    case unix(String)
    /// A specific port, for example because a client already knows it.
    case port(UInt16)
  }

  /// 0 for a unix socket.
  public let port: UInt16
  private let listener: Int32
  private let isClosed = Lock(false)
  private let isIPv6: Bool

  /// - Parameters:
  ///   - receiveBuffer: `SO_RCVBUF` of its connections, in bytes. It limits how many unread bytes the server's TCP
  ///     accepts.
  ///   - inTurn: whether one thread serves all connections, one after the other, for a test with more of them than a
  ///     process may have threads. `serve` must not wait for another connection. The connection stays open after it,
  ///     for as long as the test retains it.
  ///   - serve: called on a separate thread for each connection, with its number, from 0. When it returns, a FIN closes
  ///     the connection after the last sent bytes. Its errors are ignored, because the test sees the consequences.
  public init(
    _ address: Address = .ipv4, receiveBuffer: Int32? = nil, inTurn: Bool = false,
    _ serve: @escaping @Sendable (ServerConnection, Int) throws -> Void
  ) throws {
    let (socket, port) = try Self.bind(address, receiveBuffer)
    listener = socket
    self.port = port
    if case .ipv6 = address { isIPv6 = true } else { isIPv6 = false }
    try NamedThread("test server") {
      var number = 0
      while true {
        let descriptor = accept(socket, nil, nil)
        if descriptor < 0, errno == EMFILE {
          // The test has limited its descriptors. The connection waits.
          usleep(1000)
          continue
        }
        guard descriptor >= 0 else { break }
        setCloseOnExec(descriptor)
        let (connection, index) = (ServerConnection(descriptor), number)
        number += 1
        if inTurn {
          try? serve(connection, index)
          continue
        }
        serving: while true {
          do {
            try NamedThread("test connection") {
              try? serve(connection, index)
              connection.end()
            }.detach()
            break serving
          } catch {
            // The process has its maximum number of threads. The connection waits.
            usleep(1000)
          }
        }
      }
      Glibc.close(socket)
    }.detach()
  }

  deinit { close() }

  /// Refuses connections from here on. Existing ones continue.
  public func close() {
    isClosed.withLock { closed in
      if !closed { shutdown(listener, Int32(SHUT_RDWR)) }
      closed = true
    }
  }

  public var url: String { isIPv6 ? "http://[::1]:\(port)" : "http://127.0.0.1:\(port)" }

  fileprivate static func freePort() throws -> UInt16 {
    let (descriptor, port) = try bind(.ipv4, nil)
    Glibc.close(descriptor)
    return port
  }

  private static func bind(_ address: Address, _ receiveBuffer: Int32?) throws -> (Int32, UInt16) {
    guard case .ipv4 = address else {
      guard let bound = try listen(address, receiveBuffer) else { throw TestFailure("bind: \(address) is in use") }
      return bound
    }
    // The kernel would choose one above 32,767 (`ip_local_port_range`), perhaps that of a server which has just ended.
    // Its clients may still connect to it.
    for _ in 0..<1000 {
      let number = portCount.wrappingAdd(1, ordering: .relaxed).newValue
      // Test processes run at the same time.
      let port = firstPort + UInt16((UInt32(bitPattern: getpid()) &* 97 &+ number) % 10_000)
      if let bound = try listen(.port(port), receiveBuffer) { return bound }
    }
    throw TestFailure("no free port")
  }

  /// Returns nil if the address is in use.
  private static func listen(_ address: Address, _ receiveBuffer: Int32?) throws -> (Int32, UInt16)? {
    func failure(_ call: String) -> TestFailure { TestFailure("\(call): \(String(cString: strerror(errno)))") }
    var storage = sockaddr_storage()
    let length = fill(&storage, address)
    let descriptor = socket(Int32(storage.ss_family), Int32(SOCK_STREAM.rawValue), 0)
    guard descriptor >= 0 else { throw failure("socket") }
    setCloseOnExec(descriptor)
    var on: Int32 = 1
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, 4)
    if var receiveBuffer { setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &receiveBuffer, 4) }
    let bound = withUnsafePointer(to: storage) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { Glibc.bind(descriptor, $0, length) }
    }
    guard bound == 0, Glibc.listen(descriptor, 4096) == 0 else {
      let code = errno
      Glibc.close(descriptor)
      errno = code
      if code == EADDRINUSE { return nil }
      throw failure("bind")
    }
    var name = sockaddr_in6()
    var nameLength = socklen_t(MemoryLayout<sockaddr_in6>.size)
    withUnsafeMutablePointer(to: &name) {
      _ = $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { getsockname(descriptor, $0, &nameLength) }
    }
    // The port has the same position in both families.
    return (descriptor, storage.ss_family == AF_UNIX ? 0 : UInt16(bigEndian: name.sin6_port))
  }

  private static func fill(_ storage: inout sockaddr_storage, _ address: Address) -> socklen_t {
    withUnsafeMutableBytes(of: &storage) { bytes in
      switch address {
      case .ipv4, .port:
        var name = sockaddr_in()
        name.sin_family = sa_family_t(AF_INET)
        name.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
        if case .port(let port) = address { name.sin_port = port.bigEndian }
        withUnsafeBytes(of: &name) { bytes.copyMemory(from: $0) }
        return socklen_t(MemoryLayout<sockaddr_in>.size)
      case .ipv6:
        var name = sockaddr_in6()
        name.sin6_family = sa_family_t(AF_INET6)
        name.sin6_addr = in6addr_loopback
        withUnsafeBytes(of: &name) { bytes.copyMemory(from: $0) }
        return socklen_t(MemoryLayout<sockaddr_in6>.size)
      case .unix(let path):
        var name = sockaddr_un()
        name.sun_family = sa_family_t(AF_UNIX)
        withUnsafeMutableBytes(of: &name.sun_path) { $0.copyBytes(from: path.utf8) }
        withUnsafeBytes(of: &name) { bytes.copyMemory(from: $0) }
        return socklen_t(MemoryLayout<sockaddr_un>.size)
      }
    }
  }
}

/// A loopback port on which nothing listens. No server of another test gets it before its user.
public func freePort() throws -> UInt16 { try ScriptedServer.freePort() }

private let portCount = Atomic<UInt32>(0)
/// The first of the 10,000 ports from which this process takes those of its servers.
private let firstPort = getenv("SLUICE_FIRST_PORT").flatMap { UInt16(String(cString: $0)) } ?? 10_000
