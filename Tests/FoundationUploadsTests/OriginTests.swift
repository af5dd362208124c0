import FoundationUploads
import NetworkTesting
import Testing

@Suite("Data that stays at an origin")
struct OriginTests {
  /// Records the credentials, the cookie and a plain field of each request except offset retrievals.
  private func noting(
    _ seen: EventLog<[String?]>, _ answer: @escaping @Sendable (ServerConnection) throws -> Void
  ) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      while true {
        let head = try connection.headAfterDiscovery()
        seen.append([head["Authorization"], head["Cookie"], head["X-Plain"]])
        try connection.receiveContent(of: head)
        try answer(connection)
      }
    }
  }

  enum Kind: String, CaseIterable { case data, bytes, stream, download }

  @Test("a session's secrets do not follow a redirect to another origin", arguments: Kind.allCases)
  func secrets(_ kind: Kind) throws {
    let seen = try EventLog<[String?]>()
    let last = try noting(seen) { try $0.respond("200 OK") }
    let url = "\(last.url)/c"
    let first = try noting(seen) { try $0.respond("307 Temporary Redirect", ["Location: \(url)"]) }
    let test = TestSession {
      $0.httpAdditionalHeaders = ["Authorization": "Bearer secret", "cookie": "id=secret", "X-Plain": "1"]
    }
    defer { test.end() }
    test.recorder.stream = { InputStream(data: Data("hello".utf8)) }
    let post = try request(first.url, "POST")
    let task =
      switch kind {
      case .data: test.session.dataTask(with: try request(first.url))
      case .bytes: test.session.uploadTask(with: post, from: Data("hello".utf8))
      case .stream: test.session.uploadTask(withStreamedRequest: post)
      case .download: test.session.downloadTask(with: try request(first.url))
      }
    task.resume()
    #expect(try test.recorder.end() == nil)
    #expect(seen.all == [["Bearer secret", "id=secret", "1"], [nil, nil, "1"]])
  }

  @Test("a session's secrets do not follow resume data to the other origin of a redirect")
  func resumedSecrets() throws {
    let seen = try EventLog<[String?]>()
    let last = try ScriptedServer { connection, _ in
      let head = try connection.head()
      seen.append([head["Range"], head["Authorization"], head["X-Plain"]])
      if head["Range"] == nil {
        return try connection.send(
          "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nAccept-Ranges: bytes\r\nContent-Length: 10\r\n\r\n01234")
      }
      try connection.respond(
        "206 Partial Content", ["ETag: \"1\"", "Content-Range: bytes 5-9/10"], body: "56789")
    }
    let url = "\(last.url)/c"
    let first = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("302 Found", ["Location: \(url)"])
    }
    func session() -> TestSession {
      TestSession { $0.httpAdditionalHeaders = ["Authorization": "Bearer secret", "X-Plain": "1"] }
    }
    let test = session()
    defer { test.end() }
    test.session.downloadTask(with: try request(first.url)).resume()
    #expect(try test.recorder.end() == .networkConnectionLost)
    let data = try #require(test.recorder.error?.downloadTaskResumeData)
    let next = session()
    defer { next.end() }
    next.session.downloadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == nil)
    #expect(seen.all == [[nil, nil, "1"], ["bytes=5-", nil, "1"]])
  }

  @Test(
    "a session's secrets do not follow an upload to another origin where it resumes, with resume data or by itself",
    arguments: ["of a redirect", "of the upload resource"], [true, false])
  func resumedUploadSecrets(_ way: String, withResumeData: Bool) throws {
    let isRedirect = way == "of a redirect"
    let seen = try EventLog<[String?]>()
    // Offers to resume the upload there, and interrupts it. A task that the test cancels would otherwise resume by
    // itself, and might end before.
    @Sendable func offer(_ connection: ServerConnection, _ location: String) throws {
      try connection.send(
        "HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Draft-Interop-Version: 8\r\nLocation: \(location)\r\n\r\n")
      if !withResumeData { connection.shutdownWriting() }
      _ = connection.readToEnd()
    }
    let last = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        guard head.line.hasPrefix("HEAD") || head.line.hasPrefix("PATCH") else { return try offer(connection, "/up") }
        seen.append([head["Authorization"], head["Cookie"], head["X-Plain"]])
        if head.line.hasPrefix("HEAD") {
          try connection.send(
            "HTTP/1.1 204 No Content\r\nUpload-Draft-Interop-Version: 8\r\nUpload-Offset: 0\r\n"
              + "Upload-Complete: ?0\r\nUpload-Length: 5\r\nCache-Control: no-store\r\n\r\n")
        } else {
          _ = try connection.receive(5)
          try connection.respond("200 OK", ["Upload-Draft-Interop-Version: 8", "Upload-Complete: ?1"])
        }
      }
    }
    let url = last.url
    let first = try ScriptedServer { connection, _ in
      _ = try connection.head()
      if isRedirect {
        try connection.respond("307 Temporary Redirect", ["Location: \(url)/c"])
      } else {
        try offer(connection, "\(url)/up")
      }
    }
    func session() -> TestSession {
      TestSession {
        $0.httpAdditionalHeaders = ["Authorization": "Bearer secret", "cookie": "id=secret", "X-Plain": "1"]
      }
    }
    let test = session()
    defer { test.end() }
    let task = test.session.uploadTask(with: try request(first.url, "POST"), from: Data("hello".utf8))
    task.resume()
    if withResumeData {
      let got = try EventLog<Data?>()
      try test.recorder.log.first("the offer") { $0 == .interim(104) }
      task.cancel { got.append($0) }
      let data = try #require(try got.first("the resume data") { _ in true })
      #expect(seen.all.isEmpty)
      let next = session()
      defer { next.end() }
      next.session.uploadTask(withResumeData: data).resume()
      #expect(try next.recorder.end() == nil)
    } else {
      #expect(try test.recorder.end() == nil)
    }
    #expect(seen.all.count >= 2)
    for fields in seen.all {
      #expect(fields[0] == nil && fields[1] == nil, "\(fields)")
      // The other origin of a redirect gets the remaining fields, like the request.
      if isRedirect { #expect(fields[2] == "1") }
    }
  }

  @Test("a request's own cookie does not follow a redirect to another origin")
  func cookie() throws {
    let seen = try EventLog<[String?]>()
    let last = try noting(seen) { try $0.respond("200 OK") }
    let url = "\(last.url)/c"
    let first = try noting(seen) { try $0.respond("302 Found", ["Location: \(url)"]) }
    let test = TestSession()
    defer { test.end() }
    var request = try request(first.url)
    request.setValue("id=secret", forHTTPHeaderField: "Cookie")
    test.session.dataTask(with: request).resume()
    #expect(try test.recorder.end() == nil)
    #expect(seen.all == [[nil, "id=secret", nil], [nil, nil, nil]])
  }

  @Test("a client's certificate is not shown to another origin")
  func certificate() throws {
    let backend = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
    }
    let front = try TLSFrontEnd(backend: "127.0.0.1:\(backend.port)")
    let url = "https://127.0.0.1:\(front.clientCertificatePort)/"
    let redirecting = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("302 Found", ["Location: \(url)"])
    }
    for (start, status) in [(url, 200), (redirecting.url, 400)] {
      let test = TestSession {
        $0.certificateAuthorityFile = front.authority
        $0.clientCertificateFile = front.clientCertificate
        $0.clientKeyFile = front.clientKey
      }
      defer { test.end() }
      test.session.dataTask(with: try request(start)).resume()
      #expect(try test.recorder.end() == nil)
      #expect(test.recorder.log.all.contains(.response(status)))
    }
  }

  @Test("a request for an encrypted URL is not sent in clear text: the redirect is the response")
  func downgrade() throws {
    let seen = try EventLog<[String?]>()
    let clear = try noting(seen) { try $0.respond("200 OK") }
    let url = "\(clear.url)/c"
    let backend = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("302 Found", ["Location: \(url)"], body: "moved")
    }
    let front = try TLSFrontEnd(backend: "127.0.0.1:\(backend.port)")
    let test = TestSession { $0.certificateAuthorityFile = front.authority }
    defer { test.end() }
    test.session.dataTask(with: try request("https://127.0.0.1:\(front.port)/")).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(302)))
    #expect(test.recorder.data == Data("moved".utf8))
    #expect(seen.all.isEmpty)
  }
}
