// The protocol with explicit fields, so that a test shows the bytes on the wire.

extension RawClient {
  /// Sends a request. With `body` it has a Content-Length. With `chunked`, the test sends its content.
  package func request(
    _ method: String, _ target: String, version: Int? = 8, _ lines: [String] = [], body: String? = nil,
    chunked: Bool = false
  ) throws {
    var head = ["\(method) \(target) HTTP/1.1", "Host: h"] + lines
    if let version { head.append("Upload-Draft-Interop-Version: \(version)") }
    if let body { head.append("Content-Length: \(body.utf8.count)") }
    if chunked { head.append("Transfer-Encoding: chunked") }
    try send(head.joined(separator: "\r\n") + "\r\n\r\n" + (body ?? ""))
  }

  /// An append in the newest version.
  package func patch(
    _ location: String, at offset: Int, completes: Bool = false, _ lines: [String] = [], body: String? = nil,
    chunked: Bool = false
  ) throws {
    try request(
      "PATCH", location,
      [
        "Content-Type: application/partial-upload", "Upload-Offset: \(offset)",
        "Upload-Complete: ?\(completes ? 1 : 0)",
      ]
        + lines, body: body, chunked: chunked)
  }

  /// The next final answer, and the interim ones before it.
  package func final(withBody: Bool = true) throws -> (answer: Answer, interim: [Answer]) {
    var interim: [Answer] = []
    while true {
      let answer = try answer(withBody: withBody)
      if answer.status >= 200 { return (answer, interim) }
      interim.append(answer)
    }
  }

  /// Sends again and again until the final answer comes. The server may end the connection after that.
  package func final(whileSending send: () throws -> Void) throws -> Answer {
    var answer: Answer?
    try waitUntil("the request is answered") {
      try? send()
      while answer == nil, hasAnswer {
        let next = try self.answer()
        if next.status >= 200 { answer = next }
      }
      return answer != nil
    }
    guard let answer else { throw TestFailure("no answer") }
    return answer
  }

  /// Waits for the 104 that announces this number of bytes.
  package func awaitProgress(_ offset: Int) throws {
    while true {
      let answer = try answer()
      guard answer.status == 104 else { throw TestFailure("no progress to \(offset), but \(answer)") }
      if answer["upload-offset"] == "\(offset)" { return }
    }
  }

  /// The resource's own report.
  package func head(_ location: String) throws -> Answer {
    try request("HEAD", location)
    return try final(withBody: false).answer
  }
}
