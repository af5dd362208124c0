import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("A live stream into a resumable upload", .serialized)
struct ResumableStreamTests {
  private let pattern = OffsetPattern()

  @Test(
    "discovery, creation, appends and completion on one connection; every byte once, and acknowledged by the server")
  func straight() throws {
    let server = try ResumableServer(.init(progress: 10_000))
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.streamID = "kitchen" }
      try source.push(patternBytes(pattern, 0, 100_000))
      try stream.waitUntilAcknowledged(100_000 - 10_000)
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.isResumable && summary.progress.acknowledged == 100_000)
      #expect(summary.resent == 0 && summary.progress.outageCount == 0 && summary.resumeData == nil)
    }
    #expect(
      server.uploads.count == 1 && server.upload(0).isComplete && server.upload(0).matches(pattern, count: 100_000))
    #expect(server.methods.prefix(3) == ["OPTIONS", "POST", "PATCH"] && server.connections == 1)
    #expect(server.nth("POST", 0)?.head["Stream-ID"] == "kitchen" && server.of("PATCH").last?.completes == true)
    #expect(Set(server.requests.all.map(\.version)) == [8])
  }

  @Test("fields that describe the representation are sent only with its creation")
  func metadata() throws {
    let server = try ResumableServer()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.request.fields = ["Content-Type": "audio/wav", "X-Room": "kitchen"]
        $0.request.bearerToken = "token"
      }
      try source.push([1, 2, 3])
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
    for request in server.requests.all {
      let expected =
        request.method == "POST" ? "audio/wav" : request.method == "PATCH" ? "application/partial-upload" : nil
      #expect(request.head["Content-Type"] == expected, "\(request.head)")
      #expect(request.head["X-Room"] == "kitchen" && request.head["Authorization"] == "Bearer token")
    }
  }

  // MARK: Rolling over

  @Test("appends roll over by size, one after another on the same connection")
  func bySize() throws {
    let server = try ResumableServer()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.rollOver.size = 10_000 }
      try source.push(patternBytes(pattern, 0, 95_000))
      try stream.waitUntilAcknowledged(90_000)
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
    let patches = server.of("PATCH")
    #expect(patches.allSatisfy { $0.count <= 10_000 } && patches.count >= 10 && server.connections == 1)
    #expect(server.of("HEAD").isEmpty && server.upload(0).matches(pattern, count: 95_000))
  }

  @Test(
    "appends roll over by time: a byte is acknowledged although the source is silent and the server sends no 104",
    arguments: [nil, 5] as [UInt64?])
  func byTime(_ size: UInt64?) throws {
    let server = try ResumableServer()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.rollOver.after = .milliseconds(50)
        // The first append of each round ends by its size, and the second one by its time.
        if let size { $0.rollOver.size = size }
      }
      for round in 0..<5 {
        try source.push(patternBytes(pattern, round * 7, 7))
        try stream.waitUntilAcknowledged(UInt64(round + 1) * 7)
      }
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
    #expect(server.connections == 1 && server.upload(0).matches(pattern, count: 35))
    #expect(server.of("PATCH").count == (size == nil ? 6 : 11))
  }

  @Test("a request rolls over before it reaches libcurl's limit of interim responses (300 KB)")
  func byInterimResponses() throws {
    let padding = String(repeating: "x", count: 2_000)
    let server = try ResumableServer { request, connection in
      guard request.method == "PATCH", !request.completes, request.number < 3 else { return .proper }
      for _ in 0..<120 {
        try connection.send(
          "HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Draft-Interop-Version: 8\r\nX-Padding: \(padding)\r\n\r\n"
        )
      }
      return .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server)
      for round in 0..<3 {
        try source.push(patternBytes(pattern, round * 1000, 1000))
        try stream.waitUntilAcknowledged(UInt64(round + 1) * 1000)
      }
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.outageCount == 0)
    }
    #expect(server.connections == 1 && server.upload(0).matches(pattern, count: 3000))
  }

  @Test("a stream asks the server for its interval of acknowledgements only if it is configured", arguments: [nil, 3])
  func acknowledgementInterval(_ seconds: Int?) throws {
    let server = try ResumableServer()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.acknowledgementInterval = seconds }
      try source.push(patternBytes(pattern, 0, 1000))
      try stream.waitUntilAcknowledged(1000)
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
    let asked = server.of("PATCH").filter { $0.head["Transfer-Encoding"] != nil }.map {
      $0.head["Stream-Progress-Interval"]
    }
    #expect(!asked.isEmpty && asked.allSatisfy { $0 == seconds.map(String.init) })
  }

  @Test("a silent server is asked for its offset while the source still has space")
  func forWantOfRoom() throws {
    let server = try ResumableServer(.init(announces: false))
    try withSession { session throws in
      let pipe = try TestPipe()
      let source = try DescriptorSource(descriptor: pipe.reading)
      let start = MonotonicInstant.now
      let stream = try RunningStream(source, session, server) {
        $0.buffer = .bytes(64 << 10)
        $0.overflow = .wait
        $0.memory = .kept
        $0.retention = 0
      }
      for offset in stride(from: 0, to: 1_000_000, by: 50_000) {
        #expect(pipe.write(patternBytes(pattern, offset, 50_000)))
      }
      pipe.closeWriting()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.gaps == 0)
      #expect(.now - start < .seconds(10), "thirty half buffers at ten seconds each would be five minutes")
    }
    #expect(server.upload(0).matches(pattern, count: 1_000_000) && server.connections == 1)
    // One for each filled half of the buffer, and not one for each written piece.
    #expect((20...100).contains(server.of("PATCH").count), "\(server.of("PATCH").count) requests")
  }

  @Test("only the last append is below min-append-size, however soon it rolls over")
  func minimumAppend() throws {
    let server = try ResumableServer(.init(limits: "min-append-size=20000", progress: 1000))
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.rollOver.after = .nanoseconds(1)
        $0.pairSize = 1000
      }
      for round in 0..<20 { try source.push(patternBytes(pattern, round * 10_000, 10_000)) }
      try stream.waitUntilAcknowledged(150_000)
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
    let patches = server.of("PATCH").filter { !$0.completes }
    #expect(patches.count > 3 && patches.allSatisfy { $0.count >= 20_000 }, "\(patches.map(\.count))")
    #expect(server.upload(0).matches(pattern, count: 200_000))
  }

  @Test("a min-append-size that the buffer cannot contain is an error with a remedy, and no silence")
  func minimumBeyondBuffer() throws {
    let server = try ResumableServer(.init(limits: "min-append-size=10000000"))
    try withSession { session throws in
      let stream = try RunningStream(PushedSource(), session, server) { $0.buffer = .bytes(1 << 20) }
      let error = try stream.summary().error
      #expect(error?.kind == .refused && error?.description.contains("buffer") == true)
    }
  }

  @Test("a stream that has ended because of a min-append-size sends nothing more, even if it is abandoned later")
  func minimumBeyondBufferAndAbandoned() throws {
    let server = try ResumableServer(.init(limits: "min-append-size=10000000"))
    try withSession { session throws in
      let stream = try RunningStream(PushedSource(), session, server) { $0.buffer = .bytes(1 << 20) }
      #expect(try stream.summary().error?.kind == .refused)
      stream.streamer.abandon()
      // A request of the first stream would arrive before the last one of this.
      let other = try RunningStream(PushedSource(), session, server) { $0.buffer = .bytes(16 << 20) }
      other.streamer.finish()
      #expect(try other.summary().error == nil)
      #expect(server.of("DELETE").isEmpty)
    }
  }

  // MARK: What is kept

  @Test("bytes stay in the buffer until the server acknowledges them, whatever TCP reports")
  func kept() throws {
    let gate = try EventLog<Int>()
    let server = try ResumableServer { request, connection in
      guard request.method == "PATCH", request.number == 0 else { return .proper }
      while gate.all.isEmpty { _ = try gate.first("the order to read") { _ in true } }
      return .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.progressInterval = .milliseconds(20)
        $0.rollOver.after = .milliseconds(50)
        $0.memory = .kept
      }
      try source.push(patternBytes(pattern, 0, 5_000))
      func progress(_ what: String, _ isWanted: (StreamProgress) -> Bool) throws {
        try stream.events.wait(what) { events in
          events.contains { if case .progress(let progress) = $0 { isWanted(progress) } else { false } } ? true : nil
        }
      }
      // All of it is in the server's socket, and TCP has acknowledged it.
      try progress("all of it sent") { $0.sent == 5_000 }
      try progress("all of it kept") { $0.sent == 5_000 && $0.acknowledged == 0 && $0.buffered == 5_000 }
      gate.append(1)
      try progress("all of it free") { $0.acknowledged == 5_000 && $0.buffered == 0 }
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
  }

  @Test("discarded unacknowledged bytes are reported as a gap, and a new part continues after it")
  func gap() throws {
    let gate = try EventLog<Int>()
    let server = try ResumableServer { request, _ in
      guard request.method == "PATCH", request.number == 0 else { return .proper }
      try gate.first("the order to continue") { _ in true }
      return .cut(after: 10_000)
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.buffer = .bytes(64 << 10)
        $0.memory = .kept
        $0.retention = 0
        $0.rollOver.after = .seconds(60)
      }
      try source.push(patternBytes(pattern, 0, 20_000))
      try server.wait(for: "POST")
      try source.push(patternBytes(pattern, 20_000, 200_000))
      gate.append(1)
      try stream.events.first("the gap") { if case .gap = $0 { true } else { false } }
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.gaps == 1 && stream.parts == ["gap"])
      let gap = try #require(stream.gaps().first)
      #expect(gap.cause == .bufferFull && summary.progress.lost == gap.length)
      let (first, second) = (server.upload(0), try #require(server.uploads.last))
      #expect(first.isComplete && first.matches(pattern, count: Int(gap.offset)), "what it has is a part of its own")
      #expect(second.isComplete && second.matches(pattern, from: Int(gap.offset + gap.length)))
      #expect(Int(gap.offset + gap.length) + second.bytes.count == 220_000)
      #expect(second.head?["Stream-Offset"] == "\(gap.offset + gap.length)")
    }
  }

  @Test("if a server creates no upload until the buffer overflows, its only upload begins behind the discarded bytes")
  func refusedOverflow() throws {
    let isFull = Lock(true)
    let server = try ResumableServer { request, connection in
      guard request.method == "POST", isFull.withLock({ $0 }) else { return .proper }
      try connection.respond("503 Service Unavailable")
      return .answered
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.buffer = .bytes(64 << 10)
        $0.memory = .kept
        $0.retention = 0
        $0.retry.maximumCeiling = .milliseconds(50)
      }
      try source.push(patternBytes(pattern, 0, 220_000))
      // A long refusal costs no more than a short one.
      let before = server.of("POST").count
      try server.wait(for: "POST", before + 12)
      isFull.withLock { $0 = false }
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.gaps == 1 && summary.progress.outageCount == 1, "\(summary)")
      let gap = try #require(stream.gaps().first)
      #expect(gap.cause == .bufferFull && gap.offset == 0 && summary.progress.lost == gap.length)
      // The least room of a buffer is an eighth of it.
      #expect(gap.length <= 220_000 - (64 << 10) + (8 << 10))
      let upload = server.upload(0)
      #expect(server.uploads.count == 1 && upload.isComplete && upload.head?["Stream-Offset"] == "\(gap.length)")
      #expect(upload.matches(pattern, from: Int(gap.length)) && Int(gap.length) + upload.bytes.count == 220_000)
      #expect(summary.progress.captured == summary.progress.acknowledged + summary.progress.lost)
    }
  }

  @Test(
    "if a server loses an upload and refuses another until the buffer overflows, this is one gap and one outage",
    arguments: [true, false])
  func refusedAfterLoss(_ isAcceptedAtLast: Bool) throws {
    let isFull = Lock(false)
    let server = try ResumableServer(.init(progress: 1000)) { request, connection in
      guard request.method == "POST", isFull.withLock({ $0 }) else { return .proper }
      try connection.respond("503 Service Unavailable")
      return .answered
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.buffer = .bytes(64 << 10)
        $0.memory = .kept
        $0.retention = 0
        $0.rollOver.after = .milliseconds(10)
        $0.retry.maximumCeiling = .milliseconds(50)
      }
      try source.push(patternBytes(pattern, 0, 20_000))
      try stream.waitUntilAcknowledged(20_000)
      isFull.withLock { $0 = true }
      server.forget(0)
      var captured = 20_000
      for _ in 0..<6 {
        let before = server.of("POST").count
        try source.push(patternBytes(pattern, captured, 70_000))
        captured += 70_000
        // The next one may have begun before these bytes.
        try server.wait(for: "POST", before + 2)
      }
      if isAcceptedAtLast {
        isFull.withLock { $0 = false }
        stream.streamer.finish()
      } else {
        stream.streamer.cancel()
      }
      let summary = try stream.summary()
      #expect(summary.error?.kind == (isAcceptedAtLast ? nil : .cancelled), "\(summary)")
      #expect(summary.gaps == 1 && summary.progress.outageCount == 1, "\(stream.gaps())")
      let gap = try #require(stream.gaps().first)
      #expect(gap.cause == .bufferFull && Int(gap.offset) == server.upload(0).bytes.count)
      let end = Int(gap.offset + gap.length)
      #expect(summary.progress.lost == gap.length && summary.progress.unsent == (isAcceptedAtLast ? 0 : 64 << 10))
      #expect(Int(summary.progress.acknowledged + summary.progress.lost + summary.progress.unsent) == captured)
      // The least room of a buffer is an eighth of it. Without a next upload, none is left free.
      let (oldest, room) = (captured - (64 << 10), isAcceptedAtLast ? 8 << 10 : 0)
      #expect((oldest...oldest + room).contains(end), "\(gap)")
      guard isAcceptedAtLast else { return }
      let second = server.upload(1)
      #expect(server.uploads.count == 2 && stream.parts == ["gone"] && second.isComplete)
      #expect(second.matches(pattern, from: end) && end + second.bytes.count == captured)
    }
  }

  @Test("if a server lost acknowledged bytes, this is reported, and the buffered bytes continue after the gap")
  func wentBack() throws {
    let server = try ResumableServer(.init(progress: 1000))
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.memory = .kept
        $0.rollOver.size = 50_000
      }
      try source.push(patternBytes(pattern, 0, 200_000))
      try stream.waitUntilAcknowledged(200_000)
      // The last of these four appends is over then.
      try server.wait(for: "PATCH", 4)
      server.truncate(0, to: 100_000)
      try source.push(patternBytes(pattern, 200_000, 1_000))
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.gaps == 1)
      #expect(stream.notices.contains { if case .serverWentBack(_, 100_000) = $0 { true } else { false } })
      let gap = try #require(stream.gaps().first)
      #expect(gap.cause == .serverLost && gap.offset == 100_000)
      let second = try #require(server.uploads.last)
      #expect(second.matches(pattern, from: Int(gap.offset + gap.length)))
      #expect(Int(gap.offset + gap.length) + second.bytes.count == 201_000)
    }
  }

  // MARK: Idle

  @Test("a silent resumable stream causes only the wake-ups of its source")
  func idle() throws {
    let server = try ResumableServer(.init(limits: "max-age=3600"))
    try withSession { session throws in
      let accounts = try EventLog<ThreadAccount>()
      session.loop.execute { accounts.append(ThreadAccount()) }
      let thread = try accounts.wait("the session's thread") { $0.first }
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.rollOver.after = .milliseconds(20) }
      try source.push([1, 2, 3])
      try stream.waitUntilAcknowledged(3)
      let never = try EventCounter()
      #expect(!waitUntilReadable(never.descriptor, limit: .milliseconds(200)))
      let before = try thread.sleepCount()
      // The period over which wake-ups are counted.
      #expect(!waitUntilReadable(never.descriptor, limit: .seconds(1)))
      #expect(try thread.sleepCount() - before <= 1)
      // Five bytes, one after another. Each wakes the thread for its write and for the answer.
      for round in 0..<5 {
        try source.push([UInt8(round)])
        try stream.waitUntilAcknowledged(UInt64(4 + round))
      }
      #expect(try thread.sleepCount() - before <= 5 * 12)
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
  }
}
