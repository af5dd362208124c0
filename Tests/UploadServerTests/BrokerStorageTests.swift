// Tests the start of a server with brokers: their proof, their notes and their limits, and whether it is ready.

import BrokerTesting
import EventLoops
import JetStream
import NetworkTesting
import Testing

@testable import StreamServing
@testable import UploadServer

@Suite("A server with brokers")
struct BrokerStorageTests {
  private static func server(
    _ broker: TestBroker, stream: String = "sluice", witnesses: BrokerWitnesses = BrokerWitnesses(),
    _ change: (inout UploadServer.Configuration) -> Void = { _ in }
  ) throws -> TestServer {
    try TestServer {
      var brokers = UploadServer.Brokers(BrokerOptions(servers: [broker.url]), stream: stream)
      brokers.witnesses = witnesses
      $0.storage = .brokers(brokers)
      change(&$0)
    }
  }

  /// A monitoring port that reports that the only broker, which belongs to no cluster, syncs always or not.
  private static func monitor(
    _ broker: TestBroker, syncs: @escaping @Sendable () -> Bool
  ) throws -> ScriptedServer {
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    let identifier = try #require(loop.connection.brokerIdentifier)
    return try ScriptedServer { connection, _ in
      _ = try connection.head()
      let syncs = syncs()
      try connection.respond(
        "200 OK",
        body: """
          {"server_name":"test","server_id":"\(identifier)","version":"2.14.0",\
          "jetstream":{"config":{"sync_always":\(syncs),"sync_interval":7000000000}}}
          """)
    }
  }

  @Test("with durability always, it starts only with the proof, and otherwise it notes what may be lost")
  func proof() throws {
    let broker = try TestBroker()
    let syncs = Lock(false)
    let monitor = try Self.monitor(broker) { syncs.withLock { $0 } }
    let witnesses = BrokerWitnesses(monitors: [try #require(BrokerMonitor(monitor.url))])
    let flaw =
      "broker test acknowledges before it syncs. Set sync_interval: always in the jetstream section of its configuration"
    #expect(throws: UploadServerError.notDurable(flaw)) {
      do { _ = try Self.server(broker, witnesses: witnesses) { $0.durability = .always } } catch { throw error }
    }
    let noted = try Self.server(broker, witnesses: witnesses)
    let notes = [
      "broker test acknowledges before it syncs. If it loses power, messages that it acknowledged in the last 7 s may be "
        + "lost. Set sync_interval: always."
    ]
    #expect(noted.server.storageNotes == notes)
    // Without witnesses, nothing is known of the sync.
    let unknown = try Self.server(broker)
    #expect(unknown.server.storageNotes.last?.hasPrefix("the sync interval of the brokers is unknown.") == true)
    syncs.withLock { $0 = true }
    let durable = try Self.server(broker, witnesses: witnesses) { $0.durability = .always }
    #expect(durable.server.storageNotes.isEmpty)
    try waitUntil("it is ready") { durable.server.isReady }
    #expect(try RawClient.sendPlain(durable, "abc").status == 201)
  }

  @Test("it is ready while its broker is connected, and its metrics have those of the brokers")
  func readiness() throws {
    let broker = try TestBroker()
    let test = try Self.server(broker) { $0.threads = 1 }
    try waitUntil("it is ready") { test.server.isReady }
    #expect(try figure("sluice_server_broker_reconnects_total", of: test.server) == 0)
    #expect(try RawClient.sendPlain(test, "abc").status == 201)
    try broker.kill()
    try waitUntil("it is not ready") { !test.server.isReady }
    try broker.start()
    try waitUntil("it is ready again") { test.server.isReady }
    #expect(try figure("sluice_server_broker_reconnects_total", of: test.server) >= 1)
    let directory = try TestServer()
    #expect(directory.server.isReady && directory.server.storageNotes.isEmpty)
    #expect(try figure("sluice_server_broker_reconnects_total", of: directory.server).isNaN)
  }

  @Test("a broker or a stream whose messages are too short is refused, and the shortest is accepted")
  func lengths() throws {
    let least = 32 * 1024
    let short = try TestBroker("max_payload: \(least - 1)")
    #expect(throws: UploadServerError.brokers(.shortPayload(limit: least - 1, required: least))) {
      do { _ = try Self.server(short) } catch { throw error }
    }
    let broker = try TestBroker("max_payload: \(least)")
    #expect(try Self.server(broker, stream: "sluice").server.storageNotes.isEmpty == false)
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    for (name, length) in [("less", least - 1), ("least", least)] {
      let created: String = try loop.wait("the stream") { client, done in
        client.ask(
          "STREAM.CREATE.\(name)",
          #"{"name":"\#(name)","subjects":["\#(name).*"],"discard":"new","max_msg_size":\#(length)}"#, done)
      }
      #expect(created.contains("config"), "\(created)")
    }
    let reason = "it accepts messages of at most \(least - 1) bytes (max_msg_size), and \(least) are required"
    #expect(throws: UploadServerError.brokers(.unsuitableStream("less", reason: reason))) {
      do { _ = try Self.server(broker, stream: "less") } catch { throw error }
    }
    let accepting = try Self.server(broker, stream: "least")
    try waitUntil("it is ready") { accepting.server.isReady }
  }

  @Test("a custom handler gets plain requests, and no part of a resumable upload")
  func handlers() throws {
    let broker = try TestBroker()
    let test = try Self.server(broker) {
      $0.handler = { head in
        head.target.path == "/mine" ? FixedResponseHandler(Response(200, body: "mine")) : nil
      }
    }
    try waitUntil("it is ready") { test.server.isReady }
    let client = try test.connect()
    try client.request("GET", "/mine", version: nil)
    let answer = try client.final().answer
    #expect(answer.status == 200 && answer.body == "mine", "\(answer)")
    let uploading = try test.connect()
    try uploading.request("POST", "/mine", ["Upload-Complete: ?0"], body: "abc")
    let refused = try uploading.final().answer
    #expect(refused.status == 500 && refused.body.contains("require a server with a directory"), "\(refused)")
    #expect(try RawClient.sendPlain(test, id: "a", "abc").status == 201)
  }
}
