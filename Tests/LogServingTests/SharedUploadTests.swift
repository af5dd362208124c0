// Two servers with one broker: any of them answers any request for any upload.

import BrokerTesting
import EventLoops
import Glibc
import JetStream
import LogServing
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("Uploads that servers share")
struct SharedUploadTests {
  @Test("an append of unknown length that completes an upload again gets its response if it is empty, at any server")
  func completedAgain() throws {
    let broker = try TestBroker()
    let servers = [try LogServer(broker), try LogServer(broker)]
    let location = try servers[0].create("abc")
    func complete(_ server: LogServer, _ content: String?) throws -> RawClient.Answer {
      let client = try server.connect()
      try client.patch(location, at: 3, completes: true, body: content == nil ? "" : nil, chunked: content != nil)
      if let content {
        if !content.isEmpty { try client.sendChunk(content) }
        try client.send("0\r\n\r\n")
      }
      return try client.final().answer
    }
    let first = try complete(servers[0], nil)
    #expect(first.status == 201)
    for server in servers {
      for content in [nil, ""] {
        let again = try complete(server, content)
        #expect(again.status == 201 && again["upload-offset"] == "3" && again["upload-complete"] == "?1", "\(again)")
      }
      #expect(try complete(server, "x").status == 409)
    }
    #expect(try broker.bytes(of: location) == Array("abc".utf8))
  }

