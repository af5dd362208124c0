// Tests what a power failure can leave of a stream that was just split: the log states that the stream continues in the
// next file, and the disk lacks a part of either file.

import EventLoops
import Glibc
import NetworkTesting
import Recordings
import ResumableUploads
import SyncGate
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Split recordings after a power failure")
struct TornSplitTests {
  /// What is left of the next file.
  enum Next: CaseIterable, Sendable { case missing, empty, halfHeader, header, content }

  private static let head = StreamedHead.all[0]
  private static let limit = 48 * head.frameLength
  /// The stream offset of the split.
  private static let end = head.bytes.count + limit
  private static let stream = head.bytes + (0..<(limit + 60)).map { UInt8(truncatingIfNeeded: $0 &* 37 &+ 1) }

  private static func server(
    _ directory: TemporaryDirectory, finishAfter: Duration = .seconds(60)
  ) throws -> TestServer {
    var split = RecordingSplit(duration: nil, size: UInt64(end))
    split.leastLength = 0
    return try TestServer(in: directory) {
      $0.split = split
      $0.durability = .always
      $0.finishAfter = finishAfter
    }
  }

  /// The bytes before this offset are acknowledged, and so the disk has them.
  private static let acknowledged = end - 150

  private static let foreign = Array("bytes of another server".utf8)

  /// A directory in that state, with the URL of the upload.
  ///
  /// - Parameter skips: whether a leftover file has the name of the next part, so that the name after it is used.
  private static func torn(
    _ next: Next, lost: Int, skips: Bool = false
  ) throws -> (TemporaryDirectory, location: String) {
    let first = try server(TemporaryDirectory())
    if skips { try first.directory.write("k-a~2.part", foreign) }
    let nextName = skips ? "k-a~3.part" : "k-a~2.part"
    let location = try first.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
    try first.append(location, at: 0, Array(stream[..<acknowledged]))
    let client = try first.connect()
    try client.patch(location, at: acknowledged, ["Stream-Progress-Interval: 60"], chunked: true)
    try client.sendChunk(Array(stream[acknowledged..<(end + 20)]))
    try waitUntil("the next file has its first bytes") {
      (try? first.directory.contents(nextName))?.count == head.bytes.count + 20
    }
    let directory = try first.directory.copyOfKilled()
    client.disconnect()
    first.stop()
    // The first file does not have its final name yet.
    let (part, final) = (directory.path + "/k-a.part", directory.path + "/k-a.wav")
    if rename(final, part) == 0 {
      unlink(directory.path + "/k-a.sidecar")
      unlink(directory.path + "/.k-a.sidecar")
    }
    try directory.write("k-a.part", Array(stream[..<(end - lost)]))
    let nextPath = "\(directory.path)/\(nextName)"
    switch next {
    case .missing: unlink(nextPath)
    case .empty: truncate(nextPath, 0)
    case .halfHeader: truncate(nextPath, head.bytes.count / 2)
    case .header: truncate(nextPath, head.bytes.count)
    case .content: break
    }
    // The killed server may have synced more than this disk has.
    for name in ["k-a.part", nextName] { try directory.removeMark(name) }
    return (directory, location)
  }

  @Test(
    "the announced offset holds, or the upload is over and the stream continues at the last byte of the disk",
    arguments: Next.allCases, [(0, false), (1, false), (100, false), (0, true), (1, true), (100, true)])
  func upload(_ next: Next, _ state: (lost: Int, skips: Bool)) throws {
    let (lost, skips) = state
    let (directory, location) = try Self.torn(next, lost: lost, skips: skips)
    try Self.judge(next, directory, location, lost: lost, skips: skips)
  }

  @Test(
    "zeros at the end of a recording that was split off do not count after a power failure",
    .enabled(if: hasExtendedAttributes), arguments: Next.allCases)
  func zeros(_ next: Next) throws {
    let (directory, location) = try Self.torn(next, lost: 0)
    let synced = Self.end - 100
    try directory.write("k-a.part", Array(Self.stream[..<synced]) + [UInt8](repeating: 0, count: 100))
    let file = open(directory.path + "/k-a.part", O_RDONLY | O_CLOEXEC)
    try SyncedMark(boot: "earlier", size: UInt64(synced)).set(file)
    close(file)
    try Self.judge(next, directory, location, lost: 100, skips: false)
  }

