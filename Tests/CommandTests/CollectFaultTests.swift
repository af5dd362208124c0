// Tests sluice collect with disks that lose bytes, and with messages of senders and strangers that cannot be stored.

import BrokerTesting
import EventLoops
import Glibc
import JetStream
import LogCollecting
import NetworkTesting
import SyncGate
import Testing
import UploadServer

@testable import sluice

@Suite("Failures of sluice collect")
struct CollectFaultTests {
  /// Starts a collector in this process. `ended` receives "stopped" or an error at its end.
  static func collect(
    from broker: TestBroker, into directory: TemporaryDirectory, _ events: EventLog<ServerEvent>
  ) throws -> (collector: LogCollector, ended: EventLog<String>) {
    let ended = try EventLog<String>()
    let collector = try LogCollector(
      .init(brokers: BrokerOptions(servers: [broker.url]), stream: "sluice", directory: directory.path) {
        events.append($0)
      })
    try NamedThread("test collector") {
      do throws(LogCollectorError) {
        try collector.run()
        ended.append("stopped")
      } catch {
        ended.append("\(error)")
      }
    }.detach()
    return (collector, ended)
  }

  /// A running server that stores in the log of a broker.
  private static func server(_ broker: TestBroker) throws -> UploadServer {
    let server = try UploadServer(
      configuration: .init(
        listen: [try ListenAddress("127.0.0.1:0")],
        storage: .brokers(UploadServer.Brokers(BrokerOptions(servers: [broker.url])))
      ) { _ in })
    try server.start()
    return server
  }

