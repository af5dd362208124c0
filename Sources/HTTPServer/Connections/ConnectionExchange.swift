// What a handler holds of a connection: one request's worth of it.

package import EventLoops
package import HTTPMessages

/// A connection, for as long as one request lasts. After its answer, or its end, every call is ignored: the connection
/// may be busy with the next request by then.
package final class ConnectionExchange: ContentExchange {
  package let peer: String
  package let loop: EventLoop
  private var connection: HTTPConnection?

  init(_ connection: HTTPConnection) {
    self.connection = connection
    peer = connection.peer
    loop = connection.loop
  }

  /// The request is over.
  func cutOff() { connection = nil }

  package func acceptBody() { connection?.acceptBody() }
  package func sendInterim(_ status: Int, _ fields: HeaderFields) { connection?.sendInterim(status, fields) }
  package func respond(_ response: Response) { connection?.respond(response) }
  package func respond(_ response: Response, _ content: any ResponseContent) {
    if let connection { connection.respond(response, content) } else { content.ended(sent: 0, .peerClosed) }
  }
  package func takeArrived() { connection?.takeArrived() }
  package func pauseBody() { connection?.pauseBody() }
  package func resumeBody() { connection?.resumeBody() }
  package func disconnect() { connection?.disconnect() }
}
