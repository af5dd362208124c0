// Tests how the store of a collector distinguishes its growing recordings from files of other programs.

import EventLoops
import Glibc
import NetworkTesting
import Recordings
import SyncGate
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore

@Suite("Growing recordings of a collector")
struct CollectedClaimsTests {
  private let directory = TemporaryDirectory()
  private let store: FileStore
  private let name = StreamName(path: "/x", streamID: "a", mediaType: "text/plain")

  init() throws {
    store = try FileStore(
      path: directory.path, durability: .none, closedLifetime: .zero, isCollected: true, files: OpenFiles(),
      UploadUsage(.init()))
  }

  /// The growing recordings that the next start finds.
  private func found() throws -> [String] {
    var found: [String] = []
    try store.findUnfinished { name, _ in found.append(name.partial) }
    return found.sorted()
  }

  @Test("a recording is found that has just begun, and a file of another program is not")
  func begun() throws {
    let stream = try #require(try store.open(name, for: nil, at: 0, creating: true))
    try directory.write("notes.part", Array("stranger".utf8))
    #expect(stream.isNew)
    #expect(try found() == ["x-a.part"])
    // A power failure has destroyed the content of the log.
    try directory.write(".parts/x-a", [])
    #expect(try found() == ["x-a.part"])
    try store.rollBack(name, to: nil)
    #expect(try found().isEmpty)
    #expect(directory.names == ["notes.part"])
  }

  @Test("a file with the number of a part that the log does not list is another program's")
  func unlisted() throws {
    _ = try #require(try store.open(name, for: nil, at: 0, creating: true))
    try directory.write("x-a~3.part", Array("stranger".utf8))
    #expect(try found() == ["x-a.part"])
    #expect(directory.exists("x-a~3.part"))
  }

  @Test("a stream whose recording cannot begin has no claim to a later file of that name")
  func notBegun() throws {
    try directory.write("x-a.part", Array("stranger".utf8))
    #expect(throws: (any Error).self) { _ = try store.open(name, for: nil, at: 0, creating: true) }
    #expect(try found().isEmpty)
    #expect(try store.growth(of: name) == nil)
    #expect(try directory.contents("x-a.part") == Array("stranger".utf8))
  }

  @Test("a recording that a server with tokens has left is found, unless the stream has a complete one")
  func ofServer() throws {
    try store.owners.record([UInt8](repeating: 1, count: 32), of: name, isBeginner: true)
    try directory.write("x-a.part", Array("bytes".utf8))
    try directory.write("x-a.txt", Array("complete".utf8))
    #expect(try found().isEmpty)
    try directory.write("notes.part", Array("stranger".utf8))
    #expect(rename("\(directory.path)/x-a.txt", "\(directory.path)/away.txt") == 0)
    #expect(try found() == ["x-a.part"])
    #expect(try store.growth(of: name) == GrowthExtent(part: 1, length: 5))
  }

  @Test(
    "what has the growing name of a recording that has its final name is another program's, and stays",
    arguments: [1, 2], [true, false])
  func besideFinal(number: Int, isClosed: Bool) throws {
    let recording = name.recording(number)
    if number == 2 {
      var first = RecordingPart(file: name.final)
      (first.end, first.count) = (5, 5)
      try store.parts.append(first, to: name.base)
    }
    var part = RecordingPart(file: recording.final)
    (part.number, part.start, part.firstReceived) = (number, UInt64(number - 1) * 5, UInt64(number - 1) * 5)
    // A complete recording has no line about its end. A killed collector leaves that of its beginning.
    if isClosed { (part.end, part.count) = (part.start + 5, 5) }
    try store.parts.append(part, to: name.base)
    try directory.write(recording.final, Array("bytes".utf8))
    if !isClosed { try directory.write(recording.sidecar, Array(RecordingSidecar(file: recording.final).text.utf8)) }
    try directory.write(recording.partial, Array("stranger".utf8))
    let log = try store.parts.lines(of: name.base)
    #expect(try found().isEmpty)
    try store.rollBack(name, to: nil)
    #expect(try store.parts.lines(of: name.base) == log)
    #expect(try directory.contents(recording.partial) == Array("stranger".utf8))
    #expect(try directory.contents(recording.final) == Array("bytes".utf8))
  }

