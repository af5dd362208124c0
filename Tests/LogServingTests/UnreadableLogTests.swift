// A server that may publish and not read: its limits cannot hold, so it accepts nothing.

import BrokerTesting
import NetworkTesting
import Testing
import UploadServer

@Suite("A log that a server cannot read")
struct UnreadableLogTests {
  @Test("a server that may not create consumers is not ready, refuses new uploads, and reports the reason")
  func noConsumers() throws {
    let broker = try TestBroker(
      """
      authorization { users: [{ user: u, password: p, permissions: { publish: { deny: "$JS.API.CONSUMER.>" } } }] }
      """)
    let server = try LogServer(broker) {
      let options = BrokerOptions(servers: ["nats://u:p@127.0.0.1:\(broker.port)"])
      $0.storage = .brokers(UploadServer.Brokers(options))
    }
    let client = try server.connect()
    try client.request("POST", "/t", ["Upload-Complete: ?0"], body: "x")
    let answer = try client.final().answer
    #expect(answer.status == 503 && answer["retry-after"] != nil)
    #expect(!server.server.isReady)
    try server.events.wait("the reason", within: .seconds(60)) { events in
      events.first { $0.kind == .warning && $0.reason?.contains("cannot read the log") == true }
    }
  }
}
