import EventLoops
import NetworkTesting
import PropertyTesting
import ResumableUploads
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

/// A server that is replaced for this number of requests, once it has acknowledged bytes.
private final class Outage: Sendable {
  private let state: Lock<(random: SplitMix64, left: Int)>
  private let answer: @Sendable (inout SplitMix64, ResumableServer.Request) -> ResumableServer.Conduct

  init(
    _ seed: Seed, _ answer: @escaping @Sendable (inout SplitMix64, ResumableServer.Request) -> ResumableServer.Conduct
  ) {
    state = Lock((seed.generator, 0))
    self.answer = answer
  }

  func begin(_ count: Int) { state.withLock { $0.left = count } }
  var isOver: Bool { state.withLock { $0.left == 0 } }

  func conduct(_ request: ResumableServer.Request) -> ResumableServer.Conduct {
    state.withLock { state in
      guard state.left > 0 else { return .proper }
      state.left -= 1
      return answer(&state.random, request)
    }
  }
}

extension RunningStream {
  fileprivate var hasEnded: Bool { if case .ended? = events.all.last { true } else { false } }

  /// Gives the source this many more bytes, and waits until they are acknowledged, or an attempt fails.
  fileprivate func push(_ count: Int, of pattern: OffsetPattern, at offset: Int, from source: PushedSource) throws {
    let seen = events.all.count
    try source.push(patternBytes(pattern, offset, count))
    try events.wait("what becomes of byte \(offset)") { events in
      events.dropFirst(seen).contains {
        switch $0 {
        case .acknowledged(let end): end >= UInt64(offset + count)
        case .outage, .attemptFailed, .ended: true
        default: false
        }
      } ? true : nil
    }
  }
}

@Suite("A stream survives after its first acknowledgement", .serialized)
struct ResumableOutageTests {
  private let pattern = OffsetPattern()

  /// Streams, has `count` requests in the middle answered by something else, and expects every byte at the server.
  @discardableResult
  private func stream(
    _ session: UploadSession, _ outage: Outage, for count: Int,
    _ change: (inout LiveStreamConfiguration) -> Void = { _ in }
  ) throws -> (summary: StreamSummary, stream: RunningStream, server: ResumableServer) {
    let server = try ResumableServer(.init(progress: 1000)) { request, _ in outage.conduct(request) }
    let source = try PushedSource()
    let stream = try RunningStream(source, session, server) {
      $0.memory = .kept
      $0.rollOver.after = .milliseconds(10)
      $0.request.limits.response = .milliseconds(200)
      change(&$0)
    }
    try source.push(patternBytes(pattern, 0, 20_000))
    try stream.waitUntilAcknowledged(20_000)
    outage.begin(count)
    var end = 20_000
    while !outage.isOver, !stream.hasEnded {
      try stream.push(1000, of: pattern, at: end, from: source)
      end += 1000
    }
    try source.push(patternBytes(pattern, end, 1000))
    stream.streamer.finish()
    let summary = try stream.summary()
    expectWhole(server, end + 1000)
    return (summary, stream, server)
  }

  /// The uploads together have the stream, and nothing else.
  private func expectWhole(_ server: ResumableServer, _ count: Int) {
    var reached = 0
    for upload in server.uploads {
      let start = Int(upload.head?["Stream-Offset"] ?? "") ?? 0
      #expect(upload.matches(pattern, from: start))
      if start <= reached { reached = max(reached, start + upload.bytes.count) }
    }
    #expect(reached == count && server.uploads.last?.isComplete == true)
  }

  @Test("any response of another system in any phase", arguments: Seed.several(30))
  func anything(_ seed: Seed) throws {
    var random = seed.generator
    let count = 1 + random.size(upTo: 12)
    let drawn = try EventLog<String>()
    let outage = Outage(seed) { random, request in
      let odd = OddAnswer.draw(&random, isHead: request.method == "HEAD")
      drawn.append("\(request.method): \(odd)")
      return .odd(odd)
    }
    try withSession { session throws in
      let (summary, stream, _) = try stream(session, outage, for: count)
      #expect(summary.error == nil && summary.gaps == 0, "\(summary.error?.description ?? "") \(drawn.all)")
      for attempt in stream.failures() {
        #expect(!"\(attempt.cause)".unicodeScalars.contains { $0.value < 0x20 || $0.value == 0x7F })
      }
    }
  }

