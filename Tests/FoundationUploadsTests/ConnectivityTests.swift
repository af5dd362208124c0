import FoundationUploads
import NetworkTesting
import Testing

@Suite("Tasks that wait for connectivity")
struct ConnectivityTests {
  enum Kind: String, CaseIterable { case data, bytes, file, stream, download, resumedFile, resumedStream }

  private func waiting() -> TestSession {
    TestSession {
      $0.waitsForConnectivity = true
      // This limit applies only to transfers that have begun.
      $0.timeoutIntervalForResumption = 0.1
    }
  }

  private func task(
    _ kind: Kind, _ test: TestSession, _ url: String, _ directory: TemporaryDirectory
  ) throws -> URLSessionTask {
    let file = URL(fileURLWithPath: try directory.write(".source", Array("hello".utf8)))
    test.recorder.stream = { InputStream(data: Data("hello".utf8)) }
    let post = try request(url, "POST")
    return switch kind {
    case .data: test.session.dataTask(with: try request(url))
    case .bytes: test.session.uploadTask(with: post, from: Data("hello".utf8))
    case .file: test.session.uploadTask(with: post, fromFile: file)
    case .stream: test.session.uploadTask(withStreamedRequest: post)
    case .download: test.session.downloadTask(with: try request(url))
    case .resumedFile, .resumedStream: throw TestFailure("it needs resume data")
    }
  }

  /// The resume data of an upload to `server`.
  private func paused(_ kind: Kind, _ whole: [UInt8], _ server: StreamServer) async throws -> Data {
    let first = TestSession()
    defer { first.end() }
    let post = try request("\(server.url)/live", "POST")
    guard kind == .resumedStream else {
      let path = try server.directory.write(".source", whole)
      let task = first.session.uploadTask(with: post, fromFile: URL(fileURLWithPath: path))
      task.resume()
      return try #require(await task.cancelByProducingResumeData())
    }
    let pair = try Pair()
    first.recorder.stream = { pair.input }
    let task = first.session.uploadTask(withStreamedRequest: post)
    task.resume()
    pair.output.open()
    #expect(pair.output.write(whole, maxLength: 7) == 7)
    try waitUntil("the first bytes are sent") { task.countOfBytesSent == 7 }
    return try #require(await task.cancelByProducingResumeData())
  }

  @Test(
    "every kind of task waits longer than the resumption limit, reports it once, and continues",
    arguments: [Kind.data, .bytes, .file, .stream, .download])
  func waits(_ kind: Kind) throws {
    let port = try freePort()
    let (test, directory) = (waiting(), try TemporaryDirectory())
    defer { test.end() }
    try task(kind, test, "http://127.0.0.1:\(port)/", directory).resume()
    try checkWaiting(test, isResumable: kind == .stream)
    let server = try ScriptedServer(.port(port)) { connection, _ in
      while true {
        try connection.receiveContent(of: try connection.headAfterDiscovery())
        try connection.respond("200 OK")
      }
    }
    defer { server.close() }
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.count { $0 == .waiting } == 1)
  }

  @Test("a resumed upload also waits", arguments: [Kind.resumedFile, .resumedStream])
  func resumedWaits(_ kind: Kind) async throws {
    let first = try StreamServer()
    let whole = [UInt8](repeating: 1, count: kind == .resumedFile ? 8_000_000 : 20)
    let data = try await paused(kind, whole, first)
    let port = first.port
    first.stop()
    let test = waiting()
    defer { test.end() }
    test.recorder.streamFrom = { InputStream(data: Data(whole.dropFirst(Int($0)))) }
    test.session.uploadTask(withResumeData: data).resume()
    try checkWaiting(test)
    let second = try StreamServer(in: first.directory, listen: "127.0.0.1:\(port)")
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.count { $0 == .waiting } == 1)
    #expect(try stored(test.recorder.data, second) == whole)
  }

  private func checkWaiting(_ test: TestSession, isResumable: Bool = true) throws {
    try test.recorder.log.first("the news") { $0 == .waiting }
    guard isResumable else { return }
    // Long enough for the attempts after which a resumption gives up.
    let end = try? test.recorder.log.wait("an end", within: .seconds(1)) { events in
      events.first { if case .completed = $0 { true } else { false } }
    }
    #expect(end == nil)
  }

  @Test("a connection that is not established is missing connectivity")
  func silence() throws {
    let server = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    let test = TestSession { ($0.waitsForConnectivity, $0.timeoutIntervalForRequest) = (true, 1) }
    defer { test.end() }
    // The server sends nothing, so TLS does not begin.
    test.session.dataTask(with: try request("https://127.0.0.1:\(server.port)/")).resume()
    try test.recorder.log.first("the news") { $0 == .waiting }
  }

  @Test("the wait ends with the time limit for the resource", arguments: [Kind.data, .stream])
  func limit(_ kind: Kind) throws {
    let directory = try TemporaryDirectory()
    let test = TestSession { ($0.waitsForConnectivity, $0.timeoutIntervalForResource) = (true, 1) }
    defer { test.end() }
    try task(kind, test, "http://127.0.0.1:\(try freePort())/", directory).resume()
    #expect(try test.recorder.end() == .timedOut)
    #expect(test.recorder.log.count { $0 == .waiting } == 1)
  }
}
