// Tests sluice collect with a stream that the disk does not accept for a while, and with others beside it.

import BrokerTesting
import EventLoops
import Glibc
import JetStream
import LogCollecting
import NetworkTesting
import SyncGate
import Testing
import UploadServer

@Suite("Streams of sluice collect that wait")
struct CollectWaitTests {
  /// A server with a log, and collectors in this process that cannot open the recording of the stream `stuck`.
  private final class WaitRig {
    /// Together, they are larger than what a waiting stream keeps.
    private static let pieces = (0..<300).map { number in
      String(repeating: Character(UnicodeScalar(UInt8(ascii: "a") + UInt8(number % 26))), count: 8192)
    }
    /// The content of the stream `stuck`.
    static var content: [UInt8] { pieces.flatMap { Array($0.utf8) } }

    let broker = try! TestBroker()
    let directory: TemporaryDirectory
    let events: EventLog<ServerEvent>
    private let brokers: BrokerLoop
    private let server: UploadServer
    private let client: RawClient
    private var location = ""

    /// - Parameter refusal: the error of each opening of the recording. 0 for none.
    init(_ refusal: Int32 = EMFILE) throws {
      (directory, events) = (try TemporaryDirectory(), try EventLog<ServerEvent>())
      let options = BrokerOptions(servers: [broker.url])
      server = try UploadServer(
        configuration: .init(
          listen: [try ListenAddress("127.0.0.1:0")], storage: .brokers(UploadServer.Brokers(options))
        ) { _ in })
      try server.start()
      client = try RawClient(server.localAddresses[0])
      brokers = try BrokerLoop(options)
      refuse(refusal)
    }

    /// Refuses to open the recording from now on.
    func refuse(_ error: Int32) { open_gate_fail(error, "/x-stuck.part") }

    /// Lets the recording be opened.
    func repair() { open_gate_fail(0, "") }

    // MARK: The collector

    func collect() throws -> (collector: LogCollector, ended: EventLog<String>) {
      try CollectFaultTests.collect(from: broker, into: directory, events)
    }

    /// The number of readers that the brokers know. They forget a reader a minute after its end.
    func readerCount() throws -> Int {
      let list: String = try brokers.wait("the readers") { client, done in
        client.ask("CONSUMER.LIST.sluice", "", done)
      }
      return list.split(separator: "\"stream_name\"").count - 1
    }

    func checkpoint() throws -> String { String(decoding: try directory.contents(".collected"), as: UTF8.self) }

    /// Waits until a checkpoint without omitted streams includes all messages.
    func waitUntilCollected() throws {
      let newest = try brokers.open("sluice").lastMessage(of: "*")?.sequence ?? 0
      try waitUntil("message \(newest) is collected") {
        let text = try checkpoint()
        let reached = text.firstMatch(of: /sequence=([0-9]+)/).flatMap { UInt64($0.1) } ?? 0
        return reached >= newest && !text.contains("omitted")
      }
    }

    // MARK: Uploads

    private func finalStatus() throws -> Int { try client.final().answer.status }

    /// Sends all of the stream `stuck` except its last piece, in a message per piece.
    func sendAllButEnd() throws {
      try client.request("POST", "/x", ["Upload-Complete: ?0", "Stream-ID: stuck"], body: Self.pieces[0])
      location = try client.final().answer["location"] ?? ""
      for (number, piece) in Self.pieces.enumerated().dropFirst().dropLast() {
        try client.patch(location, at: number * 8192, body: piece)
        guard try finalStatus() == 204 else { throw TestFailure("piece \(number) is not stored") }
      }
    }

    /// The same, and waits until the collector reports that it cannot store it.
    func beginStuck() throws {
      try sendAllButEnd()
      try events.first("the report") { $0.reason?.hasPrefix("x-stuck.part waits: ") == true }
    }

    /// Sends the last piece of the stream `stuck`.
    func endStuck() throws {
      let number = Self.pieces.count - 1
      try client.patch(location, at: number * 8192, completes: true, body: Self.pieces[number])
      guard try finalStatus() == 201 else { throw TestFailure("the last piece is not stored") }
    }

    /// Sends another stream, and waits until it is stored.
    func sendOther(_ id: String) throws {
      try client.request("POST", "/x", ["Upload-Complete: ?1", "Stream-ID: \(id)"], body: id)
      guard try finalStatus() == 201 else { throw TestFailure("\(id) is not stored") }
      try waitUntil("\(id) is collected") { access("\(directory.path)/x-\(id).sidecar", F_OK) == 0 }
    }
  }

