// What sluice collect forgets when its brokers have lost messages, and what it reports of their outages.

import BrokerTesting
import Glibc
import JetStream
import LogServing
import NetworkTesting
import Testing

@Suite("sluice collect and brokers that lose messages or their connections")
struct CollectRewindTests {
  /// A broker with an empty log, and a directory for a collector.
  private struct Rig {
    let broker: TestBroker
    let directory: TemporaryDirectory
    let stream: TestStream

    /// - Parameters:
    ///   - settings: lines for the configuration of the broker.
    ///   - user: the name and the password of a user who may do everything, followed by `@`.
    init(_ settings: String = "", user: String = "") throws {
      (broker, directory) = (try TestBroker(settings), try TemporaryDirectory())
      stream = try BrokerLoop(.init(servers: ["nats://\(user)127.0.0.1:\(broker.port)"])).open("sluice")
    }

    // MARK: Messages

    static func token(of id: String) -> String {
      let digits = String(id.utf8.reduce(UInt64(0)) { $0 << 8 | UInt64($1) }, radix: 16)
      return String(repeating: "0", count: 32 - digits.count) + digits
    }

    /// Stores an upload of zeros as one message, unless the log has it.
    ///
    /// - Parameter checksum: the CRC-32 of the zeros.
    func publish(_ id: String, count: Int = 1, checksum: String = "d202ef8d", completes: Bool = true) throws {
      var headers: [MessageContent.Header] = [
        .init("Stream-ID", id), .init("Stream-Offset", "0"), .init("Upload-Offset", "0"),
        .init("Sluice-CRC32", checksum), .init("Sluice-Publisher", "\(id).1"), .init("Sluice-Number", "1"),
        .init("Sluice-Request", "POST /x"),
      ]
      if completes { headers += [.init("Upload-Length", "\(count)"), .init("Upload-Complete", "?1")] }
      var content = MessageContent(headers: headers, payload: [UInt8](repeating: 0, count: count))
      content.headers.append(.init("Sluice-Chain", LogEntry.Link().next(content).digest))
      let (token, message) = (Self.token(of: id), content)
      // The connection may be interrupted, and the acknowledgement lost.
      try waitUntil("\(id) is in the log") {
        guard case .success(let last) = Result(catching: { try stream.lastMessage(of: token) }) else { return false }
        if last != nil { return true }
        _ = try? stream.publish(message, to: token, after: 0).get()
        return false
      }
    }

    // MARK: The collector

    /// Writes the checkpoint of an earlier collector of this log.
    ///
    /// - Parameters:
    ///   - position: the last fields of its first line.
    ///   - line: its second line.
    func writeCheckpoint(_ position: String, _ line: String) throws {
      let created = try stream.created
      let head = "collect=1, stream=\"sluice\", created=\"\(created)\", partition=\"1/1\", \(position)"
      try directory.write(".collected", "\(head)\n\(line)\nend=2\n")
    }

    var checkpoint: String {
      get throws { String(decoding: try directory.contents(".collected"), as: UTF8.self) }
    }

    /// - Parameter user: as for ``init(_:user:)``.
    func collect(_ options: [String] = [], user: String = "") throws -> TestProcess {
      let url = "nats://\(user)127.0.0.1:\(broker.port)"
      let process = try sluice(["collect", url, "--directory", directory.path] + options)
      try process.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
      return process
    }

    func waitUntilCollected(_ id: String) throws {
      try waitUntil("\(id) is collected") { access("\(directory.path)/x-\(id).bin", F_OK) == 0 }
    }

    func end(_ collector: TestProcess) throws {
      collector.signal(SIGTERM)
      #expect(try collector.wait() == 0, "\(collector.errors)")
    }
  }

  private static func waitForLoss(_ collector: TestProcess) throws {
    try collector.lines.first("the report of the loss") { $0.text.contains("the brokers have lost messages") }
  }

