import EventLoops
import FoundationUploads
import NetworkTesting
import Testing

@Suite("Streams that are resumed with resume data")
struct StreamResumptionTests {
  private static let whole = Data((0..<100_000).map { UInt8(truncatingIfNeeded: $0 &* 11 &+ $0 >> 8) })

  /// The requests that a server counts after the end of the first task.
  private final class Phase: Sendable {
    /// Requests by method; nil before.
    let counts = Lock<[String: Int]?>(nil)

    func next(_ method: String) -> Int? {
      counts.withLock { counts in
        defer { counts?[method, default: 0] += 1 }
        return counts.map { $0[method, default: 0] }
      }
    }
  }

  /// A server with a part of a stream, and the resume data for it.
  ///
  /// - Parameter conduct: the behaviour for each request of the resumption, by its number among those of its method.
  private func paused(
    _ conduct: @escaping @Sendable (ResumableServer.Request, Int) -> ResumableServer.Conduct
  ) async throws -> (ResumableServer, Data) {
    let phase = Phase()
    let server = try ResumableServer { request, _ in
      phase.next(request.method).map { conduct(request, $0) } ?? .proper
    }
    let test = TestSession()
    defer { test.end() }
    let pair = try Pair()
    test.recorder.stream = { pair.input }
    let task = test.session.uploadTask(withStreamedRequest: try request("\(server.url)/live", "POST"))
    task.resume()
    pair.output.open()
    #expect(pair.output.write(Array(Self.whole), maxLength: 1000) == 1000)
    try waitUntil("the first bytes are sent") { task.countOfBytesSent == 1000 }
    let data = try #require(await task.cancelByProducingResumeData())
    phase.counts.withLock { $0 = [:] }
    return (server, data)
  }

  private func offsets(_ test: TestSession) -> [Int64] {
    test.recorder.log.all.compactMap { if case .needsStreamFrom(let offset) = $0 { offset } else { nil } }
  }

  enum Outage: String, CaseIterable {
    case cutAppends, cutQuestions, unavailable, conflict, lostAnswer

    func conduct(_ request: ResumableServer.Request, _ number: Int) -> ResumableServer.Conduct {
      switch (self, request.method, number) {
      case (.cutAppends, "PATCH", 0...1): .cut(after: 20_000)
      case (.cutQuestions, "HEAD", 0...1): .close
      case (.unavailable, "HEAD", 0), (.unavailable, "PATCH", 0):
        .odd(OddAnswer(status: "503 Service Unavailable", body: "later"))
      case (.conflict, "PATCH", 0): .odd(OddAnswer(status: "409 Conflict"))
      case (.lostAnswer, "PATCH", 0): .hangUp
      default: .proper
      }
    }

    /// How often the delegate is asked for a stream.
    var streamCount: Int {
      switch self {
      case .cutAppends: 3
      case .cutQuestions, .lostAnswer: 1
      case .unavailable, .conflict: 2
      }
    }
  }

  @Test(
    "a resumed stream survives outages: the delegate is asked for a stream from the server's offset",
    arguments: Outage.allCases)
  func outage(_ outage: Outage) async throws {
    let (server, data) = try await paused { outage.conduct($0, $1) }
    let test = TestSession()
    defer { test.end() }
    test.recorder.streamFrom = { InputStream(data: Self.whole.dropFirst(Int($0))) }
    let task = test.session.uploadTask(withResumeData: data)
    task.resume()
    #expect(try test.recorder.end() == nil)
    #expect(server.upload(0).isComplete && server.upload(0).bytes == Array(Self.whole))
    #expect(offsets(test).count == outage.streamCount)
    #expect(offsets(test) == offsets(test).sorted())
    #expect(task.countOfBytesSent == Int64(Self.whole.count) - (offsets(test).first ?? 0))
    let responses = test.recorder.log.all.filter { if case .response = $0 { true } else { false } }
    #expect(responses == [.response(outage == .lostAnswer ? 204 : 200)])
  }

  @Test("a resumed stream with a lost server fails with resume data, after its limit")
  func lostServer() async throws {
    let (server, data) = try await paused { _, _ in .close }
    let test = TestSession { $0.timeoutIntervalForResumption = 0.1 }
    defer { test.end() }
    test.session.uploadTask(withResumeData: data).resume()
    #expect(try test.recorder.end() == .networkConnectionLost)
    #expect(test.recorder.error?.uploadTaskResumeData != nil)
    #expect(server.of("HEAD").count >= 3)
  }