  @Test(
    "a field without a value does not hide the header after it from readers",
    arguments: ["Content-Type", "Stream-Description", "Upload-Metadata"])
  func emptyField(_ name: String) throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try server.create("abc", ["\(name):", "Stream-ID: a"])
    let found = try EventLog<StoredMessage>()
    try BrokerLoop(.init(servers: [broker.url])).read("sluice") { found.append($0) }
    let message = try found.first("the upload's message") { location.hasSuffix($0.subject.dropFirst("sluice.".count)) }
    #expect(LogEntry(message.content)?.streamID == "a", "\(message.content.headers)")
  }

  @Test("an upload of one server can be queried, continued and completed at another")
  func shared() throws {
    let broker = try TestBroker()
    let (one, other) = (try LogServer(broker), try LogServer(broker))
    let location = try one.create("hello ", ["Stream-ID: mic-1", "Stream-Offset: 1000", "Content-Type: text/plain"])
    let asked = try other.head(location)
    #expect(asked.status == 204 && asked["upload-offset"] == "6" && asked["upload-complete"] == "?0")
    let client = try other.connect()
    try client.patch(location, at: 6, body: "shared ")
    #expect(try client.final().answer.status == 204)
    let last = try one.connect()
    try last.patch(location, at: 13, completes: true, body: "world")
    let response = try last.final().answer
    #expect(response.status == 201 && response["upload-complete"] == "?1")
    #expect(response["stream-id"] == "mic-1" && response["stream-offset"] == "1018")
    #expect(response.body == "{\"event\":\"stored\",\"stream\":\"mic-1\",\"bytes\":18}\n")
    // A client that missed the response can request it from any server.
    try client.patch(location, at: 18, completes: true, body: "")
    #expect(try client.final().answer.body == response.body)
    #expect(try other.head(location)["upload-length"] == "18")
    #expect(try broker.bytes(of: location) == Array("hello shared world".utf8))
    let first = try #require(try broker.messages(of: location).first).content
    #expect(first["Stream-ID"] == "mic-1" && first["Stream-Offset"] == "1000" && first["Content-Type"] == "text/plain")
    #expect(first["Sluice-Request"] == "POST /t.txt")
    #expect(try other.events.first("the end", where: { $0.kind == .ended || $0.kind == .continued }).stream == "mic-1")
  }

  @Test("an append at a wrong offset is refused with the right one")
  func mismatch() throws {
    let broker = try TestBroker()
    let (one, other) = (try LogServer(broker), try LogServer(broker))
    let location = try one.create("hello")
    for offset in [0, 4, 6, 1_000_000] {
      let client = try other.connect()
      try client.patch(location, at: offset, body: "x")
      let answer = try client.final().answer
      #expect(answer.status == 409 && answer["upload-offset"] == "5", "\(offset): \(answer)")
    }
    #expect(try broker.bytes(of: location) == Array("hello".utf8))
  }

  @Test("an append without content states an offset that the brokers have confirmed", arguments: [false, true])
  func empty(isChunked: Bool) throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try server.create("hello")
    let count = try broker.messages(of: location).count
    let client = try server.connect()
    if isChunked {
      try client.patch(location, at: 5, chunked: true)
      try client.send("0\r\n\r\n")
    } else {
      try client.patch(location, at: 5, body: "")
    }
    let answer = try client.final().answer
    #expect(answer.status == 204 && answer["upload-offset"] == "5", "\(answer)")
    #expect(try broker.messages(of: location).count == count + 1)
  }

  @Test("a HEAD ends the running append at another server, and an append at its offset is accepted")
  func headEndsAppend() throws {
    let broker = try TestBroker()
    let (one, other) = (try LogServer(broker), try LogServer(broker))
    let location = try one.create()
    let stray = try one.connect()
    try stray.patch(location, at: 0, chunked: true)
    try stray.sendChunk("first")
    try stray.awaitProgress(5)
    #expect(try other.head(location)["upload-offset"] == "5")
    // Later bytes of the stray request are not stored, and its connection ends without an answer.
    try stray.sendChunk("stray")
    #expect(stray.isCutOff())
    let client = try other.connect()
    try client.patch(location, at: 5, completes: true, body: " second")
    #expect(try client.final().answer.status == 201)
    #expect(try broker.bytes(of: location) == Array("first second".utf8))
  }

  @Test("a cancelled upload is gone at every server, and its bytes at the broker")
  func cancelled() throws {
    let broker = try TestBroker()
    let (one, other) = (try LogServer(broker), try LogServer(broker))
    let location = try one.create("hello")
    let appender = try one.connect()
    try appender.patch(location, at: 5, chunked: true)
    try appender.sendChunk("more")
    try appender.awaitProgress(9)
    let client = try other.connect()
    try client.request("DELETE", location)
    #expect(try client.final().answer.status == 204)
    #expect(try one.head(location).status == 410)
    try appender.sendChunk("late")
    #expect(appender.isCutOff())
    #expect(try one.head(location).status == 410)
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    #expect(try stream.messages(of: String(location.dropFirst(10))).map(\.content.payload) == [[]])
    // The upload of a complete stream is removed, and the stream is kept.
    let complete = try one.create("kept")
    try client.patch(complete, at: 4, completes: true, body: "")
    _ = try client.final()
    try client.request("DELETE", complete)
    #expect(try client.final().answer.status == 204)
    #expect(try one.head(complete).status == 410)
    #expect(try broker.bytes(of: complete) == Array("kept".utf8))
  }

  @Test("limits and lengths apply at every server")
  func limits() throws {
    let broker = try TestBroker()
    let servers = try (0..<2).map { _ in try LogServer(broker) { $0.uploads.maximumSize = 20 } }
    let location = try servers[0].create("hello", ["Upload-Length: 10"])
    let client = try servers[1].connect()
    #expect(try client.head(location)["upload-length"] == "10")
    try client.patch(location, at: 5, ["Upload-Length: 11"], body: "x")
    #expect(try client.final().answer.status == 400)
    let longer = try servers[0].connect()
    try longer.patch(location, at: 5, chunked: true)
    try longer.sendChunk("world!")
    #expect(try longer.final().answer.status == 400)
    // Longer than announced, so the upload is over at every server.
    #expect(try servers[1].head(location).status == 410)
    let large = try servers[0].connect()
    try large.request("POST", "/t", ["Upload-Complete: ?0"], chunked: true)
    for _ in 0..<3 { try large.sendChunk("0123456789") }
    #expect(try large.final().answer.status == 413)
    for path in ["/.uploads/nothing", "/.uploads/" + String(repeating: "0", count: 32), "/.uploads/a.*"] {
      #expect(try servers[0].head(path).status == 404)
    }
  }

  @Test("another client's upload looks like none")
  func owners() throws {
    let broker = try TestBroker()
    let directory = try TemporaryDirectory()
    // The SHA-256 of "alice" and of "bob".
    let tokens = try directory.write(
      "tokens",
      """
      2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90 alice
      81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9 bob

      """)
    let servers = try (0..<2).map { _ in try LogServer(broker) { $0.tokenFile = tokens } }
    let location = try servers[0].create("hello", ["Authorization: Bearer alice"])
    for (name, status) in [("alice", 204), ("bob", 404), ("eve", 401)] {
      let client = try servers[1].connect()
      try client.request("HEAD", location, ["Authorization: Bearer \(name)"])
      #expect(try client.final(withBody: false).answer.status == status, "\(name)")
    }
  }

  @Test("a stream in one request is stored without the protocol")
  func plain() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let client = try server.connect()
    try client.request("PUT", "/a.txt", version: nil, ["Stream-ID: plain"], chunked: true)
    try client.sendChunk("one ")
    try client.sendChunk("request")
    try client.send("0\r\n\r\n")
    let (answer, interim) = try client.final()
    #expect(answer.status == 201 && answer["stream-offset"] == "11" && answer["upload-complete"] == nil)
    #expect(interim.isEmpty)
    #expect(try server.events.first("the end", where: { $0.kind == .ended }).bytes == 11)
  }

  @Test("two clients append through two servers, one with guessed offsets, and leave no hole and no repeated byte")
  func rivals() throws {
    let seed = UInt64.random(in: 0..<1_000_000)
    print("seed \(seed)")
    let broker = try TestBroker()
    let servers = [try LogServer(broker), try LogServer(broker) { $0.threads = 2 }]
    let location = try servers[0].create()
    let pattern = OffsetPattern(seed: 3)
    let acknowledged = Lock<UInt64>(0)
    let failures = Lock<[String]>([])
    /// Each byte follows from its offset, so it does not matter which client sent it.
    @Sendable func text(_ offset: UInt64, _ count: Int) -> String {
      String(decoding: (0..<UInt64(count)).map { 0x20 + pattern[offset + $0] % 0x5F }, as: UTF8.self)
    }
    let addresses = servers.map { $0.server.localAddresses[0] }
    let threads = try (0..<2).map { index in
      try NamedThread("client \(index)") {
        var random = SplitMix64(state: seed &+ UInt64(index))
        var guess: UInt64 = 0
        do {
          for _ in 0..<250 {
            let client = try RawClient(addresses[Int.random(in: 0...1, using: &random)])
            var offset = guess
            if index == 0 || random.chance(50) {
              // Read before the answer, which must include every byte that was acknowledged by now.
              let floor = acknowledged.withLock { $0 }
              let answer = try client.head(location)
              // 503: the other client publishes too fast.
              guard answer.status == 204, let told = answer["upload-offset"].flatMap({ UInt64($0) }) else { continue }
              if told < floor { failures.withLock { $0.append("\(told) after \(floor)") } }
              offset = told
            }
            let count = Int.random(in: 1...400, using: &random)
            try client.patch(location, at: Int(offset), body: text(offset, count))
            // A client that gives up, or loses its network.
            if random.chance(20) {
              client.disconnect()
              continue
            }
            // No answer, because another client has taken over.
            guard let answer = try client.finalUnlessCutOff() else { continue }
            if answer.status == 204, let end = answer["upload-offset"].flatMap({ UInt64($0) }) {
              acknowledged.withLock { $0 = max($0, end) }
              guess = end
            } else if answer.status != 409 && answer.status != 503 {
              failures.withLock { $0.append("\(answer)") }
            }
          }
        } catch {
          failures.withLock { $0.append("\(error)") }
        }
      }
    }
    for thread in threads { thread.join() }
    #expect(failures.withLock { $0 } == [])
    let bytes = try broker.bytes(of: location)
    #expect(String(decoding: bytes, as: UTF8.self) == text(0, bytes.count))
    #expect(UInt64(bytes.count) >= acknowledged.withLock { $0 })
    #expect(bytes.count > 10_000, "the clients got nowhere")
  }
}
