// Plain streams that several servers continue: what only a log can show. `UploadServerTests` have what holds for each
// storage.

import BrokerTesting
import Digests
import EventLoops
import Glibc
import JetStream
import NetworkTesting
import PropertyTesting
import StreamServing
import Testing
import UploadServer

@testable import LogServing

@Suite("Plain streams in a log")
struct PlainClaimTests {
  private static let name = StreamName(path: "/t", streamID: "a", mediaType: nil)

  /// The head of a plain request for the stream `a`.
  private static func head(at offset: UInt64) -> String {
    "POST /t HTTP/1.1\r\nHost: h\r\nStream-ID: a\r\nStream-Offset: \(offset)\r\nTransfer-Encoding: chunked\r\n"
      + "Expect: 100-continue\r\n\r\n"
  }

  /// The response to the head of a plain request: 100 if the server wants its content.
  private static func begin(
    _ server: LogServer, at offset: UInt64
  ) throws -> (client: RawClient, answer: RawClient.Answer) {
    let client = try server.connect()
    try client.send(head(at: offset))
    return (client, try client.answer())
  }

  /// Has a server store bytes, in a request that breaks off.
  private static func interrupted(_ server: LogServer, at offset: UInt64, _ bytes: [UInt8]) throws {
    let count = server.events.all.count { $0.kind == .interrupted }
    let (client, answer) = try begin(server, at: offset)
    #expect(answer.status == 100)
    try client.sendChunk(bytes)
    client.disconnect()
    _ = try server.events.wait("the end") { events in
      events.count { $0.kind == .interrupted } > count ? true : nil
    }
  }