  /// Continues the upload, and compares the files with the stream.
  private static func judge(
    _ next: Next, _ directory: TemporaryDirectory, _ location: String, lost: Int, skips: Bool
  ) throws {
    let test = try Self.server(directory)
    let answer = try test.connect().head(location)
    if lost == 0 || next != .content {
      let stored = Self.end - lost + (next == .content ? 20 : 0)
      try #require(answer.status == 204 && answer["upload-offset"] == "\(stored)", "\(answer)")
      try test.append(location, at: stored, completes: true, Array(Self.stream[stored...]))
    } else {
      try #require(answer.status == 410, "\(answer)")
      let offset = Self.end - lost
      let later = try test.create("/k.wav", ["Stream-ID: a", "Stream-Offset: \(offset)", "Content-Type: audio/wav"])
      try test.append(later, at: 0, completes: true, Array(Self.stream[offset...]))
      #expect(try directory.text("k-a.gaps").contains("not-synced"))
    }
    try waitUntil("both files have their names") {
      directory.names.filter { $0.hasSuffix(".part") } == (skips ? ["k-a~2.part"] : [])
    }
    if skips { #expect(try directory.contents("k-a~2.part") == Self.foreign) }
    // Each byte of the stream is in a file, at its place, whichever file that is.
    var covered = [Bool](repeating: false, count: Self.stream.count)
    for name in directory.names.filter({ $0.hasSuffix(".wav") }) {
      let bytes = Array(try directory.contents(name).dropFirst(Self.head.bytes.count))
      let starts = name == "k-a.wav" ? [Self.head.bytes.count] : Array(Self.stream.indices)
      let start = starts.first { $0 + bytes.count <= Self.stream.count && Self.stream[$0...].starts(with: bytes) }
      guard let start else {
        Issue.record("\(name) is not a part of the stream: \(bytes.count) bytes")
        continue
      }
      for index in start..<(start + bytes.count) { covered[index] = true }
    }
    #expect(covered.lastIndex(of: false).map { $0 < Self.head.bytes.count } ?? true)
  }

  /// What somebody puts in place of the growing file of a recording that has its final name.
  enum Foreign: CaseIterable, Sendable { case folder, longer, shorter, link }

  @Test(
    "what somebody puts in place of the file of a recording that was split off and is complete is reported and stays",
    arguments: Foreign.allCases, [false, true])
  func foreignFile(_ foreign: Foreign, isDiscarded: Bool) throws {
    let directory = TemporaryDirectory()
    var test = try Self.server(directory)
    let location = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
    let stored = Self.end + 20
    try test.append(location, at: 0, Array(Self.stream[..<stored]))
    try waitUntil("the first recording is complete") {
      directory.exists("k-a.sidecar") && !directory.exists(".k-a.sidecar") && !directory.exists("k-a.part")
    }
    test.stop()
    let path = directory.path + "/k-a.part"
    let content = Array(Self.stream.prefix(foreign == .shorter ? 10 : Self.end + 10))
    switch foreign {
    case .folder: try #require(mkdir(path, 0o700) == 0)
    case .link: try #require(symlink("k-a.wav", path) == 0)
    case .longer, .shorter: try directory.write("k-a.part", content)
    }
    let complete = try directory.contents("k-a.wav")
    test = try Self.server(directory)
    let answer = try test.connect().head(location)
    #expect(answer.status == 204 && answer["upload-offset"] == "\(stored)", "\(answer)")
    #expect(try test.events.wait(.warning).file == "k-a.part")
    if isDiscarded {
      let client = try test.connect()
      try client.request("DELETE", location)
      #expect(try client.final().answer.status == 204)
      #expect(directory.names.filter { $0.hasPrefix("k-a") } == ["k-a.part"])
    } else {
      try test.append(location, at: stored, completes: true, Array(Self.stream[stored...]))
      #expect(try directory.contents("k-a.wav") == complete)
      let rest = try directory.contents("k-a~2.wav").dropFirst(Self.head.bytes.count)
      #expect(Array(rest) == Array(Self.stream[Self.end...]))
      #expect(!directory.exists("k-a.gaps") && !directory.exists("k-a~2.gaps"))
    }
    var status = stat()
    #expect(lstat(path, &status) == 0)
    if [.longer, .shorter].contains(foreign) { #expect(try directory.contents("k-a.part") == content) }
    #expect(test.events.all.count { $0.kind == .warning } == 1, "\(test.events.all)")
  }

  @Test(
    "a stream that continues in the middle of a frame has that frame's bytes, whether or not their file has its name",
    arguments: [false, true])
  func begunFrame(hasName: Bool) throws {
    let (directory, _) = try Self.torn(.content, lost: 1)
    if hasName { try #require(rename(directory.path + "/k-a.part", directory.path + "/k-a.wav") == 0) }
    let store = try FileStore(in: directory)
    let name = StreamName(path: "/k.wav", streamID: "a", mediaType: nil)
    let offset = Self.end - 1
    var previous = try #require(try store.parts.lines(of: name.base).last)
    // As it is once it is closed.
    (previous.head, previous.end) = (Self.head.bytes, UInt64(offset))
    let begun = (offset - Self.head.bytes.count) % Self.head.frameLength
    try #require(begun > 0)
    let next = try store.beginPart(name, after: previous, at: UInt64(offset))
    let expected = Self.head.bytes + Self.stream[(offset - begun)..<offset]
    #expect(try directory.contents(next.name.partial) == expected)
  }

  /// The first file has a mark that counts no bytes.
  private static func markBeginning(_ directory: TemporaryDirectory) throws {
    let file = open(directory.path + "/k-a.part", O_RDONLY | O_CLOEXEC)
    defer { close(file) }
    try SyncedMark(boot: BootIdentifier.current, size: 0).set(file)
  }

  @Test("a server syncs a leftover recording once, and marks it if the disk refuses", arguments: [false, true])
  func leftSync(isRefused: Bool) async {
    await #expect(processExitsWith: .success) { [isRefused = isRefused as Bool] in
      let (directory, _) = try TornSplitTests.torn(.content, lost: 0)
      try TornSplitTests.markBeginning(directory)
      let store = try FileStore(
        path: directory.path, durability: .always, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
        UploadUsage(.init()))
      let name = StreamName(base: "k-a")
      let calls = sync_gate_calls()
      if isRefused { sync_gate_fail_once(EIO, 0) }
      for _ in 0..<3 { try store.checkSplits(name, store.parts.lines(of: name.base)) }
      // The syncs are performed in their order.
      let synced = try EventLog<SystemError?>()
      store.disk.sync(.named(name.recording(2).partial, in: store.directory), "fdatasync") { synced.append($0) }
      try require(try synced.wait("a later sync") { $0.first } == SystemError?.none, "the disk refuses one sync")
      guard isRefused else {
        if hasExtendedAttributes {
          let file = open(directory.path + "/k-a.part", O_RDONLY | O_CLOEXEC)
          defer { close(file) }
          let size = UInt64(TornSplitTests.end)
          try require(try SyncedMark.of(file) == SyncedMark(boot: BootIdentifier.current, size: size), "not marked")
        }
        try require(sync_gate_calls() == calls + 2, "\(sync_gate_calls() - calls) syncs")
        return try require(store.refusals.ofAny(name) == nil && !directory.exists("k-a.gaps"), "nothing was refused")
      }
      try require(store.refusals.ofRecording(name) != nil && store.refusals.ofAny(name.recording(2)) != nil, "refused")
      try require(try directory.text("k-a.gaps").contains("not-synced"), "the recording is marked")
    }
  }

  @Test(
    "a recording grows again if the log has only the first line of its split, and the file that was begun is removed",
    arguments: [Next.empty, .halfHeader, .header], [false, true])
  func halfLogged(_ next: Next, skips: Bool) throws {
    let (directory, _) = try Self.torn(next, lost: 0, skips: skips)
    let lines = try directory.text(".parts/k-a").split(separator: "\n")
    try directory.write(".parts/k-a", Array("\(lines.dropLast().joined(separator: "\n"))\n".utf8))
    let name = StreamName(base: "k-a")
    let store = try FileStore(
      path: directory.path, durability: .always, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
      UploadUsage(.init()))
    try #require(try store.parts.lines(of: name.base).last?.isSplit == true)
    let stream = try #require(try store.openUnfinished(name))
    #expect(stream.name.partial == "k-a.part" && Int(stream.length) == Self.end)
    // As it is closed later, it counts against the quotas, and the stream continues in a next part.
    let line = try #require(try store.parts.lines(of: name.base).last)
    #expect(line == stream.part && line.end == nil && !line.isSplit && line.head.isEmpty && line.count == 0)
    #expect(directory.names.filter { $0.hasSuffix(".part") } == (skips ? ["k-a.part", "k-a~2.part"] : ["k-a.part"]))
    #expect(!directory.exists(skips ? ".k-a~3.sidecar" : ".k-a~2.sidecar"))
  }

  @Test(
    "the recording that grows again once its split is undone is found, also to be closed", arguments: [false, true])
  func undone(isClosing: Bool) throws {
    let (directory, _) = try Self.torn(.missing, lost: 100)
    let store = try FileStore(
      path: directory.path, durability: .always, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
      UploadUsage(.init()))
    var found: [String] = []
    if isClosing {
      let stream = try #require(try store.openUnfinished(StreamName(base: "k-a")))
      found.append(stream.name.partial)
    } else {
      try store.findUnfinished { name, _ in found.append(name.partial) }
    }
    #expect(found == ["k-a.part"])
  }

  @Test(
    "a recording that was split off is finished as soon as its records can be read",
    arguments: ["/.parts/k-a", "/.k-a.sidecar"])
  func unreadableRecord(file: String) async {
    await #expect(processExitsWith: .success) { [file = file as String] in
      let (directory, _) = try TornSplitTests.torn(.content, lost: 0)
      let store = try FileStore(
        path: directory.path, durability: .none, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
        UploadUsage(.init()))
      store.finishLater(StreamName(base: "k-a"), isSplit: true)
      open_gate_fail(EIO, file)
      store.finishUnfinished()
      try waitUntil("it cannot be read") { open_gate_failures() > 0 }
      let isOver = try EventLog<Bool>()
      store.worker.executeSlice { isOver.append(true) }
      _ = try isOver.first("the attempt is over") { _ in true }
      try require(directory.exists("k-a.part"), "it is finished without its records")
      open_gate_fail(0, "")
      try waitUntil("it has its final name") {
        store.finishUnfinished()
        return directory.exists("k-a.wav") && !directory.exists("k-a.part")
      }
    }
  }

  /// Lets the worker begin while there is no descriptor for the recording. The shortage ends after several attempts.
  private static func lackDescriptors(_ store: FileStore, _ name: StreamName, _ mayBegin: EventLog<Bool>) throws {
    open_gate_fail(EMFILE, "/\(name.partial)")
    mayBegin.append(true)
    // A worker that does not wait makes three attempts: to write the bytes, to set the mark, and to remove it.
    try waitUntil("there are more attempts, or a refusal") {
      open_gate_failures() > 3 || store.refusals.ofRecording(name) != nil
    }
    open_gate_fail(0, "")
  }

  @Test("the sync of a leftover recording waits for a descriptor, and the stream stays reliable")
  func leftSyncWithoutDescriptor() async {
    await #expect(processExitsWith: .success) {
      let (directory, _) = try TornSplitTests.torn(.content, lost: 0)
      try TornSplitTests.markBeginning(directory)
      let store = try FileStore(
        path: directory.path, durability: .always, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
        UploadUsage(.init()))
      let name = StreamName(base: "k-a")
      let mayBegin = try EventLog<Bool>()
      store.worker.execute { _ = try? mayBegin.wait("the shortage") { $0.first } }
      try store.checkSplits(name, store.parts.lines(of: name.base))
      try TornSplitTests.lackDescriptors(store, name, mayBegin)
      // The syncs are performed in their order.
      let synced = try EventLog<SystemError?>()
      store.disk.sync(.named(name.recording(2).partial, in: store.directory), "fdatasync") { synced.append($0) }
      try require(try synced.wait("a later sync") { $0.first } == SystemError?.none, "the disk refuses one sync")
      try require(store.refusals.ofAny(name) == nil && !directory.exists("k-a.gaps"), "nothing was refused")
      guard hasExtendedAttributes else { return }
      let file = open(directory.path + "/k-a.part", O_RDONLY | O_CLOEXEC)
      defer { close(file) }
      let size = UInt64(TornSplitTests.end)
      try require(try SyncedMark.of(file) == SyncedMark(boot: BootIdentifier.current, size: size), "not marked")
    }
  }

