// What connections need of the server that they belong to, and nothing more of it.

internal import EventLoops

/// What all connections of a server share.
final class ConnectionContext {
  let loop: EventLoop
  let timeouts: Timeouts
  let buffers = ReceiveBuffers()
  let parserLimits: RequestParser.Limits
  let router: RequestRouter
  /// A request was refused before any handler saw it.
  let refused: (_ peer: String, RequestRefusal) -> Void
  /// A connection is gone: the one whose descriptor this was.
  var closed: (Int32) -> Void = { _ in }
  /// Whether answers say that the connection ends with them.
  var stops = false

  init(
    loop: EventLoop, timeouts: Timeouts, parserLimits: RequestParser.Limits, router: @escaping RequestRouter,
    refused: @escaping (_ peer: String, RequestRefusal) -> Void
  ) {
    self.loop = loop
    self.timeouts = timeouts
    self.parserLimits = parserLimits
    self.router = router
    self.refused = refused
  }
}
