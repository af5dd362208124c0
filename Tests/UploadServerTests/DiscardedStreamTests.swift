// Tests uploads of one stream that are cancelled, or refused because of their digest, in any order. The server must
// remove exactly the bytes that only these uploads have stored.

import Glibc
import NetworkTesting
import PropertyTesting
import Recordings
import SyncGate
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

/// A stream that uploads and plain requests send together, and the bytes that must be stored of it.
private final class DiscardedStream {
  enum Format: String, CaseIterable, Sendable {
    /// In one file.
    case text
    /// In several files.
    case divided
  }

  /// What a new server cannot do until the trouble is over.
  enum Trouble: String, CaseIterable, Sendable { case nothing, listing }

  struct Upload {
    var location: String
    var start: Int
    var owner: Int
    /// How many bytes the server has acknowledged to its client.
    var acknowledged = 0
  }

  private static let wrong = "Repr-Digest: sha-256=:\(String(repeating: "A", count: 43))=:"

  let format: Format
  let trouble: Trouble
  let areLive: Bool
  let directory = TemporaryDirectory()
  private let sockets = TemporaryDirectory()
  private let head: StreamedHead
  private let limit: Int
  private var test: TestServer
  private var random: SplitMix64
  private var stream: [UInt8] = []
  /// The offset that the stream has reached.
  private var position = 0
  private var uploads: [Upload] = []
  /// The senders of all bytes since the recording began: the owners of uploads, and 0 for plain requests.
  private var senders: Set<Int> = []
  /// The offset at which the stream was closed before.
  private let closed: Int
  private(set) var steps: [String] = []

  init(_ format: Format, _ trouble: Trouble, _ random: SplitMix64) throws {
    var random = random
    areLive = format == .divided || random.chance(50)
    head = StreamedHead.all.filter { $0.frameLength > 1 }.randomElement(using: &random) ?? StreamedHead("any")
    limit = Int.random(in: 2...20, using: &random) * 48 * head.frameLength
    let isClosed = random.chance(30)
    closed = isClosed ? head.bytes.count + limit / 2 : 0
    stream = Self.content(format, head, 40 * limit, 1)
    (self.format, self.trouble, self.random) = (format, trouble, random)
    test = try Self.server(directory, sockets, finishAfter: isClosed ? .milliseconds(100) : .seconds(3600), head, limit)
    guard isClosed else {
      // The stream begins while the server does not know the files of its predecessor.
      if trouble != .nothing, self.random.chance(70) { try restart() }
      return
    }
    _ = try test.plain(path, id: "a", type: type, Array(stream[..<closed]))
    _ = try test.events.wait(.closed)
    position = closed
    try restart()
    try endTrouble()
  }

  private static func server(
    _ directory: TemporaryDirectory, _ sockets: TemporaryDirectory, finishAfter: Duration, _ head: StreamedHead,
    _ limit: Int
  ) throws -> TestServer {
    unlink(sockets.path + "/socket")
    return try TestServer(in: directory) {
      $0.listen.append(.unix(path: sockets.path + "/socket"))
      $0.finishAfter = finishAfter
      $0.durability = .none
      var split = RecordingSplit(duration: nil, size: UInt64(head.bytes.count + limit))
      split.leastLength = 0
      $0.split = split
    }
  }

  private static func content(_ format: Format, _ head: StreamedHead, _ count: Int, _ factor: Int) -> [UInt8] {
    (format == .divided ? head.bytes : [])
      + (0..<count).map { UInt8(truncatingIfNeeded: ($0 &* 2_654_435_761 &* factor) >> 11) }
  }

  private var path: String { format == .text ? "/k.txt" : "/k.wav" }
  private var type: String { format == .text ? "text/plain" : "audio/wav" }
  var files: [String] { names(in: ".").filter { !$0.hasPrefix(".") } }

  // MARK: Steps

  private func restart() throws {
    test.stop()
    if trouble == .listing { open_gate_fail(EIO, "/.uploads/.") }
    test = try Self.server(directory, sockets, finishAfter: .seconds(3600), head, limit)
  }

  private func endTrouble() throws { if trouble == .listing { open_gate_fail(0, "") } }

  private func someBytes() -> [UInt8] {
    let count = Int.random(in: 1...(2 * limit), using: &random)
    return Array(stream[position..<min(position + count, stream.count)])
  }

