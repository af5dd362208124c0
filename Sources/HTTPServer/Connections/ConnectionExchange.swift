// A handler's view of a connection, limited to one request.

package import EventLoops
package import HTTPMessages

/// A connection for the duration of one request. After the answer, or the end of the request, every call is ignored,
/// because the connection may already be serving the next request.
package final class ConnectionExchange: Exchange {
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
  package var contentResponder: ContentResponder? { ContentResponder(self) }
  func respond(_ response: Response, _ content: any ResponseContent) {
    if let connection { connection.respond(response, content) } else { content.ended(sent: 0, .peerClosed) }
  }
  package func takeArrived() { connection?.takeArrived() }
  package func pauseBody() { connection?.pauseBody() }
  package func resumeBody() { connection?.resumeBody() }
  package func disconnect() { connection?.disconnect() }
}