  @Test(
    "what has the growing name of a recording that was moved away stays, and its stream continues in the next part",
    arguments: [true, false])
  func afterMove(isLonger: Bool) throws {
    let stream = try #require(try store.open(name, for: nil, at: 0, creating: true))
    let bytes = Array("bytes".utf8)
    let stored = stream.write(bytes.span, [0..<5], skipping: 0, at: 0, maySplit: false)
    #expect(stored.count == 5)
    var part = RecordingPart(file: name.final)
    (part.end, part.count) = (5, 5)
    try store.parts.append(part, to: name.base)
    // It was about to get its final name.
    #expect(try found() == ["x-a.part"])
    #expect(rename("\(directory.path)/x-a.part", "\(directory.path)/away.txt") == 0)
    let stranger = Array((isLonger ? "stranger" : "x").utf8)
    try directory.write("x-a.part", stranger)
    #expect(try found().isEmpty)
    let next = try #require(try store.open(name, for: nil, at: 5, creating: true))
    #expect(next.name.part == 2)
    try store.rollBack(name, to: nil)
    #expect(try directory.contents("x-a.part") == stranger)
  }

  @Test("a recording of which the disk has refused bytes is found if a killed collector was closing it")
  func closingDistrusted() throws {
    let stream = try #require(try store.open(name, for: nil, at: 0, creating: true))
    let bytes = Array("bytes".utf8)
    let stored = stream.write(bytes.span, [0..<5], skipping: 0, at: 0, maySplit: false)
    #expect(stored.count == 5)
    try store.noteDistrusted(name)
    var part = RecordingPart(file: name.final)
    (part.end, part.count) = (0, 5)
    try store.parts.append(part, to: name.base)
    #expect(try found() == ["x-a.part"])
    // The recording has its final name.
    try directory.write("x-a.txt", bytes)
    #expect(try found().isEmpty)
    #expect(unlink("\(directory.path)/x-a.txt") == 0)
    let refusals = try directory.contents("x-a.gaps")
    try directory.write("x-a.gaps", [])
    #expect(try found().isEmpty)
    try directory.write("x-a.gaps", refusals)
    try store.rollBack(name, to: GrowthExtent(part: 1, length: 5), wasSynced: true)
    #expect(try store.growth(of: name) == GrowthExtent(part: 1, length: 5))
    #expect(try store.parts.lines(of: name.base).last?.end == nil)
  }

  @Test("a file with no more than the header of a next part is removed at a start, and one with other content stays")
  func leftBeginning() throws {
    let name = StreamName(path: "/k.wav", streamID: "a", mediaType: "audio/wav")
    let stream = try #require(try store.open(name, for: nil, at: 0, creating: true))
    let head = StreamedHead.all[0].bytes
    let bytes = head + [UInt8](repeating: 1, count: 100)
    let stored = stream.write(bytes.span, [0..<bytes.count], skipping: 0, at: 0, maySplit: false)
    #expect(stored.count == bytes.count)
    let beginning = try #require(WAVHead(head)).bytes
    let others: [[UInt8]] = [beginning + [0], [1], Array(beginning.dropLast()) + [1]]
    for other in others {
      try directory.write("k-a~2.part", other)
      #expect(try found() == ["k-a.part"])
      #expect(try directory.contents("k-a~2.part") == other)
    }
    for left in [beginning, Array(beginning.prefix(20)), []] as [[UInt8]] {
      try directory.write("k-a~2.part", left)
      // No recording of this stream grows.
      try directory.write("k-b~2.part", left)
      #expect(try found() == ["k-a.part"])
      #expect(!directory.exists("k-a~2.part") && directory.exists("k-b~2.part"))
    }
  }

  @Test("an owner's record proves a recording only before the first checkpoint of a collector")
  func owned() throws {
    try store.owners.record([UInt8](repeating: 1, count: 32), of: name, isBeginner: true)
    try directory.write("x-a.part", Array("stranger".utf8))
    try directory.write(FileStore.checkpointName, [])
    #expect(try found().isEmpty)
    #expect(try store.owners.record(of: name) != nil)
  }

