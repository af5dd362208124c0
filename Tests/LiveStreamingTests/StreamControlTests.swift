// A stream that is started, suspended, finished and abandoned: what it does once, and what it leaves behind.

import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The control of a stream", .serialized)
struct StreamControlTests {
  private let pattern = OffsetPattern()

  /// Waits until the session's thread has done everything that was due.
  private func pass(_ session: UploadSession) throws {
    let passed = try EventLog<Bool>()
    session.loop.execute { passed.append(true) }
    try passed.first("the loop") { $0 }
  }

  /// Waits until a timer of the session's thread fires. The passing of time is what is tested.
  private func pass(_ time: Duration, _ session: UploadSession) throws {
    let (passed, loop) = (try EventLog<Bool>(), session.loop)
    loop.execute {
      loop.schedule(after: time) { passed.append(true) }
    }
    try passed.first("the time") { $0 }
  }

  /// A server that counts its requests, and answers each one as soon as its body has ended.
  private func server(
    _ requests: EventLog<Int>, _ first: @escaping @Sendable (ServerConnection) throws -> Void = { _ in }
  ) throws -> ScriptedServer {
    try ScriptedServer { connection, number in
      _ = try connection.head()
      requests.append(number)
      if number == 0 { try first(connection) }
      _ = try connection.body()
      try connection.respond("200 OK")
    }
  }

  // MARK: Lifetime

