// The addresses of a proxy, and the capacity of its sockets.

internal import EventLoops
package import Glibc

/// An IPv4 address and a port.
package struct IPv4Address: Sendable, CustomStringConvertible {
  private var name = sockaddr_in()

  /// - Parameter text: `ADDRESS:PORT`, as `sluice serve` prints it.
  package init(_ text: String) throws {
    let parts = text.split(separator: ":")
    name.sin_family = sa_family_t(AF_INET)
    guard parts.count == 2, let port = UInt16(parts[1]), inet_pton(AF_INET, String(parts[0]), &name.sin_addr) == 1
    else { throw TestFailure("\(text) is not ADDRESS:PORT") }
    name.sin_port = port.bigEndian
  }

  package func withPointer<Result>(_ body: (UnsafePointer<sockaddr>, socklen_t) -> Result) -> Result {
    withUnsafePointer(to: name) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { body($0, socklen_t(MemoryLayout<sockaddr_in>.size)) }
    }
  }

  /// The address that a socket is bound to.
  package init(of descriptor: Int32) throws {
    var length = socklen_t(MemoryLayout<sockaddr_in>.size)
    let status = withUnsafeMutablePointer(to: &name) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { getsockname(descriptor, $0, &length) }
    }
    guard status == 0 else { throw SystemError.last("getsockname") }
  }

  package var description: String {
    var text = [CChar](repeating: 0, count: Int(INET_ADDRSTRLEN))
    var address = name.sin_addr
    inet_ntop(AF_INET, &address, &text, socklen_t(text.count))
    let host = String(decoding: text.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self)
    return "\(host):\(UInt16(bigEndian: name.sin_port))"
  }
}

/// Sockets with limited buffers, so that the loss with a connection is limited too. Loopback's default buffers hold
/// megabytes.
enum BoundedSocket {
  /// `SO_RCVBUF` and `SO_SNDBUF`, in bytes. The kernel doubles the requested size for its own overhead, socket(7).
  static let bufferSize: Int32 = 64 << 10
  /// `TCP_MAXSEG`, in bytes. Loopback's 64 KiB segments would fill such a buffer with one segment.
  static let maximumSegment: Int32 = 1448

  /// A non-blocking TCP socket. Accepted sockets inherit options that are set before listen(2).
  static func make() throws -> Int32 {
    let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
    let descriptor = try retryingInterrupts("socket") { socket(AF_INET, type, 0) }
    set(descriptor, SOL_SOCKET, SO_RCVBUF, bufferSize)
    set(descriptor, SOL_SOCKET, SO_SNDBUF, bufferSize)
    set(descriptor, Int32(IPPROTO_TCP), TCP_MAXSEG, maximumSegment)
    // Received bytes are forwarded at once. A proxy that waits for more would affect the measurement of the two ends.
    set(descriptor, Int32(IPPROTO_TCP), TCP_NODELAY, 1)
    return descriptor
  }

  static func set(_ descriptor: Int32, _ level: Int32, _ option: Int32, _ value: Int32) {
    var value = value
    setsockopt(descriptor, level, option, &value, socklen_t(MemoryLayout<Int32>.size))
  }

  /// The reported capacity of a socket's buffer, in bytes.
  static func capacity(of descriptor: Int32, _ option: Int32) -> Int {
    var value: Int32 = 0
    var length = socklen_t(MemoryLayout<Int32>.size)
    getsockopt(descriptor, SOL_SOCKET, option, &value, &length)
    return Int(value)
  }
}
