// Tests serve --store as a process: brokers and servers are killed in the middle of a stream from the real client.

import BrokerTesting
import Digests
import Glibc
import JetStream
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("serve --store")
struct StoreTests {
  /// The bytes of the only stream in the log, in the order of its uploads.
  private static func stored(_ broker: TestBroker, _ id: String) throws -> [UInt8] {
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    let stream = try loop.open("sluice")
    var messages: [StoredMessage] = []
    while let next = try stream.message(of: "*", from: (messages.last?.sequence ?? 0) + 1) { messages.append(next) }
    var bytes: [UInt8] = []
    for message in messages where message.content["Stream-ID"] == id {
      #expect(message.content["Stream-Offset"] == String(bytes.count))
      bytes += message.content.payload
    }
    return bytes
  }

  private static func serve(_ broker: TestBroker, at address: String = "127.0.0.1:0") throws -> (TestProcess, String) {
    let server = try sluice(["serve", "--listen", address, "--store", broker.url])
    let line = try server.lines.first("the address") { $0.text.hasPrefix("listening on ") }.text
    return (server, String(line.dropFirst("listening on ".count)))
  }

  /// One piece of the stream. The input is sent in pieces so that the faults occur in the middle.
  private static func piece(_ number: Int) -> [UInt8] {
    var random = SplitMix64(state: UInt64(number))
    return (0..<10_000).map { _ in UInt8(truncatingIfNeeded: random.next()) }
  }

  @Test(
    "a stream survives killed brokers and servers, and the log stores each byte once",
    arguments: [["--roll-over-after", "300ms"], ["--resumable", "never"]])
  func kills(_ options: [String]) throws {
    let broker = try TestBroker()
    var (server, address) = try Self.serve(broker)
    let client = try sluice(
      [
        "pipe", "http://\(address)/t.bin", "--stream-id", "s", "--buffer", "4MiB", "--retry-ceiling", "200ms",
      ] + options, input: .pipe)
    let log = try BrokerLoop(BrokerOptions(servers: [broker.url])).open("sluice")
    var sent: [UInt8] = []
    func send(_ count: Int) throws {
      for _ in 0..<count {
        let piece = Self.piece(sent.count)
        sent += piece
        client.send(piece)
        poll(nil, 0, 5)
      }
      // The log has grown before the next fault.
      let target = sent.count - 20_000
      try waitUntil("\(target) bytes are stored") {
        // A broker that is down does not answer.
        guard let last = try? log.lastMessage(of: "*"),
          let offset = last.content["Stream-Offset"].flatMap({ Int($0) })
        else { return false }
        return offset + last.content.payload.count >= target
      }
    }
    try send(20)
    try broker.kill()
    for _ in 0..<10 {
      let piece = Self.piece(sent.count)
      sent += piece
      client.send(piece)
    }
    try broker.start()
    try send(20)
    // Another server replaces the killed one. It knows only what the log contains.
    server.signal(SIGKILL)
    try server.wait()
    (server, _) = try Self.serve(broker, at: address)
    try send(20)
    client.endInput()
    #expect(try client.wait() == 0, "\(client.errors)")
    let stored = try Self.stored(broker, "s")
    #expect(Digest(.sha256, of: stored.span.bytes).bytes == Digest(.sha256, of: sent.span.bytes).bytes)
    #expect(stored.count == sent.count)
    server.signal(SIGTERM)
    #expect(try server.wait() == 0, "\(server.errors)")
  }

