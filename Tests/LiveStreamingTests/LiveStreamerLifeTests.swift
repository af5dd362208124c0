import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The lifetime of a live stream", .serialized)
struct LiveStreamerLifeTests {
  @Test(
    "events are a sequence that ends after the end, even for an owner without another reference",
    .timeLimit(.minutes(10)))
  func sequence() async throws {
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      if number == 0 { return }
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    let session = try UploadSession()
    let source = HeartbeatSource(interval: .milliseconds(20))
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url))
    configuration.retry.initialCeiling = .milliseconds(20)
    // Seldom, because the task may start late, and cannot react to events that it misses.
    configuration.progressInterval = .seconds(1)
    configuration.resumable = .never
    let events = try session.stream(source, configuration: configuration).events
    var (kinds, last) = ([String](), "")
    for await event in events {
      last = event.kind
      if kinds.last != last { kinds.append(last) }
      // The stream has reconnected and reported its state, which is enough.
      if kinds.count(where: { $0 == "streaming" }) == 2, kinds.contains("progress") {
        session.loop.execute { source.stop() }
      }
    }
    #expect(last == "ended")
    #expect(kinds.first == "connecting" && kinds.contains("outage") && kinds.contains("progress"))
    session.close()
  }

  @Test("a stream that is cancelled before its start ends as cancelled at its start, and starts no source")
  func cancelledBefore() throws {
    try withSession { session throws in
      let events = try EventLog<LiveStreamEvent>()
      let streamer = try LiveStreamer(
        HeartbeatSource(), configuration: LiveStreamConfiguration(request: UploadRequest(url: "http://127.0.0.1:9/")),
        session: session)
      streamer.cancel()
      streamer.start { events.append($0) }
      let end = try events.first("the end") { if case .ended = $0 { true } else { false } }
      guard case .ended(let summary) = end else { return }
      #expect(summary.error?.kind == .cancelled && summary.progress.captured == 0)
      #expect(events.all.count == 1)
    }
  }

  @Test(
    "a stream that is finished before its start sends what its source writes at once, and ends",
    arguments: [nil, Duration.seconds(20)])
  func finishedBeforeStart(_ limit: Duration?) throws {
    let server = try StreamServer()
    try withSession { session throws in
      let events = try EventLog<LiveStreamEvent>()
      let streamer = try LiveStreamer(
        HeartbeatSource(interval: .milliseconds(20)),
        configuration: LiveStreamConfiguration(request: UploadRequest(url: server.url + "/pulse")), session: session)
      streamer.finish(within: limit)
      streamer.start { events.append($0) }
      let summary = try events.wait("the stream's end", within: .seconds(30)) { events in
        if case .ended(let summary)? = events.last { summary } else { nil }
      }
      #expect(summary.error == nil && summary.progress.lost == 0)
      let line = try #require(HeartbeatSource.lineByteCount(format: HeartbeatSource.defaultFormat))
      #expect(summary.progress.captured == line && summary.progress.acknowledged == line)
    }
  }

  @Test("a stream that was cancelled while it was suspended sends nothing when it is resumed")
  func resumedAfterItsEnd() throws {
    let requests = try EventLog<String>()
    let server = try ScriptedServer { connection, number in
      requests.append("\(number): \(try connection.head().line)")
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      let events = try EventLog<LiveStreamEvent>()
      var configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url + "/cancelled"))
      configuration.resumable = .never
      let streamer = try LiveStreamer(PushedSource(), configuration: configuration, session: session)
      // Its first request waits until it is resumed.
      streamer.suspend()
      streamer.start { events.append($0) }
      streamer.cancel()
      let end = try events.first("the end") { if case .ended = $0 { true } else { false } }
      guard case .ended(let summary) = end else { return }
      #expect(summary.error?.kind == .cancelled)
      streamer.resume()
      // A connection of the cancelled stream would come before this one.
      let other = try RunningStream(PushedSource(), session, server.url + "/other")
      other.streamer.finish()
      #expect(try other.summary().error == nil)
    }
    #expect(requests.all == ["0: POST /other HTTP/1.1"])
  }

  @Test(
    "a stream whose server turns out to be a plain one during a suspension can be cancelled, and sends nothing afterwards",
    arguments: [true, false])
  func fallsBackAtRest(isCancelled: Bool) throws {
    let requests = try EventLog<String>()
    let isSuspended = try EventCounter()
    let server = try ScriptedServer { connection, _ in
      let line = try connection.head().line
      requests.append(line)
      guard line.hasPrefix("OPTIONS") else {
        _ = try connection.body()
        return try connection.respond("200 OK")
      }
      guard waitUntilReadable(isSuspended.descriptor) else { return }
      try connection.respond("405 Method Not Allowed", ["Allow: POST", "Connection: close"])
    }
    try withSession { session throws in
      let events = try EventLog<LiveStreamEvent>()
      var configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url + "/take"))
      configuration.resumable = .auto
      let streamer = try LiveStreamer(PushedSource(), configuration: configuration, session: session)
      streamer.start { events.append($0) }
      _ = try requests.first("the question") { $0.hasPrefix("OPTIONS") }
      streamer.suspend()
      isSuspended.signal()
      _ = try events.first("the fallback") { if case .upload(.notSupported) = $0 { true } else { false } }
      if isCancelled { streamer.cancel() } else { streamer.finish() }
      if !isCancelled { streamer.resume() }
      let end = try events.first("the end") { if case .ended = $0 { true } else { false } }
      guard case .ended(let summary) = end else { return }
      #expect(summary.error?.kind == (isCancelled ? .cancelled : nil))
      streamer.resume()
      // A request of the cancelled stream would come before this one.
      let other = try RunningStream(PushedSource(), session, server.url + "/other") { $0.resumable = .never }
      other.streamer.finish()
      #expect(try other.summary().error == nil)
    }
    let lines = ["OPTIONS /take HTTP/1.1"] + (isCancelled ? [] : ["POST /take HTTP/1.1"]) + ["POST /other HTTP/1.1"]
    #expect(requests.all == lines)
  }

  @Test(
    "the finish timeout ends only a stream whose server does not, and the reason states whether there was a connection"
  )
  func finishWithin() throws {
    let silent = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = connection.readToEnd()
    }
    let answering = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    let nobody = "http://127.0.0.1:\(try freePort())/"
    let cases: [(url: String, LiveStreamConfiguration.ResumableUse, LiveStreamError.Kind?)] = [
      (nobody, .never, .unreachable), (nobody, .always, .unreachable), (silent.url, .never, .unfinished),
      (silent.url, .always, .unfinished), (answering.url, .never, nil),
    ]
    try withSession { session throws in
      for (url, use, kind) in cases {
        let source = try PushedSource()
        let stream = try RunningStream(source, session, url) { $0.resumable = use }
        try source.push([UInt8](repeating: 1, count: 1000))
        try stream.events.first("an attempt") {
          switch $0 {
          case .outage: url == nobody
          case .connected: url != nobody
          default: false
          }
        }
        stream.streamer.finish(within: kind == nil ? .seconds(600) : .milliseconds(100))
        let summary = try stream.summary()
        #expect(summary.error?.kind == kind && summary.progress.captured == 1000, "\(url), resumable: \(use)")
        // Without resumable uploads, bytes accepted by the silent server's TCP count as acknowledged if that was seen
        // in time.
        if kind != nil, url == nobody || use == .always { #expect(summary.progress.unsent == 1000, "\(url), \(use)") }
      }
    }
  }

  @Test("the finish timeout shortens the current and the following pauses between attempts", arguments: [0, 2])
  func finishInAPause(refusals: Int) throws {
    try withSession { session throws in
      let source = try PushedSource()
      let count = Lock(0)
      let answering = try ScriptedServer { connection, _ in
        _ = try connection.head()
        let number = count.withLock { count in
          defer { count += 1 }
          return count
        }
        // The first one is refused before the end of the stream.
        if number > 0 { _ = try connection.body() }
        if number <= refusals {
          try connection.respond("503 Service Unavailable", ["Retry-After: 3600", "Connection: close"])
          _ = connection.readToEnd()
        } else {
          try connection.respond("200 OK")
        }
      }
      let stream = try RunningStream(source, session, answering.url + "/take") {
        $0.retry.initialCeiling = .seconds(600)
        $0.retry.maximumCeiling = .seconds(600)
      }
      try source.push([UInt8](repeating: 1, count: 1000))
      try stream.waitForFailure(1)
      #expect(stream.failures()[0].retryDelay >= .seconds(300))
      stream.streamer.finish(within: .seconds(8))
      #expect(try stream.summary().error == nil)
      #expect(stream.failures().dropFirst().allSatisfy { $0.retryDelay <= .seconds(1) })
      #expect(stream.failures().count == refusals + 1)
    }
  }

  @Test("a size of the bound pair below 1 counts as 1", arguments: [Int.min, 0])
  func smallestPair(size: Int) throws {
    let bodies = try EventLog<[UInt8]>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      bodies.append(try connection.body())
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) { $0.pairSize = size }
      try source.push([1, 2, 3])
      stream.streamer.finish()
      #expect(try stream.summary().error == nil && bodies.all == [[1, 2, 3]])
    }
  }

  @Test("a server that continues to acknowledge may take longer than the limit")
  func finishSlowly() throws {
    // A busy machine may stop the server for as long as the limit.
    for seconds in [2, 8] {
      if try finishesSlowly(limit: seconds).error == nil { return }
    }
    let summary = try finishesSlowly(limit: 24)
    #expect(summary.error == nil, "\(summary)")
  }

  /// Finishes a stream within this many seconds without an acknowledgement. The server takes 1.75 times as long.
  private func finishesSlowly(limit: Int) throws -> StreamSummary {
    let version = "Upload-Draft-Interop-Version: 8"
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("201 Created", ["Location: /u", "Upload-Complete: ?0", version])
      _ = try connection.head()
      _ = try connection.body()
      for offset in stride(from: 200, through: 1000, by: 200) {
        poll(nil, 0, Int32(350 * limit))  // not a synchronization: the passing of time is what is tested
        try connection.send(
          "HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Offset: \(offset)\r\n\(version)\r\n\r\n"
        )
      }
      try connection.respond("200 OK", ["Upload-Offset: 1000", "Upload-Complete: ?1", version])
    }
    return try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) { $0.resumable = .always }
      try source.push([UInt8](repeating: 1, count: 1000))
      try stream.events.first("its connection") { if case .connected = $0 { true } else { false } }
      stream.streamer.finish(within: .seconds(limit))
      let summary = try stream.summary()
      #expect(summary.error != nil || summary.progress.acknowledged == 1000, "\(summary)")
      return summary
    }
  }

  @Test("the limit counts from the last acknowledgement, also if one came shortly after the end of the source")
  func finishAfterLastAcknowledgement() throws {
    let version = "Upload-Draft-Interop-Version: 8"
    let limit = Duration.seconds(2)
    // A busy machine may notice the acknowledgement late. Without a pause, the end is at most an eighth of the limit
    // later.
    var times: [Duration] = []
    for _ in 0..<4 where times.allSatisfy({ $0 > limit * 3 / 2 }) {
      let isFinishing = try EventCounter()
      let server = try ScriptedServer { connection, _ in
        _ = try connection.head()
        try connection.respond("201 Created", ["Location: /u", "Upload-Complete: ?0", version])
        _ = try connection.head()
        var count = 0
        while count < 1000, let chunk = try connection.chunk() { count += chunk.count }
        _ = waitUntilReadable(isFinishing.descriptor)
        try connection.send("HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Offset: 200\r\n\(version)\r\n\r\n")
        _ = connection.readToEnd()
      }
      try withSession { session throws in
        let source = try PushedSource()
        let stream = try RunningStream(source, session, server.url) { $0.resumable = .always }
        try source.push([UInt8](repeating: 1, count: 1000))
        try stream.events.first("its connection") { if case .connected = $0 { true } else { false } }
        stream.streamer.finish(within: limit)
        let start = MonotonicInstant.now
        isFinishing.signal()
        let summary = try stream.summary()
        times.append(.now - start)
        #expect(summary.error?.kind == .unfinished && summary.progress.acknowledged == 200)
      }
    }
    let shortest = try #require(times.min())
    #expect(shortest >= limit && shortest <= limit * 3 / 2, "\(times)")
  }

  @Test("a return to the former upload, because no other one can be created, does not prolong the finish timeout")
  func finishBetweenUploads() throws {
    let version = "Upload-Draft-Interop-Version: 8"
    let isOverwritten = try EventCounter()
    let attempts = try EventLog<String>()
    let server = try ScriptedServer { connection, number in
      let line = try connection.head().line
      guard number == 0 else {
        attempts.append(line)
        // Not a synchronization: the client looks every quarter of a second, and must see both uploads.
        poll(nil, 0, 300)
        if line.hasPrefix("POST") { return connection.reset() }
        return try connection.respond("410 Gone", ["Connection: close"])
      }
      try connection.respond("201 Created", ["Location: /u", "Upload-Complete: ?0", version])
      _ = try connection.head()
      var count = 0
      while count < 1000, let chunk = try connection.chunk() { count += chunk.count }
      try connection.send("HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Offset: 1000\r\n\(version)\r\n\r\n")
      _ = waitUntilReadable(isOverwritten.descriptor)
      connection.reset()
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) {
        $0.resumable = .always
        $0.buffer = .bytes(256 << 10)
        $0.memory = .kept
      }
      try source.push([UInt8](repeating: 1, count: 1000))
      try stream.waitUntilAcknowledged(1000)
      // The next upload begins behind lost bytes, further than the former one.
      try source.push([UInt8](repeating: 2, count: 1 << 20))
      isOverwritten.signal()
      for method in ["HEAD", "POST"] { try attempts.first("a \(method)") { $0.hasPrefix(method) } }
      stream.streamer.finish(within: .seconds(2))
      let summary = try stream.summary()
      #expect(summary.error?.kind == .unfinished, "\(summary)")
    }
  }

  @Test(
    "if the server has become silent at the end of a stream, another connection delivers the rest in time",
    arguments: [false, true])
  func finishOverAnotherConnection(isHTTP2: Bool) throws {
    // A busy machine may need longer for it.
    for seconds in [8, 40] {
      let summary = try isHTTP2 ? finishesStrandedOverHTTP2(limit: seconds) : finishesStranded(limit: seconds)
      if summary.error == nil { return }
    }
    Issue.record("no other connection was used in time")
  }

  private func finishesStranded(limit: Int) throws -> StreamSummary {
    let server = try ResumableServer()
    let relay = try SwitchedRelay(to: String(server.url.dropFirst("http://".count)))
    return try finishesStranded(limit: limit, server, relay, "http://\(relay.address)/x")
  }

  /// The request at the end can be cancelled without its connection, which would carry the next one.
  private func finishesStrandedOverHTTP2(limit: Int) throws -> StreamSummary {
    // nginx takes a 104 for the response.
    let server = try ResumableServer(.init(announces: false))
    let nginx = try TLSFrontEnd(backend: String(server.url.dropFirst("http://".count)))
    let relay = try SwitchedRelay(to: "127.0.0.1:\(nginx.port)")
    let summary = try finishesStranded(limit: limit, server, relay, "https://\(relay.address)/x") {
      $0.request.certificateAuthorities = nginx.authority
    }
    guard summary.error == nil else { return summary }
    let requests = nginx.accessLog.split(separator: "\n")
    #expect(!requests.isEmpty && requests.allSatisfy { $0.hasPrefix("HTTP/2.0 ") }, "\(requests)")
    // The request of the first connection that has no response is not in the log.
    #expect(Set(nginx.connectionLog).count == 2)
    return summary
  }

  /// Finishes a stream whose connection is acknowledged by TCP, and leads nowhere.
  private func finishesStranded(
    limit: Int, _ server: ResumableServer, _ relay: SwitchedRelay, _ url: String,
    _ change: (inout LiveStreamConfiguration) -> Void = { _ in }
  ) throws -> StreamSummary {
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, url) {
        $0.resumable = .always
        change(&$0)
      }
      try source.push([UInt8](repeating: 1, count: 1000))
      try waitUntil("the first bytes are stored") { server.upload(0).bytes.count == 1000 }
      try relay.set(.strands)
      try source.push([UInt8](repeating: 2, count: 500))
      stream.streamer.finish(within: .seconds(limit))
      let summary = try stream.summary()
      guard summary.error == nil else { return summary }
      #expect(summary.progress.acknowledged == 1500 && server.upload(0).bytes.count == 1500)
      let reason = "nothing has arrived at the server or from it for \(limit / 2) s at the end of the stream"
      let causes = stream.failures().map { "\($0.cause)" }
      #expect(causes.count == 1 && causes[0].contains(reason), "\(causes)")
      return summary
    }
  }

  /// What the first connection of a stream does after the end of its source, until three quarters of the limit.
  enum LastConnection: CaseIterable {
    /// TCP acknowledges nothing any more, so another one is used after half of the limit.
    case deaf
    /// The server has all bytes, and answers late.
    case slow
    /// The network takes the bytes slowly, and no 104 reports them.
    case narrow
  }

  @Test(
    "at the end of a stream, only a connection that moves nothing is replaced", arguments: LastConnection.allCases)
  func lastConnection(_ kind: LastConnection) throws {
    let version = "Upload-Draft-Interop-Version: 8"
    let limit = 8
    let total = 300_000
    let isFinishing = try EventCounter()
    let connections = try EventLog<Int>()
    let server = try ScriptedServer(receiveBuffer: 8_192) { connection, number in
      connections.append(number)
      if number > 0 {
        _ = try connection.head()
        try connection.respond("204 No Content", ["Upload-Offset: 1000", "Upload-Complete: ?0", version])
        _ = try connection.head()
        _ = try connection.body()
        return try connection.respond("200 OK", ["Upload-Offset: \(total)", "Upload-Complete: ?1", version])
      }
      _ = try connection.head()
      try connection.respond("201 Created", ["Location: /u", "Upload-Complete: ?0", version])
      _ = try connection.head()
      var count = 0
      while count < 1000, let chunk = try connection.chunk() { count += chunk.count }
      if kind == .deaf { try connection.goDeaf() }
      guard waitUntilReadable(isFinishing.descriptor) else { return }
      switch kind {
      case .deaf:
        _ = connection.readToEnd()
        return
      case .slow:
        _ = try connection.body()
        poll(nil, 0, Int32(750 * limit))  // not a synchronization: the passing of time is what is tested
      case .narrow:
        var last: [UInt8] = []
        var reads = 0
        while !last.suffix(5).elementsEqual("0\r\n\r\n".utf8), let piece = try connection.receive(8_000) {
          last = Array((last + piece).suffix(5))
          reads += 1
          guard reads < 36 else { continue }
          poll(nil, 0, Int32(250 * limit / 12))  // not a synchronization: the passing of time is what is tested
        }
      }
      try connection.respond("200 OK", ["Upload-Offset: \(total)", "Upload-Complete: ?1", version])
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) {
        $0.resumable = .always
        $0.request.socket.sendBuffer = 16_384
      }
      try source.push([UInt8](repeating: 1, count: 1000))
      try stream.events.first("its connection") { if case .connected = $0 { true } else { false } }
      try source.push([UInt8](repeating: 2, count: total - 1000))
      stream.streamer.finish(within: .seconds(limit))
      isFinishing.signal()
      let summary = try stream.summary()
      #expect(summary.error == nil, "\(summary)")
      #expect(connections.all.count == (kind == .deaf ? 2 : 1))
    }
  }

  @Test(
    "a server that reads everything and never answers has acknowledged a plain stream, and no byte of an upload",
    arguments: [LiveStreamConfiguration.ResumableUse.never, .auto])
  func silentEnd(_ use: LiveStreamConfiguration.ResumableUse) throws {
    let server = try ResumableServer { request, _ in
      let isPlain = request.method == "POST" && request.head["Upload-Complete"] == nil
      return request.method == "PATCH" || isPlain ? .silent : .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { $0.resumable = use }
      try source.push([UInt8](repeating: 1, count: 1000))
      stream.streamer.finish(within: .seconds(1))
      let summary = try stream.summary()
      #expect(summary.error?.kind == .unfinished)
      #expect(summary.progress.unsent == (use == .never ? 0 : 1000))
    }
  }

  private final class BrokenSource: StreamSource {
    func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) throws(LiveStreamError) {
      throw LiveStreamError(.source, "no such microphone")
    }
    func stop() {}
  }

  @Test("a source that fails to start ends the stream with its reason, once")
  func brokenSource() throws {
    try withSession { session throws in
      let stream = try RunningStream(BrokenSource(), session, "http://127.0.0.1:9/")
      #expect(try stream.summary().error == LiveStreamError(.source, "no such microphone"))
      stream.streamer.cancel()
      stream.streamer.finish()
      let passed = try EventLog<Bool>()
      session.loop.execute { passed.append(true) }
      try passed.first("the loop") { $0 }
      #expect(stream.events.all.count == 1)
    }
  }

  @Test("the summary adds up the source's reports, and the first failure ends the stream")
  func sourceReports() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    // The unit is that of the last event with a loss or an omission.
    let reports: [(lost: UInt64, skipped: UInt64, unit: SourceEvent.Unit)] = [
      (1, 0, .beats), (0, 1, .frames), (6, 0, .beats), (0, 0, .frames),
    ]
    for count in 0...reports.count {
      try withSession { session throws in
        let source = try PushedSource()
        let stream = try RunningStream(source, session, server.url)
        var sent = reports.prefix(count).map {
          SourceEvent(kind: "k", description: "d", offset: 0, lost: $0.lost, skipped: $0.skipped, unit: $0.unit)
        }
        for event in sent { try source.report(event) }
        if count == 2 {
          try source.fail(LiveStreamError(.source, "unplugged"))
          try source.fail(LiveStreamError(.source, "not there"))
          sent.append(SourceEvent(kind: "source-failed", description: "the source failed: unplugged", offset: 0))
        }
        stream.streamer.finish()
        let summary = try stream.summary()
        #expect(stream.events.all.compactMap { if case .source(let event) = $0 { event } else { nil } } == sent)
        #expect(summary.sourceLost == [0, 1, 1, 7, 7][count])
        #expect(summary.sourceSkipped == [0, 0, 1, 1, 1][count])
        #expect(summary.sourceUnit == [.frames, .beats, .frames, .beats, .beats][count])
        #expect(summary.error == (count == 2 ? LiveStreamError(.source, "unplugged") : nil))
      }
    }
  }

  @Test("a stream with a small buffer causes no wake-up while its source is silent and all bytes are acknowledged")
  func idle() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      let accounts = try EventLog<ThreadAccount>()
      session.loop.execute { accounts.append(ThreadAccount()) }
      let thread = try accounts.wait("the session's thread") { $0.first }
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) { $0.buffer = .bytes(64_000) }
      // The case with the most unreleased bytes: those kept for the server, plus a step of returned memory.
      for _ in 0..<10 {
        try source.push([UInt8](repeating: 1, count: 52_000))
        _ = try stream.events.first("the stream") { if case .streaming = $0 { true } else { false } }
        let never = try EventCounter()
        _ = waitUntilReadable(never.descriptor, limit: .milliseconds(30))
      }
      let never = try EventCounter()
      #expect(!waitUntilReadable(never.descriptor, limit: .milliseconds(500)))
      let before = try thread.sleepCount()
      // The period over which events are counted.
      #expect(!waitUntilReadable(never.descriptor, limit: .seconds(1)))
      #expect(try thread.sleepCount() - before <= 1)
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
  }
}