  @Test("a stream that waits for another program's file leaves no record of its owner", arguments: [true, false])
  func noOwner(hasCheckpoint: Bool) throws {
    if hasCheckpoint { try directory.write(FileStore.checkpointName, []) }
    try directory.write("x-a.part", Array("stranger".utf8))
    let token = [UInt8](repeating: 1, count: 32)
    #expect(throws: (any Error).self) { _ = try store.open(name, for: token, at: 0, creating: true) }
    #expect(try store.owners.record(of: name) == nil)
  }

  @Test("the record of gaps of a next part that has no file is removed at a start, and no other record is")
  func leftGaps() throws {
    var (first, next) = (RecordingPart(file: "x-a.txt"), RecordingPart(file: "x-a~2.txt"))
    (first.end, first.count) = (5, 5)
    (next.number, next.start, next.firstReceived) = (2, 5, 5)
    try store.parts.append(first, next, to: name.base)
    let record = Array(GapRecord(offset: 5, length: 0, cause: .nextPart).jsonLine.utf8)
    let hole = Array(GapRecord(offset: 7, length: 1, cause: .notReceived).jsonLine.utf8)
    // No log names the second one.
    for file in ["x-a~2.gaps", "x-b~2.gaps"] { try directory.write(file, record) }
    #expect(try found().isEmpty)
    #expect(!directory.exists("x-a~2.gaps") && directory.exists("x-b~2.gaps"))
    // The recording was moved away after its end.
    try directory.write("x-a~2.gaps", record + hole)
    #expect(try found().isEmpty)
    #expect(directory.exists("x-a~2.gaps"))
    try directory.write("x-a~2.gaps", record)
    try directory.write("x-a~2.txt", Array("bytes".utf8))
    #expect(try found().isEmpty)
    #expect(directory.exists("x-a~2.gaps"))
  }

  @Test(
    "a recording that returns to an extent that the disk has accepted is trusted again, and no other one is",
    arguments: [true, false], [12, 25, 26] as [UInt64])
  func refusedLater(wasSynced: Bool, length: UInt64) throws {
    let stream = try #require(try store.open(name, for: nil, at: 0, creating: true))
    let bytes = Array("bytes".utf8)
    // There is a hole before each of them but the first one.
    for offset: UInt64 in [0, 7, 20] {
      let stored = stream.write(bytes.span, [0..<5], skipping: 0, at: offset, maySplit: false)
      #expect(stored.count == 5)
    }
    try store.noteDistrusted(name)
    #expect(try store.readGaps(name, length: 25).isDistrusted)
    let missing = try store.rollBack(name, to: GrowthExtent(part: 1, length: length), wasSynced: wasSynced)
    #expect(missing == (length == 26 ? 1 : 0))
    #expect(try store.growth(of: name) == GrowthExtent(part: 1, length: min(length, 25)))
    let isTrusted = wasSynced && length <= 25
    #expect(try store.readGaps(name, length: 25).isDistrusted == !isTrusted)
    guard isTrusted else { return }
    var holes = [GapRecord(offset: 5, length: 2, cause: .notReceived)]
    if length == 25 { holes.append(GapRecord(offset: 12, length: 8, cause: .notReceived)) }
    #expect(try directory.text("x-a.gaps") == holes.map(\.jsonLine).joined())
  }

  @Test("a recording stays unreliable if lines that count follow a refusal, or if an earlier one lacks bytes")
  func otherRefusals() throws {
    let refusal = GapRecord(offset: 0, length: 0, cause: .notSynced).jsonLine
    let hole = GapRecord(offset: 7, length: 1, cause: .notReceived).jsonLine
    let end = GapRecord(offset: 9, length: 0, cause: .interrupted).jsonLine
    func count(_ text: String, length: UInt64 = 9) -> Int? {
      GapRecord.withoutRefusals(Array(text.utf8), from: 0, length: length)?.count
    }
    #expect(count(hole) == nil)
    #expect(count(refusal + hole) == nil)
    #expect(count(refusal + hole, length: 7) == 0)
    let lines = [hole, end, refusal, end, refusal, String(hole.dropLast(5))]
    #expect(count(lines.joined()) == hole.utf8.count)
    // The file ends in the hole.
    #expect(count(hole + refusal, length: 8) == nil)

    var (first, next) = (RecordingPart(file: "x-a.txt"), RecordingPart(file: "x-a~2.txt"))
    (first.end, first.count, first.isSplit) = (5, 5, true)
    (next.number, next.start, next.firstReceived) = (2, 5, 5)
    try store.parts.append(first, next, to: name.base)
    for file in ["x-a", "x-a~2"] {
      try directory.write("\(file).part", Array("bytes".utf8))
      try directory.write("\(file).gaps", Array(refusal.utf8))
    }
    let extent = GrowthExtent(part: 2, length: 10)
    try store.rollBack(name, to: extent, wasSynced: true)
    #expect(try directory.text("x-a~2.gaps") == refusal)
    try directory.write("x-a.gaps", [])
    try store.rollBack(name, to: extent, wasSynced: true)
    #expect(!directory.exists("x-a~2.gaps"))
  }

