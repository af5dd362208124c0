// Which connection carries which request. libcurl keeps that to itself until a request is over, but two things have to
// be known before: what the kernel says of the body's socket, and whether a connection is a new one.

internal import CCurl
internal import CLinux
internal import Glibc

/// A connection that libcurl has open, in use or waiting in its pool for the next request.
final class Connection {
  let socket: curl_socket_t
  /// Whose request it carries; the latest of them where several share it.
  fileprivate(set) var user: CurlTransfer?
  /// Whether the socket is still this connection's: its number comes back, and others who shared it may not know yet.
  private(set) var isOpen = true
  /// Whether it is known to carry requests byte for byte and nothing else: no TLS, and no greeting of a SOCKS proxy.
  /// Then the kernel's count of its bytes is a count of the requests' bytes.
  var isTransparent = false
  /// Whether the request that it carries is its first.
  fileprivate(set) var isNew = true
  fileprivate var ends: ConnectionTable.Ends?

  func isClosed() { isOpen = false }

  func isLeft(by transfer: CurlTransfer) {
    if user === transfer { user = nil }
  }

  fileprivate init(socket: curl_socket_t) { self.socket = socket }
}

/// All of them, by socket and by address.
struct ConnectionTable {
  /// What libcurl tells of a connection before it sends a request over it: `CURLOPT_PREREQFUNCTION`.
  struct Ends: Hashable {
    var local: String
    var localPort: Int32
    var remote: String
    var remotePort: Int32
  }

  private var bySocket: [curl_socket_t: Connection] = [:]
  private var byEnds: [Ends: Connection] = [:]
  /// Sockets that a transfer has opened and not used yet; several while it tries several addresses (RFC 8305).
  ///
  /// Not their numbers alone: libcurl 7.88 closes a socket that has not connected yet without telling, and the number
  /// comes back.
  private var openedBy: [ObjectIdentifier: [Connection]] = [:]

  /// `transfer` has a new socket, which is about to connect.
  mutating func opened(_ socket: curl_socket_t, by transfer: CurlTransfer) {
    let connection = Connection(socket: socket)
    bySocket.updateValue(connection, forKey: socket)?.isClosed()
    openedBy[ObjectIdentifier(transfer), default: []].append(connection)
  }

  /// A request of `transfer` is about to go out. Nil only for a unix socket that is used again: it has no address that
  /// would tell it from others; see ``adopt(_:by:)``.
  mutating func use(_ ends: Ends, by transfer: CurlTransfer) -> Connection? {
    let candidates = (openedBy.removeValue(forKey: ObjectIdentifier(transfer)) ?? []).filter { isKnown($0) }
    let new =
      candidates.count == 1 ? candidates[0] : candidates.last { Self.localPort(of: $0.socket) == ends.localPort }
    // The other addresses that were tried: libcurl has closed them when one has answered.
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

  /// libcurl watches `socket` for `transfer`, whose connection was not known so far.
  mutating func adopt(_ socket: curl_socket_t, by transfer: CurlTransfer) -> Connection? {
    bySocket[socket]?.user = transfer
    return bySocket[socket]
  }

  /// `transfer` will use nothing more: what it has opened and not used, libcurl has closed.
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

  /// Whether no transfer has any of them, or is about to.
  var isIdle: Bool { openedBy.isEmpty && bySocket.values.allSatisfy { $0.user == nil } }

  /// Of a TCP socket: a unix socket is never one of several.
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
