import EventLoops
import NetworkTesting
import PropertyTesting
import Testing

@testable import UploadClient

/// The number of body bytes that the peer's TCP had received when it went deaf. The client's count must not exceed it.
private func bodyByteCount(onWire wire: [UInt8]) -> UInt64 {
  var (rest, count) = (wire[...], UInt64(0))
  while let end = rest.firstIndex(of: 0x0A),
    let size = Int(String(decoding: rest[..<end].dropLast(), as: UTF8.self), radix: 16)
  {
    rest = rest[(end + 1)...]
    count += UInt64(min(size, rest.count))
    rest = rest.dropFirst(size + 2)
  }
  return count
}

@Suite("Bytes that count as acknowledged", .serialized)
struct AcknowledgementTests {
  /// The number of bytes that the peer may have received without acknowledging them yet. RFC 1122, section 4.2.3.2,
  /// allows two segments. With more of them, Linux waits for its timer while its offered window would shrink
  /// (`__tcp_ack_snd_check`).
  private static let delayable: UInt64 = 8 * 1448

  /// Reads some of the body after `prologue`, goes deaf, reports the true count, and resets.
  private func cuttingServer(
    _ seed: Seed, _ truths: EventLog<UInt64>, prologue: @escaping @Sendable (ServerConnection) throws -> Void = { _ in }
  ) throws -> ScriptedServer {
    try ScriptedServer(receiveBuffer: 65_536) { connection, number in
      var random = SplitMix64(state: seed.value &+ UInt64(number))
      try prologue(connection)
      _ = try connection.head()
      var wire: [UInt8] = []
      let wanted = random.size(upTo: 1 << 20)
      while wire.count < wanted, let bytes = try connection.receive(random.size(upTo: 65_536)) { wire += bytes }
      // Bytes received so far are acknowledged now or soon, and later ones never.
      try connection.goDeaf()
      wire += connection.takeQueued()
      truths.append(bodyByteCount(onWire: wire))
      connection.reset()
    }
  }

  /// - Parameter block: how much is written at once; random if nil.
  private func cut(
    _ session: UploadSession, _ request: UploadRequest, _ random: inout SplitMix64, block: Int? = nil
  ) throws -> UploadTask {
    let size = Int.random(in: max(4096, block ?? 0)...100_000, using: &random)
    let upload = try RunningUpload(session, request, pairSize: size)
    let block = [UInt8](repeating: 1, count: block ?? random.size(upTo: 50_000))
    try upload.body.writeUntilOver(block)
    _ = try upload.failure()
    return upload.task
  }

  /// Cuts one upload after another. The count must never exceed the true one, and be at most this number of bytes below
  /// it.
  private func cutMany(
    _ seed: Seed, block: Int? = nil, behind: UInt64, _ change: (inout UploadRequest) -> Void
  ) throws {
    var random = seed.generator
    let truths = try EventLog<UInt64>()
    let server = try cuttingServer(seed, truths)
    try withSession { session in
      for number in 0..<25 {
        var request = UploadRequest(url: server.url)
        request.socket.maximumSegment = 1448
        request.socket.sendBuffer = 65_536
        change(&request)
        let task = try cut(session, request, &random, block: block)
        let truth = try truths.wait("the truth") { $0.count > number ? $0[number] : nil }
        #expect(task.acknowledgedByteCount <= truth)
        #expect(truth - min(truth, task.acknowledgedByteCount) <= behind)
      }
    }
  }

  @Test(
    "after a reset at any point, the count is at most the bytes that the peer received, and close to it",
    arguments: Seed.several(4))
  func plain(_ seed: Seed) throws {
    // The amount that libcurl may buffer makes no difference.
    try cutMany(seed, behind: Self.delayable) { $0.uploadBufferSize = 256 << 10 }
  }

  @Test(
    "without chunk records, it is also never too high, and low by at most one piece and the framing of a send buffer",
    arguments: Seed.several(2))
  func withoutAccount(_ seed: Seed) throws {
    // The newest piece, and eight bytes of framing for each of about a hundred pieces in a send buffer.
    try cutMany(seed, block: 16_384, behind: 16_384 + 1024 + Self.delayable) { $0.countsChunks = false }
  }