  @Test("a collector that waits for the beginning of an upload reads a log that has lost messages from its beginning")
  func duringQuestion() throws {
    // The question for the beginning of an upload gets no answer.
    let rig = try Rig(
      """
      authorization { users: [
        { user: "server", password: "s" }
        { user: "collector", password: "c", permissions: { publish: { deny: "$JS.API.STREAM.MSG.GET.>" } } }
      ] }
      """, user: "server:s@")
    try rig.publish("b")
    // The second message of an upload.
    let headers: [MessageContent.Header] = [
      .init("Stream-ID", "a"), .init("Stream-Offset", "5"), .init("Upload-Offset", "5"),
      .init("Sluice-CRC32", "00000000"), .init("Sluice-Publisher", "p.2"), .init("Sluice-Number", "2"),
      .init("Sluice-Chain", "0"),
    ]
    let part = MessageContent(headers: headers, payload: [])
    _ = try rig.stream.publish(part, to: Rig.token(of: "a"), after: 0).get()
    // An earlier collector has applied ten messages, except those of a stream that had to wait.
    try rig.writeCheckpoint(
      "sequence=0, mark=\"\", applied=10, applied-mark=\"m\"", "omitted=\"x-o\", from=1")
    let collector = try rig.collect(user: "collector:c@")
    try Self.waitForLoss(collector)
    try rig.waitUntilCollected("b")
    try rig.end(collector)
  }

  @Test("no message is removed because a checkpoint states that lost messages of the same sequences may be removed")
  func purgeOfLost() throws {
    let rig = try Rig()
    try rig.publish("p", completes: false)
    let token = Rig.token(of: "p")
    let sequence = try #require(try rig.stream.lastMessage(of: token)).sequence
    // In the former log, a recording with the messages before that sequence was complete.
    try rig.writeCheckpoint("sequence=1000, mark=\"\"", "purge=\"\(token)\", before=\(sequence)")
    let collector = try rig.collect(["--after-collect", "purge"])
    try Self.waitForLoss(collector)
    try waitUntil("the checkpoint has the recording") {
      try rig.checkpoint.contains("file=\"x-p\", part=1, length=1")
    }
    #expect(try !rig.checkpoint.contains("purge=\"\(token)\""))
    // A purge would follow a checkpoint that states it.
    try rig.publish("q")
    let last = try #require(try rig.stream.lastMessage(of: Rig.token(of: "q"))).sequence
    try waitUntil("the next checkpoint is written") { try rig.checkpoint.contains("sequence=\(last),") }
    try rig.end(collector)
    let messages = try rig.stream.messages(of: token)
    #expect(messages.map(\.sequence) == [sequence] && messages[0].content.payload == [0], "\(messages)")
  }

  @Test("streams that wait take no more memory after the log was read again from its beginning")
  func memoryOfWaiting() throws {
    let rig = try Rig()
    let collector = try rig.collect()
    // Together, their messages take more than half of the memory for those that wait.
    let ids = (0..<40).map { "s\($0)" }
    for id in ids { #expect(mkdir("\(rig.directory.path)/x-\(id).part", 0o700) == 0) }
    for id in ids { try rig.publish(id, count: 900_000, checksum: "4537c7c6") }
    func waitForReports(_ count: Int) throws {
      try collector.lines.wait("\(count) streams to wait") { lines in
        lines.count { $0.text.contains(".part waits: ") } >= count ? true : nil
      }
    }
    try waitForReports(ids.count)
    try rig.broker.stop()
    try rig.broker.saveStore()
    try rig.broker.start()
    try rig.publish("z")
    try rig.waitUntilCollected("z")
    try rig.broker.stop()
    try rig.broker.restoreStore()
    try rig.broker.start()
    try Self.waitForLoss(collector)
    try waitForReports(2 * ids.count)
    for id in ids { #expect(rmdir("\(rig.directory.path)/x-\(id).part") == 0) }
    for id in ids { try rig.waitUntilCollected(id) }
    try rig.end(collector)
    #expect(!collector.output.contains { $0.contains("so many streams wait") }, "\(collector.output)")
  }

  @Test("a collector reports once that the brokers answer again, however many messages follow")
  func answersAgain() throws {
    let rig = try Rig()
    let collector = try rig.collect()
    try rig.publish("a")
    try rig.waitUntilCollected("a")
    try rig.broker.stop()
    try collector.lines.first("the outage") { $0.text.contains("The collector retries") }
    try rig.broker.start()
    try collector.lines.first("the end of the outage") { $0.text.contains("the brokers answer again") }
    for id in ["b", "c", "d"] {
      try rig.publish(id)
      try rig.waitUntilCollected(id)
    }
    try rig.end(collector)
    func count(_ words: String) -> Int { collector.output.count { $0.contains(words) } }
    #expect(count("the brokers answer again") <= count("The collector retries"), "\(collector.output)")
  }
}
