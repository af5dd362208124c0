// A peer that stops reading while its kernel continues to acknowledge. HTTP/2's flow control hides it from TCP.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing

@testable import UploadClient

@Suite("A peer that stops accepting", .serialized)
struct StallTests {
  private func request(_ nginx: TLSFrontEnd) -> UploadRequest {
    var request = UploadRequest(url: "https://localhost:\(nginx.port)/take")
    request.certificateAuthorities = nginx.authority
    request.addressFamily = .ipv4
    request.limits.unacknowledged = .seconds(1)
    request.limits.response = .seconds(1)
    return request
  }

  private func question(_ nginx: TLSFrontEnd) -> UploadRequest {
    var request = request(nginx)
    request.method = "GET"
    request.limits.response = .seconds(20)
    return request
  }

  /// Reads requests and answers each.
  private func backend() throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        if head.line.hasPrefix("POST") { _ = try connection.body() }
        try connection.respond("204 No Content")
      }
    }
  }

  @Test(
    "HTTP/2: a request whose peer stops in the middle of the body times out, and the next one uses a new connection")
  func stoppedInTheBody() throws {
    let backend = try backend()
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(backend.port)")
    try withSession { session throws in
      let upload = try RunningUpload(session, request(nginx))
      try upload.body.write([UInt8](repeating: 1, count: 10_000))
      try eventually("the first bytes") { upload.task.sentByteCount == 10_000 }
      nginx.stop()
      defer { nginx.goOn() }
      let feeder = try NamedThread("test feeder") {
        // More than any window and any buffer on the way.
        for _ in 0..<4096 {
          guard (try? upload.body.write([UInt8](repeating: 2, count: 4096))) != nil else { return }
        }
      }
      defer { feeder.join() }
      #expect(try upload.failure().kind == .timedOut)
      nginx.goOn()
      let next = try RunningRequest(session, question(nginx))
      #expect(try next.response().status == 204)
      #expect(next.events.all.contains { if case .connected(isNew: true) = $0 { true } else { false } })
    }
  }

  @Test("HTTP/2: after a missing response, the next request uses a new connection")
  func stoppedBeforeTheResponse() throws {
    let backend = try backend()
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(backend.port)")
    try withSession { session throws in
      let upload = try RunningUpload(session, request(nginx))
      try upload.body.write([UInt8](repeating: 1, count: 1_000))
      try eventually("the first bytes") { upload.task.sentByteCount == 1_000 }
      nginx.stop()
      defer { nginx.goOn() }
      upload.body.end()
      #expect(try upload.failure().kind == .timedOut)
      nginx.goOn()
      let next = try RunningRequest(session, question(nginx))
      #expect(try next.response().status == 204)
      #expect(next.events.all.contains { if case .connected(isNew: true) = $0 { true } else { false } })
    }
  }

  @Test("a silent source is not a stall, and neither is a slow peer", arguments: [16_384, 200_000])
  func patience(sendBuffer: Int) throws {
    try withSlowPeer(pausingAtMost: .milliseconds(250)) { try toleratesSlowness(sendBuffer, $0) }
  }

  /// Whether an upload to a peer that reads slowly continues.
  private func toleratesSlowness(_ sendBuffer: Int, _ pauses: PeerPauses) throws -> Bool {
    // A large buffer accepts no more bytes for several limits.
    let isLarge = sendBuffer > 100_000
    let (pieceSize, slowCount) = isLarge ? (4_096, 200_000) : (16_384, 400_000)
    let mayRead = try EventCounter()
    let server = try ScriptedServer(receiveBuffer: 8_192) { connection, _ in
      _ = try connection.head()
      guard waitUntilReadable(mayRead.descriptor) else { return }
      // Slower than the limit in total, but never silent for that long.
      var count = 0
      let never = try EventCounter()
      while count < slowCount, let bytes = try connection.receive(pieceSize) {
        pauses.note()
        count += bytes.count
        _ = waitUntilReadable(never.descriptor, limit: .milliseconds(60))
      }
      _ = connection.readToEnd()
    }
    return try withSession { session throws -> Bool in
      var request = UploadRequest(url: server.url)
      request.limits.unacknowledged = .seconds(1)
      request.socket.sendBuffer = sendBuffer
      let upload = try RunningUpload(session, request)
      try upload.body.write([1])
      let never = try EventCounter()
      // The source pauses for longer than the limit.
      _ = waitUntilReadable(never.descriptor, limit: .milliseconds(1400))
      #expect(upload.endCount == 0)
      pauses.note()
      mayRead.signal()
      for _ in 0..<(isLarge ? 300 : 100) {
        // A failed request reads no more.
        guard (try? upload.body.write([UInt8](repeating: 1, count: 4096))) != nil else { return false }
      }
      guard upload.endCount == 0 else { return false }
      upload.task.cancel()
      return true
    }
  }

  @Test("a peer that no longer reads ends a request that has rested before, where TCP has no limit of its own")
  func unixSocket() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/socket"
    let read = try EventLog<Int>()
    let server = try ScriptedServer(.unix(path)) { connection, _ in
      _ = try connection.head()
      read.append(try connection.chunk()?.count ?? 0)
      _ = connection.waitForEnd()
    }
    try withSession { session throws in
      var request = UploadRequest(url: "http://some.host/")
      request.unixSocket = path
      request.limits.unacknowledged = .milliseconds(200)
      let upload = try RunningUpload(session, request)
      let task = upload.task
      try upload.body.write("one")
      try read.first("the first bytes") { $0 == 3 }
      try eventually("rest") {
        (try? onThread(of: session) {
          task.isDelivered && session.lanes[0].transfers.values.first?.stallTimer == nil
        }) == true
      }
      let feeder = try NamedThread("test feeder") {
        // More than any buffer on the way.
        while (try? upload.body.write([UInt8](repeating: 2, count: 65_536))) != nil {}
      }
      let error = try upload.failure()
      feeder.join()
      #expect(error == UploadError(.timedOut, "the peer has accepted nothing for 0.2 s"))
      #expect(task.sentByteCount > 3)
    }
    server.close()
  }

  @Test("without a limit, a peer may read nothing for any time")
  func noLimit() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/socket"
    let mayRead = try EventCounter()
    let server = try ScriptedServer(.unix(path)) { connection, _ in
      let head = try connection.head()
      guard waitUntilReadable(mayRead.descriptor) else { return }
      _ = try connection.anyBody(head)
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      var request = UploadRequest(url: "http://some.host/")
      request.unixSocket = path
      request.limits.unacknowledged = .zero
      let running = try RunningRequest(session, request, .bytes([UInt8](repeating: 1, count: 4 << 20)))
      try running.events.first("a connection") { if case .connected = $0 { true } else { false } }
      let passed = try EventCounter()
      session.loop.execute { session.loop.schedule(after: .milliseconds(100)) { passed.signal() } }
      #expect(waitUntilReadable(passed.descriptor))
      mayRead.signal()
      #expect(try running.response().status == 200)
    }
    server.close()
  }

  @Test(
    "the kernel's counts tell whether a peer accepts something, unless its connection also carries other requests",
    arguments: [false, true])
  func looks(isShared: Bool) throws {
    let server = try ScriptedServer(receiveBuffer: 8_192) { connection, _ in
      _ = try connection.head()
      _ = connection.waitForEnd()
    }
    let session = try UploadSession(connections: isShared ? .shared(maximumUploads: 2) : .onePerUpload)
    defer { session.close() }
    var request = UploadRequest("PUT", server.url)
    request.limits.unacknowledged = .seconds(3600)
    request.socket.sendBuffer = 16_384
    let running = try RunningRequest(session, request, .bytes([UInt8](repeating: 1, count: 4 << 20)))
    try running.events.first("a connection") { if case .connected = $0 { true } else { false } }
    let sent = try settled { running.task.sentByteCount }
    let task = running.task
    /// Whether it waits, how much it has passed on, and how much is in flight.
    func look() throws -> (isWaiting: Bool, passedOn: UInt64, queued: UInt64?)? {
      try onThread(of: session) {
        guard let look = session.lanes[0].transfers.values.first?.lookForStall() else { return nil }
        return (look.isWaiting, look.passedOn, look.kernel?.queued)
      }
    }
    let waiting = try #require(try look())
    #expect(waiting.isWaiting && waiting.passedOn > 0 && waiting.passedOn <= sent)
    #expect(isShared ? waiting.queued == nil : (waiting.queued ?? 0) > 0)
    #expect(try onThread(of: session) { !task.isDelivered })
    running.task.suspend()
    let resting = try #require(try look())
    #expect(!resting.isWaiting && resting.queued == nil)
    running.task.cancel()
    #expect(try running.failure().kind == .cancelled)
  }

  // MARK: The rules

  @Test("a request is stalled exactly when no byte has moved for the limit", arguments: Seed.several(5))
  func rules(seed: Seed) {
    var random = seed.generator
    for _ in 0..<300 {
      let limit = Duration.milliseconds(Int.random(in: 4...1000, using: &random))
      var now = MonotonicInstant(nanoseconds: Int64.random(in: 0...1 << 40, using: &random))
      var look = StallWatch.Look(isWaiting: true, passedOn: 0, heard: 0, kernel: nil)
      var watch = StallWatch(limit: limit, look, now: now)
      // It is detected at most a quarter of the limit late, without checking a thousand times per second.
      #expect(watch.interval * 4 <= max(limit, .milliseconds(4)) && watch.interval >= .milliseconds(1))
      var lastMove = now
      for _ in 0..<40 {
        now = now + .milliseconds(Int.random(in: 1...300, using: &random))
        let before = look
        var moves = true
        switch Int.random(in: 0..<8, using: &random) {
        case 0: look.passedOn += 1
        case 1: look.heard += 1
        case 2: look.isWaiting.toggle()
        case 3:
          let more: UInt64 = random.chance(50) ? 1 : 10
          look.kernel = .init(queued: (look.kernel?.queued ?? 0) + more, acknowledged: look.kernel?.acknowledged ?? 0)
          moves = false
        case 5:
          moves = (look.kernel?.queued ?? 0) > 0
          if moves { look.kernel?.queued -= 1 }
        case 4:
          // Only bytes in flight count.
          moves = (look.kernel?.queued ?? 0) > 0
          look.kernel?.acknowledged += 10
        default: moves = false
        }
        if before.isWaiting != look.isWaiting { moves = !look.isWaiting }
        if moves || !look.isWaiting { lastMove = now }
        #expect(watch.isStalled(look, now: now) == (now - lastMove >= limit), "\(seed)")
      }
    }
  }
}
