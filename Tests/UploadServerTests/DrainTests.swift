// Tests a server that drains: which requests it waits for, what it reports to the other clients, and that no client has
// to send an acknowledged byte again. The model knows what each client has sent, and so what the client must receive.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import SyncGate
import Testing
import UploadServer

@Suite("Draining")
struct DrainTests {
  struct Setting: CustomTestStringConvertible, Sendable {
    let threads: Int
    let durability: Durability
    /// Whether one client never ends its request.
    let hasStalledClient: Bool
    var testDescription: String { "\(threads) threads, \(durability)\(hasStalledClient ? ", one client stalls" : "")" }

    static let all = [1, 2].flatMap { threads in
      Durability.allCases.flatMap { durability in
        [false, true].map { Setting(threads: threads, durability: durability, hasStalledClient: $0) }
      }
    }
  }

  @Test(
    "short requests are answered, the others receive their offset, and the next server continues there",
    arguments: Setting.all, Seed.several(2))
  func drains(_ setting: Setting, _ seed: Seed) throws {
    var random = seed.generator
    let directory = TemporaryDirectory()
    let test = try server(setting, directory)
    var clients: [DrainingClient] = []
    // Clients without a complete request come first: the answers to the others show that the server has read their
    // bytes.
    var kinds = [DrainingClient.Kind.slowHead, .slowHead]
    kinds += (0..<Int.random(in: 0...6, using: &random)).map { _ in
      DrainingClient.Kind.atWork[Int.random(in: 0..<DrainingClient.Kind.atWork.count, using: &random)]
    }
    if setting.hasStalledClient { kinds.append(random.chance(50) ? .sizedAppend : .unnamed) }
    kinds += [.idle, .idle]
    for (number, kind) in kinds.enumerated() {
      clients.append(try DrainingClient(kind, number, test, &random))
    }
    let ending = clients.filter(\.isAwaited)
    let stalled = setting.hasStalledClient ? ending.last : nil
    let live = clients.filter { $0.isLive || $0 === stalled }
    for client in live { try client.waitUntilDelivered() }

    // The limit is so long that a server which waits for it fails the test. If a client makes the server wait for it,
    // the limit is short.
    test.server.drain(within: stalled == nil ? .seconds(600) : .milliseconds(1500))
    for client in clients where client.kind == .idle { #expect(client.connection.isClosedByServer()) }
    for client in clients where client.kind == .slowHead {
      let answer = try client.connection.answer()
      #expect(answer.status == 503 && answer["retry-after"] == "2" && answer["connection"] == "close")
      client.connection.disconnect()
    }
    if stalled == nil {
      try waitUntil("no connection is accepted") { (try? test.connect()) == nil }
      if !ending.isEmpty {
        // The server continues to receive live streams while it has to wait for other requests.
        for client in live { try client.sendMore(&random) }
        for client in live { try client.waitUntilDelivered() }
      }
    }
    for client in ending where client !== stalled { try client.finish() }
    for client in live { try client.hearOffset() }
    test.server.waitUntilEnded()

    let next = try server(setting, directory)
    for client in live { try client.resume(at: next) }
    for client in clients where client.isLive || client.isAwaited {
      #expect(try directory.contents(client.file(in: directory)) == client.stored, "\(client.kind)")
    }
  }

  private func server(_ setting: Setting, _ directory: TemporaryDirectory) throws -> TestServer {
    try TestServer(in: directory) {
      $0.threads = setting.threads
      $0.durability = setting.durability
      // On a busy machine a client may read its answer late.
      $0.lingerTimeout = .seconds(60)
    }
  }

  @Test("an append and a HEAD that wait for the disk are answered when it has finished", arguments: [1, 2])
  func slowDisk(_ threads: Int) async {
    // The gate applies to the whole process.
    await #expect(processExitsWith: .success) { [threads] in
      let directory = TemporaryDirectory()
      let test = try TestServer(in: directory) { ($0.threads, $0.durability) = (threads, .always) }
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      let idle = try test.connect()
      try idle.request("GET", "/", version: nil)
      _ = try idle.answer()
      let (appending, asking) = (try test.connect(), try test.connect())
      try appending.patch(location, at: 0, ["Content-Length: 5"])
      try appending.awaitProgress(0)
      sync_gate_close()
      let before = sync_gate_calls()
      try appending.send("hello")
      try waitUntil("the disk is asked") { sync_gate_calls() > before }
      try asking.request("HEAD", location)
      // The server must have received the request.
      try waitUntil("the question has arrived") { asking.unacknowledged == 0 }
      let other = try test.connect()
      try other.request("OPTIONS", location)
      _ = try other.answer()
      test.server.drain(within: .seconds(600))
      try require(idle.isClosedByServer(), "the server drains")
      try require(!appending.hasAnswer, "nothing is reported before it is on the disk")
      sync_gate_open()
      let appended = try appending.final().answer
      try require(appended.status == 204 && appended["upload-offset"] == "5", "\(appended)")
      appending.disconnect()
      // The request may or may not have reached the server before it drained.
      if let told = try asking.finalUnlessCutOff(withBody: false) {
        try require(told.status == 503 || told["upload-offset"] == "5", "\(told)")
      }
      asking.disconnect()
      test.server.waitUntilEnded()
      try require(try directory.text("t-a.part") == "hello", "it is stored")
    }
  }