  /// A store that syncs always, with a stream that has got its bytes and can be split.
  private static func grown(
    in directory: TemporaryDirectory
  ) throws -> (store: FileStore, name: StreamName, stream: StreamFile) {
    let store = try FileStore(
      path: directory.path, durability: .always, closedLifetime: .zero, split: RecordingSplit(size: 1000),
      files: OpenFiles(), UploadUsage(.init()))
    let name = StreamName(path: "/k.wav", streamID: "a", mediaType: nil)
    guard let stream = try store.open(name, for: nil, at: 0, creating: true) else { throw TestFailure("no stream") }
    _ = stream.write(Self.stream.span, [0..<Self.stream.count], skipping: 0, at: 0, maySplit: false)
    return (store, name, stream)
  }

  @Test("the end of a recording that was split off waits for a descriptor, and the stream stays reliable")
  func endWithoutDescriptor() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let (store, name, stream) = try TornSplitTests.grown(in: directory)
      guard let head = WAVHead(TornSplitTests.head.bytes) else { throw TestFailure("no head") }
      let mayBegin = try EventLog<Bool>()
      store.worker.execute { _ = try? mayBegin.wait("the shortage") { $0.first } }
      let loop = try EventLoop()
      var isFinished = false
      try store.split(stream, head).finish(loop) { outcome in
        if case .finished = outcome { isFinished = true }
        loop.stop()
      }
      while store.files.closeIdle() > 0 {}
      try TornSplitTests.lackDescriptors(store, name, mayBegin)
      loop.run()
      try require(isFinished && !directory.exists("k-a.part"), "the recording has its final name")
      try require(store.refusals.ofAny(name) == nil && !directory.exists("k-a.gaps"), "nothing was refused")
    }
  }

  @Test("a sync of the previous file does not count for the name of the next one")
  func nameOfNext() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let (store, _, stream) = try TornSplitTests.grown(in: directory)
      let loop = try EventLoop()
      sync_gate_close()
      store.synchronize(stream, loop: loop) { _ in loop.stop() }
      guard let head = WAVHead(TornSplitTests.head.bytes) else { throw TestFailure("no head") }
      _ = try store.split(stream, head)
      sync_gate_open()
      loop.run()
      try require(stream.name.part == 2 && !stream.isNameSynced, "nobody has asked for the name of the next file")
      let next = try EventLoop()
      store.synchronize(stream, loop: next) { _ in next.stop() }
      next.run()
      try require(stream.isNameSynced, "now the stream requests it")
    }
  }

  /// A request that stores nothing.
  enum Fruitless: CaseIterable, Sendable { case none, disconnected, refused, cancelled }

  @Test(
    "a next file without bytes is closed, and the recordings before it stay",
    arguments: [Next.empty, .header], Fruitless.allCases)
  func fruitless(_ next: Next, request: Fruitless) throws {
    let (directory, _) = try Self.torn(next, lost: 0)
    let test = try Self.server(directory, finishAfter: .milliseconds(300))
    let client = try test.connect()
    switch request {
    case .none: break
    case .disconnected:
      try client.send(TestServer.head("/k.wav", offset: Self.end, type: "audio/wav"))
      client.disconnect()
    case .refused:
      let digest = "Content-Digest: sha-256=:\(String(repeating: "A", count: 43))=:\r\n"
      try client.send(TestServer.head("/k.wav", offset: Self.end, type: "audio/wav", more: digest))
      try client.send("1\r\nx\r\n0\r\n\r\n")
      #expect(try client.answer().status == 400)
    case .cancelled:
      let later = try test.create("/k.wav", ["Stream-ID: a", "Stream-Offset: \(Self.end)", "Content-Type: audio/wav"])
      try client.request("DELETE", later)
      #expect(try client.final().answer.status == 204)
    }
    try waitUntil("nothing is unfinished") { !directory.names.contains { $0.hasSuffix(".part") } }
    let stored = try directory.contents("k-a.wav").dropFirst(Self.head.bytes.count)
    #expect(Array(stored) == Array(Self.stream[Self.head.bytes.count..<Self.end]))
  }
}
