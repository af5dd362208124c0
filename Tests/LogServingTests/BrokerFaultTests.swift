// Brokers that are killed, stopped, full, or unsuitable.

import BrokerTesting
import EventLoops
import Glibc
import JetStream
import NetworkTesting
import Synchronization
import Testing
import UploadServer

@Suite("Servers with broker faults")
struct BrokerFaultTests {
  /// Repeats a test while it returns false, because a busy machine took longer than the server waits for its brokers.
  private func repeating(_ claim: Comment, _ attempt: () throws -> Bool) throws {
    for _ in 0..<5 { if try attempt() { return } }
    Issue.record(claim)
  }

  @Test("bytes that arrive while the broker is dead are stored when it returns, and acknowledged only then")
  func killed() throws { try repeating("the broker returns in time", storesAfterReturn) }

  private func storesAfterReturn() throws -> Bool {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try server.create()
    let client = try server.connect()
    try client.patch(location, at: 0, completes: true, chunked: true)
    try client.sendChunk("before ")
    try client.awaitProgress(7)
    try broker.kill()
    try client.sendChunk("meanwhile ")
    try waitUntil("the server knows") { !server.server.isReady }
    // New clients are asked to return later.
    let other = try server.connect()
    try other.request("POST", "/t", ["Upload-Complete: ?0"], body: "")
    let refused = try other.final().answer
    #expect(refused.status == 503 && refused["retry-after"] != nil)
    #expect(try server.head(location).status == 503)
    try broker.start()
    var answer = try client.answer()
    while answer.status == 104, answer["upload-offset"] != "17" { answer = try client.answer() }
    if answer.status == 503 { return false }
    #expect(answer.status == 104, "\(answer)")
    try client.sendChunk("after")
    try client.send("0\r\n\r\n")
    #expect(try client.final().answer.status == 201)
    #expect(try broker.bytes(of: location) == Array("before meanwhile after".utf8))
    return true
  }

  @Test("a live upload continues, and others are accepted, after the broker has refused the server's token for a while")
  func refusedMeanwhile() throws {
    let (right, another) = ("authorization { token: \"right\" }", "authorization { token: \"another\" }")
    let broker = try TestBroker(right)
    let server = try LogServer(broker) {
      var options = BrokerOptions(servers: [broker.url])
      options.token = "right"
      $0.storage = .brokers(UploadServer.Brokers(options))
    }
    let location = try server.create("abc")
    let client = try server.connect()
    try client.patch(location, at: 3, completes: true, chunked: true)
    try client.sendChunk("def")
    try client.awaitProgress(6)
    try broker.kill()
    try broker.start(another)
    try server.events.first("the reason") { $0.reason?.contains("does not accept the credentials") == true }
    try client.sendChunk("ghi")
    #expect(try server.head(location).status == 503)
    try broker.kill()
    try broker.start(right)
    try waitUntil("the server accepts uploads") { (try? server.create("other")) != nil }
    try server.events.first("the end of the trouble") { $0.reason == "the log can be read again" }
    try client.send("0\r\n\r\n")
    let answer = try client.final().answer
    // The client's own request may have ended meanwhile. Then it continues in another.
    if answer.status != 201 {
      #expect(answer.status == 503 && answer["upload-offset"] == nil, "\(answer)")
      let offset = try #require(try server.head(location)["upload-offset"].flatMap { Int($0) })
      let next = try server.connect()
      try next.patch(location, at: offset, completes: true, body: String("abcdefghi".dropFirst(offset)))
      #expect(try next.final().answer.status == 201)
    }
    #expect(try server.head(location)["upload-offset"] == "9")
  }

