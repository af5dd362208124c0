import Digests
import EventLoops
import NetworkTesting
import PropertyTesting
import ResumableUploads
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The control of a resumable upload", .serialized)
struct ResumableControlTests {
  private let pattern = OffsetPattern()

  private func file(_ directory: TemporaryDirectory, _ count: Int) throws -> UploadFile {
    try UploadFile(path: try directory.write("data", patternBytes(pattern, 0, count)))
  }

  // MARK: Pause

  @Test("a suspended upload sends nothing while the source continues, and after the resumption, all bytes arrive")
  func suspends() throws {
    let server = try ResumableServer(.init(progress: 1000))
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.rollOver.size = 20_000 }
      try source.push(patternBytes(pattern, 0, 50_000))
      try stream.waitUntilAcknowledged(50_000)
      stream.streamer.suspend()
      let passed = try EventLog<Bool>()
      session.loop.execute { passed.append(true) }
      try passed.first("the loop") { $0 }
      let before = server.requests.all.count
      try source.push(patternBytes(pattern, 50_000, 50_000))
      let never = try EventCounter()
      // The pause itself.
      #expect(!waitUntilReadable(never.descriptor, limit: .milliseconds(200)))
      #expect(server.upload(0).bytes.count == 50_000 && server.requests.all.count <= before + 1)
      stream.streamer.resume()
      try stream.waitUntilAcknowledged(100_000)
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
    #expect(server.upload(0).matches(pattern, count: 100_000))
  }

  @Test("an upload that is suspended for longer than the server keeps the connection continues at the server's offset")
  func suspendedTooLong() throws {
    let (isReading, isSuspended) = (try EventLog<Bool>(), try EventLog<Bool>())
    let server = try ResumableServer { request, connection in
      guard request.method == "PATCH", request.number == 0 else { return .proper }
      _ = try connection.chunk()
      isReading.append(true)
      try isSuspended.first("the suspension") { $0 }
      return .close
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server)
      try source.push(patternBytes(pattern, 0, 100))
      try isReading.first("the first bytes") { $0 }
      stream.streamer.suspend()
      isSuspended.append(true)
      try server.wait(for: "PATCH")
      try source.push(patternBytes(pattern, 100, 100))
      #expect(server.of("HEAD").isEmpty)
      stream.streamer.resume()
      stream.streamer.finish()
      #expect(try stream.summary().error == nil && stream.failures().count == 1)
    }
    #expect(server.upload(0).matches(pattern, count: 200))
  }

  // MARK: Giving up

  @Test("a cancelled upload keeps the server's bytes, and has resume data")
  func cancels() throws {
    let server = try ResumableServer(.init(progress: 1))
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server)
      try source.push([1, 2, 3])
      try stream.waitUntilAcknowledged(3)
      stream.streamer.cancel()
      let summary = try stream.summary()
      #expect(summary.error?.kind == .cancelled && summary.resumeData?.upload == server.url + "/uploads/0")
      #expect(!server.methods.contains("DELETE"))
    }
  }

  /// Three bytes, and then silence. Like a load test's source, it reports its stop at once, within the call.
  private final class ThreeBytes: RepeatableSource, @unchecked Sendable {
    // Owned by the loop's thread; unchecked for that reason.
    private var arrived: () -> Void = {}
    private(set) var isFinished = false
    private let bytes: [UInt8] = [1, 2, 3]
    var head: UInt64 { UInt64(bytes.count) }

    func start(on loop: EventLoop, arrived: @escaping () -> Void) { self.arrived = arrived }

    func stop() {
      guard !isFinished else { return }
      isFinished = true
      arrived()
    }

    func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> Int {
      let bytes = bytes
      return body(bytes.span.bytes.extracting(Int(offset)..<min(bytes.count, Int(offset) + maximum)))
    }
  }

  @Test("an upload that is cancelled while it is suspended sends nothing more, and does not become complete")
  func cancelsAtRest() throws {
    let server = try ResumableServer()
    try withSession { session throws in
      var configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url + "/take"))
      configuration.rollOver.after = .milliseconds(20)
      let events = try EventLog<LiveStreamEvent>()
      let streamer = LiveStreamer(ThreeBytes(), configuration: configuration, session: session)
      streamer.start { events.append($0) }
      // By a request's final answer, because this server sends no 104 in between. Then nothing is left to send.
      try events.first("the acknowledgement") { if case .acknowledged(3) = $0 { true } else { false } }
      streamer.cancel()
      let end = try events.first("the end") { if case .ended = $0 { true } else { false } }
      guard case .ended(let summary) = end else { return }
      #expect(summary.error?.kind == .cancelled && summary.resumeData?.upload == server.url + "/uploads/0")
      // Bytes sent together with the end would arrive before this.
      let other = try RunningStream(PushedSource(), session, server)
      other.streamer.finish()
      #expect(try other.summary().error == nil)
      #expect(server.requests.all.count { $0.target == "/uploads/0" } == 1, "\(server.requests.all)")
      #expect(server.upload(0).bytes == [1, 2, 3] && !server.upload(0).isComplete)
    }
  }

  @Test("a plain stream that is cancelled within its request breaks the request off, and does not complete it")
  func cancelsWithinRequest() throws {
    let isReading = try EventLog<Bool>()
    let completions = try EventLog<Bool>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.chunk()
      isReading.append(true)
      let isComplete = (try? connection.body()) != nil
      if isComplete || connection.isEnded { completions.append(isComplete) }
    }
    try withSession { session throws in
      var configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url + "/take"))
      configuration.resumable = .never
      let events = try EventLog<LiveStreamEvent>()
      let streamer = LiveStreamer(ThreeBytes(), configuration: configuration, session: session)
      streamer.start { events.append($0) }
      try isReading.first("the first bytes") { $0 }
      streamer.cancel()
      try events.first("the end") { if case .ended = $0 { true } else { false } }
      #expect(try completions.first("the end of the request") { _ in true } == false)
    }
  }

  @Test(
    "an abandoned upload is deleted from the server, and forgotten only if this succeeds", arguments: [true, false])
  func abandons(_ forgets: Bool) throws {
    let server = try ResumableServer(.init(progress: 1)) { request, _ in
      request.method == "DELETE" && !forgets ? .answer("503 Service Unavailable", []) : .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server)
      try source.push([1, 2, 3])
      try stream.waitUntilAcknowledged(3)
      // Suspended or not.
      stream.streamer.suspend()
      stream.streamer.abandon()
      let summary = try stream.summary()
      #expect(summary.error?.kind == .cancelled && (summary.resumeData == nil) == forgets)
      #expect(server.of("DELETE").map(\.target) == ["/uploads/0"])
    }
  }

  // MARK: Continuing

  @Test("another session continues an upload without sending the server's bytes again")
  func carriesOn() throws {
    let directory = try TemporaryDirectory()
    let server = try ResumableServer { request, _ in
      request.number == 0 && request.method == "PUT" ? .cut(after: 60_000) : .proper
    }
    let data = try withSession { session throws -> ResumeData in
      let stream = try RunningStream(try file(directory, 200_000), session, server.url + "/take") {
        $0.retry.initialCeiling = .seconds(60)
        $0.request.bearerToken = "first"
      }
      try stream.waitForFailure()
      stream.streamer.cancel()
      let summary = try stream.summary()
      let created = stream.notices.compactMap { if case .created(let data) = $0 { data } else { nil } }
      #expect(created == [summary.resumeData].compactMap { $0 })
      return try #require(summary.resumeData)
    }
    let text = try #require(data.text)
    #expect(!text.contains("first") && data.length == 200_000)
    try withSession { session throws in
      let stream = try RunningStream(try file(directory, 200_000), session, server.url + "/take") {
        $0.resumeData = ResumeData(text)
      }
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.acknowledged == 200_000 && summary.resent == 0)
    }
    #expect(server.uploads.count == 1 && server.upload(0).matches(pattern, count: 200_000))
    let patch = try #require(server.of("PATCH").first)
    #expect(patch.offset == 60_000 && patch.head["Content-Length"] == "140000")
  }

  @Test(
    "a response of another system during a resumption does not end the upload",
    arguments: [
      OddAnswer(status: "302 Found", ["Location: http://portal.example/login"]),
      OddAnswer(status: "200 OK", ["Content-Type: text/html"], body: "<html>Back soon</html>"),
      OddAnswer(status: "400 Bad Request"), OddAnswer(status: "404 Not Found"), OddAnswer(status: "405 Not Allowed"),
      OddAnswer(status: "501 Not Implemented"), OddAnswer(status: "511 Network Authentication Required"),
    ], [1, 2, 12])
  func portalAtFirst(_ odd: OddAnswer, times: Int) throws {
    // An answer that the upload is gone is given twice. The client would accept a third one.
    let times = odd.bytes.contains(" 404 ") ? min(times, 2) : times
    let directory = try TemporaryDirectory()
    let isAway = Lock(false)
    let answers = Lock(0)
    let server = try ResumableServer { request, _ in
      if isAway.withLock({ $0 }),
        answers.withLock({ count in
          count += 1
          return count <= times
        })
      {
        // HEAD has no body.
        guard request.method == "HEAD", let end = odd.bytes.ranges(of: "\r\n\r\n").first else { return .odd(odd) }
        return .odd(OddAnswer(bytes: String(odd.bytes[..<end.upperBound])))
      }
      return request.number == 0 && request.method == "PUT" ? .cut(after: 60_000) : .proper
    }
    let data = try withSession { session throws -> ResumeData in
      let stream = try RunningStream(try file(directory, 200_000), session, server.url + "/take") {
        $0.retry.initialCeiling = .seconds(60)
      }
      try stream.waitForFailure()
      stream.streamer.cancel()
      return try #require(try stream.summary().resumeData)
    }
    isAway.withLock { $0 = true }
    try withSession { session throws in
      let stream = try RunningStream(try file(directory, 200_000), session, server.url + "/take") {
        $0.resumeData = data
        $0.retry.initialCeiling = .milliseconds(10)
        $0.retry.maximumCeiling = .milliseconds(10)
      }
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.acknowledged == 200_000, "\(summary)")
    }
    #expect(server.uploads.count == 1 && server.upload(0).matches(pattern, count: 200_000))
  }

  @Test(
    "404 or 410 for every request does not prevent a later resumption",
    arguments: [404, 410])
  func portal(_ status: Int) throws {
    let directory = try TemporaryDirectory()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("\(status) Odd", ["Connection: close"])
      _ = connection.readToEnd()
    }
    let data = ResumeData(
      upload: server.url + "/uploads/0", target: server.url + "/take", base: 0, length: 1000, streamID: nil,
      version: .newest)
    try withSession { session throws in
      let stream = try RunningStream(try file(directory, 1000), session, server.url + "/take") { $0.resumeData = data }
      let summary = try stream.summary()
      #expect(summary.error != nil && summary.resumeData == data)
    }
  }

  @Test("a 200 without fields of the protocol has deleted no upload", arguments: [true, false])
  func portalForgets(_ speaks: Bool) throws {
    let directory = try TemporaryDirectory()
    let server = try ResumableServer { _, _ in
      .answer("200 OK", speaks ? ["Upload-Draft-Interop-Version: 8"] : ["Content-Type: text/html"])
    }
    let data = ResumeData(
      upload: server.url + "/uploads/0", target: server.url + "/take", base: 0, length: 1000, streamID: nil,
      version: .newest)
    try withSession { session throws in
      let stream = try RunningStream(try file(directory, 1000), session, server.url + "/take") { $0.resumeData = data }
      stream.streamer.abandon()
      #expect((try stream.summary().resumeData == nil) == speaks)
    }
  }

  @Test("an upload that is abandoned before it is resumed is only deleted")
  func abandonsAnother() throws {
    let directory = try TemporaryDirectory()
    let server = try ResumableServer()
    let data = ResumeData(
      upload: server.url + "/uploads/0", target: server.url + "/take", base: 0, length: 1000, streamID: nil,
      version: .newest)
    try withSession { session throws in
      let events = try EventLog<LiveStreamEvent>()
      var configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url + "/take"))
      configuration.resumeData = data
      let streamer = LiveStreamer(try file(directory, 1000), configuration: configuration, session: session)
      streamer.abandon()
      streamer.start { events.append($0) }
      try events.first("the end") { if case .ended = $0 { true } else { false } }
      #expect(server.methods == ["DELETE"])
    }
  }

  @Test("a different upload is not resumed: another length, or a source")
  func carriesNothingElseOn() throws {
    let directory = try TemporaryDirectory()
    let server = try ResumableServer()
    let data = ResumeData(
      upload: server.url + "/uploads/0", target: server.url + "/take", base: 0, length: 1000, streamID: nil,
      version: .newest)
    try withSession { session throws in
      let other = try RunningStream(try file(directory, 1001), session, server.url + "/take") { $0.resumeData = data }
      #expect(try other.summary().error?.kind == .invalidRequest)
      let source = try RunningStream(PushedSource(), session, server) { $0.resumeData = data }
      #expect(try source.summary().error?.kind == .invalidRequest)
      #expect(server.requests.all.isEmpty)
    }
  }

  @Test("user and password of a URL are not in the resume data of an upload that is cancelled before it is resumed")
  func credentialsOfUnusedData() throws {
    let directory = try TemporaryDirectory()
    let data = ResumeData(
      upload: "http://127.0.0.1:9/uploads/0", target: "http://127.0.0.1:9/take", base: 0, length: 1000, streamID: nil,
      version: .newest)
    try withSession { session throws in
      let events = try EventLog<LiveStreamEvent>()
      var configuration = LiveStreamConfiguration(request: UploadRequest(url: "http://me:secret@127.0.0.1:9/take"))
      configuration.resumeData = data
      let streamer = LiveStreamer(try file(directory, 1000), configuration: configuration, session: session)
      streamer.cancel()
      streamer.start { events.append($0) }
      let end = try events.first("the end") { if case .ended = $0 { true } else { false } }
      guard case .ended(let summary) = end else { return }
      #expect(summary.error?.kind == .cancelled && summary.resumeData == data)
    }
  }

  @Test("user and password of a URL are not in resume data, but are sent")
  func credentials() throws {
    let directory = try TemporaryDirectory()
    let server = try ResumableServer { request, _ in request.method == "PUT" ? .cut(after: 10) : .proper }
    let url = server.url.replacing("http://", with: "http://me:secret@") + "/take"
    try withSession { session throws in
      let first = try RunningStream(try file(directory, 1000), session, url) { $0.retry.initialCeiling = .seconds(60) }
      try first.waitForFailure()
      first.streamer.cancel()
      let data = try #require(try first.summary().resumeData)
      #expect(data.text?.contains("secret") == false)
      let second = try RunningStream(try file(directory, 1000), session, url) { $0.resumeData = data }
      #expect(try second.summary().error == nil)
    }
    #expect(
      server.requests.all.count > 2
        && server.requests.all.allSatisfy { $0.head["Authorization"]?.hasPrefix("Basic ") == true })
  }
}
