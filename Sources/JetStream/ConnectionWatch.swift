// Ends attempts to connect, and connections, that libnats would not end.

internal import CNats
internal import EventLoops
internal import Glibc

/// A connection to brokers, for as long as it exists, and whether it is established. Any thread.
///
/// libnats before 3.8 waits without limit for a broker's answer to its credentials (nats.c pull request 707). While
/// that broker is silent, a thread of libnats uses a whole processor and more and more memory, and it tries no other
/// broker. So a thread of this process shuts down the socket of such an attempt.
///
/// libnats does not say which socket that is. It is connected to a broker's port, was not accepted by a server of this
/// process, does not belong to an established connection, and exists for longer than an attempt may take.
final class WatchedConnection: Sendable {
  private let number: UInt64

  init(_ options: BrokerOptions) {
    number = ConnectionWatch.add(
      .init(ports: Set(options.servers.map(Self.port)), limit: options.connectTimeout * 2 + .seconds(1)))
  }

  deinit { ConnectionWatch.change(number) { $0 = nil } }

  /// libnats tries to establish it from now on.
  func isLost() { ConnectionWatch.change(number) { $0?.localPort = nil } }

  /// It is established. The brokers may have named others since the last time.
  func isEstablished(_ connection: OpaquePointer) {
    var (address, port): (UnsafeMutablePointer<CChar>?, Int32) = (nil, 0)
    guard natsConnection_GetLocalIPAndPort(connection, &address, &port) == NATS_OK else { return }
    free(address)
    let ports = Set(Self.servers(of: connection).map(Self.port))
    ConnectionWatch.change(number) { known in
      known?.ports.formUnion(ports)
      known?.localPort = UInt16(truncatingIfNeeded: port)
    }
  }

  /// Ends the connection if it is established. libnats handles this like any other loss, and tries the next broker. It
  /// has no call for this before 3.9.
  func end() { ConnectionWatch.end(number) }

  private static func servers(of connection: OpaquePointer) -> [String] {
    var (list, count): (UnsafeMutablePointer<UnsafeMutablePointer<CChar>?>?, Int32) = (nil, 0)
    guard natsConnection_GetServers(connection, &list, &count) == NATS_OK, let list else { return [] }
    defer { free(list) }
    return (0..<Int(count)).compactMap { index in
      guard let server = list[index] else { return nil }
      defer { free(server) }
      return String(cString: server)
    }
  }

  /// The port in a URL of a broker.
  static func port(ofServer url: String) -> UInt16 {
    // An IPv6 address has colons, in brackets.
    let afterAddress = url.lastIndex(of: "]").map { url[$0...] } ?? url[...]
    guard let colon = afterAddress.lastIndex(of: ":") else { return 4222 }
    return UInt16(afterAddress[afterAddress.index(after: colon)...]) ?? 4222
  }
}

/// Watches the attempts of all connections, with one thread while there are any.
private enum ConnectionWatch {
  struct Connection {
    /// Of its brokers.
    var ports: Set<UInt16>
    /// The longest time of an attempt.
    let limit: Duration
    /// The local port of its socket; nil if it is not established.
    var localPort: UInt16?
  }

  private struct State {
    var connections: [UInt64: Connection] = [:]
    var lastNumber: UInt64 = 0
    var isWatching = false
  }

  private static let state = Lock(State())
  private static let interval = Duration.milliseconds(250)

  static func add(_ connection: Connection) -> UInt64 {
    let number = state.withLock { state in
      state.lastNumber += 1
      state.connections[state.lastNumber] = connection
      return state.lastNumber
    }
    watch()
    return number
  }

  static func change(_ number: UInt64, _ change: (inout Connection?) -> Void) {
    state.withLock { change(&$0.connections[number]) }
    watch()
  }

  /// Shuts down the socket of an established connection.
  static func end(_ number: UInt64) {
    guard let connection = state.withLock({ $0.connections[number] }) else { return }
    for socket in Socket.connected()
    where socket.localPort == connection.localPort && connection.ports.contains(socket.peerPort) {
      shutdown(socket.descriptor, Int32(SHUT_RDWR))
    }
  }

  /// Starts the thread if it is needed. Without memory for it, the next change tries again.
  private static func watch() {
    let isNeeded = state.withLock { state in
      guard !state.isWatching, state.connections.values.contains(where: { $0.localPort == nil }) else { return false }
      state.isWatching = true
      return true
    }
    guard isNeeded else { return }
    do throws(SystemError) {
      try NamedThread("sluice-nats-try") { run() }.detach()
    } catch {
      state.withLock { $0.isWatching = false }
    }
  }

  private static func run() {
    // How often each socket was found, because a process may stand still for longer than any limit.
    var ages: [ino_t: Int] = [:]
    while true {
      let connections: [Connection]? = state.withLock { state in
        state.isWatching = state.connections.values.contains { $0.localPort == nil }
        return state.isWatching ? Array(state.connections.values) : nil
      }
      guard let connections else { return }
      let established = Set(connections.compactMap(\.localPort))
      let attempts = connections.filter { $0.localPort == nil }
      let found = Socket.connected().filter { !established.contains($0.localPort) }
      var next: [ino_t: Int] = [:]
      for socket in found {
        let limits = attempts.lazy.filter { $0.ports.contains(socket.peerPort) }.map(\.limit)
        guard let limit = limits.max() else { continue }
        let age = ages[socket.inode, default: 0] + 1
        next[socket.inode] = age
        if interval * age > limit { shutdown(socket.descriptor, Int32(SHUT_RDWR)) }
      }
      ages = next
      usleep(UInt32(interval.nanoseconds / 1000))
    }
  }
}

/// A TCP socket of this process.
private struct Socket {
  let descriptor: Int32
  let inode: ino_t
  let localPort: UInt16
  let peerPort: UInt16

  /// Those that are connected, and were not accepted by a listening one.
  static func connected() -> [Socket] {
    guard let directory = opendir("/proc/self/fd") else { return [] }
    defer { closedir(directory) }
    var (listening, connected): (Set<UInt16>, [Socket]) = ([], [])
    while let entry = readdir(directory) {
      let name = withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
      }
      guard let descriptor = Int32(name), let localPort = port(descriptor, getsockname) else { continue }
      var status = stat()
      if let peerPort = port(descriptor, getpeername), fstat(descriptor, &status) == 0 {
        connected.append(
          Socket(descriptor: descriptor, inode: status.st_ino, localPort: localPort, peerPort: peerPort))
      } else {
        var (isListening, length) = (Int32(0), socklen_t(MemoryLayout<Int32>.size))
        getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &isListening, &length)
        if isListening != 0 { listening.insert(localPort) }
      }
    }
    return connected.filter { !listening.contains($0.localPort) }
  }

  /// nil if it is no internet socket, or has no such address.
  private static func port(
    _ descriptor: Int32, _ ask: (Int32, UnsafeMutablePointer<sockaddr>, UnsafeMutablePointer<socklen_t>) -> Int32
  ) -> UInt16? {
    // An IPv4 address is shorter, and has its port at the same position.
    var (address, length) = (sockaddr_in6(), socklen_t(MemoryLayout<sockaddr_in6>.size))
    let result = withUnsafeMutablePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { ask(descriptor, $0, &length) }
    }
    guard result == 0, [AF_INET, AF_INET6].contains(Int32(address.sin6_family)) else { return nil }
    return UInt16(bigEndian: address.sin6_port)
  }
}
