// Records which connection carries which request. libcurl reports this only after a request, but two facts are required
// earlier: the kernel's counts for the body's socket, and whether a connection is new.

internal import CCurl
internal import CLinux
internal import Glibc

/// An open connection of libcurl, in use or in its pool for the next request.
final class Connection {
  let socket: curl_socket_t
  /// The transfer whose request it carries, or the latest of several.
  fileprivate(set) var user: CurlTransfer?
  /// Whether the socket still belongs to this connection. Its number is reused, and other users of the connection may
  /// not have noticed yet.
  private(set) var isOpen = true
  /// Whether it is known to carry only the bytes of requests, without TLS and without the handshake of a SOCKS proxy.
  /// The kernel's count of its bytes is then a count of the requests' bytes.
  var isTransparent = false
  /// Whether its current request is its first.
  fileprivate(set) var isNew = true
  fileprivate var ends: ConnectionTable.Ends?

  func isClosed() { isOpen = false }

  func isLeft(by transfer: CurlTransfer) {
    if user === transfer { user = nil }
  }

  fileprivate init(socket: curl_socket_t) { self.socket = socket }
}

/// All connections, by socket and by address.
struct ConnectionTable {
  /// The addresses that libcurl reports before it sends a request over a connection: `CURLOPT_PREREQFUNCTION`.
  struct Ends: Hashable {
    var local: String
    var localPort: Int32
    var remote: String
    var remotePort: Int32
  }

  private var bySocket: [curl_socket_t: Connection] = [:]
  private var byEnds: [Ends: Connection] = [:]
  /// Sockets that a transfer has opened and not used yet. There are several while it tries several addresses (RFC
  /// 8305).
  ///
  /// Numbers alone would not suffice. libcurl 7.88 closes an unconnected socket without a report, and the number is
  /// reused.
  private var openedBy: [ObjectIdentifier: [Connection]] = [:]

  /// `transfer` has a new socket, which is about to connect.
  mutating func opened(_ socket: curl_socket_t, by transfer: CurlTransfer) {
    let connection = Connection(socket: socket)
    bySocket.updateValue(connection, forKey: socket)?.isClosed()
    openedBy[ObjectIdentifier(transfer), default: []].append(connection)
  }

  /// A request of `transfer` is about to be sent. Nil only for a reused unix socket, which has no distinguishing
  /// address. See ``adopt(_:by:)``.
  mutating func use(_ ends: Ends, by transfer: CurlTransfer) -> Connection? {
    let candidates = (openedBy.removeValue(forKey: ObjectIdentifier(transfer)) ?? []).filter { isKnown($0) }
    let new =
      candidates.count == 1 ? candidates[0] : candidates.last { Self.localPort(of: $0.socket) == ends.localPort }
    // libcurl closed the other addresses when one of them answered.
    for other in candidates where other !== new { drop(other) }
    let connection = new ?? byEnds[ends]
    connection?.user = transfer
    if new == nil { connection?.isNew = false }
    if let new, ends.localPort > 0 {
      new.ends = ends
      byEnds[ends] = new
    }
    return connection
  }

  /// libcurl watches `socket` for `transfer`, whose connection was unknown so far.
  mutating func adopt(_ socket: curl_socket_t, by transfer: CurlTransfer) -> Connection? {
    bySocket[socket]?.user = transfer
    return bySocket[socket]
  }

  /// `transfer` will use no more sockets. libcurl has closed those that it opened and did not use.
  mutating func forget(_ transfer: CurlTransfer) {
    for connection in openedBy.removeValue(forKey: ObjectIdentifier(transfer)) ?? [] { drop(connection) }
  }

  private func isKnown(_ connection: Connection) -> Bool { bySocket[connection.socket] === connection }

  private mutating func drop(_ connection: Connection) {
    guard isKnown(connection) else { return }
    bySocket[connection.socket] = nil
    connection.isClosed()
  }

  /// The socket is about to be closed, and its number may come back.
  mutating func close(_ socket: curl_socket_t) -> Connection? {
    let connection = bySocket.removeValue(forKey: socket)
    if let ends = connection?.ends { byEnds[ends] = nil }
    return connection
  }

  subscript(_ socket: curl_socket_t) -> Connection? { bySocket[socket] }

  var count: Int { bySocket.count }

  /// Whether no transfer uses or is about to use any of them.
  var isIdle: Bool { openedBy.isEmpty && bySocket.values.allSatisfy { $0.user == nil } }

  /// Only for TCP sockets. A unix socket is never one of several.
  private static func localPort(of socket: curl_socket_t) -> Int32 {
    var name = sockaddr_in6()
    var length = socklen_t(MemoryLayout<sockaddr_in6>.size)
    withUnsafeMutablePointer(to: &name) {
      _ = $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { getsockname(socket, $0, &length) }
    }
    // The port is at the same place in both families.
    return Int32(UInt16(bigEndian: name.sin6_port))
  }
}
