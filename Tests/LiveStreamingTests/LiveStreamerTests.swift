import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing
import UploadClient
import UploadServer

@testable import LiveStreaming

@Suite("A live stream over real sockets", .serialized)
struct LiveStreamerTests {
  private let pattern = OffsetPattern()

  @Test(
    "a server that answers 503 with Retry-After, then 201: no byte is missing, and the client waited as requested")
  func unavailable() throws {
    let stored = StoredBytes()
    let server = try ScriptedServer { connection, number in
      let offset = try connection.head().offset
      if number < 2 {
        _ = try connection.chunk()
        try connection.respond("503 Service Unavailable", ["Retry-After: 1", "Connection: close"])
        // Closing with unread bytes would destroy the answer in flight.
        _ = connection.readToEnd()
        return
      }
      if stored.take(connection, from: offset) { try connection.respond("201 Created") }
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) { $0.retry.maximumCeiling = .seconds(15) }
      try source.push(patternBytes(pattern, 0, 100_000))
      try stream.waitForFailure(2)
      try source.push(patternBytes(pattern, 100_000, 50_000))
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.acknowledged == 150_000 && summary.progress.outageCount == 1)
      #expect(stored.count == 150_000 && stored.holes.isEmpty && stored.firstDifference(from: pattern) == nil)
      #expect(stream.failures().allSatisfy { $0.cause == .response(503) && $0.retryDelay >= .seconds(1) })
      #expect(stream.gaps().isEmpty)
    }
  }

  @Test("401 in the middle of a stream ends it with a remedy, while the source is silent")
  func unauthorized() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.chunk()
      try connection.respond("401 Unauthorized", ["Connection: close"], body: "the token has expired\n")
      _ = connection.readToEnd()
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url)
      try source.push([1, 2, 3])
      let summary = try stream.summary()
      let error = summary.error
      // Its TCP has accepted all three.
      #expect(summary.progress.acknowledged == 0 && summary.progress.unsent == 3)
      #expect(error?.kind == .notPermitted)
      #expect(error?.description.contains("the token has expired") == true)
      #expect(error?.remedy == .credentials)
      #expect(stream.failures().isEmpty)
    }
  }

  @Test(
    "a missing server at the start is an outage, and the data of the source arrives later",
    arguments: [true, false])
  func lateServer(_ finishesFirst: Bool) throws {
    let port = try freePort()
    let stored = StoredBytes()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, "http://127.0.0.1:\(port)/")
      try source.push(patternBytes(pattern, 0, 30_000))
      // The end may come before anybody waits for it.
      if finishesFirst { stream.streamer.finish() }
      try stream.waitForFailure(3)
      let server = try ScriptedServer(.port(port)) { connection, _ in
        if stored.take(connection, from: try connection.head().offset) { try connection.respond("200 OK") }
      }
      defer { server.close() }
      if !finishesFirst {
        try source.push(patternBytes(pattern, 30_000, 5_000))
        stream.streamer.finish()
      }
      #expect(try stream.summary().error == nil)
      #expect(stored.count == (finishesFirst ? 30_000 : 35_000))
      #expect(stored.holes.isEmpty && stored.firstDifference(from: pattern) == nil)
    }
  }

  @Test("an unknown host is retried until the give-up time, and the reason names it")
  func unknownHost() throws {
    try withSession { session throws in
      let stream = try RunningStream(try PushedSource(), session, "http://nowhere.invalid/") {
        $0.retry.giveUpAfter = .seconds(2)
      }
      let summary = try stream.summary()
      #expect(summary.error?.kind == .unreachable)
      #expect(summary.error?.description.contains("nowhere.invalid") == true)
      // One outage, however many attempts it took.
      #expect(summary.progress.outageCount == 1 && stream.failures().count > 1)
    }
  }

  @Test("each request of a plain stream has a new connection, even if the session has an idle one")
  func newConnection() throws {
    let requests = try EventLog<(connection: Int, method: String)>()
    let server = try ScriptedServer { connection, number in
      while true {
        let head = try connection.head()
        let method = String(head.line.prefix { $0 != " " })
        requests.append((number, method))
        guard method == "POST" else {
          // The session keeps the connection of this response.
          try connection.respond("405 Method Not Allowed", ["Allow: POST"])
          continue
        }
        _ = try connection.body()
        try connection.respond("200 OK")
      }
    }
    try withSession { session throws in
      let statuses = try EventLog<Int>()
      var question = UploadRequest(url: server.url)
      question.method = "OPTIONS"
      _ = try session.upload(question, body: .none) { event in
        if case .finished(let result) = event { statuses.append((try? result.get().response.status) ?? 0) }
      }
      #expect(try statuses.wait("the response to OPTIONS") { $0.first } == 405)
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url)
      try source.push([1, 2, 3])
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && !summary.isResumable)
    }
    // On a busy machine, OPTIONS may be sent again.
    let seen = requests.all
    #expect(seen.map { $0.method }.suffix(2) == ["OPTIONS", "POST"])
    let last = seen.suffix(2).map { $0.connection }
    #expect(last.first.map { $0 + 1 } == last.last)
  }

  @Test(
    "a stream that becomes a plain one closes the connection that carried OPTIONS, and uses it until then",
    arguments: [[], ["Allow: POST"]] as [[String]])
  func closedConnection(_ fields: [String]) throws {
    let requests = try EventLog<(connection: Int, method: String)>()
    let ended = try EventLog<Int>()
    let server = try ScriptedServer { connection, number in
      defer { if connection.isEnded { ended.append(number) } }
      while true {
        let head = try connection.head()
        let method = String(head.line.prefix { $0 != " " })
        requests.append((number, method))
        guard method == "POST" else {
          try connection.respond("404 Not Found", fields)
          continue
        }
        _ = try connection.body()
        try connection.respond("200 OK")
      }
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) { $0.resumable = .auto }
      try source.push([1, 2, 3])
      // The stream continues in the meantime.
      try ended.wait("the end of the connection that carried OPTIONS") { $0.contains(0) ? true : nil }
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && !summary.isResumable)
    }
    // Without Allow, OPTIONS is sent twice. On a busy machine, it may be sent again.
    let questions = fields.isEmpty ? 2 : 1
    let seen = requests.all.suffix(questions + 1)
    #expect(seen.map { $0.method } == [String](repeating: "OPTIONS", count: questions) + ["POST"])
    #expect(Set(seen.dropLast().map { $0.connection }).count == 1)
    #expect(seen.last.map { $0.connection } == seen.first.map { $0.connection + 1 })
  }

  @Test("the fallback to a plain upload continues the outage and the time to give up")
  func givesUpAfterFallBack() throws {
    let limit = Duration.seconds(2)
    let methods = try EventLog<String>()
    let server = try ScriptedServer { connection, _ in
      let method = String(try connection.head().line.prefix { $0 != " " })
      methods.append(method)
      // Not a synchronization: the time to give up passes.
      let never = try EventCounter()
      if method == "POST" { _ = waitUntilReadable(never.descriptor, limit: limit + .milliseconds(200)) }
      try connection.respond("500 Internal Server Error", ["Connection: close"])
      _ = connection.readToEnd()
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) {
        $0.resumable = .auto
        $0.retry.giveUpAfter = limit
      }
      try source.push([1, 2, 3])
      let summary = try stream.summary()
      #expect(summary.error?.kind == .unreachable, "\(String(describing: summary.error))")
      #expect(summary.progress.outageCount == 1 && summary.progress.unsent == 3)
      #expect(stream.notices.contains { if case .notSupported = $0 { true } else { false } })
    }
    #expect(methods.all.count { $0 == "POST" } == 1, "\(methods.all)")
  }

  @Test("507 with Stream-Offset: the stream returns to exactly that offset")
  func diskFull() throws {
    let stored = StoredBytes()
    let server = try ScriptedServer { connection, number in
      let head = try connection.head()
      if number == 0 {
        // It has accepted much more than it could keep.
        var taken = 0
        while taken < 40_000 { taken += try connection.chunk()?.count ?? 0 }
        stored.store(patternBytes(OffsetPattern(), 0, 1_234), at: 0)
        try connection.respond(
          "507 Insufficient Storage", ["Stream-Offset: 1234", "Retry-After: 0", "Connection: close"])
        _ = connection.readToEnd()
        return
      }
      if stored.take(connection, from: head.offset) { try connection.respond("200 OK", ["Stream-Missing: 0"]) }
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url)
      try source.push(patternBytes(pattern, 0, 60_000))
      try stream.waitForFailure()
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.missingAtServer == 0)
      #expect(stream.connects == [0, 1_234])
      #expect(stored.count == 60_000 && stored.holes.isEmpty && stored.firstDifference(from: pattern) == nil)
    }
  }

  @Test(
    "bytes that a server reports as missing are lost, although its TCP had acknowledged them",
    arguments: [0, 1, 300, 5000] as [UInt64])
  func missingAtServer(_ reported: UInt64) throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.body()
      try connection.respond("201 Created", ["Stream-Missing: \(reported)"])
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url)
      try source.push(patternBytes(pattern, 0, 1000))
      stream.streamer.finish()
      let summary = try stream.summary()
      // No more can be missing than was sent.
      let missing = min(reported, 1000)
      #expect(summary.error == nil && summary.missingAtServer == missing)
      #expect(summary.progress.acknowledged == 1000 - missing && summary.progress.lost == missing)
      #expect(summary.gaps == (missing > 0 ? 1 : 0))
    }
  }

  @Test("drop-oldest: the bytes that a stalled server misses are reported, gap by gap, and all others are right")
  func dropOldest() throws {
    let mayRead = try EventCounter()
    let firstEnded = try EventCounter()
    let stored = StoredBytes()
    let server = try ScriptedServer(receiveBuffer: 65_536) { connection, number in
      defer { if number == 0 { firstEnded.signal() } }
      let offset = try connection.head().offset
      if number == 0, !waitUntilReadable(mayRead.descriptor) { return }
      if stored.take(connection, from: offset) { try connection.respond("200 OK") }
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) {
        $0.buffer = .bytes(256 << 10)
        $0.memory = .kept
        $0.request.socket.sendBuffer = 65_536
        $0.request.socket.maximumSegment = 1448
      }
      let total = 3_000_000
      for offset in stride(from: 0, to: total, by: 10_000) { try source.push(patternBytes(pattern, offset, 10_000)) }
      mayRead.signal()
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil)
      // The first connection may be read after the others.
      #expect(waitUntilReadable(firstEnded.descriptor))
      #expect(stored.count == total && stored.firstDifference(from: pattern) == nil)
      let gaps = stream.gaps().map { Int($0.offset)..<Int($0.offset + $0.length) }
      #expect(
        !gaps.isEmpty && summary.gaps == gaps.count && summary.progress.lost == UInt64(gaps.reduce(0) { $0 + $1.count })
      )
      // Every hole was reported. A reported gap may be longer than the hole, because the kernel still delivers the
      // content of the old connection's send buffer. A request that was overtaken before its first byte leaves two
      // adjacent gaps.
      var wholes: [Range<Int>] = []
      for gap in gaps {
        if let last = wholes.last, last.upperBound == gap.lowerBound {
          wholes[wholes.count - 1] = last.lowerBound..<gap.upperBound
        } else {
          wholes.append(gap)
        }
      }
      for hole in stored.holes {
        #expect(wholes.contains { $0.lowerBound <= hole.lowerBound && hole.upperBound <= $0.upperBound })
      }
      #expect(stored.holes.map(\.upperBound) == wholes.map(\.upperBound), "\(gaps)")
    }
  }

  @Test("stop: a full buffer ends the stream with an error, after the buffered bytes have arrived")
  func stop() throws {
    let mayRead = try EventCounter()
    let stored = StoredBytes()
    let server = try ScriptedServer(receiveBuffer: 65_536) { connection, _ in
      let offset = try connection.head().offset
      guard waitUntilReadable(mayRead.descriptor) else { return }
      if stored.take(connection, from: offset) { try connection.respond("200 OK") }
    }
    try withSession { session throws in
      let pipe = try TestPipe()
      let source = try DescriptorSource(descriptor: pipe.reading)
      let stream = try RunningStream(source, session, server.url) {
        $0.buffer = .bytes(256 << 10)
        $0.memory = .kept
        $0.overflow = .stop
        $0.request.socket.sendBuffer = 65_536
      }
      // Ends when the source no longer reads, because the buffer is full.
      let writer = try NamedThread("test writer") { [pattern] in
        var offset = 0
        while pipe.write(patternBytes(pattern, offset, 10_000)) { offset += 10_000 }
      }
      try stream.events.first("the stream") { if case .streaming = $0 { true } else { false } }
      pipe.waitUntilFull()
      pipe.closeReading()
      writer.join()
      mayRead.signal()
      let summary = try stream.summary()
      #expect(summary.error?.kind == .overflow && summary.error?.remedy == .largerBuffer)
      #expect(summary.progress.captured > 256 << 10)
      #expect(stored.count == Int(summary.progress.captured) && stored.firstDifference(from: pattern) == nil)
    }
  }

  @Test("wait: a pipe of many times the buffer's size arrives completely at a slow server")
  func wait() throws {
    let stored = StoredBytes()
    let server = try ScriptedServer(receiveBuffer: 16_384) { connection, number in
      let offset = try connection.head().offset
      // Cut once, in the middle.
      if number == 0 {
        var taken = offset
        while taken < 500_000, let chunk = try connection.chunk() {
          stored.store(chunk, at: taken)
          taken += UInt64(chunk.count)
        }
        connection.shutdownWriting()
        // A plain server must have received all bytes that TCP has acknowledged by then.
        _ = stored.take(connection, from: taken)
        return
      }
      if stored.take(connection, from: offset) { try connection.respond("200 OK") }
    }
    try withSession { session throws in
      let pipe = try TestPipe()
      let source = try DescriptorSource(descriptor: pipe.reading)
      let stream = try RunningStream(source, session, server.url) {
        $0.buffer = .bytes(64 << 10)
        $0.overflow = .wait
        $0.memory = .kept
        $0.request.socket.sendBuffer = 32_768
      }
      let total = 4_000_000
      for offset in stride(from: 0, to: total, by: 50_000) {
        #expect(pipe.write(patternBytes(pattern, offset, 50_000)))
      }
      pipe.closeWriting()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.gaps == 0 && summary.progress.captured == UInt64(total))
      #expect(stored.count == total && stored.holes.isEmpty && stored.firstDifference(from: pattern) == nil)
    }
  }

  @Test("cancelling ends at once, connected or not, and reports the unsent bytes", arguments: [true, false])
  func cancel(_ connected: Bool) throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = connection.waitForEnd()
    }
    let port = connected ? server.port : try freePort()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, "http://127.0.0.1:\(port)/") {
        $0.retry.initialCeiling = .seconds(3600)
        $0.retry.maximumCeiling = .seconds(3600)
      }
      try source.push([1, 2, 3])
      try stream.events.first("an attempt") { event in
        switch event {
        case .streaming: connected
        case .outage: !connected
        default: false
        }
      }
      stream.streamer.cancel()
      stream.streamer.cancel()
      #expect(try stream.summary().error?.kind == .cancelled)
      #expect(stream.events.all.count { if case .ended = $0 { true } else { false } } == 1)
    }
  }

  @Test("the server is killed and restarted with the same directory: one file, byte for byte")
  func restart() throws {
    let directory = try TemporaryDirectory()
    let first = try StreamServer(in: directory)
    let port = first.port
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, "\(first.url)/kitchen") {
        $0.streamID = "one"
        $0.request.fields = ["Content-Type": "text/plain"]
      }
      try source.push(patternBytes(pattern, 0, 200_000))
      // Without a stored byte, the second server would begin the recording instead of continuing it.
      try waitUntil("some of it is stored") { (try? directory.contents("kitchen-one.part").isEmpty) == false }
      first.stop()
      try source.push(patternBytes(pattern, 200_000, 200_000))
      try stream.waitForFailure(2)
      let second = try StreamServer(in: directory, listen: "127.0.0.1:\(port)")
      try second.events.first("its continuation") { $0.kind == .continued }
      try source.push(patternBytes(pattern, 400_000, 100_000))
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.missingAtServer == 0)
      #expect(directory.names == ["kitchen-one.txt"])
      #expect(try directory.contents("kitchen-one.txt") == patternBytes(pattern, 0, 500_000))
    }
  }
}
