// Brokers that return with an earlier copy of their store. Other messages then get the sequences of collected ones.

import BrokerTesting
import Glibc
import JetStream
import LogServing
import NetworkTesting
import Testing

@Suite("sluice collect and brokers that return with an earlier store")
struct CollectReturnedStoreTests {
  /// What is removed from the log before the collector asks the brokers again.
  enum Removal: CaseIterable {
    case nothing
    /// The last message up to the position of the collector.
    case last
    /// All messages up to the position of the collector.
    case all
  }

  /// The state of the log and of the collector.
  struct Situation: CustomTestStringConvertible {
    var removal: Removal
    /// The last message of the log when the collector asks again.
    var end: Int
    /// Whether the collector runs all the time. Otherwise, the next one continues at its checkpoint.
    var keepsRunning: Bool

    var testDescription: String { "\(removal) removed, end at \(end), \(keepsRunning ? "running" : "restarted")" }

    static func all(ends: [Int]) -> [Situation] {
      Removal.allCases.flatMap { removal in
        ends.flatMap { end in
          [false, true].map { Situation(removal: removal, end: end, keepsRunning: $0) }
        }
      }
    }
  }

  /// The last message that the copy has.
  private static let copied = 3
  /// The last message that is collected before the brokers return.
  private static let position = 6

  private let broker: TestBroker
  private let directory: TemporaryDirectory
  private let brokers: BrokerLoop
  private let stream: TestStream

  init() throws {
    (broker, directory) = (try TestBroker(), try TemporaryDirectory())
    brokers = try BrokerLoop(.init(servers: [broker.url]))
    stream = try brokers.open("sluice")
  }

  // MARK: Messages

  /// Stores a complete upload of one byte. Its message gets the sequence `number`.
  private func publish(_ number: Int, _ id: String) throws {
    // 0xD202EF8D is the checksum of one byte 0.
    var content = MessageContent(
      headers: [
        .init("Stream-ID", id), .init("Stream-Offset", "0"), .init("Upload-Offset", "0"), .init("Upload-Length", "1"),
        .init("Upload-Complete", "?1"), .init("Sluice-CRC32", "d202ef8d"), .init("Sluice-Publisher", "\(id).1"),
        .init("Sluice-Number", "1"), .init("Sluice-Request", "POST /x"),
      ], payload: [0])
    content.headers.append(.init("Sluice-Chain", LogEntry.Link().next(content).digest))
    let digits = String(id.utf8.reduce(UInt64(0)) { $0 << 8 | UInt64($1) }, radix: 16)
    let token = String(repeating: "0", count: 32 - digits.count) + digits
    // The connection may be interrupted, and the acknowledgement lost.
    try waitUntil("message \(number) is stored") {
      guard case .success(let last) = Result(catching: { try stream.lastMessage(of: token) }) else { return false }
      if let last { return last.sequence == UInt64(number) }
      _ = try? stream.publish(content, to: token, after: 0).get()
      return false
    }
  }

  /// Stores a complete upload of two messages, which get the sequences 1 and 2. Returns its token.
  private func publishPair(_ id: String) throws -> String {
    let token = String(repeating: "a", count: 32)
    var link = LogEntry.Link()
    for offset in 0...1 {
      var headers: [MessageContent.Header] = [
        .init("Stream-ID", id), .init("Stream-Offset", "\(offset)"), .init("Upload-Offset", "\(offset)"),
        .init("Upload-Length", "2"), .init("Sluice-CRC32", "d202ef8d"),
        .init("Sluice-Publisher", "\(id).\(offset + 1)"), .init("Sluice-Number", "\(offset + 1)"),
      ]
      headers.append(offset == 0 ? .init("Sluice-Request", "POST /x") : .init("Upload-Complete", "?1"))
      var content = MessageContent(headers: headers, payload: [0])
      link = link.next(content)
      content.headers.append(.init("Sluice-Chain", link.digest))
      _ = try stream.publish(content, to: token, after: UInt64(offset)).get()
    }
    return token
  }

  private func remove(_ removal: Removal, upTo last: Int) throws {
    switch removal {
    case .nothing: break
    case .last: try brokers.remove(UInt64(last), from: "sluice")
    case .all: for number in 1...last { try brokers.remove(UInt64(number), from: "sluice") }
    }
  }

  // MARK: Collectors

  private func collect(_ options: [String] = []) throws -> TestProcess {
    let process = try sluice(["collect", broker.url, "--directory", directory.path] + options)
    try process.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
    return process
  }

  private func isCollected(_ id: String) -> Bool { access("\(directory.path)/x-\(id).bin", F_OK) == 0 }

  /// A collector whose checkpoint has ``position``. It is stopped (SIGSTOP), or has ended.
  private func collectFirst(_ situation: Situation) throws -> TestProcess {
    let collector = try collect()
    try waitUntil("the checkpoint has all messages") {
      let text = String(decoding: try directory.contents(".collected"), as: UTF8.self)
      return text.contains("sequence=\(Self.position),")
    }
    if situation.keepsRunning {
      collector.signal(SIGSTOP)
    } else {
      try end(collector)
    }
    return collector
  }

