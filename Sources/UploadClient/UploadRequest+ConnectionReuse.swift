// Which responses end the use of their connection.
//
// A layer-4 balancer selects a server for each new connection. A server that is being drained keeps its connections and
// may answer each request on them with an error. So may a portal that intercepted the connection when it was opened.
// Another connection leads to another server, but retries over the same one never do.

internal import HTTPMessages

extension UploadRequest {
  /// Whether another request may use the connection of this one after a response.
  ///
  /// An error of the server, or a status that callers retry, ends the use of the connection. So does any other status
  /// that may come from a wrong server. A status about the request itself does not, because it has the same meaning on
  /// each connection, and the next request usually follows at once.
  ///
  /// - Parameter sendsContent: whether the request has at least one byte of content.
  func keepsConnection(after response: HTTPResponse, sendsContent: Bool) -> Bool {
    // libcurl sends no body of unknown length over a connection that used HTTP/1.0. A new connection begins with
    // HTTP/1.1.
    guard response.version > .http10 else { return false }
    switch response.status {
    case ..<300, 304: return true
    case ..<400: return redirectsWithinOrigin(response)
    // 421: this connection leads to a server that is not responsible for the host (RFC 9110, section 15.5.20).
    case _ where response.status >= 500 || RetriedStatus.contains(response.status): return false
    // A server that refuses a request need not read its content, which the kernel may have accepted. The server would
    // then not read the next request on this connection.
    case _ where sendsContent: return false
    // Many servers support neither method at any URL, and such a refusal is not retried. A 404 to a DELETE means that
    // nothing is left to delete.
    case _ where method == "OPTIONS" || method == "DELETE": return true
    case 401, 403, 407, 409, 410, 412, 413, 416: return true
    default: return false
    }
  }

  /// Whether a response leads to a URL of the same origin, which is usually requested next. The redirect of a portal
  /// leads to another one.
  private func redirectsWithinOrigin(_ response: HTTPResponse) -> Bool {
    guard let location = response["Location"], let target = resolving(location: location) else { return false }
    return Self.origin(of: target) == Self.origin(of: url)
  }
}
