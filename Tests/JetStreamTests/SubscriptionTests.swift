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
    // They are released while the connection lasts, and not at its end only.
    let kept = try EventLog<Int>()
    receiver.schedule(after: .milliseconds(1)) { kept.append(receiver.ended.count) }
    #expect(try kept.wait("their number") { $0.last } < 100)
  }
}
