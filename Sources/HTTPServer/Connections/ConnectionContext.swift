// What connections need of the server that they belong to, and nothing more of it.

internal import EventLoops

/// What all connections of a server share.
final class ConnectionContext {
  let loop: EventLoop
  let timeouts: Timeouts
  let buffers: ReceiveBuffers
  var allowance = ReadAllowance()
  let figures = ConnectionCounter()
  let parserLimits: RequestParser.Limits
  let router: RequestRouter
  /// A request was refused before any handler saw it.
  let refused: (_ peer: String, RequestRefusal) -> Void
  /// A connection is gone: the one whose descriptor this was.
  var closed: (Int32) -> Void = { _ in }
  /// The final answer to a request is on its way: on the connection with this descriptor.
  var answered: (Int32) -> Void = { _ in }
  /// The loop that a request is for, where it is another one than this.
  var otherLoop: (RequestHead) -> Int? = { _ in nil }
  /// Takes a connection to that loop. It is in no table any more.
  var handOver: (ConnectionHandover, Int) -> Void = { _, _ in }
  /// Whether answers say that the connection ends with them, and no request is begun any more.
  var stops = false

  init(
    loop: EventLoop, timeouts: Timeouts, parserLimits: RequestParser.Limits,
    bufferCapacity: Int = ReceiveBuffers.capacity,
    router: @escaping RequestRouter,
    refused: @escaping (_ peer: String, RequestRefusal) -> Void
  ) {
    self.loop = loop
    buffers = ReceiveBuffers(capacity: bufferCapacity)
    self.timeouts = timeouts
    self.parserLimits = parserLimits
    self.router = router
    self.refused = refused
  }
}
