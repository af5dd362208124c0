import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Synchronization
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("A resumable upload survives", .serialized)
struct ResumableFaultTests {
  private let pattern = OffsetPattern()

  /// Streams 300 000 bytes, and expects them completely in the first upload resource, each stored once.
  @discardableResult
  private func stream(
    _ server: ResumableServer, _ change: (inout LiveStreamConfiguration) -> Void = { _ in },
    meanwhile: (RunningStream, PushedSource) throws -> Void = { _, _ in }
  ) throws -> StreamSummary {
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server, change)
      try source.push(patternBytes(pattern, 0, 300_000))
      try meanwhile(stream, source)
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.acknowledged == 300_000 && summary.gaps == 0)
      #expect(stream.parts.isEmpty, "\(stream.events.all)")
      #expect(server.uploads.last?.matches(pattern, count: 300_000) == true && server.uploads.last?.isComplete == true)
      return summary
    }
  }

  @Test("a lost connection: the client sends HEAD, and resends only the missing bytes", arguments: [true, false])
  func cut(_ announces: Bool) throws {
    let server = try ResumableServer(.init(announces: announces)) { request, _ in
      request.method == "PATCH" && request.number < 4 ? .cut(after: 20_000) : .proper
    }
    let summary = try stream(server) { $0.request.socket.sendBuffer = 16_384 }
    #expect(summary.progress.outageCount == 4)
    let patches = server.of("PATCH")
    #expect(
      patches.prefix(5).map(\.offset) == [0, 20_000, 40_000, 60_000, 80_000], "where the server is, never guessed")
    #expect(patches.reduce(0) { $0 + $1.count } == 300_000, "no byte was taken twice")
    #expect(server.methods.filter { $0 != "PATCH" } == ["OPTIONS", "POST", "HEAD", "HEAD", "HEAD", "HEAD"])
    #expect(summary.resent > 0, "what was under way is lost, and no more than that")
  }

  @Test("100 after 104, and 104 without 100", arguments: [true, false])
  func continues(_ does: Bool) throws {
    let server = try ResumableServer { request, connection in
      if does, request.method == "PATCH" { try connection.send("HTTP/1.1 100 Continue\r\n\r\n") }
      return .proper
    }
    try stream(server)
  }

  @Test("HEAD with only the offset", arguments: [0, 150_000, 300_000])
  func bareHead(_ count: Int) throws {
    let server = try ResumableServer { request, _ in
      if request.method == "PATCH", request.number == 0 { return .cut(after: count) }
      if request.method == "HEAD" { return .answer("200 OK", ["Upload-Offset: \(count)"]) }
      return .proper
    }
    try stream(server)
  }

  @Test(
    "400 and 500 after an interruption cause a HEAD", arguments: ["400 Bad Request", "500 Internal Server Error"])
  func afterwards(_ status: String) throws {
    let server = try ResumableServer(receiveBuffer: 16_384) { request, _ in
      request.method == "PATCH" && request.number == 0 ? .early(after: 50_000, status, []) : .proper
    }
    // With so little data in flight, the answer arrives before the content's end.
    try stream(server) { $0.request.socket.sendBuffer = 16_384 }
    #expect(server.nth("PATCH", 1)?.offset == 50_000)
  }

  @Test("an early final response, after which the server neither reads nor closes")
  func early() throws {
    for fields in [
      ["Content-Type: text/plain"], ["Upload-Complete: ?0"], ["Upload-Complete: ?0", "Upload-Offset: 50000"],
    ] {
      let server = try ResumableServer(receiveBuffer: 16_384) { request, _ in
        request.method == "PATCH" && request.number == 0 ? .early(after: 50_000, "204 No Content", fields) : .proper
      }
      try stream(server) { $0.request.socket.sendBuffer = 16_384 }
      #expect(server.nth("PATCH", 1)?.offset == 50_000 && server.connections == 2)
    }
  }

  @Test(
    "409 without an offset, and with a wrong one: HEAD determines the offset", arguments: [[], ["Upload-Offset: 1"]])
  func conflict(_ fields: [String]) throws {
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" && request.number == 0
        ? .answer("409 Conflict", fields + ["Upload-Complete: ?0"]) : .proper
    }
    try stream(server)
    #expect(
      server.nth("PATCH", 1)?.offset == server.nth("PATCH", 0).map { UInt64($0.count) } && server.of("HEAD").count == 1)
  }

  @Test(
    "409 that destroys the upload (SwiftNIO): a new one continues from the oldest byte in the buffer, and the break is reported"
  )
  func destroyed() throws {
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" && request.number == 2 ? .destroy("409 Conflict", ["Upload-Offset: 0"]) : .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.rollOver.size = 50_000 }
      try source.push(patternBytes(pattern, 0, 200_000))
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.gaps == 0 && stream.parts == ["gone"])
      let second = try #require(server.uploads.last)
      let start = Int(second.head?["Stream-Offset"] ?? "") ?? 0
      #expect(start <= 100_000 && second.matches(pattern, from: start) && start + second.bytes.count == 200_000)
    }
  }

  @Test("404 in the middle: unacknowledged bytes go into a new upload")
  func gone() throws {
    let server = try ResumableServer(.init(progress: 1000))
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.rollOver.size = 50_000
        $0.memory = .kept
      }
      try source.push(patternBytes(pattern, 0, 120_000))
      try stream.waitUntilAcknowledged(119_000)
      server.forget(0)
      try source.push(patternBytes(pattern, 120_000, 100_000))
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.gaps == 0 && stream.parts == ["gone"])
      let second = server.upload(1)
      let start = Int(second.head?["Stream-Offset"] ?? "") ?? 0
      #expect(start >= 119_000 && second.matches(pattern, from: start) && start + second.bytes.count == 220_000)
      #expect(second.head?["Stream-ID"] == server.upload(0).head?["Stream-ID"])
    }
  }

  @Test(
    "a finished upload that is deleted at once, with a lost response: it is complete if all bytes were acknowledged")
  func forgotten() throws {
    let server = try ResumableServer(.init(progress: 1, forgets: true)) { request, _ in
      request.method == "PATCH" && request.completes ? .hangUp : .proper
    }
    let summary = try stream(server)
    #expect(server.methods.last == "HEAD" && server.uploads.count == 1)
    #expect(
      summary.progress.outageCount == 1, "the lost answer and each 404 before the one that counts are one outage")
  }

  @Test(
    "a lost final response: HEAD reports complete, and an additional empty append may repeat the response",
    arguments: [true, false])
  func lostFinalResponse(_ replays: Bool) throws {
    let isNext = Atomic(true)
    let server = try ResumableServer { request, connection in
      guard request.method == "PATCH", request.completes else { return .proper }
      if isNext.exchange(false, ordering: .relaxed) { return .hangUp }
      // Otherwise it finds the upload complete, which is a conflict.
      guard replays else { return .proper }
      try connection.respond("200 OK", ["Upload-Complete: ?1", "X-Result: stored"])
      return .answered
    }
    let summary = try stream(server)
    let last = try #require(server.requests.all.last)
    #expect(last.method == "PATCH" && last.completes && last.offset == 300_000 && last.head["Content-Length"] == "0")
    #expect((summary.response?["X-Result"] == "stored") == replays)
  }

  @Test("a request without a response has a time limit, and the next one continues")
  func silent() throws {
    var outages: [Int] = []
    // A busy machine may stop the server for as long as the limit, during other requests as well.
    for limit in [.milliseconds(200), .seconds(2), .seconds(10)] as [Duration] {
      let server = try ResumableServer { request, _ in
        request.method == "PATCH" && request.number == 0 ? .silent : .proper
      }
      let summary = try stream(server) {
        $0.request.limits.response = limit
        $0.rollOver.size = 100_000
      }
      outages.append(summary.progress.outageCount)
      if outages.last == 1, server.nth("PATCH", 1)?.offset == 100_000 { return }
    }
    Issue.record("the next request does not continue: \(outages) outages")
  }

  @Test("a server that disappears and returns: nothing is lost")
  func away() throws {
    let port = try freePort()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, "http://127.0.0.1:\(port)/take") { $0.resumable = .auto }
      try source.push(patternBytes(pattern, 0, 50_000))
      try stream.waitForFailure(3)
      let server = try ResumableServer(port: port)
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
      #expect(server.uploads.last?.matches(pattern, count: 50_000) == true)
    }
  }

  @Test(
    "the client respects Retry-After with any status",
    arguments: ["503 Service Unavailable", "423 Locked", "429 Too Many Requests"])
  func retryAfter(_ status: String) throws {
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" && request.number == 0 ? .answer(status, ["Retry-After: 1"]) : .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.retry.maximumCeiling = .seconds(15) }
      try source.push([1, 2, 3])
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
      #expect(stream.failures().count == 1 && stream.failures()[0].retryDelay >= .seconds(1))
    }
  }

  @Test("after a lost connection, the client pauses briefly before it asks the server")
  func firstDelay() throws {
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" && request.number == 0 ? .cut(after: 10) : .proper
    }
    try stream(server) { _ in
    } meanwhile: { stream, _ in
      try stream.waitForFailure()
      #expect((.milliseconds(10)...(.milliseconds(100))).contains(stream.failures()[0].retryDelay))
    }
  }

  @Test("a stream that was silent for longer than the acknowledgement limit does not give up at its first outage")
  func silence() throws {
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" && request.number == 1 ? .close : .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.retry.giveUpAfter = .seconds(1)
        $0.rollOver.after = .milliseconds(20)
      }
      try source.push([1])
      try stream.waitUntilAcknowledged(1)
      let never = try EventCounter()
      // The silence itself.
      #expect(!waitUntilReadable(never.descriptor, limit: .milliseconds(1500)))
      try source.push([2])
      try stream.waitUntilAcknowledged(2)
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.outageCount == 1)
    }
  }

  @Test("a stream gives up after the requested time if a server answers and never accepts bytes")
  func giveUp() throws {
    let server = try ResumableServer { request, _ in request.method == "PATCH" ? .close : .proper }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.retry.giveUpAfter = .seconds(2) }
      try source.push([1])
      let summary = try stream.summary()
      #expect(summary.error?.kind == .unreachable && summary.resumeData != nil)
      #expect(summary.progress.outageCount == 1 && stream.failures().count > 1)
    }
  }

  @Test("an upload is completed before it expires, and the stream continues in another")
  func expiry() throws {
    let server = try ResumableServer(.init(limits: "max-age=2", progress: 1))
    try withSession { session throws in
      let source = try PushedSource()
      // Only the end of its lifetime ends the active request.
      let stream = try RunningStream(source, session, server) { $0.rollOver.after = .seconds(3600) }
      try source.push(patternBytes(pattern, 0, 1000))
      try stream.events.first("the new part") { if case .upload(.newPart) = $0 { true } else { false } }
      try source.push(patternBytes(pattern, 1000, 1000))
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.gaps == 0 && stream.parts.first == "expiry")
      #expect(
        server.uploads.allSatisfy(\.isComplete) && server.uploads.flatMap(\.bytes) == patternBytes(pattern, 0, 2000))
    }
  }

  @Test("a server whose uploads expire at once gets no new ones without a pause")
  func noLife() throws {
    let created = Lock<[MonotonicInstant]>([])
    let server = try ResumableServer(.init(progress: 1)) { request, _ in
      if request.method == "POST" { created.withLock { $0.append(.now) } }
      guard request.method == "PATCH", !request.completes else { return .proper }
      return .answer(
        "204 No Content", ["Upload-Draft-Interop-Version: 8", "Upload-Complete: ?0", "Upload-Limit: max-age=0"])
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.rollOver.after = .milliseconds(20) }
      // An upload without progress has no successor.
      for number in 0..<3 {
        try source.push(patternBytes(pattern, number * 100, 100))
        try server.wait(for: "POST", number + 2)
      }
      stream.streamer.finish()
      #expect(try stream.summary().error == nil && stream.parts.allSatisfy { $0 == "expiry" })
      let times = created.withLock { $0 }
      #expect(zip(times, times.dropFirst()).allSatisfy { $1 - $0 >= .milliseconds(500) }, "\(times)")
      #expect(server.uploads.flatMap(\.bytes) == patternBytes(pattern, 0, 300))
    }
  }

  @Test("a renewed max-age counts from its response on")
  func longerLife() throws {
    let told = Lock<MonotonicInstant?>(nil)
    let server = try ResumableServer(.init(limits: "max-age=2", progress: 1)) { request, _ in
      if request.method == "HEAD" { told.withLock { $0 = $0 ?? .now } }
      return request.method == "PATCH" && request.number == 0 ? .cut(after: 10) : .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.rollOver.after = .seconds(3600) }
      try server.wait(for: "POST")
      // Part of the first lifetime passes before the second is reported.
      let never = try EventCounter()
      #expect(!waitUntilReadable(never.descriptor, limit: .milliseconds(600)))
      try source.push(patternBytes(pattern, 0, 1000))
      try stream.events.first("the new part") { if case .upload(.newPart) = $0 { true } else { false } }
      // A stream uses the first half of such a short lifetime.
      #expect(.now - (try #require(told.withLock { $0 })) >= .seconds(1))
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
  }
}
