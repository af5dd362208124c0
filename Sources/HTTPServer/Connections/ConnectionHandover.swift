// A connection that moves from the loop that accepted it to the loop that serves it.

internal import Glibc

/// A socket and what was read of it. It is closed if nobody takes it.
///
/// Unchecked: it is given away by one thread and taken by another, and never touched by both.
package final class ConnectionHandover: @unchecked Sendable {
  let peer: String
  /// A request that was read and not begun, with the parser that read it and the bytes behind it; nil for a new
  /// connection.
  let request: (head: RequestHead, parser: RequestParser, rest: [UInt8])?
  private var descriptor: Int32

  init(_ descriptor: Int32, peer: String, request: (head: RequestHead, parser: RequestParser, rest: [UInt8])? = nil) {
    self.descriptor = descriptor
    self.peer = peer
    self.request = request
  }

  deinit { if descriptor >= 0 { close(descriptor) } }

  /// Takes the socket out: it is the caller's now.
  func take() -> Int32 {
    defer { descriptor = -1 }
    return descriptor
  }
}