  @Test(
    "a portal, a maintenance page, a proxy without its backend, a truncated head, another protocol",
    arguments: [
      OddAnswer(status: "302 Found", ["Location: http://portal.example/login"]),
      OddAnswer(status: "200 OK", ["Content-Type: text/html"], body: "<html>Back soon</html>"),
      OddAnswer(status: "404 Not Found"),
      OddAnswer(status: "501 Not Implemented"), OddAnswer(status: "401 Unauthorized"),
      OddAnswer(status: "403 Forbidden"),
      OddAnswer(bytes: "HTTP/1.1 502 Bad Gateway\r\nServer: ng", end: .closes),
      OddAnswer(bytes: "\u{0}\u{1}\u{2}garbage\r\n", end: .closes),
      OddAnswer(status: "307 Temporary Redirect", ["Location: /elsewhere"]),
      OddAnswer(status: "308 Permanent Redirect", ["Location: /elsewhere"]),
    ])
  func one(_ odd: OddAnswer) throws {
    let outage = Outage(Seed(1)) { _, request in
      // HEAD has no body.
      guard request.method == "HEAD", let end = odd.bytes.ranges(of: "\r\n\r\n").first else { return .odd(odd) }
      return .odd(OddAnswer(bytes: String(odd.bytes[..<end.upperBound])))
    }
    try withSession { session throws in
      let (summary, stream, server) = try stream(session, outage, for: 8)
      #expect(summary.error == nil && summary.gaps == 0, "\(summary.error?.description ?? "")")
      // The first answers may cause a HEAD at once, and redirects are followed. The client pauses after all others.
      #expect(stream.failures().count >= (odd.bytes.contains("Redirect") ? 1 : 3))
      #expect(server.uploads.count <= 2)
    }
  }

