import FoundationUploads
import NetworkTesting
import PropertyTesting
import Testing

@Suite("Resumed uploads")
struct ResumptionTests {
  private static let bytes = OffsetPattern()[0..<8_000_000]

  enum Body: String, CaseIterable { case bytes, file }

  private func task(
    _ body: Body, _ session: URLSession, _ url: String, _ directory: TemporaryDirectory, _ timeout: TimeInterval = 60
  ) throws -> URLSessionUploadTask {
    var request = try request("\(url)/big", "POST")
    request.timeoutInterval = timeout
    switch body {
    case .bytes: return session.uploadTask(with: request, from: Data(Self.bytes))
    case .file:
      let path = try directory.write(".source", Self.bytes)
      return session.uploadTask(with: request, fromFile: URL(fileURLWithPath: path))
    }
  }

  @Test("a short interruption is resumed automatically", arguments: Body.allCases)
  func interruption(_ body: Body) throws {
    let server = try StreamServer()
    let way = try Bottleneck(to: server)
    let test = TestSession()
    defer { test.end() }
    let task = try task(body, test.session, way.url, server.directory)
    task.resume()
    try test.recorder.log.first("the offer") { $0 == .interim(104) }
    way.breakOff()
    #expect(try test.recorder.end() == nil)
    #expect(try stored(test.recorder.data, server) == Self.bytes)
    #expect(task.countOfBytesSent == Int64(Self.bytes.count))
  }

  @Test("another session resumes a paused upload", arguments: Body.allCases, [60, .infinity])
  func pause(_ body: Body, _ timeout: TimeInterval) async throws {
    let server = try StreamServer()
    let way = try Bottleneck(to: server)
    let test = TestSession()
    defer { test.end() }
    let task = try task(body, test.session, way.url, server.directory, timeout)
    task.resume()
    try test.recorder.log.first("the offer") { $0 == .interim(104) }
    let data = try #require(await task.cancelByProducingResumeData())
    way.breakOff()
    #expect(try test.recorder.end() == .cancelled)
    #expect(test.recorder.error?.uploadTaskResumeData == data)
    #expect(await task.cancelByProducingResumeData() == nil)
    let next = TestSession()
    defer { next.end() }
    // A task that is cancelled before its first request returns the data that it was to continue with.
    let again = try #require(await next.session.uploadTask(withResumeData: data).cancelByProducingResumeData())
    #expect(try next.recorder.end() == .cancelled)
    let last = TestSession()
    defer { last.end() }
    last.session.uploadTask(withResumeData: again).resume()
    #expect(try last.recorder.end() == nil)
    #expect(try stored(last.recorder.data, server) == Self.bytes)
  }

