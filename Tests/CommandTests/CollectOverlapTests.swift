// Tests sluice collect with uploads that overlap closed recordings of their streams. A model states what all parts of a
// stream must contain together: each sent byte once, and a record of each missing one.

import BrokerTesting
import Glibc
import JetStream
import NetworkTesting
import PropertyTesting
import Testing

@Suite("Uploads of sluice collect that overlap")
struct CollectOverlapTests {
  enum Format: String, CaseIterable {
    case plain = "txt"
    case wav
  }

  /// Where the later upload begins.
  enum Beginning: CaseIterable { case before, at, inside, atEnd }
  /// Where it ends.
  enum End: CaseIterable { case atBeginning, inside, atEnd, beyond }

  /// When a collector is killed.
  enum Kill: CaseIterable { case never, before, within }

  /// A stream, one recording of which is closed before its later upload arrives.
  private struct Stream {
    let id: String
    let format: Format
    var content: [UInt8]
    /// The stream offsets that were sent.
    var sent: [Range<Int>] = []
    var path: String { "/x.\(format.rawValue)" }
    var base: String { "x-\(id)" }
    /// The file of the first recording.
    var file: String { "\(base).\(format.rawValue)" }

    init(_ id: String, _ format: Format) {
      (self.id, self.format) = (id, format)
      let head = format == .wav ? CollectRig.wavHead : []
      content = head + OffsetPattern(seed: 3)[head.count..<4000]
    }

    /// Begins an upload with these bytes. Returns its location.
    mutating func begin(_ rig: CollectRig, _ range: Range<Int>) throws -> String {
      let lines = ["Upload-Complete: ?0", "Stream-ID: \(id)", "Stream-Offset: \(range.lowerBound)"]
      let answer = try rig.send(.log, "POST", path, owner: "alice", lines, Array(content[range]))
      sent.append(range)
      return try #require(answer.location)
    }

    /// Continues an upload that began at `start`.
    mutating func append(
      _ rig: CollectRig, _ location: String, from start: Int, _ range: Range<Int>, completes: Bool
    ) throws {
      let lines = [
        "Upload-Complete: ?\(completes ? 1 : 0)", "Upload-Offset: \(range.lowerBound - start)",
        "Content-Type: application/partial-upload",
      ]
      let answer = try rig.send(.log, "PATCH", location, owner: "alice", lines, Array(content[range]))
      #expect([200, 201, 204].contains(answer.status), "\(id): \(answer)")
      sent.append(range)
    }

    /// Compares the parts in a directory with what was sent.
    func check(_ directory: TemporaryDirectory) throws {
      let length = sent.map(\.upperBound).max() ?? 0
      var counts = [Int](repeating: 0, count: length)
      var isNamed = [Bool](repeating: false, count: length)
      for part in try Part.all(of: base, in: directory) {
        for hole in part.holes { for offset in hole.clamped(to: 0..<length) { isNamed[offset] = true } }
        for offset in part.first..<max(part.first, part.start + part.bytes.count) {
          guard !part.holes.contains(where: { $0.contains(offset) }) else { continue }
          // A finished file has its true sizes.
          let isSize = format == .wav && ((4..<8).contains(offset) || (40..<44).contains(offset))
          let isRight = offset < length && (isSize || part.bytes[offset - part.start] == content[offset])
          guard isRight else { throw TestFailure("\(id): \(part.file) has a wrong byte at \(offset)") }
          counts[offset] += 1
        }
        if format == .wav { checkHead(part) }
      }
      for offset in 0..<length {
        let wasSent = sent.contains { $0.contains(offset) }
        guard counts[offset] == (wasSent ? 1 : 0), wasSent || isNamed[offset] else {
          throw TestFailure(
            "\(id): byte \(offset) is stored \(counts[offset]) times, sent: \(wasSent), named: \(isNamed[offset])")
        }
      }
    }