  @Test("a stream that nobody keeps continues to its end, and is released then")
  func released() throws {
    let server = try StreamServer()
    try withSession { session throws in
      var configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url + "/x"))
      configuration.resumable = .never
      let (events, source) = (try EventLog<LiveStreamEvent>(), try PushedSource())
      func start() throws -> WeakReference<LiveStream> {
        let stream = LiveStream(
          try LiveSource(source, configuration), configuration: configuration, session: session)
        session.loop.execute { stream.start { events.append($0) } }
        try events.first("a connection") { if case .connected = $0 { true } else { false } }
        return WeakReference(stream)
      }
      let reference = try start()
      try source.push(patternBytes(pattern, 0, 1000))
      source.stop()
      let end = try events.first("the end") { if case .ended = $0 { true } else { false } }
      if case .ended(let summary) = end { #expect(summary.error == nil && summary.progress.acknowledged == 1000) }
      try waitUntil("the stream is released") { reference.object == nil }
    }
  }

  @Test("a stream starts once, and reports nothing after its end")
  func once() throws {
    let requests = try EventLog<Int>()
    let server = try server(requests)
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url)
      stream.streamer.start { _ in Issue.record("a second handler was called") }
      try source.push([1, 2, 3])
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
      let count = stream.events.all.count
      try source.report(SourceEvent(kind: "k", description: "d", offset: 0, lost: 1, skipped: 0, unit: .frames))
      stream.streamer.suspend()
      stream.streamer.resume()
      stream.streamer.retryNow()
      stream.streamer.cancel()
      stream.streamer.finish(within: .milliseconds(1))
      stream.streamer.abandon()
      try pass(session)
      #expect(stream.events.all.count == count && requests.all == [0])
    }
  }

  @Test("a stream that starts while its session closes starts no source, and sends nothing")
  func startsWhileClosing() throws {
    final class NoSource: StreamSource {
      func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) {
        Issue.record("the source was started")
      }
      func stop() {}
    }
    let events = try EventLog<LiveStreamEvent>()
    let session = try UploadSession()
    let streamer = try LiveStreamer(
      NoSource(), configuration: LiveStreamConfiguration(request: UploadRequest(url: "http://127.0.0.1:9/")),
      session: session)
    // On the session's thread, so that the stream starts after the session was closed.
    session.loop.execute {
      streamer.start { events.append($0) }
      session.close()
    }
    let end = try events.first("the end") { if case .ended = $0 { true } else { false } }
    if case .ended(let summary) = end { #expect(summary.error?.kind == .cancelled && summary.progress.sent == 0) }
    #expect(events.all.count == 1)
  }

  // MARK: Suspension

  @Test("the request that became due during a suspension is sent once, however often the stream is suspended")
  func suspendedTwice() throws {
    let requests = try EventLog<Int>()
    let server = try server(requests)
    try withSession { session throws in
      let events = try EventLog<LiveStreamEvent>()
      var configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url))
      configuration.resumable = .never
      let source = try PushedSource()
      let streamer = try LiveStreamer(source, configuration: configuration, session: session)
      streamer.suspend()
      streamer.start { events.append($0) }
      try pass(session)
      streamer.resume()
      try events.first("the connection") { if case .connected = $0 { true } else { false } }
      for _ in 0..<3 {
        streamer.suspend()
        streamer.suspend()
        streamer.resume()
      }
      try source.push([1, 2, 3])
      streamer.finish()
      let end = try events.first("the end") { if case .ended = $0 { true } else { false } }
      guard case .ended(let summary) = end else { return }
      #expect(summary.error == nil && summary.progress.acknowledged == 3 && summary.resent == 0)
      #expect(requests.all == [0])
    }
  }

  // MARK: Attempts

  @Test("an attempt that was made early is not made again at its time, and a running request stays as it is")
  func early() throws {
    let requests = try EventLog<Int>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      // Requests are counted, and not connections. There is one request at a time.
      let number = requests.all.count
      requests.append(number)
      if number == 2 {
        _ = try connection.body()
        return try connection.respond("200 OK")
      }
      let delay = number == 0 ? "1" : "600"
      try connection.respond("503 Service Unavailable", ["Retry-After: \(delay)", "Connection: close"])
      _ = connection.readToEnd()
    }
    try withSession { session throws in
      let (source, events) = (try PushedSource(), try EventLog<LiveStreamEvent>())
      var configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url))
      configuration.resumable = .never
      configuration.retry.initialCeiling = .milliseconds(20)
      configuration.retry.maximumCeiling = .seconds(600)
      let streamer = try LiveStreamer(source, configuration: configuration, session: session)
      streamer.start { [weak streamer] event in
        events.append(event)
        // On the session's thread, so that the first attempt's time cannot pass before.
        if case .outage = event { streamer?.retryNow() }
      }
      func failures() -> [FailedAttempt] {
        events.all.compactMap {
          switch $0 {
          case .outage(let attempt), .attemptFailed(let attempt): attempt
          default: nil
          }
        }
      }
      try source.push([1, 2, 3])
      try events.wait("the second failure") { _ in failures().count == 2 ? true : nil }
      // The first attempt's time passes.
      try pass(failures()[0].retryDelay + .milliseconds(50), session)
      #expect(requests.all == [0, 1])
      streamer.retryNow()
      try requests.wait("the next request") { $0.count == 3 ? true : nil }
      // Nothing is due.
      streamer.retryNow()
      streamer.finish()
      let end = try events.first("the end") { if case .ended = $0 { true } else { false } }
      guard case .ended(let summary) = end else { return }
      #expect(summary.error == nil)
      #expect(requests.all == [0, 1, 2] && failures().count == 2)
    }
  }

  @Test("a stream that waits for its first connection gives up once it has had one")
  func connectivity() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      connection.reset()
    }
    try withSession { session throws in
      let stream = try RunningStream(try PushedSource(), session, server.url) {
        $0.retry.waitsForConnectivity = true
        $0.retry.giveUpAfter = .milliseconds(200)
      }
      #expect(try stream.summary().error?.kind == .unreachable)
    }
  }

  // MARK: The end

  @Test("the reason for the end of a finished stream states the time that it waited")
  func finishLimits() throws {
    let nobody = "http://127.0.0.1:\(try freePort())/"
    let silent = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = connection.readToEnd()
    }
    try withSession { session throws in
      for (url, limit, words) in [
        (nobody, .milliseconds(70), "the server could not be reached within 70 ms at the end of the stream"),
        (nobody, .seconds(1), "the server could not be reached within 1 s at the end of the stream"),
        (
          silent.url, .milliseconds(70),
          "the server did not confirm the end of the stream, and acknowledged nothing for 70 ms"
        ),
      ] as [(String, Duration, String)] {
        let stream = try RunningStream(try PushedSource(), session, url)
        try stream.events.first("an attempt") {
          switch $0 {
          case .outage: url == nobody
          case .connected: url != nobody
          default: false
          }
        }
        stream.streamer.finish(within: limit)
        // Only the first limit counts.
        stream.streamer.finish(within: .seconds(600))
        let error = try stream.summary().error
        #expect(error?.description.contains(words) == true, "\(String(describing: error))")
      }
    }
  }

  @Test("bytes that TCP has acknowledged are progress at the end of a plain stream")
  func finishOfPlainStream() throws {
    // A busy machine may delay the response until the limit is over a second time.
    for limit in [.seconds(1), .seconds(4), .seconds(16)] as [Duration] {
      if try endsAfterProgress(within: limit) { return }
    }
    Issue.record("the stream ends although its bytes were acknowledged within the limit")
  }

  /// Whether a stream ends without an error whose server responds just after this limit.
  private func endsAfterProgress(within limit: Duration) throws -> Bool {
    let gate = try EventCounter()
    let descriptor = gate.descriptor
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.body()
      _ = waitUntilReadable(descriptor)
      try connection.respond("200 OK")
    }
    return try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url)
      try stream.events.first("the connection") { if case .connected = $0 { true } else { false } }
      try source.push(patternBytes(pattern, 0, 1000))
      stream.streamer.finish(within: limit)
      // The progress is noticed an eighth of the limit after the start, at most.
      let loop = session.loop
      loop.execute {
        loop.schedule(after: limit + limit / 20) { gate.signal() }
      }
      let summary = try stream.summary()
      return summary.error == nil && summary.progress.acknowledged == 1000
    }
  }

  @Test("an abandoned stream breaks off its request before it deletes the upload")
  func abandonsWithinRequest() throws {
    let version = "Upload-Draft-Interop-Version: 8"
    let methods = try EventLog<String>()
    let isReading = try EventLog<Bool>()
    let completions = try EventLog<Bool>()
    let server = try ScriptedServer { connection, _ in
      while true {
        let method = String(try connection.head().line.prefix { $0 != " " })
        methods.append(method)
        switch method {
        case "POST": try connection.respond("201 Created", ["Location: /u", "Upload-Complete: ?0", version])
        case "PATCH":
          _ = try connection.chunk()
          isReading.append(true)
          let isComplete = (try? connection.body()) != nil
          if isComplete || connection.isEnded { completions.append(isComplete) }
          return
        default:
          // Not before the end of the other request.
          try completions.wait("the end of the append") { $0.isEmpty ? nil : true }
          try connection.respond("204 No Content", [version])
        }
      }
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) { $0.resumable = .always }
      try source.push([1, 2, 3])
      try isReading.first("the first bytes") { $0 }
      stream.streamer.abandon()
      let summary = try stream.summary()
      #expect(summary.error?.kind == .cancelled && summary.resumeData == nil)
    }
    #expect(completions.all == [false] && methods.all == ["POST", "PATCH", "DELETE"])
  }

  // MARK: Requests of a resumable upload

  @Test("the time of a request begins with its own first byte, and not with that of an earlier one")
  func rollOverTime() throws {
    let server = try ResumableServer()
    try withSession { session throws in
      let source = try PushedSource()
      let times = try EventLog<(event: String, time: MonotonicInstant)>()
      var configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url + "/take"))
      (configuration.rollOver.size, configuration.rollOver.after) = (5, .milliseconds(400))
      let streamer = try LiveStreamer(source, configuration: configuration, session: session)
      streamer.start { event in
        switch event {
        case .acknowledged(let offset): times.append(("acknowledged \(offset)", .now))
        case .ended: times.append(("ended", .now))
        default: break
        }
      }
      try source.push([1, 2, 3, 4, 5])
      try times.first("the end of the first request") { $0.event == "acknowledged 5" }
      // Half of the first request's time.
      try pass(.milliseconds(200), session)
      let start = MonotonicInstant.now
      try source.push([6, 7])
      let end = try times.first("the end of the second request") { $0.event == "acknowledged 7" }
      #expect(end.time - start >= .milliseconds(400), "\(end.time - start)")
      streamer.finish()
      try times.first("the end") { $0.event == "ended" }
    }
  }

  @Test("a silent server is asked for its offset when more than half of the buffer is not acknowledged")
  func halfOfBuffer() throws {
    let server = try ResumableServer(.init(announces: false))
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        ($0.buffer, $0.memory, $0.retention) = (.bytes(64 << 10), .kept, 0)
        ($0.resumable, $0.rollOver.after) = (.always, .seconds(60))
      }
      let half = 32 << 10
      try source.push(patternBytes(pattern, 0, half))
      let progress = try EventLog<StreamProgress>()
      try waitUntil("half of the buffer is sent") {
        let count = progress.all.count
        stream.streamer.withProgress { progress.append($0) }
        try progress.wait("the progress") { $0.count > count ? true : nil }
        return progress.all.last?.sent == UInt64(half)
      }
      try source.push(patternBytes(pattern, half, 1))
      try stream.waitUntilAcknowledged(UInt64(half) + 1)
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
    #expect(server.of("PATCH").first?.count == 32 << 10 + 1, "\(server.of("PATCH").map(\.count))")
  }

  @Test("the request of a file ends before libcurl's limit of interim responses, and another one continues")
  func interimResponsesForFile() throws {
    let size = 5_000_000
    let padding = String(repeating: "x", count: 2_000)
    let server = try ResumableServer { request, connection in
      guard request.method == "PATCH", request.number == 0 else { return .proper }
      for _ in 0..<120 {
        try connection.send(
          "HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Draft-Interop-Version: 8\r\nX-Padding: \(padding)\r\n\r\n"
        )
      }
      // The client does not send the rest.
      while try connection.receive() != nil {}
      return .close
    }
    let directory = try TemporaryDirectory()
    let file = try UploadFile(path: try directory.write("data", patternBytes(pattern, 0, size)))
    try withSession { session throws in
      // Only an append that does not complete the upload may be followed by another one.
      let stream = try RunningStream(file, session, server.url + "/take") { $0.rollOver.size = 3_000_000 }
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.outageCount == 0 && summary.isResumable, "\(summary)")
    }
    #expect(server.of("HEAD").count == 1 && server.uploads.count == 1)
    #expect(server.upload(0).isComplete && server.upload(0).matches(pattern, count: size))
  }

  // MARK: Connections

  @Test(
    "a plain upload uses an idle connection of the session if it is that of a file, or if connections are shared",
    arguments: [true, false])
  func idleConnection(_ isFile: Bool) throws {
    let requests = try EventLog<(connection: Int, method: String)>()
    let server = try ScriptedServer { connection, number in
      while true {
        let head = try connection.head()
        let method = String(head.line.prefix { $0 != " " })
        requests.append((number, method))
        try connection.receiveContent(of: head)
        try connection.respond("200 OK")
      }
    }
    let directory = try TemporaryDirectory()
    let file = try UploadFile(path: try directory.write("data", patternBytes(pattern, 0, 1000)))
    let session = try UploadSession(connections: isFile ? .onePerUpload : .shared(maximumUploads: 4))
    defer { session.close() }
    do {
      let statuses = try EventLog<Int>()
      var question = UploadRequest(url: server.url)
      question.method = "OPTIONS"
      _ = try session.upload(question, body: .none) { event in
        if case .finished(let result) = event { statuses.append((try? result.get().response.status) ?? 0) }
      }
      #expect(try statuses.wait("the response to OPTIONS") { $0.first } == 200)
      let source = try PushedSource()
      let stream: RunningStream
      if isFile {
        stream = try RunningStream(file, session, server.url) { $0.resumable = .never }
      } else {
        stream = try RunningStream(source, session, server.url) { $0.request.method = "PUT" }
      }
      if !isFile {
        try source.push([1, 2, 3])
        stream.streamer.finish()
      }
      let summary = try stream.summary()
      #expect(summary.error == nil && !summary.isResumable && summary.progress.buffered == 0)
    }
    let last = requests.all.suffix(2)
    #expect(last.map { $0.method } == ["OPTIONS", "PUT"] && Set(last.map { $0.connection }).count == 1)
  }
}