  @Test("an upload that times out fails with resume data, and continues with it", arguments: [false, true])
  func timedOut(isResource: Bool) throws {
    let server = try StreamServer()
    let way = try Bottleneck(to: server)
    let test = TestSession {
      $0.timeoutIntervalForResumption = 0.1
      if isResource { $0.timeoutIntervalForResource = 2 } else { $0.timeoutIntervalForRequest = 1 }
    }
    defer { test.end() }
    try task(.bytes, test.session, way.url, server.directory).resume()
    try test.recorder.log.first("the offer") { $0 == .interim(104) }
    // From here on, the server accepts nothing. After the request has timed out, it refuses the next.
    way.isClosed = true
    let code = try test.recorder.end()
    #expect(isResource ? code == .timedOut : code != nil)
    let data = try #require(test.recorder.error?.uploadTaskResumeData)
    way.breakOff()
    way.isClosed = false
    let next = TestSession()
    defer { next.end() }
    next.session.uploadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == nil)
    #expect(try stored(next.recorder.data, server) == Self.bytes)
  }

  @Test("an upload is paused just after its start, as in Apple's talk")
  func earlyPause() async throws {
    let server = try StreamServer()
    let test = TestSession()
    defer { test.end() }
    let task = try task(.file, test.session, server.url, server.directory)
    task.resume()
    let data = try #require(await task.cancelByProducingResumeData())
    let (body, _) = try await test.session.upload(resumeFrom: data)
    #expect(try stored(body, server) == Self.bytes)
  }

  @Test("an upload to a lost server fails with resume data, which continues it when the server returns")
  func lostServer() async throws {
    let server = try StreamServer()
    let way = try Bottleneck(to: server)
    let test = TestSession { $0.timeoutIntervalForResumption = 0.1 }
    defer { test.end() }
    let task = try task(.file, test.session, way.url, server.directory)
    task.resume()
    try test.recorder.log.first("the offer") { $0 == .interim(104) }
    way.isClosed = true
    way.breakOff()
    _ = try test.recorder.end()
    let error = try #require(test.recorder.error)
    let data = try #require(error.uploadTaskResumeData)
    #expect(error.userInfo[NSURLSessionUploadTaskResumeData] as? Data == data)
    way.isClosed = false
    let (body, response) = try await test.session.upload(resumeFrom: data)
    #expect((response as? HTTPURLResponse)?.statusCode == 201)
    #expect(try stored(body, server) == Self.bytes)
  }

  @Test("a server that cannot resume causes no resume data")
  func plainServer() async throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = connection.waitForEnd()
    }
    let test = TestSession()
    defer { test.end() }
    let task = test.session.uploadTask(with: try request(server.url, "POST"), from: Data([1, 2, 3]))
    task.resume()
    #expect(await task.cancelByProducingResumeData() == nil)
    #expect(try test.recorder.end() == .cancelled)
    #expect(test.recorder.error?.uploadTaskResumeData == nil)
  }

  @Test("a changed file is not resumed, and other data is not valid resume data")
  func refused() async throws {
    let server = try StreamServer()
    let test = TestSession()
    defer { test.end() }
    let task = try task(.file, test.session, server.url, server.directory)
    task.resume()
    let data = try #require(await task.cancelByProducingResumeData())
    _ = try server.directory.write(".source", [1, 2, 3])
    await #expect(throws: URLError.self) { try await test.session.upload(resumeFrom: data) }
    await #expect(throws: URLError.self) { try await test.session.upload(resumeFrom: Data("other".utf8)) }
  }

  @Test("a paused stream is resumed with a stream from the server's offset")
  func pausedStream() async throws {
    let server = try StreamServer()
    let test = TestSession()
    defer { test.end() }
    let (pair, whole) = (try Pair(), Data("before the pause, after it".utf8))
    test.recorder.stream = { pair.input }
    let task = test.session.uploadTask(withStreamedRequest: try request("\(server.url)/live", "POST"))
    task.resume()
    pair.output.open()
    #expect(pair.output.write(Array(whole), maxLength: 18) == 18)
    try waitUntil("the first bytes are sent") { task.countOfBytesSent == 18 }
    let data = try #require(await task.cancelByProducingResumeData())
    #expect(try test.recorder.end() == .cancelled)
    // Without a stream, the upload makes no progress.
    let empty = TestSession()
    defer { empty.end() }
    empty.session.uploadTask(withResumeData: data).resume()
    #expect(try empty.recorder.end() == .requestBodyStreamExhausted)
    let next = TestSession()
    defer { next.end() }
    next.recorder.streamFrom = { InputStream(data: whole.dropFirst(Int($0))) }
    next.session.uploadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == nil)
    #expect(try stored(next.recorder.data, server) == Array(whole))
    let offsets = next.recorder.log.all.compactMap { if case .needsStreamFrom(let offset) = $0 { offset } else { nil } }
    #expect(offsets.count == 1 && offsets[0] <= 18)
    // A complete upload needs no stream.
    let again = TestSession()
    defer { again.end() }
    again.session.uploadTask(withResumeData: data).resume()
    #expect(try again.recorder.end() == nil)
    #expect(try stored(again.recorder.data, server) == Array(whole))
  }
}