    /// Each part after the first bytes of the stream can be played.
    private func checkHead(_ part: Part) {
      let file = part.head + part.bytes
      guard part.start > 0 || file.starts(with: "RIFF".utf8) else { return }
      #expect(file.starts(with: "RIFF".utf8) && file[36..<40].elementsEqual("data".utf8), "\(id): \(part.file)")
      guard !part.file.hasSuffix(".part") else { return }
      let size = file[40..<44].reversed().reduce(0) { $0 << 8 | Int($1) }
      #expect(size == (file.count - 44) / 2 * 2, "\(id): \(part.file)")
    }
  }

  /// A file of a stream, as described in the stream's log.
  private struct Part {
    var file: String
    /// The stream offsets of its first byte after the copied header, and of the first one that it has received.
    var start: Int
    var first: Int
    /// The copied header.
    var head: [UInt8]
    var bytes: [UInt8]
    var holes: [Range<Int>]

    static func all(of base: String, in directory: TemporaryDirectory) throws -> [Part] {
      let log = String(decoding: try directory.contents(".parts/\(base)"), as: UTF8.self)
      var lines: [Int: Substring] = [:]
      for line in log.split(separator: "\n") { lines[try number("part", in: line)] = line }
      return try lines.map { part, line in
        let fileBase = part == 1 ? base : "\(base)~\(part)"
        let name = line.firstMatch(of: /file="([^"]+)"/).map { String($0.1) } ?? ""
        let file = directory.names.contains(name) ? name : "\(fileBase).part"
        let (content, header) = (try directory.contents(file), try number("header", in: line))
        let gaps = (try? directory.contents("\(fileBase).gaps")) ?? []
        let holes = String(decoding: gaps, as: UTF8.self).matches(of: /"offset":([0-9]+),"length":([0-9]+)/).map {
          (Int($0.1) ?? 0)..<(Int($0.1) ?? 0) + (Int($0.2) ?? 0)
        }
        return Part(
          file: file, start: try number("start", in: line), first: try number("first", in: line),
          head: Array(content.prefix(header)), bytes: Array(content.dropFirst(header)), holes: holes)
      }
    }

