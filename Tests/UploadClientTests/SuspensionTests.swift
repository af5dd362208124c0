import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing

@testable import UploadClient

@Suite("A suspended upload", .serialized)
struct SuspensionTests {
  /// Waits, so that an unwanted event has the time to occur.
  private func pass(_ time: Duration) throws {
    let never = try EventCounter()
    #expect(!waitUntilReadable(never.descriptor, limit: time))
  }

  @Test("a stream pauses until it is resumed, for any number of suspensions, and causes no wake-up meanwhile")
  func stream() throws {
    let chunks = try EventLog<String>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      while let chunk = try connection.chunk() { chunks.append(String(decoding: chunk, as: UTF8.self)) }
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      let accounts = try EventLog<ThreadAccount>()
      session.loop.execute { accounts.append(ThreadAccount()) }
      let thread = try accounts.wait("the session's thread") { $0.first }
      let upload = try RunningUpload(session, UploadRequest(url: server.url))
      try upload.body.write("one")
      try chunks.first("the first chunk") { $0 == "one" }
      upload.task.suspend()
      upload.task.suspend()
      #expect(upload.task.isSuspended)
      try upload.body.write("two")
      upload.body.end()
      _ = try settled { try? thread.sleepCount() }
      let before = try thread.sleepCount()
      try pass(.milliseconds(600))
      #expect(try thread.sleepCount() - before <= 1)
      #expect(chunks.all == ["one"] && upload.task.sentByteCount == 3)
      upload.task.resume()
      upload.task.resume()
      #expect(!upload.task.isSuspended)
      #expect(try upload.response().status == 200)
      #expect(chunks.all == ["one", "two"])
    }
  }

  /// Reads a body only as far as it is allowed.
  private final class SlowReader: Sendable {
    let received = Lock(0)
    let bodies: EventLog<[UInt8]>
    private let allowed = Lock(0)
    private let news: EventCounter

    init() throws {
      bodies = try EventLog()
      news = try EventCounter()
    }

    func allow(_ count: Int) {
      allowed.withLock { $0 = count }
      news.signal()
    }

    func serve(_ connection: ServerConnection) throws {
      let size = Int(try connection.head()["Content-Length"] ?? "") ?? 0
      var body: [UInt8] = []
      while body.count < size {
        let room = allowed.withLock { $0 } - body.count
        guard room > 0 else {
          guard waitUntilReadable(news.descriptor) else { return }
          news.drain()
          continue
        }
        guard let bytes = try connection.receive(min(room, 8192)) else { return }
        body += bytes
        received.withLock { $0 = body.count }
      }
      bodies.append(body)
      try connection.respond("200 OK")
    }
  }

  @Test(
    "a file stops in the middle, with the bytes that libcurl buffers, and then arrives byte for byte",
    arguments: Seed.several(2))
  func file(_ seed: Seed) throws {
    let reader = try SlowReader()
    let server = try ScriptedServer(receiveBuffer: 65_536) { connection, _ in try reader.serve(connection) }
    let file = try PatternFile(size: 20_000_000, seed: seed.value)
    try withSession { session throws in
      var request = UploadRequest("PUT", server.url)
      request.socket.sendBuffer = 65_536
      request.uploadBufferSize = 256 << 10
      let upload = try RunningRequest(session, request, try file.body())
      var (rest, held) = (0, 0)
      for _ in 0..<4 {
        let stop = rest + 2_000_000
        reader.allow(stop)
        try eventually("a part") { reader.received.withLock { $0 } == stop }
        // All buffers on the way are full now.
        _ = try settled { upload.task.sentByteCount }
        upload.task.suspend()
        let turns = try EventLog<Bool>()
        session.loop.execute { turns.append(true) }
        try turns.first("the suspension") { $0 }
        let sent = upload.task.sentByteCount
        // Everything in the kernel is let through, so the missing bytes are in libcurl.
        reader.allow(.max)
        try eventually("the bytes in the kernel") { reader.received.withLock { $0 } > stop }
        rest = try settled { reader.received.withLock { $0 } }
        #expect(rest > stop && rest < file.size && upload.task.sentByteCount == sent)
        held += Int(sent) - rest
        reader.allow(rest)
        upload.task.resume()
      }
      #expect(held > 0 && held <= 4 * request.uploadBufferSize)
      reader.allow(.max)
      #expect(try upload.response().status == 200)
      let body = try reader.bodies.wait("the body") { $0.first }
      #expect(body.count == file.size && file.holds(body))
    }
  }

  @Test(
    "an upload that is suspended before its start makes no connection until it is resumed, cancelled, or its session ends"
  )
  func beforeItsStart() throws {
    let connections = try EventLog<Int>()
    // Nobody else can connect to a socket of a temporary directory.
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/socket"
    let server = try ScriptedServer(.unix(path)) { connection, number in
      connections.append(number)
      _ = try connection.head()
      try connection.respond("200 OK")
    }
    defer { server.close() }
    let session = try UploadSession()
    let requests = try EventLog<RunningRequest>()
    session.loop.execute {
      for _ in 0..<3 {
        var get = UploadRequest("GET", "http://some.host/path")
        get.unixSocket = path
        guard let request = try? RunningRequest(session, get) else { continue }
        // This is the loop's thread, so the request has not begun.
        request.task.suspend()
        requests.append(request)
      }
    }
    let all = try requests.wait("the requests") { $0.count == 3 ? $0 : nil }
    try pass(.milliseconds(200))
    #expect(connections.all.isEmpty)
    all[0].task.resume()
    #expect(try all[0].response().status == 200)
    all[1].task.cancel()
    #expect(try all[1].failure().kind == .cancelled)
    session.close()
    #expect(try all[2].failure().kind == .cancelled)
    #expect(connections.all == [0] && all.allSatisfy { $0.endCount == 1 })
  }

  @Test("the end of the body waits for the resumption")
  func endOfBody() throws {
    let ends = try EventLog<String>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      ends.append("begun")
      _ = try connection.body()
      ends.append("complete")
      try connection.respond("201 Created")
    }
    try withSession { session throws in
      let upload = try RunningUpload(session, UploadRequest(url: server.url))
      try ends.first("the head") { $0 == "begun" }
      upload.task.suspend()
      upload.body.end()
      try pass(.milliseconds(200))
      #expect(ends.all == ["begun"])
      upload.task.resume()
      #expect(try upload.response().status == 201)
    }
  }

  @Test(
    "interim responses are delivered meanwhile, and so is a final one, which ends it", arguments: [200, 503])
  func responses(_ status: Int) throws {
    let maySpeak = try EventCounter()
    let server = try ScriptedServer(receiveBuffer: 65_536) { connection, _ in
      _ = try connection.head()
      guard waitUntilReadable(maySpeak.descriptor) else { return }
      try connection.send("HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Offset: 5\r\n\r\n")
      try connection.respond("\(status) Now", body: "enough")
      _ = connection.waitForEnd()
    }
    let file = try PatternFile(size: 5_000_000)
    try withSession { session throws in
      for isFile in [true, false] {
        var request = UploadRequest("PATCH", server.url)
        request.limits.response = .seconds(300)
        request.socket.sendBuffer = 65_536
        let feed: BodyFeed?
        let running: RunningRequest
        if isFile {
          feed = nil
          running = try RunningRequest(session, request, try file.body())
        } else {
          let upload = try RunningUpload(session, request)
          try upload.body.write("begun")
          (feed, running) = (upload.body, upload.request)
        }
        try eventually("some of the body") { running.task.sentByteCount > 0 }
        running.task.suspend()
        maySpeak.signal()
        let outcome = try running.result().get()
        #expect(outcome.isEarly && outcome.response.status == status && outcome.response.text == "enough")
        #expect(running.interim.map { $0["Upload-Offset"] } == ["5"])
        try feed?.waitUntilOver()
        // Too late, and harmless.
        running.task.resume()
        running.task.suspend()
        maySpeak.drain()
      }
    }
  }

  @Test("an upload with a complete body waits for its response as usual")
  func afterTheBody() throws {
    let mayAnswer = try EventCounter()
    let complete = try EventLog<Int>()
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      complete.append(try connection.anyBody(head).count)
      guard waitUntilReadable(mayAnswer.descriptor) else { return }
      try connection.respond("201 Created")
    }
    let file = try PatternFile(size: 1000)
    try withSession { session throws in
      let upload = try RunningRequest(session, UploadRequest("PUT", server.url), try file.body())
      try complete.first("the body") { $0 == 1000 }
      upload.task.suspend()
      mayAnswer.signal()
      let outcome = try upload.result().get()
      #expect(outcome.response.status == 201 && !outcome.isEarly)
    }
  }

  @Test("a connection that ends meanwhile is detected at once", arguments: [true, false])
  func lostConnection(_ isFile: Bool) throws {
    let mayEnd = try EventCounter()
    let server = try ScriptedServer(receiveBuffer: 65_536) { connection, _ in
      _ = try connection.head()
      guard waitUntilReadable(mayEnd.descriptor) else { return }
      // No received bytes stay unread, so that this is a FIN and not a reset.
      _ = connection.takeQueued()
      connection.shutdownWriting()
      _ = connection.waitForEnd()
    }
    let file = try PatternFile(size: 5_000_000)
    try withSession { session throws in
      var request = UploadRequest("PATCH", server.url)
      request.socket.sendBuffer = 65_536
      let feed = BoundPair.make()
      let body: UploadBody = isFile ? try file.body() : .stream(feed.input)
      let output = try BodyFeed(feed.output)
      let upload = try RunningRequest(session, request, body)
      if !isFile { try output.write("begun") }
      try eventually("some of the body") { upload.task.sentByteCount > 0 }
      upload.task.suspend()
      // The loop has received it.
      _ = try settled { upload.task.sentByteCount }
      mayEnd.signal()
      #expect(try upload.failure().kind == .connectionLost)
    }
  }

  @Test(
    "with random suspensions and resumptions from several threads, a body arrives byte for byte",
    arguments: Seed.several(2))
  func anyTime(_ seed: Seed) throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(server.port)")
    let file = try PatternFile(size: 20_000_000, seed: seed.value)
    try withSession { session throws in
      for url in [server.url, "https://localhost:\(nginx.port)/"] {
        var request = UploadRequest("PUT", url)
        request.certificateAuthorities = nginx.authority
        request.addressFamily = .ipv4
        let upload = try RunningRequest(session, request, try file.body())
        let task = upload.task
        let switching: @Sendable (UInt64) -> Void = { salt in
          var random = SplitMix64(state: seed.value &+ salt)
          for _ in 0..<3000 { if random.chance(50) { task.suspend() } else { task.resume() } }
        }
        try concurrently({ switching(1) }, { switching(2) }, { switching(3) })
        task.resume()
        #expect(try upload.response().status == 200)
        let body = seen.all.last?.body ?? []
        #expect(body.count == file.size && file.holds(body))
        #expect(task.sentByteCount == UInt64(file.size))
      }
    }
  }

  @Test("over HTTP/2 too, no byte is sent until it is resumed")
  func http2() throws {
    let received = Lock(0)
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      while let chunk = try connection.receive() { received.withLock { $0 += chunk.count } }
    }
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(server.port)")
    try withSession { session throws in
      var request = UploadRequest("PATCH", "https://localhost:\(nginx.port)/")
      request.certificateAuthorities = nginx.authority
      request.addressFamily = .ipv4
      let upload = try RunningUpload(session, request)
      let block = [UInt8](repeating: 0x61, count: 3000)
      try upload.body.write(block)
      try eventually("the first block") { received.withLock { $0 } > 3000 }
      upload.task.suspend()
      try upload.body.write(block)
      try pass(.milliseconds(200))
      #expect(upload.task.sentByteCount == 3000 && received.withLock { $0 } < 3100)
      upload.task.resume()
      try eventually("the second block") { received.withLock { $0 } > 6000 }
      upload.task.cancel()
      #expect(try upload.failure().kind == .cancelled)
    }
  }
}
