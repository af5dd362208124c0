// Reads a stream of a real broker that is killed.

import BrokerTesting
import CallCounter
import EventLoops
import NetworkTesting
import PropertyTesting
import Testing

@testable import JetStream

@Suite("Readers of a stream")
struct MessageReaderTests {
  @Test("a reader of headers begins with the last message of each subject, and misses none afterwards")
  func headersOfLast() throws {
    let broker = try TestBroker()
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("s")
    let empty = try Reading(broker, after: 0, selection: .headersOfLast(["A", "B"]))
    try empty.events.first("the end of an empty stream") { $0 == "caught up" }
    try stream.publish(0..<20)
    let content = MessageContent(headers: [.init("A", "b")], payload: [1, 2, 3])
    for (token, after) in [("t3", 4), ("t7", 8), ("t3", 21)] as [(String, UInt64)] {
      _ = try stream.publish(content, to: token, after: after).get()
    }
    try stream.purge("t7")
    let reading = try Reading(broker, after: 0, selection: .headersOfLast(["A", "B"]))
    try reading.events.first("the last messages") { $0.hasPrefix("23 ") }
    try broker.kill()
    try broker.start()
    try stream.publish(20..<60)
    try waitUntil("all messages are read") { reading.messages.count >= 60 && empty.messages.count >= 63 }
    let replaced = [4, 8, 21]
    func line(_ sequence: Int) -> String {
      "\(sequence)  of \((21...23).contains(sequence) ? 3 : "m\(sequence - (sequence > 23 ? 4 : 1))".utf8.count)"
    }
    #expect(reading.messages == (1...63).filter { !replaced.contains($0) }.map(line))
    #expect(empty.messages == (1...63).map(line))
    try reading.stop()
    try empty.stop()
  }

  @Test("messages arrive in order, each once, while the broker is killed")
  func order() throws {
    let broker = try TestBroker()
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("s")
    let reading = try Reading(broker, after: 0)
    try stream.publish(0..<40)
    try reading.events.first("some messages") { $0.hasPrefix("20 ") }
    try broker.kill()
    try broker.start()
    try stream.publish(40..<80)
    try waitUntil("all messages are read") { reading.messages.count >= 80 }
    #expect(reading.messages == (0..<80).map { "\($0 + 1) m\($0)" })
    #expect(reading.events.all.contains("interrupted"))
    try reading.stop()
  }

  @Test(
    "messages that are stored while a reader begins arrive, too",
    arguments: [MessageReader.Selection.messages, .headersOfLast(["A"])])
  func beginning(_ selection: MessageReader.Selection) throws {
    let broker = try TestBroker()
    let sender = try BrokerLoop(.init(servers: [broker.url]))
    for round in 0..<60 {
      // A stream that is empty or not, and a reader that begins or waits.
      let (name, before, waits) = ("s\(round)", round % 2 * 3, round % 4 > 1)
      let stream = try sender.open(name)
      try stream.publish(0..<before)
      let reading = try Reading(broker, of: name, after: 0, selection: selection)
      if waits { try reading.events.first("the end of the stream") { $0 == "caught up" } }
      let _: Bool = try sender.wait("the messages are sent") { client, done in
        for number in before..<before + 8 {
          let content = MessageContent(headers: [.init("A", "b")], payload: [0x61])
          client.connection.send(content, to: "\(name).t\(number)", reply: "nobody") { _ in }
        }
        done(true)
      }
      try waitUntil("the last message of round \(round)") {
        reading.messages.last?.hasPrefix("\(before + 8) ") ?? false
      }
      #expect(reading.messages.compactMap { Int($0.prefix { $0 != " " }) } == Array(1...before + 8), "round \(round)")
      try reading.stop()
    }
  }

  @Test("a purge of one subject does not hide the messages of others from a reader that is behind", arguments: 0...2)
  func purgedOther(_ read: Int) throws {
    let broker = try TestBroker()
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("s")
    try stream.publish(0..<4)
    // The consumer stands behind the messages that it has sent.
    let reading = try Reading(broker, after: 0, wants: read)
    if read > 0 { try reading.events.first("the first ones") { $0.hasPrefix("\(read) ") } }
    var last: UInt64 = 0
    for _ in 0..<3 {
      last = try #require(try stream.publish(.init(payload: Array("n".utf8)), to: "t9", after: last).get() as UInt64?)
    }
    // As servers do with the ticks of their clock.
    try stream.purge("t9")
    try stream.publish(10..<11)
    try reading.want(100)
    try reading.events.first("the last one") { $0.hasSuffix(" m10") }
    let numbers = reading.messages.filter { !$0.hasSuffix(" n") }
    #expect(numbers == (0..<4).map { "\($0 + 1) m\($0)" } + ["8 m10"], "\(reading.events.all)")
    try reading.stop()
  }