  private func create(_ more: [String] = []) throws -> Upload {
    let owner = Int.random(in: 1...4, using: &random) == 4 ? 2 : 1
    let client = try RawClient(test.server.localAddresses[owner - 1])
    var lines = ["Upload-Complete: ?0", "Stream-ID: a", "Stream-Offset: \(position)", "Content-Type: \(type)"] + more
    if !areLive { lines.append("Upload-Length: \(stream.count - position)") }
    try client.request("POST", path, lines, body: "")
    let answer = try client.final().answer
    guard answer.status == 201, let location = answer["location"] else { throw TestFailure("no upload: \(answer)") }
    return Upload(location: location, start: position, owner: owner)
  }

  /// Appends to an upload at the reported offset.
  private func append(_ index: Int) throws {
    var upload = uploads[index]
    let found = try test.connect().head(upload.location)
    let offset = found["upload-offset"].flatMap { Int($0) } ?? -1
    guard found.status == 204, offset >= upload.acknowledged else { throw TestFailure("\(upload): \(found)") }
    position = max(position, upload.start + offset)
    let bytes = Array(stream[(upload.start + offset)..<position]) + someBytes()
    try test.append(upload.location, at: offset, bytes)
    upload.acknowledged = offset + bytes.count
    position = max(position, upload.start + upload.acknowledged)
    senders.insert(upload.owner)
    uploads[index] = upload
  }

  /// Cancels an upload, which removes the bytes that only it has stored.
  private func cancel(_ index: Int) throws {
    let client = try test.connect()
    try client.request("DELETE", uploads[index].location)
    let answer = try client.final().answer
    // The server does not know yet whose bytes the recording contains.
    if answer.status == 503, trouble != .nothing { return }
    guard answer.status == 204 else { throw TestFailure("\(uploads[index]): \(answer)") }
    uploads.remove(at: index)
    try checkWhatIsLeft()
  }

  /// Sends an upload whose content does not match its digest.
  private func refuse() throws {
    let upload = try create([Self.wrong])
    let bytes = someBytes()
    let client = try test.connect()
    try client.patch(upload.location, at: 0, completes: true, ["Content-Length: \(bytes.count)"])
    try client.send(bytes)
    let answer = try client.final().answer
    // The upload did not reach its length.
    guard answer.status == 400 else { throw TestFailure("\(upload): \(answer)") }
    senders.insert(upload.owner)
    position += bytes.count
    try checkWhatIsLeft()
  }

  private func plain() throws {
    let bytes = someBytes()
    let event = try test.plain(path, id: "a", offset: position, type: type, bytes)
    guard event.status == nil else { throw TestFailure("\(event)") }
    position += bytes.count
    senders.insert(0)
  }

  func run() throws {
    for _ in 0..<Int.random(in: 3...9, using: &random) {
      let step = Int.random(in: 0..<100, using: &random)
      if position + 2 * limit >= stream.count { break }
      if (45..<62).contains(step), areLive {
        steps.append("refuse")
        try refuse()
      } else if uploads.isEmpty || step < 20 {
        steps.append("create at \(position)")
        uploads.append(try create())
        try append(uploads.count - 1)
      } else if step < 38 {
        let index = Int.random(in: 0..<uploads.count, using: &random)
        steps.append("append to \(index) of \(uploads.count)")
        try append(index)
      } else if step < 45 {
        steps.append("plain")
        try plain()
      } else if step < 80 {
        let index = Int.random(in: 0..<uploads.count, using: &random)
        steps.append("cancel \(index) of \(uploads.count)")
        try cancel(index)
      } else if step < 90 {
        steps.append("restart")
        try restart()
      } else {
        steps.append("end of trouble")
        try endTrouble()
      }
      // A server knows an upload from the first request for it.
      if trouble == .nothing || random.chance(30) { try check() }
    }
    try endTrouble()
    while !uploads.isEmpty {
      if random.chance(30) {
        steps.append("restart")
        try restart()
        try endTrouble()
      }
      let index = Int.random(in: 0..<uploads.count, using: &random)
      steps.append("finally cancel \(index) of \(uploads.count)")
      let count = uploads.count
      try waitUntil("an upload can be cancelled") {
        try cancel(index)
        return uploads.count < count
      }
      try check()
    }
    try complete()
    test.stop()
  }

  // MARK: Checks

  /// Checks that the server still reports all acknowledged bytes to each client.
  private func check() throws {
    for upload in uploads {
      let found = try test.connect().head(upload.location)
      guard found.status == 204, let offset = found["upload-offset"].flatMap({ Int($0) }), offset >= upload.acknowledged
      else { throw TestFailure("\(upload): \(found)") }
    }
  }

