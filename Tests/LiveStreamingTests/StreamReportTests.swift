// What a stream reports while it runs: progress, losses, acknowledgements, and the servers' explanations.

import Digests
import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The reports of a stream", .serialized)
struct StreamReportTests {
  private let pattern = OffsetPattern()

  private static let capacity = 64 << 10

  /// Writes while the stream's loop does nothing else, so that it sees all bytes at once.
  private func push(_ source: PushedSource, _ range: Range<Int>, while session: UploadSession) throws {
    let rests = try EventLog<Bool>()
    let isDone = try EventCounter()
    let descriptor = isDone.descriptor
    session.loop.execute {
      rests.append(true)
      _ = waitUntilReadable(descriptor)
    }
    try rests.first("the loop's rest") { $0 }
    try source.push(patternBytes(pattern, range.lowerBound, range.count))
    isDone.signal()
    let passed = try EventLog<Bool>()
    session.loop.execute { passed.append(true) }
    try passed.first("the end of the loop's rest") { $0 }
  }

  private func progress(_ stream: RunningStream) -> [StreamProgress] {
    stream.events.all.compactMap { if case .progress(let progress) = $0 { progress } else { nil } }
  }

  private func discarded(_ stream: RunningStream) -> [UInt64] {
    stream.events.all.compactMap { if case .discarding(let count) = $0 { count } else { nil } }
  }

  @Test("discarded bytes are reported once for each gap, and are a loss at the end even if no request follows them")
  func discarding() throws {
    let url = "http://127.0.0.1:\(try freePort())/"
    try withSession { session throws in
      let source = try PushedSource()
      let before = MonotonicInstant.now
      let stream = try RunningStream(source, session, url) {
        ($0.buffer, $0.memory, $0.retention) = (.bytes(Self.capacity), .kept, 0)
        $0.retry.initialCeiling = .seconds(600)
        $0.retry.maximumCeiling = .seconds(600)
        $0.progressInterval = .milliseconds(5)
      }
      try stream.waitForFailure()
      #expect(discarded(stream).isEmpty)
      try push(source, 0..<100_000, while: session)
      let count = progress(stream).count
      try stream.events.wait("more reports") { _ in progress(stream).count > count + 3 ? true : nil }
      // The buffer has the newest 65,536 bytes.
      #expect(discarded(stream) == [34_464])
      let last = try #require(progress(stream).last)
      #expect(last.captured == 100_000 && last.buffered == Self.capacity && last.capacity == Self.capacity)
      #expect(last.lost == 34_464 && last.sent == 0 && last.acknowledged == 0 && !last.isConnected)
      #expect(last.outageCount == 1 && last.elapsed <= MonotonicInstant.now - before)

      // The next request begins after a gap, and leaves an eighth of the buffer free.
      stream.streamer.retryNow()
      try stream.waitForFailure(2)
      #expect(stream.gaps() == [Gap(offset: 0, length: 34_464 + 8192, cause: .bufferFull)])
      #expect(stream.connects == [0, 34_464 + 8192])
      try push(source, 100_000..<200_000, while: session)
      try stream.events.wait("the second report") { _ in discarded(stream).count == 2 ? true : nil }
      stream.streamer.cancel()
      let summary = try stream.summary()
      let lost = UInt64(200_000 - Self.capacity)
      #expect(discarded(stream) == [34_464, lost - (34_464 + 8192)])
      #expect(summary.error?.kind == .cancelled && summary.gaps == 2 && summary.progress.lost == lost)
      #expect(stream.gaps().last.map { $0.offset + $0.length } == lost)
      #expect(summary.progress.buffered == Self.capacity && summary.progress.unsent == UInt64(Self.capacity))
      #expect(summary.progress.elapsed <= MonotonicInstant.now - before)
    }
  }

