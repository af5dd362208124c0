// A broker that has lost messages, or stored one twice. The servers detect it, and complete no such upload.

import BrokerTesting
import JetStream
import NetworkTesting
import ResumableUploads
import Testing
import UploadServer

@testable import LogServing

@Suite("Lost messages of a log")
struct LostMessageTests {
  private static func sequences(_ broker: TestBroker, _ location: String) throws -> [UInt64] {
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    return try stream.messages(of: String(location.dropFirst("/.uploads/".count))).map(\.sequence)
  }

  /// Removes the message at that place of the upload.
  private static func lose(_ place: Int, of location: String, _ broker: TestBroker) throws {
    try BrokerLoop(.init(servers: [broker.url])).remove(try sequences(broker, location)[place], from: "sluice")
  }

  /// Stores the last message of the upload once more. Brokers did that with a message that was published twice (see
  /// ``StreamConfiguration/Publishing/isCheckedTooEarly``).
  private static func repeatLast(of location: String, _ broker: TestBroker) throws {
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    let token = String(location.dropFirst("/.uploads/".count))
    var last = try #require(try stream.lastMessage(of: token))
    last.content.headers.removeAll { $0.name.hasPrefix("Nats-") }
    _ = try stream.publish(last.content, to: token, after: last.sequence).get()
  }

  /// An upload of four messages.
  ///
  /// - Parameter repeated: the number of the message that is stored twice.
  private static func upload(_ server: LogServer, repeated: (number: Int, broker: TestBroker)? = nil) throws -> String {
    let location = try server.create("one ")
    for (number, (offset, text)) in [(4, "two "), (8, "six ")].enumerated() {
      if let repeated, repeated.number == number { try repeatLast(of: location, repeated.broker) }
      let client = try server.connect()
      try client.patch(location, at: offset, body: text)
      guard try client.final().answer.status == 204 else { throw TestFailure("no append") }
    }
    if let repeated, repeated.number == 2 { try repeatLast(of: location, repeated.broker) }
    return location
  }

  private static func last(_ broker: TestBroker, _ location: String) throws -> LogEntry? {
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    return try stream.lastMessage(of: String(location.dropFirst("/.uploads/".count))).flatMap { LogEntry($0.content) }
  }

  @Test(
    "an upload that has lost a message ends at every server, and the operator is informed", arguments: [0, 1, 2])
  func askedFor(_ place: Int) throws {
    let broker = try TestBroker()
    let (one, other) = (try LogServer(broker), try LogServer(broker))
    let location = try Self.upload(one)
    let whole = try one.create("untouched")
    #expect(try other.head(location).status == 204)
    try Self.lose(place, of: location, broker)
    #expect(try other.head(location).status == 410)
    let token = location.dropFirst("/.uploads/".count)
    #expect(
      try other.events.first("the warning", where: { $0.kind == .warning }).reason
        == "the log has 4 of the 5 messages of upload \(token)")
    let client = try one.connect()
    try client.patch(location, at: 12, completes: true, body: "")
    #expect(try client.final().answer.status == 410)
    #expect(try Self.last(broker, location)?.deactivation == .stateLost)
    #expect(try one.head(whole).status == 204)
  }

  @Test(
    "an upload with a message that is stored twice ends at every server, and is not completed",
    arguments: [0, 1, 2], [false, true])
  func repeated(_ number: Int, completing: Bool) throws {
    let broker = try TestBroker()
    let (one, other) = (try LogServer(broker), try LogServer(broker))
    let location = try Self.upload(one, repeated: (number, broker))
    let whole = try one.create("untouched")
    let client = try other.connect()
    if completing {
      try client.patch(location, at: 12, completes: true, body: "end")
      #expect(try client.final().answer.status == 410)
    }
    #expect(try other.head(location).status == 410)
    let token = location.dropFirst("/.uploads/".count)
    let warning = try other.events.first("the warning", where: { $0.kind == .warning })
    #expect(warning.reason?.wholeMatch(of: /the log has [56] messages of upload \w+, and not [45]/) != nil)
    #expect(warning.reason?.contains(token) == true)
    let last = try #require(try Self.last(broker, location))
    #expect(last.deactivation == .stateLost && !last.isComplete)
    #expect(try one.head(whole).status == 204)
  }

  @Test("an upload that has lost a message is not completed")
  func notCompleted() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try Self.upload(server)
    let client = try server.connect()
    try client.patch(location, at: 12, completes: true, chunked: true)
    try client.sendChunk("more")
    try client.awaitProgress(16)
    try Self.lose(2, of: location, broker)
    try client.sendChunk("last")
    try client.send("0\r\n\r\n")
    #expect(try client.final().answer.status == 410)
    #expect(try Self.last(broker, location)?.isComplete == false)
    #expect(try server.head(location).status == 410)
    let warning = try server.events.first("the warning", where: { $0.kind == .warning })
    #expect(warning.reason?.contains("messages of upload \(location.dropFirst(10))") == true)
  }

  @Test("an upload that has lost a message after it was complete is not shown as complete, unless a collector has it")
  func complete() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    func complete() throws -> String {
      let location = try Self.upload(server)
      let client = try server.connect()
      try client.patch(location, at: 12, completes: true, body: "end")
      guard try client.final().answer.status == 201 else { throw TestFailure("not complete") }
      return location
    }
    let (lost, purged) = (try complete(), try complete())
    try Self.lose(1, of: lost, broker)
    try stream.purge(String(purged.dropFirst("/.uploads/".count)))
    for (location, status, replayed) in [(lost, 410, 410), (purged, 204, 201)] {
      let client = try server.connect()
      try client.patch(location, at: 15, completes: true, body: "")
      #expect(try client.final().answer.status == replayed)
      #expect(try server.head(location).status == status)
    }
  }

  @Test("each message states its number and a digest of all messages up to it")
  func chain() throws {
    let broker = try TestBroker()
    let location = try Self.upload(try LogServer(broker))
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    let messages = try stream.messages(of: String(location.dropFirst("/.uploads/".count)))
    #expect(messages.map { $0.content["Sluice-Number"] } == ["1", "2", "3", "4"])
    var last = LogEntry.Link()
    for message in messages {
      let entry = try #require(LogEntry(message.content))
      #expect(entry.link == last.next(message.content))
      // The digest depends on all headers, and the payload's digest is one of them.
      var changed = message.content
      for index in changed.headers.indices {
        let header = changed.headers[index]
        guard header.name != "Sluice-Chain", !header.name.hasPrefix("Nats-") else { continue }
        changed.headers[index] = .init(header.name, header.value + "0")
        #expect(last.next(changed) != entry.link, "\(header.name)")
        changed.headers[index] = header
      }
      last = entry.link
    }
  }
}
