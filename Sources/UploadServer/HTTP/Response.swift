// Answers, as values and as bytes (RFC 9112, section 4; RFC 9110, section 15).

/// A final answer with a short body, all of it in memory: this server hands out nothing large.
public struct Response: Sendable, Equatable {
  public var status: Int
  public var fields: HeaderFields
  public var body: [UInt8]

  public init(_ status: Int, _ fields: HeaderFields = [:], body: String = "", type: String = "text/plain") {
    self.status = status
    self.fields = fields
    self.body = Array(body.utf8)
    if !self.body.isEmpty { self.fields.append("content-type", type) }
  }

  /// The bytes to send.
  ///
  /// - Parameters:
  ///   - keepsAlive: whether the connection stays open after it; if not, the answer says so.
  ///   - withBody: false for the answer to HEAD, which says how long the body would be and leaves it out.
  ///   - date: an IMF-fixdate (RFC 9110, section 6.6.1).
  package func serialized(keepsAlive: Bool, withBody: Bool = true, date: String) -> [UInt8] {
    var text = "HTTP/1.1 \(status) \(Self.reasonPhrase(status))\r\nDate: \(date)\r\n"
    for field in fields.all { text += "\(Self.displayed(field.name)): \(field.value)\r\n" }
    // A 204 has no content, and says nothing of its length either (RFC 9110, section 8.6).
    if status != 204 { text += "Content-Length: \(body.count)\r\n" }
    if !keepsAlive { text += "Connection: close\r\n" }
    text += "\r\n"
    return Array(text.utf8) + (withBody ? body : [])
  }

  /// The bytes of an interim answer (RFC 9110, section 15.2): a head and nothing else.
  package static func interim(_ status: Int, _ fields: HeaderFields) -> [UInt8] {
    var text = "HTTP/1.1 \(status) \(reasonPhrase(status))\r\n"
    for field in fields.all { text += "\(displayed(field.name)): \(field.value)\r\n" }
    return Array((text + "\r\n").utf8)
  }

  /// `stream-offset` as `Stream-Offset`: clients compare without regard to case, people read.
  private static func displayed(_ name: String) -> String {
    var result = ""
    var atStart = true
    for character in name {
      result += atStart ? character.uppercased() : String(character)
      atStart = character == "-"
    }
    // The one name of ours that is an abbreviation.
    return result.hasSuffix("-Id") ? String(result.dropLast(2)) + "ID" : result
  }

  /// The customary words beside a status code. Clients ignore them; people who read a trace do not.
  static func reasonPhrase(_ status: Int) -> String {
    switch status {
    case 100: "Continue"
    case 104: "Upload Resumption Supported"
    case 200: "OK"
    case 201: "Created"
    case 204: "No Content"
    case 400: "Bad Request"
    case 401: "Unauthorized"
    case 403: "Forbidden"
    case 404: "Not Found"
    case 405: "Method Not Allowed"
    case 408: "Request Timeout"
    case 409: "Conflict"
    case 411: "Length Required"
    case 410: "Gone"
    case 413: "Content Too Large"
    case 414: "URI Too Long"
    case 415: "Unsupported Media Type"
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
