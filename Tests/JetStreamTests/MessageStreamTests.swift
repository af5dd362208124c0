// Streams of a real broker.

import BrokerTesting
import EventLoops
import Glibc
import JetStream
import NetworkTesting
import PropertyTesting
import Testing

@Suite("Message streams")
struct MessageStreamTests {
  @Test("a published message is read back with its headers, its payload and its sequence number")
  func roundTrip() throws {
    let broker = try TestBroker()
    let stream = try BrokerLoop(BrokerOptions(servers: [broker.url])).open("audio")
    var random = SplitMix64(state: 7)
    var sent: [MessageContent] = []
    var last: UInt64 = 0
    // Lengths around Base64's quanta, and one that requires many reads.
    for length in [0, 1, 2, 3, 4, 5, 255, 300_000] {
      let payload = (0..<length).map { _ in UInt8(truncatingIfNeeded: random.next()) }
      let content = MessageContent(
        headers: [.init("Length", String(length)), .init("Words", "a: b, ü")], payload: payload)
      last = try stream.publish(content, to: "a", after: last).get()
      sent.append(content)
    }
    let found = try stream.messages(of: "a")
    #expect(found.map(\.content.payload) == sent.map(\.payload))
    for (found, sent) in zip(found, sent) {
      #expect(found.subject == "audio.a")
      #expect(found.content["Length"] == sent["Length"])
      #expect(found.content["Words"] == "a: b, ü")
    }
    #expect(try stream.lastMessage(of: "a") == found.last)
    #expect(try stream.lastMessage(of: "b") == nil)
  }

  @Test("of two publishes after the same message, one is refused, and none of its bytes is stored")
  func fencing() throws {
    let broker = try TestBroker()
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    let stream = try loop.open("audio")
    let other = try BrokerLoop(BrokerOptions(servers: [broker.url])).open("audio")
    let first = try stream.publish(MessageContent(payload: [1]), to: "a", after: 0).get()
    let refused = try other.publish(MessageContent(payload: [2]), to: "a", after: 0)
    #expect(throws: BrokerError.self) { try refused.get() }
    if case .failure(let error) = refused { #expect(error.isWrongLastSequence && !error.isTransient) }
    // Other subjects' messages are irrelevant.
    _ = try other.publish(MessageContent(payload: [3]), to: "b", after: 0).get()
    _ = try other.publish(MessageContent(payload: [4]), to: "a", after: first).get()
    #expect(try stream.messages(of: "a").map(\.content.payload) == [[1], [4]])
  }

  @Test("a purge keeps a subject's last message, and all other subjects")
  func purging() throws {
    let broker = try TestBroker()
    let stream = try BrokerLoop(BrokerOptions(servers: [broker.url])).open("audio")
    var last: UInt64 = 0
    for byte: UInt8 in 1...5 { last = try stream.publish(MessageContent(payload: [byte]), to: "a", after: last).get() }
    _ = try stream.publish(MessageContent(payload: [9]), to: "b", after: 0).get()
    try stream.purge("a")
    #expect(try stream.messages(of: "a").map(\.content.payload) == [[5]])
    #expect(try stream.messages(of: "b").map(\.content.payload) == [[9]])
    _ = try stream.publish(MessageContent(payload: [6]), to: "a", after: last).get()
  }

  @Test("acknowledged messages survive a kill and a restart of the broker")
  func brokerKilled() throws {
    let broker = try TestBroker()
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    let stream = try loop.open("audio")
    var last: UInt64 = 0
    for byte: UInt8 in 1...20 { last = try stream.publish(MessageContent(payload: [byte]), to: "a", after: last).get() }
    try broker.kill()
    try waitUntil("the loss of the broker is known") { !loop.connection.isConnected }
    #expect(try stream.publish(MessageContent(payload: [21]), to: "a", after: last) == .failure(.disconnected))
    try broker.start()
    try waitUntil("the broker is connected again") { loop.connection.isConnected }
    #expect(loop.connection.reconnectCount == 1)
    #expect(try stream.messages(of: "a").map { $0.content.payload[0] } == Array(1...20))
    _ = try stream.publish(MessageContent(payload: [21]), to: "a", after: last).get()
  }

  @Test("a connection is restored after a broker has refused the credentials, as often as that happens")
  func refusedMeanwhile() throws {
    let broker = try TestBroker("authorization { token: \"right\" }")
    var options = BrokerOptions(servers: [broker.url])
    options.token = "right"
    let loop = try BrokerLoop(options)
    let stream = try loop.open("audio")
    var last: UInt64 = 0
    for round: UInt8 in 1...2 {
      last = try stream.publish(MessageContent(payload: [round]), to: "a", after: last).get()
      try broker.kill()
      try broker.start("authorization { token: \"another\" }")
      try waitUntil("the refusal is known") { loop.connection.refusal == .notAuthorized }
      let next = MessageContent(payload: [round + 1])
      #expect(try stream.publish(next, to: "a", after: last) == .failure(.disconnected))
      try broker.kill()
      try broker.start("authorization { token: \"right\" }")
      try waitUntil("the broker is connected again") { loop.connection.isConnected }
      #expect(loop.connection.refusal == nil && loop.connection.reconnectCount == UInt64(round))
      #expect(loop.connection.brokerIdentifier != nil)
      #expect(try stream.messages(of: "a").map { $0.content.payload[0] } == Array(1...round))
    }
  }

  @Test("a request in progress when the broker is killed ends with an error, long before its timeout")
  func killedMeanwhile() throws {
    var ends: [String] = []
    // A busy machine may kill the broker late.
    while ends.count < 5 {
      let (result, time) = try publishUntilKilled()
      if result == .failure(.disconnected), time < MessageStream.patience { return }
      ends.append("\(result) after \(time)")
    }
    Issue.record("the request does not end with the broker: \(ends)")
  }

  /// Publishes to a broker that is killed meanwhile. Returns the result, and the time until it came.
  private func publishUntilKilled() throws -> (Result<UInt64, BrokerError>, Duration) {
    let broker = try TestBroker()
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    let stream = try loop.open("audio")
    // A paused broker does not answer, and nobody notices until it is killed.
    try broker.pause()
    let killer = try NamedThread("killer") {
      poll(nil, 0, 50)
      try? broker.kill()
    }
    let began = MonotonicInstant.now
    let result = try stream.publish(MessageContent(payload: [1]), to: "a", after: 0)
    let time = MonotonicInstant.now - began
    killer.join()
    return (result, time)
  }

  @Test("a message beyond the broker's limit is refused, and the connection stays")
  func tooLong() throws {
    let broker = try TestBroker("max_payload: 4096")
    let stream = try BrokerLoop(BrokerOptions(servers: [broker.url])).open("audio")
    #expect(try stream.maximumMessageLength == 4096)
    let long = MessageContent(payload: [UInt8](repeating: 1, count: 5000))
    #expect(try stream.publish(long, to: "a", after: 0) == .failure(.messageTooLarge))
    _ = try stream.publish(MessageContent(payload: [1]), to: "a", after: 0).get()
  }
}