  @Test("no upload resource has the token of a plain stream")
  func unreachable() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    try Self.interrupted(server, at: 0, Array("hello".utf8))
    let token = UploadToken.plain(Self.name, generation: 0)
    let stream = try BrokerLoop(BrokerOptions(servers: [broker.url])).open("sluice")
    #expect(try stream.lastMessage(of: token) != nil)
    for method in ["HEAD", "DELETE"] {
      let client = try server.connect()
      try client.request(method, "/.uploads/\(token)")
      #expect(try client.final(withBody: false).answer.status == 404, "\(method)")
    }
    let client = try server.connect()
    try client.patch("/.uploads/\(token)", at: 5, completes: true, body: "x")
    #expect(try client.final().answer.status == 404)
    #expect(try stream.messages(of: token).flatMap(\.content.payload) == Array("hello".utf8))
  }

  @Test("a client is asked once for missing bytes, and continues where it can")
  func asked() throws {
    let broker = try TestBroker()
    let servers = try (0..<2).map { _ in try LogServer(broker) }
    try Self.interrupted(servers[0], at: 0, Array("hello".utf8))
    for (server, offset) in zip([servers[1], servers[0]], [8, 8] as [UInt64]) {
      let (_, answer) = try Self.begin(server, at: offset)
      guard server === servers[1] else {
        #expect(answer.status == 100)
        continue
      }
      #expect(answer.status == 503 && answer["stream-offset"] == "5" && answer["stream-missing"] == "0")
      #expect(answer["retry-after"] == nil)
    }
    // The request behind the hole has stored nothing: there is no hole yet.
    let (client, answer) = try Self.begin(servers[1], at: 5)
    #expect(answer.status == 100)
    try client.send("1\r\n!\r\n0\r\n\r\n")
    let last = try client.answer()
    #expect(last.status == 200 && last["stream-offset"] == "6" && last["stream-missing"] == "0")
  }

  @Test("a stream that was refuted begins again")
  func anew() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let digest = Digest(.sha256, of: Array("right".utf8).span.bytes).base64
    for (text, status) in [
      ("wrong", 400), ("wrong", 400), ("wrong", 400), ("right", 201), ("right", 200), ("wrong", 400),
    ] {
      let client = try server.connect()
      try client.request(
        "PUT", "/t", version: nil, ["Stream-ID: a", "Repr-Digest: sha-256=:\(digest):"], body: text)
      let answer = try client.final().answer
      // Once it is complete, other bytes contradict it before their digest does.
      #expect(answer.status == status || status == 400 && answer.status == 409, "\(text): \(answer)")
    }
  }

  @Test("repeated bytes are found wherever they are in the log", arguments: Seed.several(3))
  func repeated(_ seed: Seed) throws {
    var random = seed.generator
    let broker = try TestBroker()
    let server = try LogServer(broker)
    var content: [UInt8] = []
    for round in 0..<12 {
      // Zeros where bytes never came.
      let hole = round > 0 && random.chance(20) ? Int.random(in: 1...500, using: &random) : 0
      let piece = (0..<Int.random(in: 1...3000, using: &random)).map { _ in UInt8.random(in: 1...255, using: &random) }
      if hole > 0 { #expect(try Self.begin(server, at: UInt64(content.count + hole)).answer.status == 503) }
      try Self.interrupted(server, at: UInt64(content.count + hole), piece)
      content += [UInt8](repeating: 0, count: hole) + piece
      // Messages of other subjects are in between.
      _ = try server.create("x")
    }
    for _ in 0..<10 {
      let begin = Int.random(in: 0..<content.count, using: &random)
      var bytes = Array(content[begin...])
      let isDifferent = random.chance(50)
      if isDifferent { bytes[Int.random(in: 0..<bytes.count, using: &random)] ^= 1 }
      let (client, answer) = try Self.begin(server, at: UInt64(begin))
      #expect(answer.status == 100, "\(seed)")
      try client.sendChunk(bytes)
      if isDifferent {
        let refused = try client.answer()
        #expect(refused.status == 409 && refused["stream-offset"] == "\(content.count)", "\(seed) at \(begin)")
      } else {
        let more = [UInt8(1)]
        try client.sendChunk(more)
        let token = UploadToken.plain(Self.name, generation: 0)
        let stream = try BrokerLoop(BrokerOptions(servers: [broker.url])).open("sluice")
        try waitUntil("the byte behind them is stored, \(seed)") {
          try stream.lastMessage(of: token)?.content.payload == more
        }
        content += more
      }
    }
  }

  @Test(
    "repeated bytes that are more than a server holds are all compared, in a growing and in a complete stream",
    arguments: [false, true], [1, 200])
  func long(isComplete: Bool, messages: Int) throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let content = OffsetPattern(seed: 3)[0..<1_500_000]
    if messages > 1 {
      let length = 1000
      for number in 0..<messages {
        let piece = Array(content[(number * length)..<((number + 1) * length)])
        try Self.interrupted(server, at: UInt64(number * length), piece)
      }
    }
    let begin = messages > 1 ? messages * 1000 : 0
    if isComplete {
      let (client, _) = try Self.begin(server, at: UInt64(begin))
      try client.sendChunk(Array(content[begin...]))
      try client.send("0\r\n\r\n")
      #expect([200, 201].contains(try client.answer().status))
    } else {
      try Self.interrupted(server, at: UInt64(begin), Array(content[begin...]))
    }
    let (client, _) = try Self.begin(server, at: 0)
    try client.sendChunk(content)
    try client.send("0\r\n\r\n")
    let answer = try client.answer()
    #expect(answer.status == 200 && answer["stream-offset"] ?? "\(content.count)" == "\(content.count)", "\(answer)")
  }

  @Test("two clients continue one stream through two servers, and leave no hole and no repeated byte")
  func rivals() throws {
    let broker = try TestBroker()
    let servers = [try LogServer(broker), try LogServer(broker) { $0.threads = 2 }]
    let addresses = servers.map { $0.server.localAddresses[0] }
    let pattern = OffsetPattern(seed: 5)
    let failures = Lock<[String]>([])
    let threads = try (0..<2).map { index in
      try NamedThread("client \(index)") {
        var random = SplitMix64(state: UInt64(index))
        var offset: UInt64 = 0
        for _ in 0..<60 {
          do {
            let client = try RawClient(addresses[Int.random(in: 0...1, using: &random)])
            try client.send(Self.head(at: offset))
            let answer = try client.answer()
            if let told = answer["stream-offset"].flatMap({ UInt64($0) }) { offset = told }
            guard answer.status == 100 else {
              if ![409, 503].contains(answer.status) { failures.withLock { $0.append("\(answer)") } }
              continue
            }
            // Each byte follows from its offset, so it does not matter whose it is.
            let count = UInt64.random(in: 1...2000, using: &random)
            try client.sendChunk((offset..<(offset + count)).map { pattern[$0] })
            while client.unacknowledged > 0, !client.isReset { sched_yield() }
            offset += count
          } catch let failure as TestFailure where failure.isTimeout {
            failures.withLock { $0.append("\(failure)") }
          } catch {
            // Taken over.
          }
        }
      }
    }
    for thread in threads { thread.join() }
    #expect(failures.withLock { $0 } == [])
    let token = UploadToken.plain(Self.name, generation: 0)
    let stream = try BrokerLoop(BrokerOptions(servers: [broker.url])).open("sluice")
    var (end, bytes) = (UInt64(0), UInt64(0))
    for message in try stream.messages(of: token) {
      let entry = try #require(LogEntry(message.content))
      #expect(entry.offset == bytes)
      #expect(entry.streamOffset >= end)
      for (index, byte) in message.content.payload.enumerated()
      where byte != pattern[entry.streamOffset + UInt64(index)] {
        Issue.record("byte \(entry.streamOffset + UInt64(index)) is another one")
      }
      (bytes, end) = (entry.end, entry.streamEnd)
    }
    #expect(bytes > 1000, "the clients got nowhere")
  }

  @Test("bytes that are held back for a digest count for the least rate")
  func leastRateOfHeldBytes() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker) {
      $0.uploads.minimumRate = 1
      $0.uploads.rateWindow = .seconds(2)
    }
    try Self.interrupted(server, at: 0, Array("first".utf8))
    // Twice as long as the window.
    let text = String(repeating: "x", count: 20)
    let digest = Digest(.sha256, of: Array(text.utf8).span.bytes).base64
    let client = try server.connect()
    try client.request(
      "POST", "/t", version: nil,
      ["Stream-ID: a", "Stream-Offset: 5", "Content-Digest: sha-256=:\(digest):"], chunked: true)
    for letter in text {
      try client.sendChunk(String(letter))
      // The time of two windows passes, without a response.
      try #require(!waitUntilReadable(client.descriptor, limit: .milliseconds(200)))
    }
    try client.send("0\r\n\r\n")
    #expect(try client.final().answer["stream-offset"] == "25")
  }

  @Test("the present beginning of a stream is found with few questions")
  func search() {
    for target in Array(0..<70) + [1000, 65_535, 65_536] {
      var (search, count) = (GenerationSearch(), 1)
      while !search.found(isOver: search.next < target) { count += 1 }
      #expect(count <= 2 + 2 * (Int.bitWidth - target.leadingZeroBitCount), "\(target)")
      #expect(search.first == target)
    }
  }
}