  /// Checks the files after the end of an upload. If it was the last one, and only uploads of one owner have stored
  /// bytes, none of the bytes may remain.
  private func checkWhatIsLeft() throws {
    let isGrowing = files.contains { $0.hasSuffix(".part") }
    guard uploads.isEmpty, senders.count == 1, !senders.contains(0) else {
      if !senders.isEmpty, !isGrowing { throw TestFailure("bytes of \(senders) are gone: \(files)") }
      return
    }
    // While the trouble lasts, the server assumes that other uploads have bytes in the recording.
    try endTrouble()
    let name = closed > 0 ? ["k-a.gaps", "k-a.sidecar", format == .text ? "k-a.txt" : "k-a.wav"] : []
    try waitUntil("only \(name) is left, and not \(files)") {
      // The log is removed last.
      let log = (try? directory.text(".parts/k-a")) ?? ""
      return files.sorted() == name && names(in: ".removing").isEmpty && log.isEmpty == (closed == 0)
        && !log.contains("discarded")
    }
    let logs = names(in: ".parts")
    guard logs == (closed > 0 ? ["k-a"] : []) else { throw TestFailure("left in .parts: \(logs)") }
    if closed > 0, try directory.text(".parts/k-a").contains("part=2") {
      throw TestFailure("the log has a second part")
    }
    let hidden = names(in: ".").filter { $0.hasPrefix(".k-a") }
    guard hidden.isEmpty else { throw TestFailure("left: \(hidden)") }
    senders = []
    // The next bytes differ, and are not compared with the removed ones.
    stream = Array(stream[..<closed]) + Self.content(.text, head, stream.count - closed, position | 1)
    if format == .divided, closed == 0 { stream.replaceSubrange(..<head.bytes.count, with: head.bytes) }
    position = closed
  }

  private func names(in name: String) -> [String] {
    guard let list = opendir(directory.path + "/" + name) else { return [] }
    defer { closedir(list) }
    var names: [String] = []
    while let entry = readdir(list) {
      let name = withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
      }
      if name != ".", name != ".." { names.append(name) }
    }
    return names
  }

  /// Sends the rest of the stream. After that, all of it is stored, regardless of which client sent the beginning.
  private func complete() throws {
    let client = try test.connect()
    let rest = Array(stream[position...])
    try client.send(TestServer.head(path, offset: position, type: type))
    try client.sendChunk(rest)
    try client.send("0\r\n\r\n")
    let answer = try client.answer()
    guard (200...201).contains(answer.status), answer["stream-missing"] ?? "0" == "0" else {
      throw TestFailure("not complete: \(answer)")
    }
    var end = 0
    for piece in try pieces() {
      let isHeadCopied = format == .divided && piece.sidecar.offset > 0
      let isHeadFirst = format == .divided && piece.sidecar.offset == 0
      let skipped = isHeadCopied || isHeadFirst ? head.bytes.count : 0
      let start = isHeadFirst ? head.bytes.count : Int(piece.sidecar.offset)
      let bytes = Array(piece.bytes.dropFirst(skipped))
      guard start <= max(end, isHeadFirst ? start : 0), start + bytes.count <= stream.count,
        bytes == Array(stream[start..<(start + bytes.count)])
      else { throw TestFailure("\(piece.sidecar.file) at \(start) behind \(end), \(bytes.count) bytes") }
      end = start + bytes.count
    }
    guard end == stream.count else { throw TestFailure("\(end) bytes of \(stream.count) are there") }
    let verification = try RecordingVerification(directory: directory.path).run { _ in }
    guard verification.problems == 0 else { throw TestFailure("\(verification)") }
  }

  private func pieces() throws -> [(sidecar: RecordingSidecar, bytes: [UInt8])] {
    try files.filter { $0.hasSuffix(path.suffix(4)) }.map { name in
      let sidecar = String(name.dropLast(4)) + ".sidecar"
      try waitUntil("\(sidecar) is written") { directory.exists(sidecar) }
      return (try RecordingSidecar(parsing: try directory.contents(sidecar)), try directory.contents(name))
    }.sorted { $0.sidecar.part < $1.sidecar.part }
  }
}

@Suite("Streams whose uploads are discarded")
struct DiscardedStreamTests {
  fileprivate static func run(_ format: String, _ trouble: String, _ seed: UInt64) throws {
    var random = Seed(seed).generator
    for round in 0..<6 {
      let stream = try DiscardedStream(
        .init(rawValue: format) ?? .text, .init(rawValue: trouble) ?? .nothing, SplitMix64(state: random.next()))
      do {
        try stream.run()
      } catch {
        throw TestFailure(
          "\(format), \(trouble), round \(round): \(error); \(stream.steps); \(stream.files) \(Seed(seed))")
      }
    }
  }