  @Test("a reader begins again if the process cannot start a thread at the moment")
  func noThread() throws {
    guard call_counter_works() else { return }
    let broker = try TestBroker()
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("s")
    try stream.publish(0..<3)
    let reading = try Reading(broker, after: 0, lacksThread: true)
    try reading.events.first("the last message") { $0 == "3 m2" }
    #expect(reading.messages == ["1 m0", "2 m1", "3 m2"])
    #expect(reading.events.all.first == "interrupted")
    try reading.stop()
  }

  @Test("at most the requested number of messages arrives")
  func backpressure() throws {
    let broker = try TestBroker()
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("s")
    try stream.publish(0..<10)
    let reading = try Reading(broker, after: 2, wants: 3)
    try reading.events.first("the last one") { $0.hasPrefix("5 ") }
    // All earlier messages precede the answer to this.
    try stream.publish(10..<11)
    #expect(reading.messages == ["3 m2", "4 m3", "5 m4"])
    try reading.stop()
  }

  @Test("replaced and lost messages are detected, and purged ones do not count as lost")
  func rewound() throws {
    let broker = try TestBroker()
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("s")
    try stream.publish(0..<5)
    for (sequence, identity) in [(5, "another"), (6, "m5")] as [(UInt64, String)] {
      let reading = try Reading(broker, after: sequence, identity)
      try reading.events.first("the loss") { $0 == "rewound" }
    }
    let known = try Reading(broker, after: 5, "m4")
    try known.events.first("the end of the stream") { $0 == "caught up" }
    let more = try #require(try stream.publish(.init(payload: Array("n".utf8)), to: "t4", after: 5).get() as UInt64?)
    try known.events.first("the next one") { $0 == "\(more) n" }
    try stream.purge("t4")
    // The message with sequence 5 is gone, and later ones exist.
    let purged = try Reading(broker, after: 5, "m4")
    try purged.events.first("the next one") { $0 == "\(more) n" }
    for reading in [known, purged] { try reading.stop() }
  }

  @Test("if the last message is removed, an earlier one that was stored later than all delivered ones is detected")
  func storedLater() throws {
    let broker = try TestBroker()
    let loop = try BrokerLoop(.init(servers: [broker.url]))
    let stream = try loop.open("s")
    try stream.publish(0..<2)
    // One after the other, and before the next request of the same connection.
    let _: Bool = try loop.wait("the messages are sent") { client, done in
      for _ in 0..<3000 { client.connection.send(.init(payload: [0x61]), to: "s.t9", reply: "nobody") { _ in } }
      done(true)
    }
    try stream.publish(10..<11)
    try stream.purge("t9")
    try loop.remove(3002, from: "s")
    let first = try #require(try stream.lastMessage(of: "t0")).time
    let second = try #require(try stream.lastMessage(of: "t1")).time
    #expect(first < second)
    // Of the messages up to number 3002, only the first two are left.
    let replaced = try Reading(broker, after: 3002, "a", time: first)
    try replaced.events.first("the loss") { $0 == "rewound" }
    // Without a time, nothing is compared.
    for time in [0, second, Int64.max] {
      let same = try Reading(broker, after: 3002, "a", time: time)
      try same.events.first("the next one, or the loss") { $0 == "3003 m10" || $0 == "rewound" }
      #expect(same.messages == ["3003 m10"])
      try same.stop()
    }
  }

  @Test("a recreated stream with the same name is detected", arguments: [0, 3] as [UInt64])
  func recreated(_ sequence: UInt64) throws {
    let broker = try TestBroker()
    let loop = try BrokerLoop(.init(servers: [broker.url]))
    let stream = try loop.open("s")
    try stream.publish(0..<3)
    let created = try stream.created
    let same = try Reading(broker, after: sequence, created: created)
    try same.events.first("the end of the stream") { $0 == "caught up" }
    let answer: String = try loop.wait("the removal") { client, done in client.ask("STREAM.DELETE.s", "", done) }
    #expect(answer.contains("success"))
    try loop.open("s").publish(0..<5)
    // A connected reader detects it when the consumer is gone, and others detect it at once.
    let other = try Reading(broker, after: sequence, created: created)
    try other.events.first("the other stream") { $0.hasPrefix("recreated ") }
    #expect(other.messages.isEmpty)
    for reading in [same, other] { try reading.stop() }
  }
}