  @Test("an append that waits for the disk when the server stops gets 503, even before the disk has finished")
  func waitingAppend() async {
    // The gate applies to the whole process.
    await #expect(processExitsWith: .success) {
      let test = try TestServer { ($0.threads, $0.durability) = (1, .always) }
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      let client = try test.connect()
      try client.patch(location, at: 0, chunked: true)
      try client.awaitProgress(0)
      // If an expectation fails, the server must not wait for a disk that hangs.
      defer { sync_gate_open() }
      sync_gate_close()
      try client.sendChunk("abc")
      try waitUntil("it is stored") { (try? test.directory.text("t-a.part")) == "abc" }
      let asking = try test.connect()
      try asking.request("HEAD", location)
      // The request ends the append in progress.
      try require(client.isClosedByServer(), "cut off")
      let waiting = try test.connect()
      try waiting.patch(location, at: 3, chunked: true)
      try waitUntil("it has arrived") { waiting.unacknowledged == 0 }
      let other = try test.connect()
      try other.request("GET", "/")
      try require(try other.final().answer.status == 200, "the loop continues")
      try require(!waiting.hasAnswer, "it waits")
      test.server.drain(within: .zero)
      let answer = try waiting.final().answer
      try require(answer.status == 503 && answer["retry-after"] == "2", "\(answer)")
      try require(answer["upload-offset"] == nil, "no offset before the disk has it: \(answer)")
      sync_gate_open()
      test.server.waitUntilEnded()
    }
  }

  /// What a client that never closes its connection has sent when the server stops.
  enum Silent: CaseIterable { case closingRequest, restOfAppend, liveAppend }

  @Test(
    "a client that does not close its connection delays the end only if it may still send the rest of its request",
    arguments: Silent.allCases, [1, 2])
  func silent(_ kind: Silent, _ threads: Int) throws {
    let linger = kind == .liveAppend ? Duration.milliseconds(300) : .seconds(60)
    let test = try TestServer { ($0.threads, $0.lingerTimeout) = (threads, linger) }
    let client = try test.connect()
    if kind == .closingRequest {
      try client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
      #expect(try client.answer().status == 200)
    } else {
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      let framing = kind == .liveAppend ? "Transfer-Encoding: chunked" : "Content-Length: 5"
      try client.patch(location, at: 0, [framing])
      try client.awaitProgress(0)
    }
    let idle = try test.connect()
    try idle.request("GET", "/", version: nil)
    _ = try idle.answer()
    let start = MonotonicInstant.now
    test.server.drain(within: .seconds(600))
    #expect(idle.isClosedByServer())
    switch kind {
    case .closingRequest: break
    case .restOfAppend:
      try client.send("hello")
      #expect(try client.final().answer.status == 204)
    case .liveAppend: #expect(try client.final().answer.status == 503)
    }
    test.server.waitUntilEnded()
    let time = MonotonicInstant.now - start
    // The limit is so long that even a busy machine ends before it, unless the server waits.
    if kind == .liveAppend { #expect(time >= linger) } else { #expect(time < .seconds(50)) }
    withExtendedLifetime(client) {}
  }

  @Test(
    "without a drain time, the server waits for no client; reported offsets stay valid", arguments: Durability.allCases
  )
  func atOnce(_ durability: Durability) throws {
    let directory = TemporaryDirectory()
    let test = try TestServer(in: directory) { $0.durability = durability }
    let location = try test.create("/t.txt", ["Stream-ID: a"])
    let client = try test.connect()
    try client.patch(location, at: 0, ["Content-Length: 10"])
    try client.send("hello")
    try client.awaitProgress(5)
    test.server.drain(within: .zero)
    test.server.waitUntilEnded()
    let next = try TestServer(in: directory) { $0.durability = durability }
    #expect(try next.connect().head(location)["upload-offset"] == "5")
  }
}