  @Test("if the disk refuses the end of a recording, it is not complete, and its messages stay in the log")
  func refusedEnd() async {
    // A separate process, whose disk loses bytes once.
    await #expect(processExitsWith: .exitCode(74)) {
      let broker = try TestBroker()
      let directory = try TemporaryDirectory()
      let server = try CollectFaultTests.server(broker)
      let client = try RawClient(server.localAddresses[0])
      try client.send(
        "POST /x HTTP/1.1\r\nHost: h\r\nUpload-Draft-Interop-Version: 8\r\nUpload-Complete: ?1\r\nStream-ID: a\r\n"
          + "Content-Length: 5\r\n\r\nhello")
      guard try client.final().answer.status == 201 else { exit(2) }
      let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
      guard let last = try stream.lastMessage(of: "*") else { exit(3) }
      let token = String(last.subject.dropFirst("sluice.".count))
      let count = try stream.messages(of: token).count
      let path = directory.path
      try NamedThread("test watcher") {
        // A second attempt succeeds because the kernel reports the loss only once.
        while access("\(path)/x-a.bin", F_OK) != 0 { poll(nil, 0, 20) }
        exit(4)
      }.detach()
      // The first sync is for the checkpoint of a new directory.
      sync_gate_fail_once(EIO, 1)
      let arguments = [broker.url, "--directory", directory.path, "--after-collect", "purge"]
      do throws(CommandError) {
        _ = try Collect.run(try Collect.syntax.parse(arguments[...]))
        exit(5)
      } catch {
        guard try stream.messages(of: token).count == count, sync_gate_has_failed() != 0 else { exit(6) }
        try broker.kill()
        exit(error.code.rawValue)
      }
    }
  }

  @Test("a collector that lacks space or descriptors for its checkpoint warns once, tries again, and loses nothing")
  func postponedCheckpoint() async {
    // A separate process, because the refusals apply to all its threads.
    await #expect(processExitsWith: .success) {
      let broker = try TestBroker()
      let directory = try TemporaryDirectory()
      let server = try CollectFaultTests.server(broker)
      let creation = try RawClient(server.localAddresses[0])
      try creation.request("POST", "/x", ["Upload-Complete: ?0", "Stream-ID: a"], body: "hello")
      guard let location = try creation.final().answer["location"] else { exit(2) }
      let events = try EventLog<ServerEvent>()
      let (collector, ended) = try CollectFaultTests.collect(from: broker, into: directory, events)
      func waitForCheckpoint(_ length: Int) throws {
        try waitUntil("the checkpoint has \(length) bytes") {
          let text = String(decoding: try directory.contents(".collected"), as: UTF8.self)
          return text.contains("file=\"x-a\", part=1, length=\(length)")
        }
      }
      try waitForCheckpoint(5)
      let refusals = [(ENOSPC, "/.collected~"), (EMFILE, "/.collected~"), (EMFILE, "/x-a.part")]
      for (number, (error, ending)) in refusals.enumerated() {
        open_gate_fail(error, ending)
        let client = try RawClient(server.localAddresses[0])
        try client.patch(location, at: 5 * (number + 1), body: "hello")
        guard try client.final().answer.status == 204 else { exit(3) }
        func count(_ words: String) -> Int { events.all.count { $0.reason?.hasPrefix(words) == true } }
        try waitUntil("a warning, or the end") {
          count("cannot write a checkpoint: ") > number || !ended.all.isEmpty
        }
        // The next attempt gives no further warning.
        let failures = open_gate_failures()
        try waitUntil("another attempt, or the end") { open_gate_failures() > failures || !ended.all.isEmpty }
        guard ended.all.isEmpty else { exit(4) }
        open_gate_fail(0, "")
        try waitForCheckpoint(5 * (number + 2))
        try waitUntil("the end of the refusals is reported") { count("checkpoints can be written again") > number }
        guard count("cannot write a checkpoint: ") == number + 1 else { exit(5) }
      }
      collector.stop()
      guard try ended.wait("the end", { $0.first }) == "stopped" else { exit(6) }
      guard try directory.contents("x-a.part") == Array("hellohellohellohello".utf8) else { exit(7) }
      try broker.kill()
      exit(EXIT_SUCCESS)
    }
  }

  @Test("uploads that cannot be stored are refused, and delay no others")
  func refused() throws {
    let rig = try CollectRig(collectors: 1)
    func send(_ id: String, at offset: String) throws -> Int {
      let lines = ["Upload-Complete: ?1", "Stream-ID: \(id)", "Stream-Offset: \(offset)"]
      return try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("hello".utf8)).status
    }
    #expect(try send("hole", at: "900000000000000") == 201)
    #expect(try send("end", at: "999999999999999") == 201)
    // Anybody who knows the broker's address may publish.
    let stream = try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice")
    for token in ["x", "a\"b", "é", String(repeating: "0", count: 31)] {
      _ = try stream.publish(.init(headers: [.init("A B", "é")], payload: [0]), to: token, after: 0).get()
    }
    #expect(try send("good", at: "0") == 201)
    try rig.finish()
    #expect(try rig.directories[0].contents("x-good.bin") == Array("hello".utf8))
    for id in ["hole", "end"] {
      let refusals = rig.output.filter { $0.contains("\"event\":\"refused\"") && $0.contains("\"\(id)\"") }
      #expect(!refusals.isEmpty, "\(id): \(rig.output)")
    }
  }

  /// What is in the place of a file.
  private enum Obstacle: CaseIterable {
    case folder, fifo, link

    func make(_ path: String) -> Bool {
      switch self {
      case .folder: mkdir(path, 0o700) == 0
      case .fifo: mkfifo(path, 0o600) == 0
      case .link: symlink("nowhere", path) == 0
      }
    }

    func remove(_ path: String) -> Bool { (self == .folder ? rmdir(path) : unlink(path)) == 0 }
  }

  @Test("an upload waits while something else is in the place of one of its files, and the report names that file")
  func obstacles() throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    for folder in [".parts", ".owners"] {
      if mkdir("\(directory.path)/\(folder)", 0o700) != 0 { #expect(errno == EEXIST) }
    }
    let content = Array("hello".utf8)
    var places: [(obstacle: Obstacle, base: String, file: String)] = []
    for obstacle in Obstacle.allCases {
      let files = [("", ".part"), (".parts/", ""), (".owners/", ""), ("", ".bin"), ("", ".gaps"), ("", ".sidecar")]
      for (folder, ending) in files {
        let id = "s\(places.count)"
        places.append((obstacle, "x-\(id)", "\(folder)x-\(id)\(ending)"))
        try #require(obstacle.make("\(directory.path)/\(folder)x-\(id)\(ending)"))
        let lines = ["Upload-Complete: ?1", "Stream-ID: \(id)"]
        #expect(try rig.send(.log, "POST", "/x", owner: "alice", lines, content).status == 201)
      }
    }
    for (obstacle, base, file) in places {
      try rig.collectors[0].lines.first("the report of a \(obstacle) at \(file)") {
        $0.text.contains("\(base).part waits: open \(file)")
      }
    }
    for (obstacle, _, file) in places { try #require(obstacle.remove("\(directory.path)/\(file)")) }
    for (obstacle, base, _) in places {
      try waitUntil("\(base) is stored without the \(obstacle)") {
        (try? directory.contents("\(base).bin")) == content
      }
    }
    try rig.finish()
    #expect(rig.output.allSatisfy { !$0.contains("\"event\":\"refused\"") }, "\(rig.output)")
  }

  @Test("an upload waits while another program's file has the name of its gaps or its sidecar, and that file stays")
  func otherFiles() throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    let content = Array("hello".utf8)
    let files = ["x-a.gaps", "x-b.sidecar"]
    for file in files {
      _ = try directory.write(file, "stranger")
      let lines = ["Upload-Complete: ?1", "Stream-ID: \(file.dropFirst(2).prefix(1))"]
      #expect(try rig.send(.log, "POST", "/x", owner: "alice", lines, content).status == 201)
    }
    for file in files {
      try rig.collectors[0].lines.first("the report of \(file)") { $0.text.contains(".part waits: open \(file)") }
      #expect(try directory.contents(file) == Array("stranger".utf8))
      #expect(unlink("\(directory.path)/\(file)") == 0)
    }
    for base in ["x-a", "x-b"] {
      try waitUntil("\(base) is stored") { (try? directory.contents("\(base).bin")) == content }
    }
    try rig.finish()
    #expect(rig.output.allSatisfy { !$0.contains("\"event\":\"refused\"") }, "\(rig.output)")
  }

  @Test("a stream whose records cannot be read is reported, and stays until it can be collected; others are collected")
  func unreadableRecords() throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    let location = try beginHello(rig)
    // A link to itself.
    let (log, away) = ("\(directory.path)/.parts/x-a", "\(directory.path)/.away")
    #expect(rename(log, away) == 0 && symlink("x-a", log) == 0)
    // The rig adds bytes that the log does not contain.
    try rig.restart(0, SIGKILL)
    try rig.collectors[0].lines.first("the report") {
      $0.text.contains(".parts/x-a") && $0.text.contains("start the collector again")
    }
    try endHello(rig, location)
    try collectOthers(rig)
    #expect(try directory.contents("x-a.part") == Array("hellonever sent".utf8))
    #expect(rename(away, log) == 0)
    try rig.restart(0, SIGTERM)
    try rig.finish()
    #expect(try directory.contents("x-a.bin") == Array("hello world".utf8))
    for number in 0..<100 { #expect(try directory.contents("x-b\(number).bin") == Array("\(number)".utf8)) }
    #expect(rig.output.allSatisfy { !$0.contains("\"event\":\"refused\"") }, "\(rig.output)")
  }

  /// Begins the stream `a`, and waits for a checkpoint with its recording. Returns the location of its upload.
  private func beginHello(_ rig: CollectRig) throws -> String {
    let lines = ["Upload-Complete: ?0", "Stream-ID: a"]
    let answer = try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("hello".utf8))
    try waitUntil("the checkpoint has the recording") {
      String(decoding: try rig.directories[0].contents(".collected"), as: UTF8.self)
        .contains("file=\"x-a\", part=1, length=5")
    }
    return try #require(answer.location)
  }

  /// Completes that stream.
  private func endHello(_ rig: CollectRig, _ location: String) throws {
    let more = ["Upload-Complete: ?1", "Upload-Offset: 5", "Content-Type: application/partial-upload"]
    #expect(try rig.send(.log, "PATCH", location, owner: "alice", more, Array(" world".utf8)).status == 201)
  }

  /// Sends more streams than a collector requests messages at once, and waits until it has collected them.
  private func collectOthers(_ rig: CollectRig) throws {
    for number in 0..<100 {
      let lines = ["Upload-Complete: ?1", "Stream-ID: b\(number)"]
      #expect(try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("\(number)".utf8)).status == 201)
    }
    try waitUntil("the other streams are collected") {
      (0..<100).allSatisfy { access("\(rig.directories[0].path)/x-b\($0).bin", F_OK) == 0 }
    }
  }

  @Test(
    "a stream with a folder in the place of a file is left out at the start, and collected when the folder is gone",
    arguments: [1, 2])
  func folderAtStart(kills: Int) throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    let location = try beginHello(rig)
    let folder = "\(directory.path)/x-a.gaps"
    #expect(mkdir(folder, 0o700) == 0)
    // After the first kill, the rig adds bytes that the log does not contain. After the second, it removes them.
    for _ in 0..<kills {
      try rig.restart(0, SIGKILL)
      try rig.collectors[0].lines.first("the report") {
        $0.text.contains("cannot collect the stream x-a: ") && $0.text.contains("start the collector again")
      }
    }
    let stored = try directory.contents("x-a.part")
    #expect(stored == Array((kills == 1 ? "hellonever sent" : "hello").utf8))
    try endHello(rig, location)
    try collectOthers(rig)
    #expect(try directory.contents("x-a.part") == stored)
    #expect(rmdir(folder) == 0)
    try rig.restart(0, SIGTERM)
    try rig.finish()
    #expect(try directory.contents("x-a.bin") == Array("hello world".utf8))
    #expect(rig.output.allSatisfy { !$0.contains("\"event\":\"refused\"") }, "\(rig.output)")
  }

  @Test(
    "a collector that is killed before a next part has a file leaves no record of the part's gaps after its next start",
    arguments: [(".parts/x-a", "write"), ("x-a~2.gaps", "fdatasync")])
  func killedBeforePart(_ file: String, _ call: String) throws {
    let rig = try CollectRig(collectors: 1, ["--finish-after", "1s"])
    let directory = rig.directories[0]
    let content = Array("hello".utf8)
    let lines = ["Upload-Complete: ?0", "Stream-ID: a"]
    #expect(try rig.send(.log, "POST", "/x", owner: "alice", lines, content).status == 201)
    try waitUntil("the recording is closed") { access("\(directory.path)/x-a.sidecar", F_OK) == 0 }
    try rig.finish()
    let arguments = ["collect", rig.broker.url, "--directory", directory.path, "--partition", "1/1"]
    let killed = try sluice(arguments, killedIn: call, on: "\(directory.path)/\(file)")
    try killed.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
    let answer = try rig.send(.log, "POST", "/x", owner: "alice", lines + ["Stream-Offset: 5"], content)
    let location = try #require(answer.location)
    _ = try killed.wait()
    #expect(!directory.names.contains("x-a~2.part"))
    // No one continues the stream.
    #expect(try rig.send(.log, "DELETE", location, owner: "alice", []).status == 204)
    let next = try sluice(arguments)
    try next.lines.first("the next collector to begin") { $0.text.hasPrefix("collecting ") }
    try waitUntil("the record is gone") { !directory.names.contains("x-a~2.gaps") }
    next.signal(SIGTERM)
    #expect(try next.wait() == 0, "\(next.errors)")
    #expect(directory.names.contains("x-a.bin"))
  }

  @Test("a collector refuses an upload with a message that does not follow the one before it")
  func changedMessage() throws {
    let rig = try CollectRig(collectors: 1)
    let lines = ["Upload-Complete: ?0", "Stream-ID: a"]
    let location = try #require(try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("hello".utf8)).location)
    try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice").forge(
      String(location.dropFirst("/.uploads/".count)), "a")
    try rig.collectors[0].lines.first("the refusal") { $0.text.contains("of the log has changed, or does not follow") }
    try rig.finish()
    #expect(try rig.directories[0].contents("x-a.part") == Array("hello".utf8))
  }

  @Test(
    "a collector compares the first message after its start with the link in its checkpoint, if that has one",
    arguments: [true, false])
  func changedMessageAfterStart(_ hasLink: Bool) throws {
    let (broker, directory) = (try TestBroker(), try TemporaryDirectory())
    let server = try sluice(["serve", "--listen", "127.0.0.1:0", "--store", broker.url])
    let address = try server.lines.first("the address") { $0.text.hasPrefix("listening on ") }.text
      .dropFirst("listening on ".count)
    let client = try RawClient(try .init(String(address)))
    try client.request("POST", "/x", ["Upload-Complete: ?0", "Stream-ID: a"], body: "hello")
    let location = try #require(try client.final().answer["location"])
    func collect() throws -> TestProcess {
      let process = try sluice(["collect", broker.url, "--directory", directory.path])
      try process.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
      return process
    }
    func checkpoint() throws -> String { String(decoding: try directory.contents(".collected"), as: UTF8.self) }
    let first = try collect()
    try waitUntil("the checkpoint has the link") { try checkpoint().contains("chain=\"") }
    first.signal(SIGTERM)
    #expect(try first.wait() == 0, "\(first.errors)")
    if !hasLink {
      // Checkpoints of earlier versions have no links.
      let text = try checkpoint().replacing(#/, number=[0-9]+, chain="[0-9a-f]+"/#, with: "")
      #expect(!text.contains("chain="))
      try directory.write(".collected", text)
    }
    try BrokerLoop(.init(servers: [broker.url])).open("sluice").forge(
      String(location.dropFirst("/.uploads/".count)), "a")
    let next = try collect()
    if hasLink {
      try next.lines.first("the refusal") { $0.text.contains("of the log has changed, or does not follow") }
    } else {
      try waitUntil("the byte is stored") { try directory.contents("x-a.part").count == 6 }
    }
    next.signal(SIGTERM)
    #expect(try next.wait() == 0, "\(next.errors)")
  }

  @Test("a server does not store into the directory of a collector")
  func directoryOfCollector() throws {
    let rig = try CollectRig(collectors: 1)
    try rig.finish()
    let server = try sluice(["serve", "--listen", "127.0.0.1:0", "--directory", rig.directories[0].path])
    #expect(try server.wait() == 74)
    #expect(server.errors.joined().contains("contains recordings of a collector"), "\(server.errors)")
  }

  @Test("a collector that is stopped while it asks lost brokers for a message exits with 0")
  func stoppedWithoutBrokers() throws {
    // The question for the beginning of an upload gets no answer.
    let broker = try TestBroker(
      """
      authorization { users: [
        { user: "server", password: "s" }
        { user: "collector", password: "c", permissions: { publish: { deny: "$JS.API.STREAM.MSG.GET.>" } } }
      ] }
      """)
    let directory = try TemporaryDirectory()
    let brokers = try BrokerLoop(.init(servers: ["nats://server:s@127.0.0.1:\(broker.port)"]))
    let stream = try brokers.open("sluice")
    // The checkpoint at the end takes a second, in which the question fails several times.
    let collector = try TestProcess(
      "strace",
      [
        "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=1000000",
        try sluicePath(), "collect", "nats://collector:c@127.0.0.1:\(broker.port)", "--directory", directory.path,
      ])
    try collector.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
    let headers: [MessageContent.Header] = [
      .init("Stream-ID", "a"), .init("Stream-Offset", "5"), .init("Upload-Offset", "5"),
      .init("Sluice-CRC32", "00000000"), .init("Sluice-Publisher", "p.2"), .init("Sluice-Number", "2"),
      .init("Sluice-Chain", "0"),
    ]
    _ = try stream.publish(.init(headers: headers, payload: []), to: String(repeating: "0", count: 32), after: 0).get()
    try waitUntil("the message is delivered") {
      let consumers: String = try brokers.wait("the consumers") { client, done in
        client.ask("CONSUMER.LIST.sluice", "", done)
      }
      return consumers.contains("\"consumer_seq\":1")
    }
    try broker.kill()
    try collector.lines.first("the loss of the brokers") { $0.text.contains("The collector retries") }
    collector.signal(SIGTERM)
    #expect(try collector.wait() == 0, "\(collector.errors)")
  }

  @Test("a collector uses the broker of its list that has JetStream, whichever is connected first")
  func brokersWithoutJetStream() throws {
    let (broker, others) = (try TestBroker(), try (0..<3).map { _ in try TestBroker(jetStream: false) })
    let directory = try TemporaryDirectory()
    _ = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    let list = (others + [broker]).map(\.url).joined(separator: ",")
    // libnats tries them in random order.
    for _ in 0..<3 {
      let collector = try sluice(["collect", list, "--directory", directory.path])
      try collector.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
      collector.signal(SIGTERM)
      #expect(try collector.wait() == 0, "\(collector.errors)")
    }
  }

  /// A broker with a log and a token, and the arguments of a collector that uses both.
  private func collectorWithToken() throws -> (broker: TestBroker, scratch: TemporaryDirectory, arguments: [String]) {
    let broker = try TestBroker("authorization { token: \"right\" }")
    let scratch = try TemporaryDirectory()
    var options = BrokerOptions(servers: [broker.url])
    options.token = "right"
    _ = try BrokerLoop(options).open("sluice")
    let token = try scratch.write("token", "right\n")
    let directory = "\(scratch.path)/recordings"
    #expect(mkdir(directory, 0o700) == 0)
    return (broker, scratch, ["collect", broker.url, "--directory", directory, "--store-token-file", token])
  }

  @Test("a collector with withdrawn credentials exits with 77")
  func withdrawn() throws {
    let (broker, scratch, arguments) = try collectorWithToken()
    let collector = try sluice(arguments)
    try collector.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
    try broker.kill()
    try broker.start("authorization { token: \"another\" }")
    #expect(try collector.wait() == 77, "\(collector.errors)")
    withExtendedLifetime(scratch) {}
  }

  @Test("a collector with withdrawn credentials exits with 77 even if the disk refuses its last checkpoint")
  func withdrawnOnBrokenDisk() throws {
    let (broker, scratch, arguments) = try collectorWithToken()
    // The first collector of a directory begins with a checkpoint, and later ones do not.
    let first = try sluice(arguments)
    try first.lines.first("the first collector to begin") { $0.text.hasPrefix("collecting ") }
    first.signal(SIGTERM)
    #expect(try first.wait() == 0, "\(first.errors)")
    let refusal = ["-e", "trace=renameat,renameat2", "-e", "inject=renameat,renameat2:error=EIO"]
    let collector = try TestProcess(
      "strace", ["-D", "-f", "-qq", "-o", "/dev/null"] + refusal + [try sluicePath()] + arguments)
    try collector.lines.first("the second collector to begin") { $0.text.hasPrefix("collecting ") }
    try broker.kill()
    try broker.start("authorization { token: \"another\" }")
    #expect(try collector.wait() == 77, "\(collector.errors)")
    withExtendedLifetime(scratch) {}
  }
}