    private static func number(_ key: String, in line: Substring) throws -> Int {
      let field = line.split(separator: ", ").first { $0.hasPrefix("\(key)=") }
      return try #require(field.flatMap { Int($0.dropFirst(key.utf8.count + 1)) })
    }
  }

  /// A stream whose recording from `closed.lowerBound` on is closed, and the bytes of its later upload.
  private struct Case {
    var stream: Stream
    let closed: Range<Int>
    let later: Range<Int>
    var middle: Int { (later.lowerBound + later.upperBound) / 2 }
    var location = ""
    /// Whether the closed recording contains all bytes of the later upload.
    var isStored: Bool { closed.lowerBound <= later.lowerBound && later.upperBound <= closed.upperBound }

    /// Nil if no upload begins and ends there.
    init?(_ format: Format, _ beginning: Beginning, _ end: End) {
      // The first byte of the closed recording is the first one of the stream, unless bytes before it arrive later. Its
      // last byte is within a frame.
      closed = (beginning == .before ? 1000 : 0)..<2001
      let start =
        switch beginning {
        // The bytes before these never arrive. A stream without its header has no parts that can be played.
        case .before: format == .wav ? 0 : 500
        case .at: closed.lowerBound
        case .inside: 1300
        case .atEnd: closed.upperBound
        }
      let stop =
        switch end {
        case .atBeginning: closed.lowerBound
        case .inside: 1700
        case .atEnd: closed.upperBound
        case .beyond: 3000
        }
      guard start < stop else { return nil }
      later = start..<stop
      stream = Stream("\(beginning)-\(end)-\(format.rawValue)", format)
    }

    static var all: [Case] {
      Format.allCases.flatMap { format in
        Beginning.allCases.flatMap { beginning in End.allCases.compactMap { Case(format, beginning, $0) } }
      }
    }
  }

  private static func refusals(_ rig: CollectRig) -> [String] {
    rig.output.filter { $0.contains("\"event\":\"refused\"") }
  }

  @Test("each byte is stored once, and no sent byte is lost, wherever an upload overlaps", arguments: Kill.allCases)
  func overlaps(_ kill: Kill) throws {
    let rig = try CollectRig(collectors: 1, ["--finish-after", "1s"])
    let directory = rig.directories[0]
    var cases = Case.all
    for index in cases.indices {
      let closed = cases[index].closed
      _ = try cases[index].stream.begin(rig, closed)
    }
    try waitUntil("all recordings are closed") {
      let names = Set(directory.names)
      return cases.allSatisfy { names.contains($0.stream.file) }
    }
    if kill == .before { try rig.restart(0, SIGKILL) }
    for index in cases.indices {
      let range = cases[index].later.lowerBound..<cases[index].middle
      cases[index].location = try cases[index].stream.begin(rig, range)
    }
    if kill == .within { try rig.restart(0, SIGKILL) }
    for index in cases.indices {
      let (later, middle, location) = (cases[index].later, cases[index].middle, cases[index].location)
      try cases[index].stream.append(
        rig, location, from: later.lowerBound, middle..<later.upperBound, completes: true)
    }
    try rig.finish()
    for tested in cases {
      try tested.stream.check(directory)
      let hasNext = directory.names.contains { $0.hasPrefix("\(tested.stream.base)~") }
      #expect(hasNext == !tested.isStored, "\(tested.stream.id): \(directory.names)")
    }
    #expect(Self.refusals(rig).isEmpty)
  }

  @Test("bytes that are missing before and between those of a growing recording are stored", arguments: Format.allCases)
  func growing(_ format: Format) throws {
    let rig = try CollectRig(collectors: 1)
    var stream = Stream("a", format)
    let live = try stream.begin(rig, 1000..<2000)
    let late = try stream.begin(rig, 0..<601)
    try stream.append(rig, live, from: 1000, 2000..<2501, completes: false)
    try stream.append(rig, late, from: 0, 601..<1500, completes: true)
    try stream.append(rig, live, from: 1000, 2501..<2600, completes: true)
    try rig.finish()
    try stream.check(rig.directories[0])
    #expect(!rig.directories[0].names.contains { $0.hasSuffix(".part") })
    #expect(Self.refusals(rig).isEmpty)
  }

  @Test("a hole of a closed recording is filled by the upload that has its bytes")
  func hole() throws {
    let rig = try CollectRig(collectors: 1, ["--finish-after", "1s"])
    let directory = rig.directories[0]
    var stream = Stream("a", .plain)
    _ = try stream.begin(rig, 0..<100)
    _ = try stream.begin(rig, 400..<500)
    try waitUntil("the recording is closed") { directory.names.contains(stream.file) }
    let late = try stream.begin(rig, 50..<150)
    try stream.append(rig, late, from: 50, 150..<200, completes: false)
    let last = try stream.begin(rig, 300..<550)
    try stream.append(rig, last, from: 300, 550..<600, completes: true)
    try rig.finish()
    try stream.check(directory)
    #expect(Self.refusals(rig).isEmpty)
  }

  /// The bytes in the messages of an upload.
  private static func logged(_ rig: CollectRig, _ location: String) throws -> [UInt8] {
    let log = try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice")
    let messages = try log.messages(of: String(location.dropFirst("/.uploads/".count)))
    return Array(messages.map(\.content.payload).joined())
  }

  /// Begins a stream whose recording is closed after silence, and waits for its sidecar.
  private static func closed(_ rig: CollectRig, _ format: Format, _ range: Range<Int>) throws -> Stream {
    var stream = Stream("a", format)
    _ = try stream.begin(rig, range)
    let directory = rig.directories[0]
    try waitUntil("the recording is closed") {
      directory.names.contains(stream.file) && access("\(directory.path)/x-a.sidecar", F_OK) == 0
    }
    return stream
  }

  @Test("an upload that differs from a closed recording is refused, and its messages stay", arguments: Format.allCases)
  func different(_ format: Format) throws {
    let rig = try CollectRig(collectors: 1, ["--finish-after", "1s", "--after-collect", "purge"])
    let stream = try Self.closed(rig, format, 0..<1000)
    var other = stream
    other.content[500] ^= 1
    let location = try other.begin(rig, 0..<1000)
    try other.append(rig, location, from: 0, 1000..<1500, completes: true)
    try rig.finish()
    try stream.check(rig.directories[0])
    let refusals = Self.refusals(rig)
    #expect(refusals.count == 1 && refusals.allSatisfy { $0.contains("differ from those of a closed") }, "\(refusals)")
    let logged = try Self.logged(rig, location)
    #expect(logged == Array(other.content[..<1500]))
  }

  @Test(
    "an upload that repeats a closed recording that was moved away continues behind it, and its messages stay",
    arguments: Format.allCases, [false, true])
  func movedAway(_ format: Format, isRestarted: Bool) throws {
    let rig = try CollectRig(collectors: 1, ["--finish-after", "1s", "--after-collect", "purge"])
    let directory = rig.directories[0]
    var stream = try Self.closed(rig, format, 0..<1000)
    for file in [stream.file, "x-a.gaps"] { #expect(unlink("\(directory.path)/\(file)") == 0) }
    let location = try stream.begin(rig, 0..<1000)
    try waitUntil("the checkpoint states it") {
      String(decoding: try directory.contents(".collected"), as: UTF8.self).contains("uncompared")
    }
    if isRestarted { try rig.restart(0, SIGTERM) }
    try stream.append(rig, location, from: 0, 1000..<1500, completes: true)
    try rig.collectors[0].lines.first("the report") { $0.text.contains("because it has repeated bytes of a recording") }
    try rig.finish()
    #expect(!directory.names.contains(stream.file))
    let next = try directory.contents("x-a~2.\(format.rawValue)")
    #expect(next.suffix(500).elementsEqual(stream.content[1000..<1500]))
    let logged = try Self.logged(rig, location)
    #expect(logged == Array(stream.content[..<1500]))
    #expect(Self.refusals(rig).isEmpty)
  }

  @Test(
    "a stream whose closed recording was moved away continues behind it after a start, however long ago that was",
    arguments: Format.allCases)
  func movedAwayLongAgo(_ format: Format) throws {
    let rig = try CollectRig(collectors: 1, ["--finish-after", "1s"])
    let (directory, archive) = (rig.directories[0], try TemporaryDirectory())
    var stream = Stream("a", format)
    let location = try stream.begin(rig, 0..<1000)
    try waitUntil("the recording is closed") {
      directory.names.contains(stream.file) && access("\(directory.path)/x-a.sidecar", F_OK) == 0
    }
    let files = [stream.file, "x-a.gaps", "x-a.sidecar"]
    for file in files { #expect(rename("\(directory.path)/\(file)", "\(archive.path)/\(file)") == 0) }
    let past = timespec(tv_sec: 1_000_000_000, tv_nsec: 0)
    #expect(utimensat(AT_FDCWD, "\(directory.path)/.parts/x-a", [past, past], 0) == 0)
    try rig.restart(0, SIGTERM)
    try stream.append(rig, location, from: 0, 1000..<2000, completes: true)
    try rig.finish()
    #expect(!directory.names.contains(stream.file) && directory.names.contains("x-a~2.\(format.rawValue)"))
    for file in files { #expect(rename("\(archive.path)/\(file)", "\(directory.path)/\(file)") == 0) }
    try stream.check(directory)
    #expect(Self.refusals(rig).isEmpty)
  }

  @Test("an upload waits while the closed recording that contains its bytes cannot be read")
  func unreadable() throws {
    let rig = try CollectRig(collectors: 1, ["--finish-after", "1s"])
    let directory = rig.directories[0]
    var stream = try Self.closed(rig, .plain, 0..<1000)
    let file = "\(directory.path)/\(stream.file)"
    #expect(rename(file, "\(directory.path)/.away") == 0 && mkdir(file, 0o700) == 0)
    let location = try stream.begin(rig, 500..<1000)
    try rig.collectors[0].lines.first("the report") { $0.text.contains("x-a.part waits: ") }
    #expect(rmdir(file) == 0 && rename("\(directory.path)/.away", file) == 0)
    try stream.append(rig, location, from: 500, 1000..<1500, completes: true)
    try rig.finish()
    try stream.check(directory)
    #expect(Self.refusals(rig).isEmpty)
  }

  @Test(
    "an upload whose recording another one has closed continues, even if that is moved away, and collectors change",
    arguments: [false, true])
  func closedByOther(isRestarted: Bool) throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    var stream = Stream("a", .plain)
    _ = try stream.begin(rig, 0..<500)
    let open = try stream.begin(rig, 600..<1000)
    _ = try stream.begin(rig, 500..<600)
    try waitUntil("the hole is filled") {
      guard directory.names.contains("x-a~2.part"), access("\(directory.path)/x-a.sidecar", F_OK) == 0 else {
        return false
      }
      return try directory.contents("x-a~2.part").count == 100
    }
    for file in [stream.file, "x-a.gaps"] { #expect(unlink("\(directory.path)/\(file)") == 0) }
    if isRestarted { try rig.restart(0, SIGTERM) }
    try stream.append(rig, open, from: 600, 1000..<1100, completes: true)
    try rig.finish()
    #expect(Self.refusals(rig).isEmpty)
    let next = try directory.contents("x-a~2.txt")
    let hole = [UInt8](repeating: 0, count: 400)
    #expect(next == Array(stream.content[500..<600]) + hole + Array(stream.content[1000..<1100]))
  }

  @Test("a recording whose name is taken is closed when the name is free, and until then it is reported once")
  func nameTaken() throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    var stream = Stream("a", .plain)
    _ = try stream.begin(rig, 1000..<2000)
    try waitUntil("the bytes are stored") { directory.names.contains("x-a.part") }
    let foreign = try directory.write(stream.file, "foreign")
    let late = try stream.begin(rig, 0..<500)
    try rig.collectors[0].lines.first("the report") {
      $0.text.contains("x-a.part waits: its growing recording cannot be closed") && $0.text.contains("pauses that grow")
    }
    #expect(unlink(foreign) == 0)
    try stream.append(rig, late, from: 0, 500..<1000, completes: true)
    try rig.finish()
    try stream.check(directory)
    #expect(rig.output.count { $0.contains("cannot close x-a.part") } == 1, "\(rig.output)")
    #expect(Self.refusals(rig).isEmpty)
  }

  @Test("the upload of another owner is refused, and closes no recording, even if it is inside a closed one")
  func otherOwner() throws {
    let rig = try CollectRig(collectors: 1, ["--finish-after", "1s"])
    let directory = rig.directories[0]
    var stream = Stream("a", .plain)
    _ = try stream.begin(rig, 1000..<2000)
    try waitUntil("the recording is closed") { directory.names.contains(stream.file) }
    for range in [1200..<1300, 200..<300] {
      let lines = ["Upload-Complete: ?1", "Stream-ID: a", "Stream-Offset: \(range.lowerBound)"]
      let body = Array(stream.content[range])
      #expect(try rig.send(.log, "POST", stream.path, owner: "bob", lines, body).status == 201)
    }
    try rig.finish()
    try stream.check(directory)
    let refusals = Self.refusals(rig)
    #expect(refusals.count == 2 && refusals.allSatisfy { $0.contains("belongs to another token") }, "\(refusals)")
    #expect(!directory.names.contains { $0.hasPrefix("x-a~") })
  }
}
