import FoundationUploads
import NetworkTesting
import Testing

@Suite("Request bodies")
struct RequestBodyTests {
  /// Answers with 200, and records the line and the `Content-Type` of each request.
  private func server(_ seen: EventLog<String>) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        var rest = head["Content-Length"].flatMap { Int($0) } ?? 0
        while rest > 0, let piece = try connection.receive(rest) { rest -= piece.count }
        seen.append("\(head.line.prefix { $0 != " " }) \(head["Content-Type"] ?? "-")")
        try connection.respond("200 OK")
      }
    }
  }

  @Test("a GET request with a body fails before anything is sent, as on Apple's systems", arguments: [false, true])
  func getWithBody(_ isUpload: Bool) throws {
    let seen = try EventLog<String>()
    let server = try server(seen)
    let test = TestSession()
    defer { test.end() }
    var request = try request(server.url)
    if isUpload {
      test.session.uploadTask(with: request, from: Data("a".utf8)).resume()
    } else {
      request.httpBody = Data("a".utf8)
      test.session.dataTask(with: request).resume()
    }
    #expect(try test.recorder.end() == .dataLengthExceedsMaximum)
    #expect(test.recorder.error?.localizedDescription == "resource exceeds maximum size")
    #expect(seen.all.isEmpty)
  }

  @Test("an empty body counts as no body", arguments: ["GET", "HEAD", "DELETE"])
  func empty(_ method: String) throws {
    let server = try server(try EventLog())
    let test = TestSession()
    defer { test.end() }
    var request = try request(server.url, method)
    request.httpBody = Data()
    test.session.dataTask(with: request).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(200)))
  }

  @Test("the body of a POST request without a media type is a form, and no other body is")
  func form() async throws {
    let seen = try EventLog<String>()
    let server = try server(seen)
    for (method, type) in [("POST", nil), ("POST", "text/plain"), ("PUT", nil)] {
      var request = try request(server.url, method)
      request.httpBody = Data("a=b".utf8)
      request.setValue(type, forHTTPHeaderField: "Content-Type")
      _ = try await URLSession.shared.data(for: request)
    }
    _ = try await URLSession.shared.data(for: try request(server.url, "POST"))
    _ = try await URLSession.shared.upload(for: try request(server.url, "POST"), from: Data("a".utf8))
    #expect(
      seen.all == ["POST application/x-www-form-urlencoded", "POST text/plain", "PUT -", "POST -", "POST -"])
  }

  @Test("the delegate receives the call for the sent body before the call for the response")
  func order() throws {
    let server = try server(try EventLog())
    for count in [1, 100_000] {
      let test = TestSession()
      defer { test.end() }
      test.session.uploadTask(with: try request(server.url, "PUT"), from: Data(count: count)).resume()
      #expect(try test.recorder.end() == nil)
      let told = test.recorder.log.all
      let sent = told.firstIndex(of: .sent(total: Int64(count), expected: Int64(count)))
      let answered = try #require(told.firstIndex(of: .response(200)))
      #expect(try #require(sent) < answered)
    }
  }
}
