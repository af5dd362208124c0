// What a handler holds of a connection: one request's worth of it.

/// A connection, for as long as one request lasts. After its answer, or its end, every call is ignored: the connection
/// may be busy with the next request by then.
final class ConnectionExchange: Exchange {
  let peer: String
  private var connection: HTTPConnection?

  init(_ connection: HTTPConnection) {
    self.connection = connection
    peer = connection.peer
  }

  /// The request is over.
  func cutOff() { connection = nil }

  func acceptBody() { connection?.acceptBody() }
  func sendInterim(_ status: Int, _ fields: HeaderFields) { connection?.sendInterim(status, fields) }
  func respond(_ response: Response) { connection?.respond(response) }
  func takeArrived() { connection?.takeArrived() }
  /// Leaves the rest of the body to TCP until ``resumeBody()``.
  func pauseBody() { connection?.pauseBody() }
  func resumeBody() { connection?.resumeBody() }
  func disconnect() { connection?.disconnect() }
}