  @Test("while brokers accept connections and then stay silent, requests are refused at once")
  func silent() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    try broker.kill()
    try waitUntil("the server knows") { !server.server.isReady }
    let (accepted, ended) = (try EventLog<Int>(), try EventLog<Int>())
    let silent = try ScriptedServer(.port(broker.port)) { connection, number in
      accepted.append(number)
      while (try? connection.head()) != nil {}
      ended.append(number)
    }
    // libnats waits a few seconds for the answer to each of these connections, and holds its lock meanwhile. These are
    // the connections during which a request was refused.
    var during: Set<Int> = []
    while during.count < 3, accepted.all.count < 20 {
      let open = accepted.all.last
      let client = try server.connect()
      try client.request("POST", "/t", ["Upload-Complete: ?0"], body: "")
      #expect(try client.final().answer.status == 503)
      if let open, !ended.all.contains(open) { during.insert(open) }
      poll(nil, 0, 20)
    }
    #expect(during.count == 3, "\(accepted.all.count) connections")
    silent.close()
  }

  @Test("a stream that may drop messages since the last reconnect stores nothing until its settings are right again")
  func unsuitableLater() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker)
    let location = try server.create("abc")
    let loop = try BrokerLoop(.init(servers: [broker.url]))
    try loop.limit("sluice", toBytes: 1_000_000, dropsOldest: true)
    try broker.kill()
    try broker.start()
    try server.events.first("the reason") { $0.reason?.contains("stores nothing until this is repaired") == true }
    let client = try server.connect()
    try client.patch(location, at: 3, body: "def")
    #expect(try client.final().answer.status == 503)
    try waitUntil("the settings are right") { (try? loop.limit("sluice", toBytes: -1)) != nil }
    try waitUntil("the server stores again") { (try? server.create("ghi")) != nil }
    #expect(try broker.bytes(of: location) == Array("abc".utf8))
  }

  @Test("a stream with fewer replicas since the last reconnect stores nothing until it has as many as configured")
  func fewerReplicasLater() throws {
    let cluster = try TestCluster(3)
    let broker = cluster.brokers[0]
    // The server learns the other brokers from this one.
    let server = try LogServer(broker) {
      $0.storage = .brokers(UploadServer.Brokers(BrokerOptions(servers: [broker.url]), replicas: 3))
    }
    _ = try server.create("abc")
    // Settings without a number of replicas have one.
    try BrokerLoop(cluster.options).limit("sluice", toBytes: -1)
    try broker.kill()
    try broker.start()
    let reason = "it has 1 replicas, and not 3"
    try server.events.first("the reason") { $0.reason?.contains(reason) == true }
    let client = try server.connect()
    try client.request("POST", "/t.txt", ["Upload-Complete: ?0"], body: "def")
    #expect(try client.final().answer.status == 503)
  }

  @Test("a broker that accepts nothing slows down the client, and memory stays bounded")
  func backpressure() throws { try repeating("the broker continues in time", slowsDown) }

  private func slowsDown() throws -> Bool {
    let broker = try TestBroker()
    let server = try LogServer(broker) { $0.receiveBufferSize = 64 * 1024 }
    let location = try server.create()
    let client = try server.connect()
    try client.patch(location, at: 0, completes: true, chunked: true)
    try client.sendChunk("a")
    try client.awaitProgress(1)
    try broker.pause()
    let total = 24
    let sent = Atomic<Int>(0)
    // Only this thread uses it until that thread has ended.
    nonisolated(unsafe) let sender = client
    let thread = try NamedThread("sender") {
      for _ in 0..<total {
        guard (try? sender.sendChunk([UInt8](repeating: 0x62, count: 1 << 20))) != nil else { return }
        sent.add(1, ordering: .relaxed)
      }
    }
    var (last, unchanged) = (-1, 0)
    try waitUntil("the sender stands still") {
      let now = sent.load(ordering: .relaxed)
      unchanged = now == last ? unchanged + 1 : 0
      last = now
      return unchanged > 300
    }
    // The capacity of the sockets, the server and its one message in progress, in MiB.
    #expect(last < 12, "\(last) MiB were taken from the client")
    broker.resume()
    thread.join()
    // After a refusal, the connection may be closed.
    try? client.send("0\r\n\r\n")
    let answer = try client.final().answer
    if answer.status == 503 { return false }
    #expect(answer.status == 201, "\(answer)")
    #expect(try server.head(location)["upload-offset"] == "\(total << 20 + 1)")
    return true
  }

  @Test("content is split below the broker's max_payload, and a max_payload that is too small is refused")
  func maximumPayload() throws {
    let broker = try TestBroker("max_payload: 40000")
    let server = try LogServer(broker)
    let location = try server.create()
    let client = try server.connect()
    let content = String(repeating: "0123456789", count: 50_000)
    try client.patch(location, at: 0, completes: true, body: content)
    #expect(try client.final().answer.status == 201)
    let messages = try broker.messages(of: location)
    #expect(messages.flatMap(\.content.payload) == Array(content.utf8))
    #expect(messages.count > 20)
    let small = try TestBroker("max_payload: 20000")
    #expect(throws: UploadServerError.self) { try LogServer(small) }
  }

  @Test("a full stream refuses bytes with 507, and keeps the stored ones")
  func full() throws {
    let broker = try TestBroker()
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    _ = try loop.open("sluice")
    let server = try LogServer(broker)
    let location = try server.create("hello")
    try loop.limit("sluice", toBytes: 20_000)
    let client = try server.connect()
    try client.patch(location, at: 5, body: String(repeating: "x", count: 30_000))
    let answer = try client.final().answer
    #expect(answer.status == 507 && answer["retry-after"] != nil, "\(answer)")
    #expect(try broker.bytes(of: location) == Array("hello".utf8))
    try loop.limit("sluice", toBytes: -1)
    client.disconnect()
    let again = try server.connect()
    try again.patch(location, at: 5, completes: true, body: " again")
    #expect(try again.final().answer.status == 201)
  }

  @Test("brokers and streams that cannot store uploads are refused at the start, with a remedy")
  func unsuitable() throws {
    func message(_ broker: TestBroker, _ change: (inout UploadServer.Brokers) -> Void = { _ in }) -> String {
      do {
        _ = try LogServer(broker) {
          var brokers = UploadServer.Brokers(BrokerOptions(servers: [broker.url]))
          change(&brokers)
          $0.storage = .brokers(brokers)
        }
        return "started"
      } catch {
        return "\(error)"
      }
    }
    let broker = try TestBroker()
    #expect(message(broker) { $0.replicas = 3 }.contains("replicas"))
    #expect(message(broker) { $0.stream = "other" } == "started")
    #expect(message(try TestBroker(jetStream: false)).contains("Enable JetStream"))
    #expect(message(try TestBroker("authorization { token: \"t\" }")).contains("credentials"))
    try broker.kill()
    #expect(message(broker).contains("Start a broker there"))
  }

  @Test("a server that stops sends a live client its offset, and the client continues at another server")
  func drained() throws {
    let broker = try TestBroker()
    let (one, other) = (try LogServer(broker), try LogServer(broker))
    let location = try one.create()
    let client = try one.connect()
    try client.patch(location, at: 0, chunked: true)
    try client.sendChunk("first")
    try client.awaitProgress(5)
    one.server.drain(within: .seconds(600))
    let answer = try client.final().answer
    #expect(answer.status == 503 && answer["upload-offset"] == "5", "\(answer)")
    let next = try other.connect()
    try next.patch(location, at: 5, completes: true, body: " second")
    #expect(try next.final().answer.status == 201)
    #expect(try broker.bytes(of: location) == Array("first second".utf8))
  }
}
