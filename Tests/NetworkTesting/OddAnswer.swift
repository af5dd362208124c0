// Answers that do not come from the server: from a portal, a maintenance page, a proxy that is being reconfigured, or a
// link that corrupts data.

package import PropertyTesting

/// One answer that is not the server's, byte by byte.
package struct OddAnswer: Sendable, CustomStringConvertible {
  package enum End: Sendable { case goesOn, closes, resets, waits }

  /// The bytes to send; empty for silence.
  package var bytes: String
  /// Whether to read the request's content first. None of it is kept.
  package var readsContent: Bool
  package var end: End

  package init(bytes: String, readsContent: Bool = true, end: End = .goesOn) {
    (self.bytes, self.readsContent, self.end) = (bytes, readsContent, end)
  }

  /// A complete response.
  package init(status: String, _ fields: [String] = [], body: String = "", readsContent: Bool = true) {
    let lines = ["HTTP/1.1 \(status)"] + fields + ["Content-Length: \(body.utf8.count)"]
    self.init(bytes: lines.map { "\($0)\r\n" }.joined() + "\r\n" + body, readsContent: readsContent)
  }

  package var description: String {
    "\(bytes.prefix { $0 != "\r\n" })… (\(bytes.utf8.count) bytes, \(readsContent ? "late" : "early"), \(end))"
  }

  /// Sends it. Returns false if the connection must end.
  package func send(on connection: ServerConnection) throws -> Bool {
    try connection.send(bytes)
    switch end {
    case .goesOn where readsContent: return true
    case .goesOn, .closes: return false
    case .resets: connection.reset()
    case .waits: _ = connection.waitForEnd()
    }
    return false
  }

  /// Any status except those by which a server reports an upload as gone, too large or conflicting (409, 410, 413), and
  /// 404, which clients accept after repetitions. Fields may be missing, doubled or absurd. The answer may be cut
  /// anywhere, and come early, late or never.
  ///
  /// - Parameter isHead: whether a response has no body (RFC 9110, section 9.3.2).
  package static func draw(_ random: inout SplitMix64, isHead: Bool) -> OddAnswer {
    if random.chance(8) {
      return OddAnswer(bytes: "", readsContent: random.chance(50), end: random.chance(50) ? .resets : .waits)
    }
    if random.chance(8) {
      return OddAnswer(bytes: "SSH-2.0-OpenSSH_9.2\r\n", readsContent: random.chance(50), end: .closes)
    }
    let common = [200, 204, 206, 302, 307, 308, 400, 401, 403, 405, 412, 500, 501, 502, 503]
    var status = random.chance(60) ? common.randomElement(using: &random) ?? 500 : 200 + random.size(upTo: 399)
    if [404, 409, 410, 413].contains(status) { status = 502 }
    var fields: [String] = []
    let some = [
      "Content-Type: text/html", "Location: /login", "Location: http://[", "Retry-After: 99999999999999999999",
      "Retry-After: 0",
      "Upload-Offset: -1", "Upload-Offset: 1, 2", "Upload-Offset: 99999999999999999999999", "Upload-Complete: perhaps",
      "Upload-Limit: max-append-size=\"much\"", "Set-Cookie: \u{1B}]0;title\u{7}", "Connection: close",
      "Upload-Draft-Interop-Version: 8, 8", "Stream-Offset: 18446744073709551616",
    ]
    for field in some where random.chance(12) { fields += random.chance(20) ? [field, field] : [field] }
    let body =
      random.chance(50)
      ? "<html><title>We are sorry</title>" + String(repeating: "x", count: random.size(upTo: 2000)) : ""
    let hasBody = !isHead && ![204, 304].contains(status)
    var interim = ""
    if random.chance(10) { interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" }
    let lines = ["HTTP/1.1 \(status) So"] + fields + (hasBody ? ["Content-Length: \(body.utf8.count)"] : [])
    let whole = interim + lines.map { "\($0)\r\n" }.joined() + "\r\n" + (hasBody ? body : "")
    let isEarly = random.chance(30)
    if random.chance(25) {
      let cut = String(decoding: Array(whole.utf8).prefix(random.size(upTo: whole.utf8.count)), as: UTF8.self)
      return OddAnswer(bytes: cut, readsContent: !isEarly, end: random.chance(30) ? .resets : .closes)
    }
    return OddAnswer(bytes: whole, readsContent: !isEarly, end: isEarly && random.chance(30) ? .waits : .goesOn)
  }
}