  @Test("the same before the first acknowledgement is an error that describes the response")
  func atFirst() throws {
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" ? .answer("405 Method Not Allowed", []) : .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.rollOver.after = .milliseconds(10) }
      try source.push([1])
      let error = try stream.summary().error
      #expect(error?.kind == .refused && error?.description.contains("405") == true)
    }
  }

  @Test("a permanent refusal ends it after its time limit, with a remedy")
  func refused() throws {
    let outage = Outage(Seed(1)) { _, _ in .odd(OddAnswer(status: "401 Unauthorized")) }
    let server = try ResumableServer(.init(progress: 1)) { request, _ in outage.conduct(request) }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.retry.giveUpOnRefusalAfter = .milliseconds(500)
        $0.rollOver.after = .milliseconds(10)
      }
      try source.push([1])
      try stream.waitUntilAcknowledged(1)
      outage.begin(.max)
      var end = 1
      while !stream.hasEnded {
        try stream.push(1, of: pattern, at: end, from: source)
        end += 1
      }
      let summary = try stream.summary()
      #expect(summary.error?.kind == .notPermitted && summary.resumeData != nil)
      #expect(stream.failures().count >= 3)
    }
  }

  @Test("a token file that is empty or half written for a moment: the previous token is used")
  func emptyToken() throws {
    let token = Lock<String?>("one")
    let server = try ResumableServer(.init(progress: 1))
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.bearerToken = { token.withLock { $0 } }
        $0.rollOver.after = .milliseconds(10)
      }
      var count: UInt64 = 0
      for next in ["one", "", nil, "two words", "two"] as [String?] {
        token.withLock { $0 = next }
        // Two appends, because the first one may have begun before.
        for _ in 0..<2 {
          try source.push([UInt8(truncatingIfNeeded: count)])
          count += 1
          try stream.waitUntilAcknowledged(count)
          try server.wait(for: "PATCH", Int(count))
        }
      }
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
    let sent = server.requests.all.map { $0.head["Authorization"] }
    #expect(Set(sent) == ["Bearer one", "Bearer two"] && sent.last == "Bearer two")
  }

  @Test("progress that only HEAD shows keeps the pauses short: fifty interruptions in a few seconds")
  func progressByHEAD() throws {
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" && request.number < 50 ? .cut(after: 5000) : .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        // The command's settings.
        $0.retry = RetryPolicy()
        $0.retry.giveUpAfter = .milliseconds(100)
        $0.request.socket.sendBuffer = 16_384
      }
      try source.push(patternBytes(pattern, 0, 400_000))
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.outageCount == 50)
      #expect(stream.failures().allSatisfy { $0.retryDelay <= .milliseconds(25) }, "each one is a first one")
    }
    expectWhole(server, 400_000)
  }

  @Test("the smallest append of a server cannot be larger than the buffer, if the server has accepted smaller ones")
  func absurdMinimum() throws {
    let server = try ResumableServer(.init(progress: 1000)) { request, connection in
      if request.method == "PATCH", request.number == 1 {
        try connection.send(
          "HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Draft-Interop-Version: 8\r\n"
            + "Upload-Limit: min-append-size=999999999999999\r\n\r\n")
      }
      return .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.rollOver.after = .milliseconds(10) }
      for part in 0..<4 {
        try source.push(patternBytes(pattern, 5000 * part, 5000))
        try stream.waitUntilAcknowledged(UInt64(5000 * part + 5000))
      }
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil, "\(summary.error?.description ?? "")")
    }
    expectWhole(server, 20_000)
  }

  @Test("an outage before a server is detected as plain stays in the summary")
  func outageBeforeFallBack() throws {
    let server = try ResumableServer { request, _ in
      guard request.method == "OPTIONS" else { return .proper }
      return request.number == 0 ? .close : .answer("404 Not Found", [])
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server)
      try source.push([1, 2, 3])
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && !summary.isResumable)
      #expect(summary.progress.outageCount == 1 && stream.failures().count == 1)
    }
  }

  @Test("an OPTIONS without a response does not prevent the creation of a stream")
  func silentOptions() throws {
    // A busy machine may stop the server for as long as the limit, during other requests as well.
    for limit in [.milliseconds(300), .seconds(2)] as [Duration] {
      if try outagesAfterSilentOptions(limit) == 0 { return }
    }
    #expect(try outagesAfterSilentOptions(.seconds(20)) == 0)
  }

  /// Streams to a server that does not respond to OPTIONS. Returns the number of outages.
  private func outagesAfterSilentOptions(_ limit: Duration) throws -> Int {
    let server = try ResumableServer(.init(progress: 1)) { request, _ in
      request.method == "OPTIONS" ? .odd(OddAnswer(bytes: "", end: .waits)) : .proper
    }
    return try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.request.limits.response = limit }
      try source.push([1, 2, 3])
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.isResumable)
      let outageCount = summary.progress.outageCount
      #expect(outageCount > 0 || server.methods.prefix(3) == ["OPTIONS", "POST", "PATCH"])
      return outageCount
    }
  }

  @Test("OPTIONS has a limit of five seconds, whatever the limit of other responses")
  func questionLimit() {
    var machine = ResumableStream(.init(), target: "http://h/", policy: RetryPolicy())
    guard
      case .request(let question) = machine.start(
        Supply(oldest: 0, head: 0, isFinished: false), now: MonotonicInstant(nanoseconds: 0))
    else {
      Issue.record("no question")
      return
    }
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "http://h/"))
    #expect(question.uploadRequest(configuration, token: nil).limits.response == .seconds(5))
    configuration.request.limits.response = .seconds(1)
    #expect(question.uploadRequest(configuration, token: nil).limits.response == .seconds(1))
  }

  @Test("HTTP/1.0 with a persistent connection: appends of unknown length pass")
  func http10() throws {
    let server = try ResumableServer(.init(progress: nil)) { request, connection in
      guard request.method == "OPTIONS" else { return .proper }
      try connection.send(
        "HTTP/1.0 200 OK\r\nUpload-Limit: min-size=0\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n")
      return .answered
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.resumable = .auto }
      try source.push(patternBytes(pattern, 0, 5000))
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.outageCount == 0)
    }
    expectWhole(server, 5000)
  }

  @Test(
    "POST replaces PUT if the server supports it, over resumable and plain uploads",
    arguments: [false, true], ["OPTIONS", "405"])
  func takesPOST(_ isPlain: Bool, _ named: String) throws {
    let directory = try TemporaryDirectory()
    let file = try UploadFile(
      path: try directory.write("data", [UInt8](repeating: 7, count: named == "405" ? 1000 : 5 << 20)))
    let server = try ResumableServer { request, connection in
      switch request.method {
      case "OPTIONS": .answer("200 OK", ["Allow: POST, OPTIONS"] + (isPlain ? [] : ["Upload-Limit: min-size=0"]))
      case "PUT": .odd(OddAnswer(status: "405 Method Not Allowed", ["Allow: POST, OPTIONS"]))
      default: .proper
      }
    }
    try withSession { session throws in
      let stream = try RunningStream(file, session, server.url + "/take") {
        $0.mayUsePOST = true
        if isPlain { $0.resumable = named == "405" ? .never : .auto }
      }
      #expect(try stream.summary().error == nil)
    }
    #expect(server.methods.contains("POST"))
    let bytes = isPlain ? server.plain.last?.bytes : server.uploads.last?.bytes
    #expect(bytes?.count == Int(file.size))
  }

  @Test("the user cannot set fields of the protocol")
  func reservedFields() throws {
    for name in ["Upload-Complete", "upload-offset", "Stream-ID", "Content-Range", "Transfer-Encoding", "Expect", "TE"]
    {
      try withSession { session throws in
        let stream = try RunningStream(PushedSource(), session, "http://127.0.0.1:9/") {
          $0.request.fields = [name: "?1"]
        }
        let error = try stream.summary().error
        #expect(error?.kind == .invalidRequest && error?.description.contains(name) == true)
      }
    }
  }
}
