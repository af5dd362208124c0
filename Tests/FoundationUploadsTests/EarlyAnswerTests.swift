import FoundationUploads
import NetworkTesting
import Testing

@Suite("Responses before the end of a body")
struct EarlyAnswerTests {
  /// More than the kernels of both sides accept.
  private static let body = Data(count: 32 << 20)

  /// Answers the first request with content after its head, and reads none of its content.
  private func hasty(_ status: String) throws -> ScriptedServer {
    try ScriptedServer(receiveBuffer: 4096) { connection, _ in
      _ = try connection.headAfterDiscovery()
      try connection.respond(status, body: "early")
      _ = connection.waitForEnd()
    }
  }

  @Test("a success before the end of the body fails the upload")
  func earlySuccess() throws {
    let server = try hasty("200 OK")
    let test = TestSession()
    defer { test.end() }
    let task = test.session.uploadTask(with: try request(server.url, "POST"), from: Self.body)
    task.resume()
    #expect(try test.recorder.end() == .badServerResponse)
    #expect(task.countOfBytesSent < Int64(Self.body.count))
    #expect(!test.recorder.log.all.contains(.response(200)) && test.recorder.data.isEmpty)
  }

  @Test("a success before the end of a stream fails the upload")
  func earlySuccessOfStream() throws {
    let server = try hasty("201 Created")
    let test = TestSession()
    defer { test.end() }
    let pair = try Pair()
    test.recorder.stream = { pair.input }
    test.session.uploadTask(withStreamedRequest: try request("\(server.url)/live", "POST")).resume()
    pair.output.open()
    #expect(pair.output.write("begin", maxLength: 5) == 5)
    #expect(try test.recorder.end() == .badServerResponse)
    #expect(!test.recorder.log.all.contains(.response(201)))
  }

  @Test("an error before the end of the body is delivered whole, even if it is encoded", arguments: [false, true])
  func encodedError(isEncoded: Bool) throws {
    // 200,000 zeros, and the same compressed by gzip.
    let plain = [UInt8](repeating: 0, count: 200_000)
    let content = isEncoded ? try gzip(plain) : plain
    let server = try ScriptedServer(receiveBuffer: 4096) { connection, _ in
      _ = try connection.head()
      let encoding = isEncoded ? "Content-Encoding: gzip\r\n" : ""
      try connection.send(
        "HTTP/1.1 413 Content Too Large\r\n\(encoding)Content-Length: \(content.count)\r\n\r\n")
      try connection.send(content)
      _ = connection.waitForEnd()
    }
    let test = TestSession()
    defer { test.end() }
    test.session.uploadTask(with: try request(server.url, "POST"), from: Self.body).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(413)))
    #expect(test.recorder.data == Data(plain))
  }

  private func gzip(_ bytes: [UInt8]) throws -> [UInt8] {
    let directory = try TemporaryDirectory()
    let path = try directory.write("content", bytes)
    let process = try TestProcess("/bin/gzip", ["-k", path])
    guard try process.wait() == 0 else { throw TestFailure("gzip: \(process.errors)") }
    return [UInt8](try Data(contentsOf: URL(fileURLWithPath: path + ".gz")))
  }

  @Test("an error before the end of the body is the response")
  func earlyError() throws {
    let server = try hasty("413 Content Too Large")
    let test = TestSession()
    defer { test.end() }
    test.session.uploadTask(with: try request(server.url, "POST"), from: Self.body).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(413)))
    #expect(test.recorder.data == Data("early".utf8))
  }

  /// Answers requests with content before their end, and announces a body of 1000 bytes.
  private func announcing(_ send: @escaping @Sendable (ServerConnection) throws -> Void) throws -> ScriptedServer {
    try ScriptedServer(receiveBuffer: 4096) { connection, _ in
      _ = try connection.headAfterDiscovery()
      try connection.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 1000\r\n\r\n")
      try send(connection)
      _ = connection.waitForEnd()
    }
  }

  /// Uploads the body, or a stream that has begun.
  private func upload(_ test: TestSession, _ server: ScriptedServer, _ pair: Pair?) throws -> URLSessionTask {
    let request = try request("\(server.url)/a", "POST")
    guard let pair else { return test.session.uploadTask(with: request, from: Self.body) }
    pair.output.open()
    #expect(pair.output.write("begin", maxLength: 5) == 5)
    test.recorder.stream = { pair.input }
    return test.session.uploadTask(withStreamedRequest: request)
  }

  @Test(
    "an error before the end of the body fails the upload if it breaks off", arguments: [false, true], [0, 500, 999])
  func brokenError(isStream: Bool, _ count: Int) throws {
    let server = try announcing { connection in
      try connection.send([UInt8](repeating: 120, count: count))
      connection.shutdownWriting()
    }
    let test = TestSession()
    defer { test.end() }
    let pair = try Pair()
    try upload(test, server, isStream ? pair : nil).resume()
    #expect(try test.recorder.end() == .networkConnectionLost)
    #expect(test.recorder.log.all.contains(.response(413)))
    #expect(test.recorder.data.count == count)
  }

  @Test(
    "an error before the end of the body is delivered whole, although its server is slow", arguments: [false, true])
  func slowError(isStream: Bool) throws {
    let server = try announcing { connection in
      try connection.send([UInt8](repeating: 120, count: 500))
      // Not a synchronization: a client that needs only the status ends the request within this time.
      _ = connection.waitForEnd(limit: .seconds(2))
      try connection.send([UInt8](repeating: 120, count: 500))
    }
    let test = TestSession()
    defer { test.end() }
    let pair = try Pair()
    try upload(test, server, isStream ? pair : nil).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(413)))
    #expect(test.recorder.data.count == 1000)
  }

  @Test(
    "after a redirect to a GET before the end of the body, the body does not count as sent",
    arguments: ["301 Moved Permanently", "302 Found", "303 See Other"])
  func redirect(_ status: String) throws {
    let server = try ScriptedServer(receiveBuffer: 4096) { connection, _ in
      let isUpload = try connection.head().line.hasPrefix("POST")
      try isUpload
        ? connection.respond(status, ["Location: /b"]) : connection.respond("200 OK", body: "elsewhere")
      _ = connection.waitForEnd()
    }
    let test = TestSession()
    defer { test.end() }
    let task = test.session.uploadTask(with: try request("\(server.url)/a", "POST"), from: Self.body)
    task.resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(200)) && test.recorder.data == Data("elsewhere".utf8))
    #expect(task.countOfBytesSent < Int64(Self.body.count))
  }

  @Test("a success with an incomplete upload fails the upload")
  func incomplete() throws {
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      var count = head["Content-Length"].flatMap { Int($0) } ?? 0
      while count > 0, let piece = try connection.receive(count) { count -= piece.count }
      try connection.respond("200 OK", ["Upload-Complete: ?0", "Upload-Offset: 3"])
    }
    let test = TestSession()
    defer { test.end() }
    test.session.uploadTask(with: try request(server.url, "POST"), from: Data("hello".utf8)).resume()
    #expect(try test.recorder.end() == .badServerResponse)
  }
}
