// What a server of streams answers to requests that send no stream, wherever it stores streams.

package import HTTPMessages
package import HTTPServer

package enum OtherRequests {
  /// The methods of everything except upload resources.
  package static let methods = "GET, HEAD, POST, PUT, OPTIONS"

  /// The response to a request with another method than POST and PUT.
  package static func handler(for head: RequestHead) -> FixedResponseHandler {
    switch head.method {
    case "GET", "HEAD":
      guard head.target.path == "/" else {
        return FixedResponseHandler(Response(404, body: "This server receives streams. It does not offer downloads.\n"))
      }
      return FixedResponseHandler(
        Response(
          200, body: "Sluice receives streams here: POST or PUT to any path, chunked or with a Content-Length.\n"))
    case "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT":
      return FixedResponseHandler(
        Response(405, ["allow": methods], body: "Send streams with POST or PUT.\n"))
    default: return FixedResponseHandler(Response(501, body: "This server does not support that method.\n"))
    }
  }
}