  @Test(
    "a stream that waits is reported at the beginning and the end, delays no others, and is then read again",
    arguments: [EMFILE, EACCES, EPERM, EISDIR, ELOOP, ENXIO])
  func repaired(_ refusal: Int32) async {
    // A separate process, because the refusals apply to all its threads.
    await #expect(processExitsWith: .success) { [refusal] in
      let rig = try WaitRig(refusal)
      let (collector, ended) = try rig.collect()
      try rig.beginStuck()
      try rig.sendOther("a")
      try rig.endStuck()
      try rig.sendOther("b")
      let count = try rig.readerCount()
      rig.repair()
      try waitUntil("the stream is stored") { access("\(rig.directory.path)/x-stuck.bin", F_OK) == 0 }
      guard try rig.directory.contents("x-stuck.bin") == WaitRig.content else { exit(2) }
      for beginning in ["x-stuck.part waits: ", "x-stuck.part waits no longer"] {
        guard rig.events.all.count(where: { $0.reason?.hasPrefix(beginning) == true }) == 1 else { exit(3) }
      }
      // Only responses have a status, and there is one per attempt.
      guard rig.events.all.allSatisfy({ $0.status == nil }) else { exit(6) }
      // The collector has not kept all messages.
      guard try rig.readerCount() > count else { exit(4) }
      try rig.waitUntilCollected()
      collector.stop()
      guard try ended.wait("the end", { $0.first }) == "stopped" else { exit(5) }
      try rig.broker.kill()
      exit(EXIT_SUCCESS)
    }
  }

  @Test("a stream that waits when the collector is stopped is stored by the next one, and no other stream again")
  func restarted() async {
    await #expect(processExitsWith: .success) {
      let rig = try WaitRig()
      let (collector, ended) = try rig.collect()
      try rig.beginStuck()
      try rig.sendOther("a")
      collector.stop()
      guard try ended.wait("the end", { $0.first }) == "stopped" else { exit(2) }
      guard try rig.checkpoint().contains("omitted=\"x-stuck\"") else { exit(3) }
      for ending in ["bin", "sidecar"] {
        guard unlink("\(rig.directory.path)/x-a.\(ending)") == 0 else { exit(4) }
      }
      rig.repair()
      let (next, nextEnded) = try rig.collect()
      try rig.endStuck()
      try rig.sendOther("b")
      try rig.waitUntilCollected()
      guard try rig.directory.contents("x-stuck.bin") == WaitRig.content else { exit(5) }
      guard !rig.directory.names.contains("x-a.bin") else { exit(6) }
      next.stop()
      guard try nextEnded.wait("the end", { $0.first }) == "stopped" else { exit(7) }
      try rig.broker.kill()
      exit(EXIT_SUCCESS)
    }
  }

  @Test(
    "a stream whose recording cannot be opened at the start is left out, and stored by the next collector that can",
    arguments: [EACCES, EPERM, EISDIR, ENOTDIR, ELOOP, ENXIO])
  func refusedAtStart(_ refusal: Int32) async {
    await #expect(processExitsWith: .success) { [refusal] in
      let rig = try WaitRig(0)
      let (first, firstEnded) = try rig.collect()
      try rig.sendAllButEnd()
      try rig.waitUntilCollected()
      first.stop()
      guard try firstEnded.wait("the end", { $0.first }) == "stopped" else { exit(2) }
      // The remains of a collector that was killed after its last checkpoint.
      let descriptor = open("\(rig.directory.path)/x-stuck.part", O_WRONLY | O_APPEND | O_CLOEXEC)
      guard write(descriptor, "never sent", 10) == 10, close(descriptor) == 0 else { exit(3) }
      let stored = try rig.directory.contents("x-stuck.part")
      rig.refuse(refusal)
      let (second, secondEnded) = try rig.collect()
      func reports(_ words: String) -> Int { rig.events.all.count { $0.reason?.hasPrefix(words) == true } }
      guard reports("cannot collect the stream x-stuck: ") == 1 else { exit(4) }
      try rig.sendOther("a")
      try rig.endStuck()
      try rig.sendOther("b")
      second.stop()
      guard try secondEnded.wait("the end", { $0.first }) == "stopped" else { exit(5) }
      guard try rig.checkpoint().contains("omitted=\"x-stuck\"") else { exit(6) }
      rig.repair()
      guard try rig.directory.contents("x-stuck.part") == stored else { exit(7) }
      let (third, thirdEnded) = try rig.collect()
      try rig.waitUntilCollected()
      guard try rig.directory.contents("x-stuck.bin") == WaitRig.content else { exit(8) }
      third.stop()
      guard try thirdEnded.wait("the end", { $0.first }) == "stopped" else { exit(9) }
      guard reports("cannot collect ") == 1, reports("x-stuck.part waits: ") == 0 else { exit(10) }
      try rig.broker.kill()
      exit(EXIT_SUCCESS)
    }
  }
}
