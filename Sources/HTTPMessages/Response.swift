// Responses as values and as bytes (RFC 9112, section 4; RFC 9110, section 15).

/// A final response with a short body in memory.
///
/// The server determines the length of the body and the state of the connection. It omits `Content-Length`,
/// `Transfer-Encoding`, `Connection`, `Keep-Alive`, `Upgrade`, `Trailer` and `Date` of the handler. 204, 205 and 304
/// are sent without the body. If the fields are invalid, or the status is not a final one, 500 is sent instead.
public struct Response: Sendable, Equatable {
  /// The status code, 200 to 599.
  public var status: Int
  /// The fields that the handler sets.
  public var fields: HeaderFields
  /// The content. Empty for none.
  public var body: [UInt8]

  /// Creates a response with a text. A non-empty body gets `Content-Type: type`.
  public init(_ status: Int, _ fields: HeaderFields = [:], body: String = "", type: String = "text/plain") {
    self.status = status
    self.fields = fields
    self.body = Array(body.utf8)
    if !self.body.isEmpty { self.fields.append("content-type", type) }
  }

  /// `200 OK` with a text.
  public static func ok(_ body: String = "", type: String = "text/plain") -> Response {
    Response(200, body: body, type: type)
  }

  /// Why this cannot be the answer to a request with that method; nil if it can.
  package func flaw(inAnswerTo method: String) -> String? {
    guard (200...599).contains(status) else { return "its status is not a final status" }
    guard fields.isValid else { return "one of its fields is malformed" }
    // The bytes after it would no longer be HTTP (RFC 9110, section 9.3.6).
    if method == "CONNECT", status < 300 { return "this server does not support tunnels" }
    return nil
  }

  /// Whether an interim response can have that status (RFC 9110, section 15.2). 101 would end HTTP on the connection.
  package static func isInterim(_ status: Int) -> Bool { (100...199).contains(status) && status != 101 }

  /// The bytes to send.
  ///
  /// - Parameters:
  ///   - keepsAlive: whether the connection stays open. Otherwise the answer announces its end.
  ///   - withBody: false for the answer to HEAD, which states the length of the body but omits it.
  ///   - contentLength: the length in bytes of content that is sent in place of the body.
  ///   - date: an IMF-fixdate (RFC 9110, section 6.6.1).
  package func serialized(keepsAlive: Bool, withBody: Bool = true, contentLength: UInt64? = nil, date: String)
    -> [UInt8]
  {
    // RFC 9110, sections 15.3.5, 15.3.6 and 15.4.5.
    let body = [204, 205, 304].contains(status) || contentLength != nil ? [] : body
    var text = "HTTP/1.1 \(status) \(Self.reasonPhrase(status))\r\nDate: \(date)\r\n"
    for field in fields.all where !Self.connectionFields.contains(where: field.isNamed) {
      text += "\(field.displayName): \(field.value)\r\n"
    }
    // Neither has content, so neither has a length (RFC 9110, section 8.6).
    if status != 204 && status != 304 { text += "Content-Length: \(contentLength ?? UInt64(body.count))\r\n" }
    if !keepsAlive { text += "Connection: close\r\n" }
    text += "\r\n"
    return Array(text.utf8) + (withBody ? body : [])
  }

  /// Fields that only the connection can fill in.
  private static let connectionFields = [
    "connection", "content-length", "date", "keep-alive", "trailer", "transfer-encoding", "upgrade",
  ]

  /// The bytes of an interim answer (RFC 9110, section 15.2), which is only a head. It is built octet by octet, because
  /// a live stream receives several of them per second.
  package static func interim(_ status: Int, _ fields: HeaderFields) -> [UInt8] {
    var octets: [UInt8] = []
    octets.reserveCapacity(160)
    octets.append(contentsOf: "HTTP/1.1 ".utf8)
    octets.append(contentsOf: String(status).utf8)
    octets.append(Octet.space)
    octets.append(contentsOf: reasonPhrase(status).utf8)
    octets.append(contentsOf: lineEnd)
    for field in fields.all where !connectionFields.contains(where: field.isNamed) {
      field.appendDisplayName(to: &octets)
      octets.append(Octet.colon)
      octets.append(Octet.space)
      octets.append(contentsOf: field.value.utf8)
      octets.append(contentsOf: lineEnd)
    }
    octets.append(contentsOf: lineEnd)
    return octets
  }

  private static let lineEnd = "\r\n".utf8

  /// The customary words beside a status code. Clients ignore them, but people who read a trace do not.
  static func reasonPhrase(_ status: Int) -> String {
    switch status {
    case 100: "Continue"
    case 104: "Upload Resumption Supported"
    case 200: "OK"
    case 201: "Created"
    case 204: "No Content"
    case 206: "Partial Content"
    case 304: "Not Modified"
    case 400: "Bad Request"
    case 401: "Unauthorized"
    case 403: "Forbidden"
    case 404: "Not Found"
    case 405: "Method Not Allowed"
    case 408: "Request Timeout"
    case 409: "Conflict"
    case 411: "Length Required"
    case 410: "Gone"
    case 412: "Precondition Failed"
    case 413: "Content Too Large"
    case 414: "URI Too Long"
    case 415: "Unsupported Media Type"
    case 416: "Range Not Satisfiable"
    case 417: "Expectation Failed"
    case 431: "Request Header Fields Too Large"
    case 500: "Internal Server Error"
    case 501: "Not Implemented"
    case 503: "Service Unavailable"
    case 505: "HTTP Version Not Supported"
    case 507: "Insufficient Storage"
    default: "Unknown"
    }
  }
}
