// The end of subscriptions while their messages arrive, with a real broker.

import BrokerTesting
import EventLoops
import NetworkTesting
import Testing

@testable import JetStream

@Suite("Subscriptions")
struct SubscriptionTests {
  // libnats copies a long message between two uses of its subscription.
  @Test("subscriptions can end while long messages for them arrive")
  func endsDuringMessages() throws {
    let broker = try TestBroker(jetStream: false)
    let options = BrokerOptions(servers: [broker.url])
    let (receiver, sender) = (try BrokerConnection(options), try BrokerConnection(options))
    let message = MessageContent(payload: [UInt8](repeating: 7, count: 900_000))
    let send: @Sendable () -> Void = { sender.send(message, to: "flood", reply: "none") { _ in } }
    // Each message that arrives here sends the next one.
    let pace = receiver.subscribe("flood") { _, _ in send() }
    for _ in 0..<4 { receiver.schedule(after: .milliseconds(10), send) }
    let arrivals = try EventLog<Int>()
    for number in 1...300 {
      let subscription = receiver.subscribe("flood") { _, _ in arrivals.append(number) }
      try arrivals.wait("a message for subscription \(number)") { $0.last == number ? true : nil }
      receiver.unsubscribe(subscription)
    }
    receiver.unsubscribe(pace)
    #expect(receiver.isConnected)
    // All but the last ones are released while the connection lasts, and those at its end.
    let kept = try EventLog<Int>()
    receiver.schedule(after: .milliseconds(1)) { kept.append(receiver.ended.count) }
    #expect((1..<100).contains(try kept.wait("their number") { $0.last }))
  }

  // libnats would discard those beyond 65,536.
  @Test("a subscription keeps all messages that wait for their receiver")
  func keepsAll() throws {
    let broker = try TestBroker(jetStream: false)
    let options = BrokerOptions(servers: [broker.url])
    let (receiver, sender) = (try BrokerConnection(options), try BrokerConnection(options))
    let count = 70_000
    let (begun, released) = (try EventLog<Void>(), try EventLog<Void>())
    let counted = try EventLog<Int>()
    let received = Lock(0)
    let subscription = receiver.subscribe("many") { _, _ in
      begun.append(())
      _ = try? released.wait("the release") { $0.first }
      let total = received.withLock { received in
        received += 1
        return received
      }
      if total == count { counted.append(total) }
    }
    // The broker knows the subscription before this one's message arrives.
    let marked = try EventLog<String>()
    let mark = receiver.subscribe("mark.*") { subject, _ in marked.append(subject) }
    let message = MessageContent(payload: [7])
    try waitUntil("the broker knows the subscriptions") {
      sender.send(message, to: "mark.begin", reply: "none") { _ in }
      return !marked.all.isEmpty
    }
    for _ in 0..<count { sender.send(message, to: "many", reply: "none") { _ in } }
    try begun.wait("the first message") { $0.first }
    // All have arrived at libnats when a later one has passed them.
    sender.send(message, to: "mark.end", reply: "none") { _ in }
    try marked.wait("a later message") { $0.contains("mark.end") ? true : nil }
    released.append(())
    #expect(try counted.wait("all messages") { $0.first } == count)
    receiver.unsubscribe(subscription)
    receiver.unsubscribe(mark)
  }
}