  @Test("bytes for a SOCKS proxy do not count as body", arguments: Seed.several(2))
  func behindSOCKS(_ seed: Seed) throws {
    var random = seed.generator
    let truths = try EventLog<UInt64>()
    let proxy = try cuttingServer(seed, truths) { connection in
      // RFC 1928: version and methods, and then the request with the name of the host.
      _ = try connection.receive(3)
      try connection.send([5, 0])
      _ = try connection.receive(4 + 1 + "a.long.name.that.makes.the.greeting.long.example".utf8.count + 2)
      try connection.send([5, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    }
    try withSession { session in
      for number in 0..<25 {
        var request = UploadRequest(url: "http://a.long.name.that.makes.the.greeting.long.example/")
        request.proxy = "socks5h://127.0.0.1:\(proxy.port)"
        request.socket.sendBuffer = 65_536
        let task = try cut(session, request, &random)
        let truth = try truths.wait("the truth") { $0.count > number ? $0[number] : nil }
        #expect(task.acknowledgedByteCount <= truth)
        #expect(task.acknowledgedByteCount > 0 || truth < 40_000)
      }
    }
  }

  /// The earlier request on the connection.
  enum Before: String, CaseIterable, Sendable { case stream, file, options, emptyPost }

  @Test(
    "on a reused connection, the count begins at the new request, and is as exact as on a new one",
    arguments: Before.allCases, Seed.several(2))
  func reusedConnection(_ before: Before, _ seed: Seed) throws {
    var random = seed.generator
    let truths = try EventLog<UInt64>()
    let server = try cuttingServer(seed, truths) { connection in
      for _ in 0..<2 {
        let head = try connection.head()
        _ = try connection.anyBody(head)
        try connection.respond("200 OK")
      }
    }
    let file = try PatternFile(size: 100_000)
    try withSession { session throws in
      for number in 0..<10 {
        var request = UploadRequest("PATCH", server.url)
        request.socket.maximumSegment = 1448
        request.socket.sendBuffer = 65_536
        // The kernel often accepts only a part of a large piece.
        request.uploadBufferSize = 256 << 10
        for _ in 0..<2 {
          switch before {
          case .stream: _ = try session.send(request, streaming: String(repeating: "a", count: 50_000))
          case .file: _ = try session.send(request, file: file)
          case .options:
            var options = request
            options.method = "OPTIONS"
            _ = try session.send(options)
          case .emptyPost: _ = try session.send(request, .empty)
          }
        }
        let task = try cut(session, request, &random)
        let truth = try truths.wait("the truth") { $0.count > number ? $0[number] : nil }
        #expect(task.acknowledgedByteCount <= truth)
        #expect(truth - min(truth, task.acknowledgedByteCount) <= Self.delayable)
      }
    }
  }

  @Test(
    "for a file, whose bytes are sent unchanged, it is as exact, on a new and on a reused connection",
    arguments: [false, true], Seed.several(3))
  func file(_ isReused: Bool, _ seed: Seed) throws {
    var random = seed.generator
    let truths = try EventLog<UInt64>()
    let server = try ScriptedServer(receiveBuffer: 65_536) { connection, number in
      var random = SplitMix64(state: seed.value &+ UInt64(number))
      if isReused {
        _ = try connection.anyBody(try connection.head())
        try connection.respond("200 OK")
      }
      _ = try connection.head()
      let wanted = random.size(upTo: 1 << 20)
      var count = try connection.bytes(wanted).count
      try connection.goDeaf()
      count += connection.takeQueued().count
      truths.append(UInt64(count))
      connection.reset()
    }
    let file = try PatternFile(size: 4_000_000)
    try withSession { session throws in
      for number in 0..<15 {
        var request = UploadRequest("PATCH", server.url)
        request.socket.maximumSegment = 1448
        request.socket.sendBuffer = 65_536
        request.uploadBufferSize = [16 << 10, 256 << 10].randomElement(using: &random) ?? 0
        if isReused { _ = try session.send(request, file: file, 0..<random.size(upTo: 300_000)) }
        let upload = try RunningRequest(session, request, try file.body())
        #expect(try upload.failure().kind == .connectionLost)
        let truth = try truths.wait("the truth") { $0.count > number ? $0[number] : nil }
        #expect(upload.task.acknowledgedByteCount <= truth)
        #expect(truth - min(truth, upload.task.acknowledgedByteCount) <= Self.delayable)
      }
    }
  }

  @Test("while the source pauses, all bytes that the peer has read count, even without a kernel counter")
  func unixSocket() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/socket"
    let read = try EventLog<Int>()
    let server = try ScriptedServer(.unix(path)) { connection, _ in
      _ = try connection.head()
      while let chunk = try connection.chunk() { read.append(chunk.count) }
      try connection.respond("200 OK")
    }
    try withSession { session in
      var request = UploadRequest(url: "http://some.host/")
      request.unixSocket = path
      let upload = try RunningUpload(session, request)
      for round in 1...3 {
        try upload.body.write("twelve bytes")
        try read.wait("the bytes") { $0.reduce(0, +) == 12 * round ? true : nil }
        try eventually("their acknowledgement") {
          session.loop.execute { upload.task.updateAcknowledged() }
          return upload.task.acknowledgedByteCount == 12 * round
        }
      }
      upload.body.end()
      #expect(try upload.response().status == 200)
    }
    server.close()
  }

  @Test("with the head of a response, the acknowledged bytes are up to date")
  func head() throws {
    let mayEnd = try EventCounter()
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.body()
      try connection.send(head)
      guard waitUntilReadable(mayEnd.descriptor) else { return }
      try connection.send("done\n")
    }
    try withSession { session throws in
      let upload = try RunningUpload(session, UploadRequest(url: server.url))
      try upload.body.write("hello")
      upload.body.end()
      let task = upload.task
      try eventually("the head") { task.responseHeaderByteCount == head.utf8.count }
      #expect(try onThread(of: session) { task.acknowledgedByteCount } == 5)
      mayEnd.signal()
      #expect(try upload.response().status == 200)
    }
  }

  @Test("all bytes of a body that has ended count before the response, even without a kernel counter")
  func endOfBody() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/socket"
    let read = try EventLog<Int>()
    let mayAnswer = try EventCounter()
    let server = try ScriptedServer(.unix(path)) { connection, _ in
      _ = try connection.head()
      while let chunk = try connection.chunk() { read.append(chunk.count) }
      read.append(0)
      guard waitUntilReadable(mayAnswer.descriptor) else { return }
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      var request = UploadRequest(url: "http://some.host/")
      request.unixSocket = path
      let upload = try RunningUpload(session, request)
      try upload.body.write("one")
      try read.first("the first bytes") { $0 == 3 }
      // In one turn, so that libcurl does not ask in between.
      session.loop.execute {
        try? upload.body.write("two")
        upload.body.end()
      }
      try read.first("the end") { $0 == 0 }
      try eventually("the acknowledgement") {
        session.loop.execute { upload.task.updateAcknowledged() }
        return upload.task.acknowledgedByteCount == 6
      }
      mayAnswer.signal()
      #expect(try upload.response().status == 200)
    }
    server.close()
  }
}