  @Test("if a server only answers with a temporary error, that is the response, after the limit")
  func unavailable() async throws {
    let (server, data) = try await paused { request, _ in
      request.method == "PATCH" ? .odd(OddAnswer(status: "503 Service Unavailable", body: "later")) : .proper
    }
    let test = TestSession { $0.timeoutIntervalForResumption = 0.1 }
    defer { test.end() }
    test.recorder.streamFrom = { InputStream(data: Self.whole.dropFirst(Int($0))) }
    test.session.uploadTask(withResumeData: data).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(503)))
    #expect(test.recorder.data == Data("later".utf8))
    #expect(!server.upload(0).isComplete)
  }

  @Test(
    "an upload that the server reports as complete before the stream's end is not complete", arguments: [false, true])
  func completeTooEarly(_ asksForPassword: Bool) async throws {
    let (server, data) = try await paused { request, number in
      switch (request.method, number) {
      case ("PATCH", 0): .cut(after: 20_000)
      case ("HEAD", 1) where asksForPassword: .answer("401 Unauthorized", ["WWW-Authenticate: Basic realm=\"a\""])
      case ("HEAD", 1), ("HEAD", 2): .answer("204 No Content", ["Upload-Offset: 21000", "Upload-Complete: ?1"])
      default: .proper
      }
    }
    let test = TestSession()
    defer { test.end() }
    test.recorder.credential = { _ in URLCredential(user: "a", password: "b", persistence: .none) }
    test.recorder.streamFrom = { InputStream(data: Self.whole.dropFirst(Int($0))) }
    test.session.uploadTask(withResumeData: data).resume()
    #expect(try test.recorder.end() == .badServerResponse)
    #expect(!server.upload(0).isComplete)
  }

  /// A server that asks for a password at the first append, after some bytes of it.
  private func challenging() async throws -> (ResumableServer, Data) {
    try await paused { request, number in
      request.method == "PATCH" && number == 0
        ? .early(after: 500, "401 Unauthorized", ["WWW-Authenticate: Basic realm=\"a\""]) : .proper
    }
  }

  @Test("if a challenge requires another stream, the writer of the first one receives an error")
  func writerAfterChallenge() async throws {
    let (server, data) = try await challenging()
    let test = TestSession()
    defer { test.end() }
    let pair = try Pair()
    let isFirst = Lock(true)
    test.recorder.credential = { _ in URLCredential(user: "a", password: "b", persistence: .none) }
    test.recorder.streamFrom = { offset in
      let isBound = isFirst.withLock { first in
        defer { first = false }
        return first
      }
      return isBound ? pair.input : InputStream(data: Self.whole.dropFirst(Int(offset)))
    }
    test.session.uploadTask(withResumeData: data).resume()
    try test.recorder.log.first("the question") { if case .needsStreamFrom = $0 { true } else { false } }
    pair.output.open()
    #expect(pair.output.write(Array(Self.whole.dropFirst(Int(offsets(test)[0]))), maxLength: 1000) == 1000)
    #expect(try test.recorder.end() == nil)
    #expect(server.upload(0).isComplete && server.upload(0).bytes == Array(Self.whole))
    #expect(offsets(test).count == 2)
    try waitUntil("the writer receives the error") { pair.output.streamStatus == .error }
    #expect(pair.output.streamError?.localizedDescription.contains("another stream") == true)
  }

  @Test("each stream that the delegate has provided is closed when it is no longer read", arguments: [false, true])
  func closed(afterChallenge: Bool) async throws {
    let (server, data) = try await afterChallenge ? challenging() : paused { _, _ in .proper }
    let test = TestSession()
    defer { test.end() }
    let closed = try EventLog<Int64>()
    test.recorder.credential = { _ in URLCredential(user: "a", password: "b", persistence: .none) }
    test.recorder.streamFrom = { RecordedStream(InputStream(data: Self.whole.dropFirst(Int($0))), from: $0, closed) }
    test.session.uploadTask(withResumeData: data).resume()
    #expect(try test.recorder.end() == nil)
    #expect(server.upload(0).isComplete && server.upload(0).bytes == Array(Self.whole))
    #expect(offsets(test).count == (afterChallenge ? 2 : 1))
    let ends = try closed.wait("the end of each stream") { $0.count == offsets(test).count ? $0 : nil }
    #expect(ends.sorted() == offsets(test))
  }

  @Test("a resumed stream that is paused again has resume data again")
  func pausedAgain() async throws {
    let (server, data) = try await paused { _, _ in .proper }
    let test = TestSession()
    defer { test.end() }
    let pair = try Pair()
    test.recorder.streamFrom = { _ in pair.input }
    let task = test.session.uploadTask(withResumeData: data)
    task.resume()
    try test.recorder.log.first("the question") { if case .needsStreamFrom = $0 { true } else { false } }
    let offset = Int(offsets(test)[0])
    pair.output.open()
    #expect(pair.output.write(Array(Self.whole[offset...]), maxLength: 1000) == 1000)
    try waitUntil("the server has the bytes") { server.upload(0).bytes.count == offset + 1000 }
    let newer = try #require(await task.cancelByProducingResumeData())
    #expect(try test.recorder.end() == .cancelled)
    let next = TestSession()
    defer { next.end() }
    next.recorder.streamFrom = { InputStream(data: Self.whole.dropFirst(Int($0))) }
    next.session.uploadTask(withResumeData: newer).resume()
    #expect(try next.recorder.end() == nil)
    #expect(offsets(next) == [Int64(offset + 1000)])
    #expect(server.upload(0).isComplete && server.upload(0).bytes == Array(Self.whole))
  }
}

/// Any of Foundation's streams, which records that it is closed.
private final class RecordedStream: InputStream {
  private let stream: InputStream
  private let offset: Int64
  private let closed: EventLog<Int64>

  init(_ stream: InputStream, from offset: Int64, _ closed: EventLog<Int64>) {
    (self.stream, self.offset, self.closed) = (stream, offset, closed)
    super.init(data: Data())
  }

  override func open() { stream.open() }
  override func close() {
    stream.close()
    closed.append(offset)
  }
  override var streamStatus: Stream.Status { stream.streamStatus }
  override var hasBytesAvailable: Bool { stream.hasBytesAvailable }
  override func read(_ buffer: UnsafeMutablePointer<UInt8>, maxLength len: Int) -> Int {
    stream.read(buffer, maxLength: len)
  }
}
