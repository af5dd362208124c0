// Digests that a client sends to servers with a shared log.

import BrokerTesting
import Digests
import JetStream
import NetworkTesting
import ResumableUploads
import Testing
import UploadServer

@testable import LogServing

@Suite("Digests of uploads in a log")
struct LogDigestTests {
  private static func digest(_ text: String, _ algorithm: DigestAlgorithm = .sha256) -> String {
    "\(algorithm.name)=:\(Digest(algorithm, of: Array(text.utf8).span.bytes).base64):"
  }

  private static func status(
    _ server: LogServer, _ location: String, at offset: Int, completes: Bool = false, _ lines: [String] = [],
    body: String
  ) throws -> Int {
    let client = try server.connect()
    try client.patch(location, at: offset, completes: completes, lines, body: body)
    return try client.final().answer.status
  }

  @Test("content that does not match its Content-Digest is not appended")
  func content() throws {
    let broker = try TestBroker()
    let (one, other) = (try LogServer(broker), try LogServer(broker))
    let location = try one.create("right ", ["Content-Digest: \(Self.digest("right "))"])
    #expect(try Self.status(other, location, at: 6, ["Content-Digest: \(Self.digest("new"))"], body: "old") == 400)
    #expect(try one.head(location)["upload-offset"] == "6")
    let both = "Content-Digest: \(Self.digest("new")), \(Self.digest("new", .sha512)), md5=:AAAA:"
    #expect(try Self.status(other, location, at: 6, [both], body: "new") == 204)
    #expect(
      try Self.status(other, location, at: 9, completes: true, ["Content-Digest: \(Self.digest("!"))"], body: "?")
        == 400)
    #expect(try one.head(location)["upload-complete"] == "?0")
    #expect(
      try Self.status(other, location, at: 9, completes: true, ["Content-Digest: \(Self.digest("!"))"], body: "!")
        == 201)
    #expect(try broker.bytes(of: location) == Array("right new!".utf8))
    let client = try one.connect()
    try client.request("POST", "/t", ["Upload-Complete: ?1", "Content-Digest: \(Self.digest("a"))"], body: "b")
    #expect(try client.final().answer.status == 400)
  }

  @Test("content with a Content-Digest that is too long to be held back is refused, before or while it arrives")
  func tooLong() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try server.create()
    let digest = "Content-Digest: \(Self.digest(""))"
    let sized = try server.connect()
    try sized.patch(location, at: 0, [digest], body: String(repeating: "x", count: UploadLog.largestVerifiable + 1))
    #expect(try sized.final().answer.status == 413)
    let chunked = try server.connect()
    try chunked.patch(location, at: 0, [digest], chunked: true)
    let chunk = String(repeating: "x", count: 1 << 20)
    for _ in 0..<4 { try chunked.sendChunk(chunk) }
    try chunked.sendChunk("x")
    #expect(try chunked.final().answer.status == 413)
    #expect(try server.head(location)["upload-offset"] == "0")
  }

  @Test("interrupted content with a digest is kept as far as it arrived")
  func brokenOff() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try server.create()
    let client = try server.connect()
    try client.patch(location, at: 0, ["Content-Digest: \(Self.digest("hello"))"], chunked: true)
    try client.sendChunk("hel")
    client.disconnect()
    _ = try server.events.first("the end", where: { $0.kind == .interrupted })
    #expect(try server.head(location)["upload-offset"] == "3")
  }

  @Test("an upload that does not match its Repr-Digest is not completed, and none of its bytes are kept")
  func representation() throws {
    let broker = try TestBroker()
    let (one, other) = (try LogServer(broker), try LogServer(broker))
    for (announced, status, asked) in [("one two", 201, 204), ("one too", 400, 410)] {
      for algorithm in DigestAlgorithm.allCases {
        let location = try one.create("one ", ["Repr-Digest: \(Self.digest(announced, algorithm))"])
        #expect(try Self.status(other, location, at: 4, body: "t") == 204)
        #expect(try one.head(location).status == 204)
        #expect(try Self.status(other, location, at: 5, completes: true, body: "wo") == status)
        #expect(try one.head(location).status == asked)
        let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
        let messages = try stream.messages(of: String(location.dropFirst(10)))
        #expect(messages.flatMap(\.content.payload) == Array((status == 201 ? "one two" : "").utf8))
        #expect(messages.last?.content["Upload-Complete"] == (status == 201 ? "?1" : nil))
      }
    }
  }

  @Test("an upload that does not match its Repr-Digest is reported once, by the server that has found it")
  func reportedOnce() throws {
    let broker = try TestBroker()
    let (one, other) = (try LogServer(broker), try LogServer(broker))
    let location = try one.create("one ", ["Repr-Digest: \(Self.digest("one too"))"])
    #expect(try Self.status(other, location, at: 4, completes: true, body: "two") == 400)
    // Each server reads the messages in their order.
    _ = try one.create("next")
    for server in [one, other] {
      let usage = try server.usage
      try waitUntil("only the next upload is unfinished") { usage.count == 1 && usage.bytes == 4 }
    }
    // A loop has reported what it has read before it serves another request.
    for server in [one, other] { #expect(try server.head(location).status == 410) }
    func reports(_ server: LogServer) -> [String] {
      let others: [ServerEvent.Kind] = [.begun, .continued]
      let events = server.events.all.filter { !others.contains($0.kind) && $0.status != 410 }
      return events.map { "\($0.kind) \($0.status ?? 0)" }
    }
    #expect(reports(one).isEmpty, "\(reports(one))")
    #expect(reports(other) == ["refused 400"], "\(reports(other))")
  }

  @Test("the Repr-Digest of a single request is compared, with and without the protocol")
  func oneRequest() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    for version in [nil, "8"] {
      for field in version == nil ? ["Content-Digest", "Repr-Digest"] : ["Repr-Digest"] {
        for (text, status) in [("right", 201), ("wrong", 400)] {
          let client = try server.connect()
          let lines = (version == nil ? [] : ["Upload-Complete: ?1"]) + ["\(field): \(Self.digest("right"))"]
          if version == nil {
            try client.request("PUT", "/t", version: nil, lines, body: text)
          } else {
            try client.request("PUT", "/t", lines, body: text)
          }
          let answer = try client.final().answer
          #expect(answer.status == status, "\(field) \(text)")
          // Nothing of a refuted stream is stored.
          if version == nil { #expect(answer["stream-offset"] == (status == 201 ? "5" : nil), "\(field): \(answer)") }
        }
      }
    }
  }

  @Test("content that continues a plain stream and does not match its Content-Digest is refused with the stream's end")
  func plainContent() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let first = try server.connect()
    try first.request("PUT", "/t", version: nil, ["Stream-ID: a", "Expect: 100-continue"], chunked: true)
    #expect(try first.answer().status == 100)
    try first.sendChunk("right ")
    first.disconnect()
    try server.events.first("the interruption") { $0.kind == .interrupted }
    for (text, status, end) in [("old", 400, "6"), ("new", 200, "9")] {
      let client = try server.connect()
      let lines = ["Stream-ID: a", "Stream-Offset: 6", "Content-Digest: \(Self.digest("new"))"]
      try client.request("PUT", "/t", version: nil, lines, body: text)
      let answer = try client.final().answer
      #expect(answer.status == status && answer["stream-offset"] == end, "\(text): \(answer)")
    }
  }

  @Test("a changed message is detected when the Repr-Digest is compared")
  func changed() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try server.create("one ", ["Repr-Digest: \(Self.digest("one two"))"])
    #expect(try Self.status(server, location, at: 4, body: "two") == 204)
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    let token = String(location.dropFirst(10))
    let last = try #require(try stream.lastMessage(of: token))
    var entry = try #require(LogEntry(last.content))
    // Another message in its place, which differs only in the earlier content that it refers to.
    entry.mark = .init(publisher: "x", number: 1)
    (entry.offset, entry.count) = (7, 0)
    let other = entry.message([], behind: .init(number: 3, digest: "another"))
    _ = try stream.publish(other, to: token, after: last.sequence).get()
    #expect(try Self.status(server, location, at: 7, completes: true, body: "") == 410)
    let warning = try server.events.first("the warning", where: { $0.kind == .warning })
    #expect(warning.reason?.contains("does not follow message \(last.sequence)") == true)
  }
}
