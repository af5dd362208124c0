import FoundationUploads
import NetworkTesting
import Testing

@Suite("Redirects and challenges")
struct AnswerTests {
  /// Answers requests to `/a` with `status` and a `Location`, and all others with 200 and their method and body.
  private func redirecting(_ status: String) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        let method = String(head.line.prefix { $0 != " " })
        var body = ""
        if let count = head["Content-Length"].flatMap({ Int($0) }) {
          while body.utf8.count < count, let piece = try connection.receive(count - body.utf8.count) {
            body += String(decoding: piece, as: UTF8.self)
          }
        }
        if head.line.contains(" /a ") {
          try connection.respond(status, ["Location: /b"], body: "moved")
        } else {
          try connection.respond("200 OK", body: "\(method) \(body)")
        }
      }
    }
  }

  @Test(
    "a redirect is followed with the method and body that its status requires",
    arguments: [
      ("301 Moved Permanently", "GET "), ("302 Found", "GET "), ("303 See Other", "GET "),
      ("307 Temporary Redirect", "POST hello"), ("308 Permanent Redirect", "POST hello"),
    ])
  func followed(_ status: String, _ answer: String) throws {
    let server = try redirecting(status)
    let test = TestSession()
    defer { test.end() }
    let task = test.session.uploadTask(with: try request("\(server.url)/a", "POST"), from: Data("hello".utf8))
    task.resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.data == Data(answer.utf8))
    #expect(test.recorder.log.all.contains(.redirect(Int(status.prefix(3)) ?? 0, to: "/b")))
    #expect(task.originalRequest?.url?.path == "/a" && task.currentRequest?.url?.path == "/b")
  }

  @Test("if a delegate does not follow a redirect, the redirect is the response, with its body")
  func notFollowed() throws {
    let server = try redirecting("302 Found")
    let test = TestSession()
    defer { test.end() }
    test.recorder.redirect = { _ in nil }
    test.session.dataTask(with: try request("\(server.url)/a")).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(302)))
    #expect(test.recorder.data == Data("moved".utf8))
  }

  @Test("a redirect to itself ends with too many redirects")
  func loop() async throws {
    let server = try ScriptedServer { connection, _ in
      while true {
        _ = try connection.head()
        try connection.respond("302 Found", ["Location: /a"])
      }
    }
    do {
      _ = try await URLSession.shared.data(for: try request("\(server.url)/a"))
      Issue.record("it ended")
    } catch let error as URLError {
      #expect(error.code == .httpTooManyRedirects)
    }
  }

  @Test("the delegate's credential answers a Basic challenge, and the delegate is asked again if it is wrong")
  func challenge() throws {
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        if let count = head["Content-Length"].flatMap({ Int($0) }), count > 0 { _ = try connection.receive(count) }
        // user:right
        if head["Authorization"] == "Basic dXNlcjpyaWdodA==" {
          try connection.respond("200 OK", body: "welcome")
        } else {
          try connection.respond("401 Unauthorized", ["WWW-Authenticate: Basic realm=\"here\""], body: "who?")
        }
      }
    }
    let test = TestSession()
    defer { test.end() }
    test.recorder.credential = {
      URLCredential(user: "user", password: $0 == 0 ? "wrong" : "right", persistence: .forSession)
    }
    test.session.uploadTask(with: try request(server.url, "POST"), from: Data("hello".utf8)).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.data == Data("welcome".utf8))
    let challenges = test.recorder.log.all.filter { if case .challenge = $0 { true } else { false } }
    #expect(challenges == [.challenge(failures: 0, realm: "here"), .challenge(failures: 1, realm: "here")])
    // Without a credential, the 401 is the response.
    let other = TestSession()
    defer { other.end() }
    other.session.dataTask(with: try request(server.url)).resume()
    #expect(try other.recorder.end() == nil)
    #expect(other.recorder.log.all.contains(.response(401)))
    #expect(other.recorder.data == Data("who?".utf8))
  }

  @Test("a credential does not follow a redirect to another origin")
  func otherOrigin() throws {
    let seen = try EventLog<String>()
    let other = try ScriptedServer { connection, _ in
      seen.append(try connection.head()["Authorization"] ?? "none")
      try connection.respond("200 OK")
    }
    let target = "\(other.url)/b"
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("307 Temporary Redirect", ["Location: \(target)"])
    }
    let test = TestSession()
    defer { test.end() }
    var request = try request(server.url)
    request.setValue("Bearer secret", forHTTPHeaderField: "Authorization")
    test.session.dataTask(with: request).resume()
    #expect(try test.recorder.end() == nil)
    #expect(seen.all == ["none"])
  }

  enum Body: String, CaseIterable { case endless, silent }

  @Test("a redirect and a challenge are handled although their bodies do not end", arguments: Body.allCases)
  func endlessBody(_ body: Body) throws {
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      if head.line.contains(" /a ") {
        try connection.send("HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 1000000000\r\n\r\n")
      } else if head["Authorization"] == nil {
        try connection.send(
          "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic\r\nContent-Length: 1000000000\r\n\r\n")
      } else {
        return try connection.respond("200 OK", body: "welcome")
      }
      let piece = [UInt8](repeating: 1, count: 10_000)
      while body == .endless { try connection.send(piece) }
      _ = connection.waitForEnd()
    }
    let test = TestSession()
    defer { test.end() }
    test.recorder.credential = { _ in URLCredential(user: "a", password: "b", persistence: .none) }
    test.session.dataTask(with: try request("\(server.url)/a")).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.data == Data("welcome".utf8))
  }

  @Test("a redirect that is not followed is the response with its complete long body")
  func longBody() throws {
    let body = String((0..<300_000).map { Character(Unicode.Scalar(UInt8(97 + $0 % 26))) })
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("302 Found", ["Location: /b"], body: body)
    }
    let test = TestSession()
    defer { test.end() }
    test.recorder.redirect = { _ in nil }
    test.session.dataTask(with: try request("\(server.url)/a")).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(302)))
    #expect(test.recorder.data == Data(body.utf8))
  }

  @Test("user and password of a URL are also sent after a redirect, only to the same origin")
  func credentialsInURL() throws {
    let seen = try EventLog<String>()
    let other = try ScriptedServer { connection, _ in
      seen.append(try connection.head()["Authorization"] ?? "none")
      try connection.respond("200 OK")
    }
    let target = "\(other.url)/c"
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        seen.append(head["Authorization"] ?? "none")
        try connection.respond(
          "307 Temporary Redirect", ["Location: \(head.line.contains(" /a ") ? "/b" : target)"])
      }
    }
    let test = TestSession()
    defer { test.end() }
    test.session.dataTask(with: try request("http://user:right@127.0.0.1:\(server.port)/a")).resume()
    #expect(try test.recorder.end() == nil)
    #expect(seen.all == ["Basic dXNlcjpyaWdodA==", "Basic dXNlcjpyaWdodA==", "none"])
  }

  @Test(
    "Basic is found at any position in a server's list",
    arguments: [
      (["Basic realm=\"here\""], "here"), (["bAsIc  REALM = here , charset=\"UTF-8\""], "here"),
      (["Digest realm=\"a, Basic b\", qop=\"auth\", Basic realm=\"here\""], "here"),
      (["Negotiate YWJj==, Basic realm=\"a \\\"b\\\", c\""], "a \"b\", c"),
      (["Bearer", "Basic charset=x, realm=here"], "here"),
      ([",Basic,,Bearer realm=\"there\""], nil), (["Basic realm=\"here\", Basic realm=\"there\""], "here"),
    ] as [([String], String?)])
  func basicInList(_ fields: [String], _ realm: String?) throws {
    let test = TestSession()
    defer { test.end() }
    let server = try challenging(fields)
    test.session.dataTask(with: try request(server.url)).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.challenge(failures: 0, realm: realm)))
  }

  @Test(
    "a response without Basic is not a challenge",
    arguments: [[], ["Bearer realm=\"Basic\""], ["Basically"], ["Digest Basic=\"x\""], ["Digest a=\"\\\", Basic \""]])
  func noBasic(_ fields: [String]) throws {
    let test = TestSession()
    defer { test.end() }
    let server = try challenging(fields)
    test.session.dataTask(with: try request(server.url)).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(401)))
    #expect(test.recorder.log.count { if case .challenge = $0 { true } else { false } } == 0)
  }

  private func challenging(_ fields: [String]) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      while true {
        _ = try connection.head()
        try connection.respond("401 Unauthorized", fields.map { "WWW-Authenticate: \($0)" })
      }
    }
  }
}