  private func end(_ collector: TestProcess) throws {
    collector.signal(SIGTERM)
    #expect(try collector.wait() == 0, "\(collector.errors)")
  }

  /// Continues with this collector or with the next one, until it has collected one more message.
  ///
  /// - Returns: whether it has reported a loss of messages.
  private func collectMore(_ situation: Situation, _ stopped: TestProcess, reportsLoss: Bool) throws -> Bool {
    let collector = situation.keepsRunning ? stopped : try collect()
    if situation.keepsRunning { collector.signal(SIGCONT) }
    func hasReported(_ line: TestProcess.Line) -> Bool { line.text.contains("the brokers have lost messages") }
    if reportsLoss { try collector.lines.first("the report of the loss", where: hasReported) }
    try publish(situation.end + 1, "more")
    try waitUntil("the next message is collected") { isCollected("more") }
    try end(collector)
    return collector.lines.all.contains(where: hasReported)
  }

  // MARK: Tests

  @Test(
    "a collector gets each message of the returned log, whatever is removed, and wherever the log ends",
    arguments: Situation.all(ends: [position - 1, position, position + 2]))
  func returned(_ situation: Situation) throws {
    for number in 1...Self.copied { try publish(number, "a\(number)") }
    try broker.stop()
    try broker.saveStore()
    try broker.start()
    for number in (Self.copied + 1)...Self.position { try publish(number, "b\(number)") }
    let first = try collectFirst(situation)
    try broker.stop()
    try broker.restoreStore()
    try broker.start()
    let new = Array((Self.copied + 1)...situation.end)
    for number in new { try publish(number, "c\(number)") }
    let lastOld = min(situation.end, Self.position)
    try remove(situation.removal, upTo: lastOld)
    let left = new.filter { number in
      switch situation.removal {
      case .nothing: true
      case .last: number != lastOld
      case .all: number > lastOld
      }
    }
    // Without a message that was not collected up to the position, nothing can be missing.
    let isLossVisible = situation.end < Self.position || left.contains { $0 <= Self.position }
    let hasReported = try collectMore(situation, first, reportsLoss: isLossVisible)
    #expect(hasReported == isLossVisible)
    #expect(left.filter { !isCollected("c\($0)") } == [])
    let collected = (1...Self.position).map { $0 > Self.copied ? "b\($0)" : "a\($0)" }
    #expect(collected.filter { !isCollected($0) } == [])
  }

  @Test(
    "a collector reports no loss if the brokers have only removed messages",
    arguments: Situation.all(ends: [position, position + 2]))
  func kept(_ situation: Situation) throws {
    for number in 1...Self.position { try publish(number, "a\(number)") }
    let first = try collectFirst(situation)
    try broker.stop()
    try broker.start()
    try waitUntil("the broker answers") { (try? stream.lastMessage(of: "*")) != nil }
    for number in (Self.position + 1)..<(situation.end + 1) { try publish(number, "a\(number)") }
    try remove(situation.removal, upTo: Self.position)
    #expect(try !collectMore(situation, first, reportsLoss: false))
    #expect((1...situation.end).filter { !isCollected("a\($0)") } == [])
  }

  @Test("a collector continues at a checkpoint of an earlier version, which has no time")
  func withoutTime() throws {
    let situation = Situation(removal: .last, end: Self.position, keepsRunning: false)
    for number in 1...Self.position { try publish(number, "a\(number)") }
    let first = try collectFirst(situation)
    let text = String(decoding: try directory.contents(".collected"), as: UTF8.self)
    let old = text.replacing(#/, time="[0-9]+"/#, with: "")
    #expect(old != text)
    try directory.write(".collected", old)
    try remove(.last, upTo: Self.position)
    #expect(try !collectMore(situation, first, reportsLoss: false))
    // The latest time of the messages up to the old position is still unknown.
    let last = String(decoding: try directory.contents(".collected"), as: UTF8.self)
    #expect(!last.contains("time="), "\(last)")
  }

  @Test("a collector that reads the log again does not report the rest of an upload that it has purged")
  func purgedBefore() throws {
    let token = try publishPair("a")
    let first = try collect(["--after-collect", "purge"])
    try waitUntil("the first message is removed") { try stream.messages(of: token).count == 1 }
    try end(first)
    try broker.stop()
    try broker.saveStore()
    try broker.start()
    for number in 3...4 { try publish(number, "b\(number)") }
    let second = try collect(["--after-collect", "purge"])
    try waitUntil("the later messages are collected") { isCollected("b3") && isCollected("b4") }
    try end(second)
    try broker.stop()
    try broker.restoreStore()
    try broker.start()
    try waitUntil("the broker answers") { (try? stream.lastMessage(of: "*")) != nil }
    let third = try collect(["--after-collect", "purge"])
    try third.lines.first("the report of the loss") { $0.text.contains("the brokers have lost messages") }
    try publish(3, "more")
    try waitUntil("the next message is collected") { isCollected("more") }
    try end(third)
    #expect(!third.output.contains { $0.contains("whose beginning is no longer in the log") }, "\(third.output)")
  }
}
