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

  // MARK: The broker

  /// Copies the log. Returns when the broker answers again.
  private func saveStore() throws {
    try broker.stop()
    try broker.saveStore()
    try restart()
  }

  /// Replaces the log by the copy. Returns when the broker answers again.
  private func restoreStore() throws {
    try broker.stop()
    try broker.restoreStore()
    try restart()
  }

  private func restart() throws {
    try broker.start()
    try waitUntil("the broker answers") { (try? stream.lastMessage(of: "*")) != nil }
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
    let token = Self.token(of: id)
    // The connection may be interrupted, and the acknowledgement lost.
    try waitUntil("message \(number) is stored") {
      guard case .success(let last) = Result(catching: { try stream.lastMessage(of: token) }) else { return false }
      if let last { return last.sequence == UInt64(number) }
      _ = try? stream.publish(content, to: token, after: 0).get()
      return false
    }
  }

  /// The token of the upload of a stream.
  private static func token(of id: String) -> String {
    let digits = String(id.utf8.reduce(UInt64(0)) { $0 << 8 | UInt64($1) }, radix: 16)
    return String(repeating: "0", count: 32 - digits.count) + digits
  }

  /// An upload of several messages. A copy of the value continues it in a copy of the log.
  private struct Upload {
    let id: String
    /// Nil if it is not announced.
    let length: Int?
    let stream: TestStream
    var token: String { CollectReturnedStoreTests.token(of: id) }
    private var link = LogEntry.Link()
    /// The sequence of its last message.
    private var last: UInt64 = 0

    init(_ id: String, length: Int? = nil, in stream: TestStream) {
      (self.id, self.length, self.stream) = (id, length, stream)
    }

    /// Stores its next message.
    ///
    /// - Parameters:
    ///   - offset: of the bytes in the upload.
    ///   - streamOffset: of the bytes in the stream.
    mutating func publish(
      _ bytes: [UInt8], at offset: Int, streamOffset: Int, by publisher: String, completes: Bool = false
    ) throws {
      var headers: [MessageContent.Header] = [
        .init("Stream-ID", id), .init("Stream-Offset", "\(streamOffset)"), .init("Upload-Offset", "\(offset)"),
        .init("Sluice-CRC32", Self.checksum(bytes)), .init("Sluice-Publisher", "\(publisher).\(link.number + 1)"),
        .init("Sluice-Number", "\(link.number + 1)"),
      ]
      if let length { headers.append(.init("Upload-Length", "\(length)")) }
      if link.number == 0 { headers.append(.init("Sluice-Request", "POST /x")) }
      if completes { headers.append(.init("Upload-Complete", "?1")) }
      var content = MessageContent(headers: headers, payload: bytes)
      link = link.next(content)
      content.headers.append(.init("Sluice-Chain", link.digest))
      last = try stream.publish(content, to: token, after: last).get()
    }

    /// The CRC-32 of these bytes in hexadecimal.
    private static func checksum(_ bytes: [UInt8]) -> String {
      let sum = bytes.reduce(UInt32.max) { sum, byte in
        (0..<8).reduce(sum ^ UInt32(byte)) { sum, _ in sum & 1 == 0 ? sum >> 1 : sum >> 1 ^ 0xEDB8_8320 }
      }
      let digits = String(~sum, radix: 16)
      return String(repeating: "0", count: 8 - digits.count) + digits
    }
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

  private func waitForCheckpoint(of number: Int) throws {
    try waitUntil("the checkpoint has message \(number)") { try checkpoint.contains("sequence=\(number),") }
  }

  private var checkpoint: String {
    get throws { String(decoding: try directory.contents(".collected"), as: UTF8.self) }
  }

  private func isCollected(_ id: String) -> Bool { access("\(directory.path)/x-\(id).bin", F_OK) == 0 }

  /// A collector whose checkpoint has ``position``. It is stopped (SIGSTOP), or has ended.
  private func collectFirst(_ situation: Situation) throws -> TestProcess {
    let collector = try collect()
    try waitForCheckpoint(of: Self.position)
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
    try saveStore()
    for number in (Self.copied + 1)...Self.position { try publish(number, "b\(number)") }
    let first = try collectFirst(situation)
    try restoreStore()
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
    try restart()
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
    let text = try checkpoint
    let old = text.replacing(#/, time="[0-9]+"/#, with: "")
    #expect(old != text)
    try directory.write(".collected", old)
    try remove(.last, upTo: Self.position)
    #expect(try !collectMore(situation, first, reportsLoss: false))
    // The latest time of the messages up to the old position is still unknown.
    let last = try checkpoint
    #expect(!last.contains("time="), "\(last)")
  }

  @Test("a collector that reads the log again does not report the rest of an upload that it has purged")
  func purgedBefore() throws {
    var upload = Upload("a", length: 2, in: stream)
    for offset in 0...1 {
      try upload.publish([0], at: offset, streamOffset: offset, by: "a", completes: offset == 1)
    }
    let token = upload.token
    let first = try collect(["--after-collect", "purge"])
    try waitUntil("the first message is removed") { try stream.messages(of: token).count == 1 }
    try end(first)
    try saveStore()
    for number in 3...4 { try publish(number, "b\(number)") }
    let second = try collect(["--after-collect", "purge"])
    try waitUntil("the later messages are collected") { isCollected("b3") && isCollected("b4") }
    try end(second)
    try restoreStore()
    let third = try collect(["--after-collect", "purge"])
    try third.lines.first("the report of the loss") { $0.text.contains("the brokers have lost messages") }
    try publish(3, "more")
    try waitUntil("the next message is collected") { isCollected("more") }
    try end(third)
    #expect(!third.output.contains { $0.contains("whose beginning is no longer in the log") }, "\(third.output)")
  }

  // MARK: Unfinished uploads

  /// An upload that is unfinished when the brokers return with its first message alone.
  struct Unfinished: CustomTestStringConvertible {
    enum Kind: CaseIterable {
      /// It has no hole.
      case resumable
      /// A plain stream that has a hole before its second message in the former log.
      case formerHole
      /// A plain stream that has a hole before its second message in the returned log.
      case presentHole
    }

    /// A message: its offset in the upload, and its stream offsets.
    typealias Piece = (offset: Int, range: Range<Int>)

    var kind: Kind
    /// Whether the returned log has the same bytes at each stream offset as the former one.
    var isSame: Bool
    var purges: Bool
    var keepsRunning: Bool

    var testDescription: String {
      "\(kind), \(isSame ? "same" : "different") bytes, \(purges ? "purge" : "keep"), "
        + (keepsRunning ? "running" : "restarted")
    }

    static let all: [Unfinished] = Kind.allCases.flatMap { kind in
      (0..<8).map { number in
        Unfinished(kind: kind, isSame: number & 1 == 0, purges: number & 2 == 0, keepsRunning: number & 4 == 0)
      }
    }

    /// The second message in the former log.
    var former: Piece { (1000, kind == .formerHole ? 1500..<2000 : 1000..<2000) }

    /// The messages after the first one in the returned log.
    var present: [Piece] {
      kind == .presentHole ? [(1000, 1700..<2700), (2000, 2700..<4000)] : [(1000, 1000..<2000), (2000, 2000..<4000)]
    }
  }

  /// Whether the recordings of a stream together contain these bytes from that stream offset on.
  private func isStored(_ bytes: [UInt8], at offset: Int, of id: String) throws -> Bool {
    let log = String(decoding: (try? directory.contents(".parts/x-\(id)")) ?? [], as: UTF8.self)
    var starts = [1: 0]
    for line in log.split(separator: "\n") {
      func number(_ key: String) -> Int? {
        let field = line.split(separator: ", ").first { $0.hasPrefix("\(key)=") }
        return field.flatMap { Int($0.dropFirst(key.utf8.count + 1)) }
      }
      if let part = number("part"), let start = number("start") { starts[part] = start }
    }
    let parts: [(start: Int, bytes: [UInt8])] = try starts.map { part, start in
      let base = part == 1 ? "x-\(id)" : "x-\(id)~\(part)"
      let file = directory.names.contains("\(base).bin") ? "\(base).bin" : "\(base).part"
      return (start: start, bytes: try directory.contents(file))
    }
    return bytes.indices.allSatisfy { index in
      parts.contains { part in
        let place = offset + index - part.start
        return part.bytes.indices.contains(place) && part.bytes[place] == bytes[index]
      }
    }
  }

  @Test(
    "each byte of the returned log is at its stream offset, or its upload is refused and its messages stay",
    arguments: Unfinished.all)
  func unfinished(_ situation: Unfinished) throws {
    // No byte is 0, as those of holes are.
    func bytes(_ range: Range<Int>) -> [UInt8] { range.map { UInt8($0 % 251 + 1) } }
    let options = situation.purges ? ["--after-collect", "purge"] : []
    var upload = Upload("p", length: situation.kind == .resumable ? 4000 : nil, in: stream)
    try upload.publish(bytes(0..<1000), at: 0, streamOffset: 0, by: "first")
    try saveStore()
    var lost = upload
    let former = situation.former
    try lost.publish(bytes(former.range), at: former.offset, streamOffset: former.range.lowerBound, by: "former")
    var collector = try collect(options)
    try waitForCheckpoint(of: 2)
    if !situation.keepsRunning { try end(collector) }
    try restoreStore()
    var sent: [(offset: Int, bytes: [UInt8])] = []
    for piece in situation.present {
      let content = bytes(piece.range).map { situation.isSame ? $0 : ~$0 }
      sent.append((piece.range.lowerBound, content))
      try upload.publish(
        content, at: piece.offset, streamOffset: piece.range.lowerBound, by: "present",
        completes: sent.count == situation.present.count)
    }
    if !situation.keepsRunning { collector = try collect(options) }
    try collector.lines.first("the report of the loss") { $0.text.contains("the brokers have lost messages") }
    try waitForCheckpoint(of: 3)
    try end(collector)
    let hasAll = try sent.allSatisfy { try isStored($0.bytes, at: $0.offset, of: "p") }
    #expect(hasAll == situation.isSame, "\(collector.output)")
    guard !situation.isSame else { return }
    #expect(collector.output.contains { $0.contains("\"event\":\"refused\"") }, "\(collector.output)")
    let messages = try stream.messages(of: upload.token)
    #expect(messages.count == 3)
    let text = try checkpoint
    #expect(!text.contains("purge="), "\(text)")
  }

  @Test("an upload whose beginning was missing is collected when the brokers return with its beginning")
  func beginningReturns() throws {
    var upload = Upload("e", in: stream)
    for offset in 0...1 { try upload.publish([0], at: offset, streamOffset: offset, by: "first") }
    try saveStore()
    try brokers.remove(1, from: "sluice")
    try publish(3, "b")
    let collector = try collect()
    try collector.lines.first("the report of the missing beginning") {
      $0.text.contains("whose beginning is no longer in the log")
    }
    try waitForCheckpoint(of: 3)
    try restoreStore()
    try upload.publish([0], at: 2, streamOffset: 2, by: "present", completes: true)
    try waitUntil("the upload is collected") { isCollected("e") }
    try end(collector)
    let content = try directory.contents("x-e.bin")
    #expect(content == [0, 0, 0])
  }
}