  @Test(
    "a recording that was closed without trusted bytes, and that a power failure has shortened, is known by its mark",
    .enabled(if: hasExtendedAttributes), arguments: [true, false])
  func shortened(isMarked: Bool) throws {
    // The line states that it has none of its five bytes.
    var part = RecordingPart(file: name.final)
    (part.end, part.count) = (0, 5)
    try store.parts.append(part, to: name.base)
    try directory.write("x-a.gaps", Array(GapRecord(offset: 0, length: 0, cause: .notSynced).jsonLine.utf8))
    try directory.write("x-a.part", Array("abc".utf8))
    if isMarked {
      let file = open("\(directory.path)/x-a.part", O_RDONLY | O_CLOEXEC)
      defer { close(file) }
      try SyncedMark(boot: "0", size: 3).set(file)
    }
    #expect(try found() == (isMarked ? ["x-a.part"] : []))
    #expect(try directory.text("x-a.part") == "abc")
  }

  /// A store whose recording has bytes that no sync has covered.
  private static func grown(in directory: TemporaryDirectory) throws -> (FileStore, any StoredStream) {
    let store = try FileStore(in: directory, durability: .interval, isCollected: true)
    let name = StreamName(path: "/x", streamID: "a", mediaType: "text/plain")
    let request = StreamPurpose.request(credential: nil, offset: 0, creating: true, isUpload: false)
    guard let stream = try store.open(name, for: request) else { throw TestFailure("no stream") }
    let bytes = Array("hello".utf8)
    let written = stream.write(bytes.span, [0..<5], skipping: 0, at: 0, maySplit: false)
    try require(written.count == 5 && written.error == nil, "\(written)")
    return (store, stream)
  }

  // With another length than the log states, the next collector would ignore the file.
  @Test("the log states the end of a recording only after the disk has its bytes, not merely their number")
  func endAfterBytes() throws {
    let (directory, mayBegin) = (TemporaryDirectory(), try EventLog<Bool>())
    let (store, stream) = try Self.grown(in: directory)
    store.worker.execute { _ = try? mayBegin.wait("the test") { $0.first } }
    let loop = try EventLoop()
    var results: [SystemError?] = []
    stream.finish(.interrupted(owner: nil, isTrusted: true), on: loop) { failure in
      results.append(failure?.error)
      loop.stop()
    }
    #expect(try store.parts.lines(of: "x-a").allSatisfy { $0.end == nil })
    mayBegin.append(true)
    loop.runAtMostAMinute()
    #expect(results == [nil] && directory.exists("x-a.txt") && !directory.exists("x-a.part"))
    #expect(try store.parts.lines(of: "x-a").last?.end == 5)
  }

  @Test("if the disk refuses the bytes of a recording, the log does not state its end", arguments: [EIO, ENOSPC])
  func refusedBytes(_ code: Int32) async {
    await #expect(processExitsWith: .success) { [code = code as Int32] in
      let directory = TemporaryDirectory()
      let (store, stream) = try CollectedClaimsTests.grown(in: directory)
      let loop = try EventLoop()
      sync_gate_fail(code)
      var failures: [UnfinishedStream?] = []
      stream.finish(.interrupted(owner: nil, isTrusted: true), on: loop) { failure in
        failures.append(failure)
        loop.stop()
      }
      loop.runAtMostAMinute()
      try require(failures.map(\.?.error.code) == [code], "\(failures)")
      try require(failures.first??.mayLackBytes == true, "\(failures)")
      try require(try store.parts.lines(of: "x-a").allSatisfy { $0.end == nil }, "the log states no end")
      try require(directory.exists("x-a.part") && !directory.exists("x-a.gaps"), "\(directory.names)")
    }
  }
}