  @Test("progress includes exactly the bytes that TCP has acknowledged, even while the source is silent")
  func acknowledgedByTCP() throws {
    let gate = try EventCounter()
    let descriptor = gate.descriptor
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      var count = 0
      while count < 5000 { count += try connection.chunk()?.count ?? 0 }
      _ = waitUntilReadable(descriptor)
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) {
        $0.progressInterval = .milliseconds(10)
        $0.retention = 0
      }
      for number in 0..<5 {
        try source.push(patternBytes(pattern, number * 1000, 1000))
        try stream.events.wait("the request with piece \(number)") { _ in
          progress(stream).contains { $0.sent == 1000 * (number + 1) } ? true : nil
        }
      }
      try stream.events.wait("the acknowledgement") { _ in
        progress(stream).contains { $0.acknowledged == 5000 && $0.buffered == 0 && $0.isConnected } ? true : nil
      }
      // The same without an interval.
      let current = try EventLog<StreamProgress>()
      stream.streamer.withProgress { current.append($0) }
      let now = try current.wait("the progress") { $0.first }
      #expect(now.sent == 5000 && now.acknowledged == 5000 && now.lost == 0 && now.isConnected)
      gate.signal()
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.acknowledged == 5000 && !summary.isResumable)
    }
  }

  @Test("each acknowledgement of a server is reported once, with the responses that contain it")
  func acknowledgements() throws {
    let server = try ResumableServer(.init(progress: 1000))
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.rollOver.size = 20_000 }
      try source.push(patternBytes(pattern, 0, 100_000))
      try stream.waitUntilAcknowledged(100_000)
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
      let offsets = stream.events.all.compactMap { if case .acknowledged(let offset) = $0 { offset } else { nil } }
      #expect(offsets.first.map { $0 > 0 } == true && offsets.last == 100_000)
      #expect(zip(offsets, offsets.dropFirst()).allSatisfy { $0 < $1 }, "\(offsets)")
      let interim = stream.events.all.compactMap { event in
        if case .interimResponse(let response) = event { response.status } else { nil }
      }
      #expect(!interim.isEmpty && interim.allSatisfy { $0 == 104 })
      #expect(stream.events.all.contains { if case .connected(isNew: true, after: _) = $0 { true } else { false } })
    }
  }

  @Test("a failed attempt has the explanation of its response, and that of a lost connection has none")
  func reason() throws {
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      guard number > 0 else {
        try connection.respond("503 Service Unavailable", ["Connection: close"], body: "come back later\n")
        _ = connection.readToEnd()
        return
      }
      if number == 1 { return connection.reset() }
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url)
      try source.push([1, 2, 3])
      try stream.waitForFailure(2)
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
      let failures = stream.failures()
      #expect(failures[0].cause == .response(503) && failures[0].reason == "come back later")
      #expect(failures[1].reason == nil)
      let isOutage = stream.events.all.contains { if case .outage(failures[0]) = $0 { true } else { false } }
      let isFailure = stream.events.all.contains { if case .attemptFailed = $0 { true } else { false } }
      #expect(isOutage && isFailure == failures[1].isRepeated)
    }
  }

  @Test("a summary states why the body of the response is incomplete", arguments: [true, false])
  func responseFailure(_ isWhole: Bool) throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.body()
      try connection.send("HTTP/1.1 200 OK\r\nContent-Length: \(isWhole ? 3 : 100)\r\n\r\nabc")
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url)
      try source.push([1, 2, 3])
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.response?.status == 200 && (summary.responseFailure == nil) == isWhole, "\(summary)")
    }
  }

  @Test("each request is measured, with the request and its end")
  func measured() throws {
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      _ = try connection.body()
      try connection.respond(number == 0 ? "503 Service Unavailable" : "200 OK", ["Connection: close"])
    }
    try withSession { session throws in
      let ends = try EventLog<(method: String, status: Int?)>()
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) {
        $0.request.isMeasured = true
        $0.measured = { _, request, end in ends.append((request.method, try? end.get().response.status)) }
      }
      try source.push([1, 2, 3])
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
      let found = ends.all.map { "\($0.method) \($0.status ?? 0)" }
      #expect(found == ["POST 503", "POST 200"])
    }
  }

  @Test("a stream that becomes a plain one compares no digest, even if its server sends one")
  func digestOfPlainServer() throws {
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        guard head.line.hasPrefix("POST") else {
          try connection.respond("404 Not Found", ["Allow: POST"])
          continue
        }
        _ = try connection.body()
        try connection.respond("200 OK", ["Repr-Digest: sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:"])
      }
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) {
        ($0.resumable, $0.digest) = (.auto, .sha256)
      }
      try source.push([1, 2, 3])
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.verified == nil && !summary.isResumable)
      #expect(!stream.notices.contains { if case .digestMismatch = $0 { true } else { false } })
    }
  }

  @Test("the description of the source is sent with each request that has content")
  func description() throws {
    let server = try ResumableServer()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.description = SourceDescription(device: "hw:7")
        $0.rollOver.size = 2
      }
      try source.push([1, 2, 3])
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
    #expect(server.methods.contains("OPTIONS") && server.of("PATCH").count >= 2)
    for request in server.requests.all {
      let field = request.head["Stream-Description"]
      #expect((field?.contains("hw:7") == true) == ["POST", "PATCH"].contains(request.method), "\(request.head)")
    }
  }

  @Test(
    "bytes that TCP acknowledged and no server has confirmed are counted when the buffer no longer has them",
    arguments: ["PUT", "POST"])
  func unconfirmed(_ method: String) throws {
    let count = 200_000
    let isOver = try EventLog<Bool>()
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      if number == 0 {
        var read = 0
        while read < count { read += try connection.chunk()?.count ?? 0 }
        isOver.append(true)
        if method == "PUT" { return connection.reset() }
        try connection.respond("503 Service Unavailable", ["Connection: close"])
        _ = connection.readToEnd()
        return
      }
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      let pipe = try TestPipe()
      let stream = try RunningStream(try DescriptorSource(descriptor: pipe.reading), session, server.url + "/x") {
        ($0.buffer, $0.memory, $0.retention) = (.bytes(Self.capacity), .kept, 0)
        ($0.overflow, $0.request.method) = (.wait, method)
      }
      #expect(pipe.write(patternBytes(pattern, 0, count)))
      try isOver.first("the end of the first request") { $0 }
      try stream.waitForFailure()
      pipe.closeWriting()
      let summary = try stream.summary()
      var counted: UInt64 = stream.failures().reduce(0) { $0 + $1.unconfirmed }
      for case .nextURL(_, _, let unconfirmed) in stream.notices { counted += unconfirmed }
      #expect(summary.error == nil && summary.unconfirmed == counted && counted > 0, "\(summary)")
      #expect(counted >= UInt64(count - Self.capacity) && counted <= UInt64(count))
    }
  }
}