  @Test(
    "the uploads of one owner leave no bytes when all are cancelled or refused, in any order, and remove no others",
    arguments: ["text", "divided"], Seed.several(4))
  func product(_ format: String, _ seed: Seed) throws { try Self.run(format, "nothing", seed.value) }

  @Test(
    "the same while a server has not loaded all uploads of the previous one", arguments: ["text", "divided"],
    // With these seeds, an upload of another owner continues the recording of one that its server does not know. With
    // the second, it is cancelled before any server knows both.
    Seed.several(3) + [Seed(13_797_866_301_627_399_929), Seed(17_869_139_811_026_373_471)])
  func unlisted(_ format: String, _ seed: Seed) async {
    await #expect(processExitsWith: .success) { [format = format as String, value = seed.value as UInt64] in
      try DiscardedStreamTests.run(format, "listing", value)
    }
  }

  @Test(
    "the bytes of an upload that ends while the one before it is unknown stay, unless one owner cancels both",
    arguments: [true, false])
  func endsEarly(_ isCancelled: Bool) async {
    await #expect(processExitsWith: .success) { [isCancelled = isCancelled as Bool] in
      for isOwn in [true, false] {
        for restarts in [[], ["before"], ["after"], ["before", "after"]] {
          try DiscardedStreamTests.endEarly(isCancelled: isCancelled, isOwn: isOwn, restarts)
        }
      }
    }
  }

  /// - Parameters:
  ///   - isCancelled: whether the second upload is cancelled. Otherwise it gets more bytes than it announced.
  ///   - isOwn: whether both uploads have the same owner.
  ///   - restarts: when the server restarts: before or after the end of the second upload.
  private static func endEarly(isCancelled: Bool, isOwn: Bool, _ restarts: [String]) throws {
    let cell = "cancelled: \(isCancelled), one owner: \(isOwn), restarts: \(restarts)"
    let (directory, sockets) = (TemporaryDirectory(), TemporaryDirectory())
    func server() throws -> TestServer {
      unlink(sockets.path + "/socket")
      return try TestServer(in: directory) { $0.listen.append(.unix(path: sockets.path + "/socket")) }
    }
    var test = try server()
    func restart() throws {
      test.stop()
      test = try server()
    }
    let first = try test.create("/t.txt", ["Stream-ID: a"])
    try test.append(first, at: 0, "abc")
    open_gate_fail(EIO, "/.uploads/.")
    try restart()
    let other = try RawClient(test.server.localAddresses[isOwn ? 0 : 1])
    let length = isCancelled ? [] : ["Upload-Length: 4"]
    try other.request(
      "POST", "/t.txt", ["Upload-Complete: ?0", "Stream-ID: a", "Stream-Offset: 3"] + length, body: "def")
    let created = try other.final().answer
    guard let second = created["location"] else { throw TestFailure("\(cell): \(created)") }
    if restarts.contains("before") { try restart() }
    let client = try test.connect()
    if isCancelled {
      try client.request("DELETE", second)
    } else {
      try client.patch(second, at: 3, body: "ghi")
    }
    let ended = try client.final().answer
    try require(ended.status == (isCancelled ? 204 : 400), "\(cell): \(ended)")
    if restarts.contains("after") { try restart() }
    open_gate_fail(0, "")
    try waitUntil("\(cell): the first upload can be cancelled") {
      let last = try test.connect()
      try last.request("DELETE", first)
      return try last.final().answer.status == 204
    }
    // The removal has ended before the response.
    let left = directory.exists("t-a.part") ? try directory.text("t-a.part") : ""
    try require(left == (isCancelled && isOwn ? "" : "abcdef"), "\(cell): \(left) is left")
    test.stop()
  }

  @Test("a line of a stream's log keeps who else has written to the recording")
  func otherWriters() {
    let owners = [UploadOwner(address: "unix"), UploadOwner(credential: [1, 2], address: "192.0.2.7")]
    for writers in [OtherWriters.nobody, .anyone] + owners.map({ OtherWriters.discarded($0) }) {
      var part = RecordingPart(file: "t-a.txt")
      part.otherWriters = writers
      #expect(part.text.flatMap { RecordingPart(parsing: $0) } == part)
    }
  }

  @Test("a file that is being finished when its stream is discarded is removed, and leaves no warning")
  func whileFinishing() async {
    await #expect(processExitsWith: .success) {
      let head = StreamedHead.all[0]
      let limit = 48 * head.frameLength * 4
      let test = try TestServer {
        $0.durability = .interval
        var split = RecordingSplit(duration: nil, size: UInt64(head.bytes.count + limit))
        split.leastLength = 0
        $0.split = split
      }
      let upload = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
      let unrelated = try test.create("/other.txt")
      // From now on each sync hangs.
      try test.append(upload, at: 0, Array(head.bytes))
      sync_gate_close()
      try test.append(upload, at: head.bytes.count, [UInt8](repeating: 1, count: limit + limit / 2))
      try require(test.directory.exists("k-a.part") && test.directory.exists("k-a~2.part"), "not in two files")
      let client = try test.connect()
      try client.request("DELETE", upload)
      // A HEAD is answered when each loop has served what had arrived before: the DELETE.
      let other = try test.connect()
      try other.request("HEAD", unrelated)
      try require(try other.final().answer.status == 204, "no answer to HEAD")
      sync_gate_open()
      try require(try client.final().answer.status == 204, "not cancelled")
      // The worker finishes the next stream of that name after its work for this one.
      let stream = Array(head.bytes) + [UInt8](repeating: 2, count: limit * 2)
      let next = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
      try test.append(next, at: 0, completes: true, stream)
      _ = try test.events.wait(.split)
      try waitUntil("both files have their sidecars") {
        test.directory.exists("k-a.sidecar") && test.directory.exists("k-a~2.sidecar")
      }
      let events = test.events.all
      try require(!events.contains { $0.kind == .warning }, "\(events.filter { $0.kind == .warning })")
      // The file of the discarded stream may have been finished first.
      try require((1...2).contains(events.count { $0.kind == .split }), "\(events.map(\.kind))")
      try require(test.directory.contents("k-a.wav").suffix(limit).allSatisfy { $0 == 2 }, "bytes of the discarded one")
      test.stop()
    }
  }

  @Test("a server that is killed while it removes a split stream leaves nothing that could be continued or completed")
  func killedMeanwhile() async {
    await #expect(processExitsWith: .success) {
      let head = StreamedHead.all[0]
      let limit = 48 * head.frameLength * 4
      func server(in directory: TemporaryDirectory) throws -> TestServer {
        try TestServer(in: directory) {
          $0.durability = .none
          var split = RecordingSplit(duration: nil, size: UInt64(head.bytes.count + limit))
          split.leastLength = 0
          $0.split = split
        }
      }
      let test = try server(in: TemporaryDirectory())
      let upload = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
      try test.append(upload, at: 0, Array(head.bytes) + [UInt8](repeating: 1, count: 4 * limit))
      try waitUntil("all but the last one are finished") { test.directory.exists("k-a~3.sidecar") }
      // The first one is gone when the server looks at the third.
      open_gate_close("k-a~3.sidecar")
      let client = try test.connect()
      try client.request("DELETE", upload)
      try waitUntil("the server is in the middle") { open_gate_waiters() == 1 && !test.directory.exists("k-a.wav") }
      // What a server leaves that is killed here.
      let left = try test.directory.copyOfKilled()
      open_gate_open()
      try require(left.exists("k-a~3.wav"), "all are removed already")
      try require(try client.final().answer.status == 204, "not cancelled")
      test.stop()
      let next = try server(in: left)
      let found = try next.connect().head(upload)
      try require(found.status == 410, "\(found)")
      try waitUntil("nothing is left") { !left.names.contains { $0.contains("k-a") } && !left.exists(".parts") }
      // The next stream of that name is independent.
      let again = try next.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
      try next.append(again, at: 0, completes: true, Array(head.bytes) + [UInt8](repeating: 2, count: limit / 2))
      try waitUntil("it is complete") { left.exists("k-a.sidecar") }
      next.stop()
    }
  }

  @Test("the digests of a recording that is discarded meanwhile leave no sidecar")
  func whileDescribing() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let store = try FileStore(
        path: directory.path, durability: .interval, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
        UploadUsage(.init()))
      let name = StreamName(path: "/h.txt", streamID: "a", mediaType: "text/plain")
      try directory.write(name.final, Array("abc".utf8))
      var sidecar = RecordingSidecar(file: name.final)
      sidecar.stored = RecordingSidecar.Content(bytes: 3)
      sidecar.received = sidecar.stored
      try directory.write(name.pendingSidecar, Array(sidecar.text.utf8))
      sync_gate_close()
      store.completeSidecar(name)
      try waitUntil("the sidecar is on its way to the disk") { sync_gate_calls() > 0 }
      try require(directory.exists(name.newSidecar), "no sidecar is written")
      unlink(directory.path + "/" + name.final)
      sync_gate_open()
      let isOver = try EventLog<Bool>()
      store.worker.execute { isOver.append(true) }
      _ = try isOver.first("the worker has done all") { _ in true }
      try require(!directory.exists(name.sidecar) && !directory.exists(name.newSidecar), "a sidecar is left")
    }
  }
}
