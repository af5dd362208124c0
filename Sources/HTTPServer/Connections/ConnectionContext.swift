// The parts of the server that connections use.

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
  /// Called when a request was refused before any handler received it.
  let refused: (_ peer: String, RequestRefusal) -> Void
  /// Called when the connection with this descriptor is closed.
  var closed: (Int32) -> Void = { _ in }
  /// Called when the final response on the connection with this descriptor is being sent.
  var answered: (Int32) -> Void = { _ in }
  /// The loop of a request, if it is not this one.
  var otherLoop: (RequestHead) -> Int? = { _ in nil }
  /// Moves a connection to that loop. It is no longer in any table.
  var handOver: (ConnectionHandover, Int) -> Void = { _, _ in }
  /// Whether responses announce the end of the connection, and no new request begins.
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