  @Test("a live client continues in a new part after the log has lost a message of its upload")
  func lostMessage() throws {
    let broker = try TestBroker()
    let (server, address) = try Self.serve(broker)
    let client = try sluice(
      ["pipe", "http://\(address)/t.bin", "--stream-id", "s", "--buffer", "4MiB", "--retry-ceiling", "200ms"],
      input: .pipe)
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    let log = try loop.open("sluice")
    var sent: [UInt8] = []
    func send(_ count: Int) {
      for _ in 0..<count {
        let piece = Self.piece(sent.count)
        sent += piece
        client.send(piece)
        poll(nil, 0, 5)
      }
    }
    func offset(_ message: StoredMessage) -> Int { message.content["Stream-Offset"].flatMap { Int($0) } ?? -1 }
    send(20)
    var messages: [StoredMessage] = []
    try waitUntil("most of the bytes are stored") {
      messages = try log.messages(of: "*").filter { !$0.content.payload.isEmpty }
      guard messages.count > 2, let last = messages.last else { return false }
      return offset(last) + last.content.payload.count >= sent.count - 20_000
    }
    let lost = messages[1]
    let lostRange = offset(lost)..<(offset(lost) + lost.content.payload.count)
    let damaged = String(lost.subject.dropFirst("sluice.".count))
    try loop.remove(lost.sequence, from: "sluice")
    let observer = try RawClient(try .init(address))
    #expect(try observer.head("/.uploads/\(damaged)").status == 410)
    send(20)
    client.endInput()
    #expect(try client.wait() == 0, "\(client.errors)")
    var parts: [String] = []
    var isStored = [Bool](repeating: false, count: sent.count)
    for message in try log.messages(of: "*") where message.content["Stream-ID"] == "s" {
      if !parts.contains(message.subject) { parts.append(message.subject) }
      let range = offset(message)..<(offset(message) + message.content.payload.count)
      guard range.lowerBound >= 0, range.upperBound <= sent.count else { throw TestFailure("\(range) was not sent") }
      #expect(Array(sent[range]) == message.content.payload, "\(range)")
      for index in range { isStored[index] = true }
    }
    // A byte of the lost message that was not acknowledged is sent again.
    #expect(isStored.indices.allSatisfy { isStored[$0] || lostRange.contains($0) })
    #expect(parts.count == 2 && parts.first == lost.subject)
    #expect(try log.lastMessage(of: damaged)?.content["Sluice-Ended"] == "state-lost")
    let whole = String((parts.last ?? "").dropFirst("sluice.".count))
    #expect(try log.lastMessage(of: whole)?.content["Upload-Complete"] == "?1")
    server.signal(SIGTERM)
    #expect(try server.wait() == 0, "\(server.errors)")
  }

  @Test("readiness follows the broker, and liveness does not")
  func probes() throws {
    let broker = try TestBroker()
    let server = try sluice([
      "serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--store", broker.url,
    ])
    let line = try server.lines.first("the figures") { $0.text.hasPrefix("serving metrics at ") }.text
    try server.lines.first("the address") { $0.text.hasPrefix("listening on ") }
    let address = line.dropFirst("serving metrics at http://".count).prefix { $0 != "/" }
    func status(_ path: String) throws -> Int {
      let client = try RawClient(try .init(String(address)))
      try client.request("GET", path, version: nil)
      return try client.final().answer.status
    }
    #expect(try status("/healthz") == 200)
    try waitUntil("the server is ready") { try status("/readyz") == 200 }
    try broker.kill()
    try waitUntil("the server is not ready") { try status("/readyz") == 503 }
    #expect(try status("/healthz") == 200)
    try broker.start()
    try waitUntil("the server is ready again") { try status("/readyz") == 200 }
    let client = try RawClient(try .init(String(address)))
    try client.request("GET", "/metrics", version: nil)
    let page = try client.final().answer.body
    #expect(page.contains("\nsluice_server_broker_reconnects_total 1\n"))
    #expect(page.contains("\nsluice_server_publishes_in_flight 0\n"))
    #expect(page.contains("\nsluice_server_publish_delay_seconds_count "))
    #expect(page.contains("\nsluice_server_publishes_refused_total 0\n"))
  }

  @Test("an unusable broker has an exit code and a remedy")
  func exitCodes() throws {
    let (plain, excluded) = (try TestBroker(jetStream: false), try TestBroker(TestBroker.accountWithoutJetStream))
    let guarded = try TestBroker("authorization { token: \"right\" }")
    let gone = try TestBroker()
    try gone.kill()
    let small = try TestBroker("max_payload: 20000")
    let other = try TestBroker()
    let loop = try BrokerLoop(BrokerOptions(servers: [other.url]))
    _ = try loop.open("sluice")
    try loop.limit("sluice", toBytes: 1_000_000, dropsOldest: true)
    let directory = try TemporaryDirectory()
    let token = try directory.write("token", "right\n")
    let wrong = try directory.write("wrong", "wrong\n")
    let cases: [([String], Int32, String)] = [
      ([gone.url], 69, "Start a broker there"), ([plain.url], 69, "Enable JetStream"),
      ([excluded.url], 69, "Enable JetStream"),
      ([guarded.url, "--store-token-file", wrong], 77, "Correct the token"),
      ([guarded.url, "--store-token-file", token, "--replicas", "3"], 76, "replicas"),
      ([guarded.url, "--store-credentials", token], 66, "Correct the file"),
      ([other.url, "--store-cert", token], 66, "Correct the file"),
      ([other.url, "--store-key", token], 64, "requires --store-cert"),
      ([other.url], 76, "Change the stream"), ([small.url], 76, "Raise max_payload"),
    ]
    for (arguments, code, text) in cases {
      let server = try sluice(["serve", "--listen", "127.0.0.1:0", "--store"] + arguments)
      #expect(try server.wait() == code, "\(arguments): \(server.errors)")
      #expect(server.errors.joined().contains(text), "\(server.errors)")
      #expect(!server.errors.joined().contains("wrong"), "a secret is shown")
    }
  }
}
