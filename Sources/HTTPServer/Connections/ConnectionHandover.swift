// A connection that moves from the loop that accepted it to the loop that serves it.

internal import Glibc

/// A socket and the bytes read from it. It is closed if nobody takes it.
///
/// Unchecked, because one thread gives it away and another takes it, so they never use it at the same time.
package final class ConnectionHandover: @unchecked Sendable {
  let peer: String
  /// A request that was read but not begun, with its parser and the bytes after it; nil for a new connection.
  let request: (head: RequestHead, parser: RequestParser, rest: [UInt8])?
  private var descriptor: Int32

  init(_ descriptor: Int32, peer: String, request: (head: RequestHead, parser: RequestParser, rest: [UInt8])? = nil) {
    self.descriptor = descriptor
    self.peer = peer
    self.request = request
  }

  deinit { if descriptor >= 0 { close(descriptor) } }

  /// Takes the socket, which then belongs to the caller.
  func take() -> Int32 {
    defer { descriptor = -1 }
    return descriptor
  }
}
