// Tests files that are longer after a power failure than what was synced of them, with zeros at their ends.
//
// ext4 with its default options leaves such files. A copy of the directory with additional zeros stands for the disk.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import SyncGate
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

/// Whether the file system of the tests has extended attributes.
let hasExtendedAttributes: Bool = {
  let directory = TemporaryDirectory()
  let file = open("\(directory.path)/probe", O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
  defer { close(file) }
  try? SyncedMark(boot: "b", size: 1).set(file)
  return (try? SyncedMark.of(file)) == SyncedMark(boot: "b", size: 1)
}()

extension TemporaryDirectory {
  /// Removes the mark of a growing file, if there is one.
  func removeMark(_ name: String) throws {
    let file = open("\(path)/\(name)", O_RDONLY | O_CLOEXEC)
    guard file >= 0 else { return }
    defer { close(file) }
    try SyncedMark.remove(file)
  }
}

@Suite("Growing files after a power failure", .serialized, .enabled(if: hasExtendedAttributes))
struct SyncedMarkTests {
  /// Which file has the bytes.
  enum Place: CaseIterable, Sendable {
    /// The `.part` of a stream.
    case stream
    /// The `.part` of a next part of a stream.
    case nextPart
    /// The file beside the record of an upload whose handler keeps nothing.
    case body

    var path: String { self == .body ? "/spooled" : "/t.txt" }
  }

  /// What happens between the last acknowledgement and the failure.
  enum Event: CaseIterable, Sendable {
    case nothing
    /// A plain request adds bytes, and does not end properly.
    case plainRequest
    /// A server that does not sync before it acknowledges continues the upload.
    case otherDurability
    /// The machine has failed before, and the upload was continued since.
    case earlierFailure
    /// The server has stopped regularly, and another one has started.
    case stop
  }

  private func server(
    _ durability: Durability, in directory: TemporaryDirectory, boot: String, split: RecordingSplit? = nil
  ) throws -> TestServer {
    try TestServer(in: directory) {
      $0.durability = durability
      $0.split = split
      $0.bootIdentifier = boot
      $0.handler = { head in head.target.path == Place.body.path ? Silent() : nil }
    }
  }

  private func growingFile(_ directory: TemporaryDirectory, _ place: Place) throws -> String {
    let parent = place == .body ? "\(directory.path)/.uploads" : directory.path
    let suffix = place == .body ? ".body" : ".part"
    let list = try #require(opendir(parent))
    defer { closedir(list) }
    while let entry = readdir(list) {
      let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      if name.hasSuffix(suffix) { return "\(parent)/\(name)" }
    }
    throw TestFailure("no file \(suffix)")
  }

  private func extend(_ path: String, byZeros count: Int) throws {
    let file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC)
    defer { close(file) }
    try #require(write(file, [UInt8](repeating: 0, count: count), count) == count)
  }

  private func bytes(_ count: Int, _ random: inout SplitMix64) -> [UInt8] {
    (0..<count).map { _ in UInt8.random(in: 1...255, using: &random) }
  }

  @Test(
    "with always, zeros after the synced bytes do not count, and each acknowledged byte does",
    arguments: Place.allCases,
    Event.allCases)
  func zeros(_ place: Place, _ event: Event) throws {
    guard !(event == .plainRequest && place == .body) else { return }
    for seed in Seed.several(3) {
      var random = seed.generator
      var directory = TemporaryDirectory()
      if place == .nextPart { try beginNextPart(directory, bytes(10, &random)) }
      var test = try server(.always, in: directory, boot: "0")
      let start = place == .nextPart ? 10 : 0
      let location = try test.create(place.path, ["Stream-ID: a", "Stream-Offset: \(start)"])
      var sent: [UInt8] = []
      func append() throws {
        let more = bytes(Int.random(in: 1...5000, using: &random), &random)
        try test.append(location, at: sent.count, more)
        sent += more
      }
      for _ in 0..<Int.random(in: 1...4, using: &random) { try append() }
      var isKept = false
      switch event {
      case .nothing: break
      case .stop:
        test.stop()
        test = try server(.always, in: directory, boot: "0")
      case .plainRequest:
        try test.plain(id: "a", offset: start + sent.count, Array("plain".utf8))
        sent += Array("plain".utf8)
        isKept = true
      case .otherDurability:
        test.stop()
        test = try server(.none, in: directory, boot: "0")
        try append()
        isKept = true
      case .earlierFailure:
        directory = try test.directory.copyOfKilled()
        test.stop()
        try extend(try growingFile(directory, place), byZeros: 7)
        test = try server(.always, in: directory, boot: "1")
        try append()
      }
      let copy = try test.directory.copyOfKilled()
      test.stop()
      let file = try growingFile(copy, place)
      let zeros = Int.random(in: 1...4096, using: &random)
      try extend(file, byZeros: zeros)
      // In the same boot, nothing but the server has ended.
      let same = try copy.copyOfKilled()
      for (boot, directory, isTrusted) in [("0", same, true), ("2", copy, isKept)]
      where boot != "0" || event != .earlierFailure {
        let next = try server(.always, in: directory, boot: boot)
        let client = try next.connect()
        let answer = try client.head(location)
        if event == .otherDurability, boot != "0" {
          #expect(answer.status == 410, "\(seed), \(boot): \(answer)")
          continue
        }
        let expected = sent.count + (isTrusted ? zeros : 0)
        #expect(answer["upload-offset"] == "\(expected)", "\(seed), \(boot)")
        // The handler never answers.
        guard place != .body else { continue }
        try client.patch(location, at: expected, completes: true, body: "end")
        let final = try client.final().answer
        // 200 if a plain request has also written to it.
        #expect([200, 201].contains(final.status), "\(seed), \(boot): \(final)")
        let name = try #require(
          next.directory.names.first { $0.hasSuffix(".txt") && (start == 0 || $0.contains("~2")) })
        #expect(
          try next.directory.contents(name) == sent + [UInt8](repeating: 0, count: expected - sent.count)
            + Array("end".utf8), "\(seed), \(boot)")
        let complete = open("\(directory.path)/\(name)", O_RDONLY | O_CLOEXEC)
        defer { close(complete) }
        #expect(try SyncedMark.of(complete) == nil)
      }
    }
  }

  @Test(
    "with interval, bytes that were not synced become a recorded gap after a power failure, without zeros of the disk",
    arguments: [Place.stream, .nextPart], [true, false])
  func interval(_ place: Place, isSynced: Bool) throws {
    for seed in Seed.several(3) {
      var random = seed.generator
      let directory = TemporaryDirectory()
      let start = place == .nextPart ? 10 : 0
      if place == .nextPart { try beginNextPart(directory, bytes(10, &random)) }
      let test = try server(.interval, in: directory, boot: "0")
      let location = try test.create(place.path, ["Stream-ID: a", "Stream-Offset: \(start)"])
      let growing = place == .nextPart ? "t-a~2.part" : "t-a.part"
      var sent: [UInt8] = []
      func append() throws {
        let more = bytes(Int.random(in: 1...5000, using: &random), &random)
        try test.append(location, at: sent.count, more)
        sent += more
      }
      try append()
      if isSynced {
        try waitUntil("the bytes are marked") {
          try mark(directory, growing) == SyncedMark(boot: "0", size: UInt64(sent.count))
        }
        try append()
      }
      let copy = try test.directory.copyOfKilled()
      test.stop()
      let marked = Int(try #require(try mark(copy, growing)).size)
      #expect(marked <= sent.count && (!isSynced || marked > 0), "\(seed)")
      // An earlier mark that the disk may have instead.
      let synced = isSynced ? Int.random(in: 1...min(marked, sent.count - 1), using: &random) : 0
      try set(SyncedMark(boot: "0", size: UInt64(synced)), copy, growing)
      try extend(try growingFile(copy, place), byZeros: Int.random(in: 1...4096, using: &random))
      let next = try server(.interval, in: copy, boot: "1")
      let answer = try next.connect().head(location)
      let lost = sent.count - synced
      #expect(answer.status == 410, "\(seed): \(answer)")
      let again = try next.create(place.path, ["Stream-ID: a", "Stream-Offset: \(start + sent.count)"])
      try next.append(again, at: 0, completes: true, "end")
      let base = growing.dropLast(5)
      // A part without a byte begins where its client is.
      let kept = place == .nextPart && synced == 0 ? [] : sent[..<synced] + [UInt8](repeating: 0, count: lost)
      #expect(try copy.contents("\(base).txt") == kept + Array("end".utf8), "\(seed)")
      let gaps = try copy.text("\(base).gaps")
      #expect(gaps.contains("\"offset\":\(start + synced),\"length\":\(lost),"), "\(seed): \(gaps)")
    }
  }

  /// What divides a stream into files.
  enum Division: CaseIterable, Sendable { case size, time }

  @Test(
    "with interval, a split stream loses only unsynced bytes of its last file, and they become a recorded gap there",
    arguments: Division.allCases, [true, false])
  func intervalSplit(_ division: Division, isSynced: Bool) throws {
    for seed in Seed.several(3) {
      var random = seed.generator
      let head = try #require(StreamedHead.all.randomElement(using: &random))
      let header = head.bytes.count
      // Each millisecond has 48 frames.
      let milliseconds = Int.random(in: 20...60, using: &random)
      let limit = milliseconds * 48 * head.frameLength
      var split =
        division == .size
        ? RecordingSplit(size: UInt64(header + limit)) : RecordingSplit(duration: .milliseconds(milliseconds))
      split.leastLength = 0
      let count = Int.random(in: 2...4, using: &random)
      // Where the last file begins. The stream ends before it is full.
      let begin = header + (count - 1) * limit
      let stream =
        head.bytes + bytes((count - 1) * limit + Int.random(in: 2...(limit / 2), using: &random), &random)
      let names = ["k-a"] + (2...count).map { "k-a~\($0)" }
      let growing = "k-a~\(count).part"
      let directory = TemporaryDirectory()
      let test = try server(.interval, in: directory, boot: "0", split: split)
      let location = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
      let first = Int.random(in: (begin + 1)..<stream.count, using: &random)
      try test.append(location, at: 0, Array(stream[..<first]))
      try waitUntil("all files but the last are complete") {
        names.dropLast().allSatisfy { name in
          directory.exists("\(name).sidecar") && !directory.exists(".\(name).sidecar")
            && !directory.exists("\(name).part")
        }
      }
      if isSynced {
        try waitUntil("the bytes of the last file are marked") {
          try mark(directory, growing) == SyncedMark(boot: "0", size: UInt64(header + first - begin))
        }
      }
      try test.append(location, at: first, Array(stream[first...]))
      let copy = try directory.copyOfKilled()
      test.stop()
      // An earlier mark that the disk may have instead.
      let marked = Int(try #require(try mark(copy, growing)).size)
      let largest = min(marked, header + stream.count - begin - 1)
      let synced = isSynced ? Int.random(in: (header + 1)...largest, using: &random) : 0
      try set(SyncedMark(boot: "0", size: UInt64(synced)), copy, growing)
      try extend("\(copy.path)/\(growing)", byZeros: Int.random(in: 1...4096, using: &random))
      let next = try server(.interval, in: copy, boot: "1", split: split)
      let answer = try next.connect().head(location)
      #expect(answer.status == 410, "\(seed): \(answer)")
      let lines = ["Stream-ID: a", "Stream-Offset: \(stream.count)", "Content-Type: audio/wav"]
      let again = try next.create("/k.wav", lines)
      let tail = bytes(4 * head.frameLength, &random)
      try next.append(again, at: 0, completes: true, tail)
      let kept = begin + max(0, synced - header)
      let lost = stream.count - kept
      for (index, name) in names.enumerated() {
        let start = header + index * limit
        let isLast = index == count - 1
        var samples = Array(stream[start..<(isLast ? kept : start + limit)])
        if isLast { samples += [UInt8](repeating: 0, count: lost) + tail }
        let expected = head.finished(sampleByteCount: samples.count) + samples
        #expect(try copy.contents("\(name).wav") == expected, "\(seed): \(name)")
        let gap = GapRecord(offset: UInt64(kept), length: UInt64(lost), cause: .notReceived).jsonLine
        let gaps = try copy.exists("\(name).gaps") ? copy.text("\(name).gaps") : ""
        #expect(gaps == (isLast ? gap : ""), "\(seed): \(name)")
      }
    }
  }

  /// Closes a stream, so that its next bytes are in a next part.
  private func beginNextPart(_ directory: TemporaryDirectory, _ bytes: [UInt8]) throws {
    var test = try server(.always, in: directory, boot: "0")
    try test.plain(id: "a", bytes)
    test.stop()
    test = try TestServer(in: directory) { $0.finishAfter = .milliseconds(10) }
    _ = try test.events.wait(.closed)
    test.stop()
  }

  @Test("an upload survives a power failure if all of it was synced, even while its last request was under way")
  func syncedDuringRequest() throws {
    let test = try TestServer(in: TemporaryDirectory()) {
      ($0.durability, $0.bootIdentifier, $0.uploads.parkDelay) = (.interval, "0", .milliseconds(1))
    }
    let location = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 0"])
    let client = try test.connect()
    try client.patch(location, at: 0, chunked: true)
    try client.sendChunk("abc")
    try waitUntil("the bytes are synced") {
      (try? mark(test.directory, "t-a.part")) == SyncedMark(boot: "0", size: 3)
    }
    client.disconnect()
    let record = ".uploads/\(location.split(separator: "/").last ?? "").upload"
    try waitUntil("the record states it") { try !test.directory.text(record).contains("Unsynced") }
    let next = try server(.interval, in: try test.directory.copyOfKilled(), boot: "1")
    let answer = try next.connect().head(location)
    #expect(answer["upload-offset"] == "3", "\(answer)")
  }

  @Test(
    "the bytes of an upload that ends within a second of its last ones are not removed after a stop and another boot")
  func endedBeforeSync() throws {
    let directory = TemporaryDirectory()
    let test = try server(.interval, in: directory, boot: "0")
    let location = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 0", "Upload-Length: 5"])
    try test.append(location, at: 0, "abc")
    let client = try test.connect()
    try client.patch(location, at: 3, body: "more than that")
    let refused = try client.final().answer
    #expect(refused.status >= 400, "\(refused)")
    client.disconnect()
    let length = try directory.contents("t-a.part").count
    #expect(length >= 3)
    test.stop()
    let next = try store(directory, .interval, boot: "1")
    #expect(
      try next.growth(of: StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain"))?.length == UInt64(length))
  }

  @Test("an upload survives a power failure if all of it was synced before another one has taken its stream over")
  func syncedBeforeTakeover() throws {
    let test = try server(.interval, in: TemporaryDirectory(), boot: "0")
    let location = try test.create("/t.txt", ["Stream-ID: a"])
    let client = try test.connect()
    try client.patch(location, at: 0, chunked: true)
    try client.sendChunk("abc")
    try waitUntil("the bytes are synced") {
      (try? mark(test.directory, "t-a.part")) == SyncedMark(boot: "0", size: 3)
    }
    let other = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 3"])
    let next = try test.connect()
    try next.patch(other, at: 0, chunked: true)
    try next.awaitProgress(0)
    let record = ".uploads/\(location.split(separator: "/").last ?? "").upload"
    try waitUntil("the record states it") { try !test.directory.text(record).contains("Unsynced") }
    let copy = try test.directory.copyOfKilled()
    test.stop()
    let later = try server(.interval, in: copy, boot: "1")
    let answer = try later.connect().head(location)
    #expect(answer["upload-offset"] == "3", "\(answer)")
  }

  @Test(
    "an upload whose server was killed soon after its last byte survives a later power failure, without a client",
    arguments: [Place.stream, .body])
  func killedBeforeSync(_ place: Place) throws {
    let first = try server(.interval, in: TemporaryDirectory(), boot: "0")
    let location = try first.create(place.path, ["Stream-ID: a"])
    try first.append(location, at: 0, "abc")
    let killed = try first.directory.copyOfKilled()
    first.stop()
    let second = try server(.interval, in: killed, boot: "0")
    let record = ".uploads/\(location.split(separator: "/").last ?? "").upload"
    try waitUntil("the record states that all is synced") { try !killed.text(record).contains("Unsynced") }
    let copy = try killed.copyOfKilled()
    // Otherwise, its end would do the same before.
    second.stop()
    let third = try server(.interval, in: copy, boot: "1")
    let answer = try third.connect().head(location)
    #expect(answer["upload-offset"] == "3", "\(answer)")
  }

  @Test("with interval, an upload whose file cannot be opened for a sync counts as unsynced until it is marked")
  func notOpenedByServer() async {
    await #expect(processExitsWith: .success) {
      for code in [EMFILE, EACCES] {
        let directory = TemporaryDirectory()
        let test = try TestServer(in: directory) { ($0.durability, $0.threads) = (.interval, 1) }
        let location = try test.create("/t.txt", ["Stream-ID: a"])
        let client = try test.connect()
        try client.patch(location, at: 0, chunked: true)
        try client.sendChunk("abc")
        try client.awaitProgress(3)
        // The other upload takes over the open file, so the next sync of the first one opens it again.
        let other = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 3"])
        let next = try test.connect()
        try next.patch(other, at: 0, chunked: true)
        try next.awaitProgress(0)
        open_gate_fail(code, "/t-a.part")
        // One round opens it at most a few times.
        try waitUntil("\(code): it is synced again and again") { open_gate_failures() > 8 }
        let record = ".uploads/\(location.split(separator: "/").last ?? "").upload"
        try require(try directory.text(record).contains("Unsynced"), "\(code): the record states that all is synced")
        open_gate_fail(0, "")
        try waitUntil("\(code): the record states it at last") { try !directory.text(record).contains("Unsynced") }
        let file = open("\(directory.path)/t-a.part", O_RDONLY | O_CLOEXEC)
        defer { close(file) }
        let mark = try SyncedMark.of(file)
        try require(mark?.size == 3, "\(code): \(String(describing: mark))")
        test.stop()
      }
    }
  }

  @Test("a server that stops at once waits for the sync of an upload that ends while it is under way")
  func endedDuringSync() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let test = try TestServer(in: directory) { ($0.durability, $0.threads) = (.interval, 2) }
      let location = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 0", "Upload-Length: 5"])
      let client = try test.connect()
      try client.patch(location, at: 0, chunked: true)
      try client.awaitProgress(0)
      // Two records: one for the existence of the upload, one for its beginning.
      try waitUntil("the records are synced") { sync_gate_calls() >= 2 }
      // If an expectation fails, the server must not wait for a disk that hangs.
      defer { sync_gate_open() }
      sync_gate_close()
      let before = sync_gate_calls()
      try client.sendChunk("abc")
      try waitUntil("the round of the second") { sync_gate_calls() > before }
      try client.sendChunk("more than that")
      let refused = try client.final().answer
      try require(refused.status >= 400, "\(refused)")
      client.disconnect()
      let isOpen = Lock(false)
      let ends = try EventLog<Bool>()
      let server = test.server
      try NamedThread("stop") {
        server.drain(within: .zero)
        server.waitUntilEnded()
        ends.append(isOpen.withLock { $0 })
      }.detach()
      // Only a server that does not wait for the disk ends in this time.
      poll(nil, 0, 200)
      isOpen.withLock { $0 = true }
      sync_gate_open()
      try require(try ends.first("the end of the server") { _ in true }, "it has ended before the sync")
      let next = try FileStore(in: directory, durability: .interval, boot: "another")
      let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
      let length = try next.growth(of: name)?.length
      try require(length == 3, "\(String(describing: length))")
    }
  }

  @Test(
    "with always, an upload whose acknowledged bytes are missing after a kill cannot be continued",
    arguments: [Place.stream, .body])
  func lost(_ place: Place) throws {
    let test = try server(.always, in: TemporaryDirectory(), boot: "0")
    let location = try test.create(place.path, ["Stream-ID: a", "Stream-Offset: 0"])
    for offset in [0, 100] { try test.append(location, at: offset, [UInt8](repeating: 1, count: 100)) }
    let intact = try test.directory.copyOfKilled()
    let damaged = try test.directory.copyOfKilled()
    test.stop()
    let file = try growingFile(damaged, place)
    #expect(truncate(file, 199) == 0)
    let next = try server(.always, in: damaged, boot: "0")
    let lost = try next.connect().head(location)
    #expect(lost.status == 410, "\(lost)")
    let other = try server(.always, in: intact, boot: "0")
    let kept = try other.connect().head(location)
    #expect(kept["upload-offset"] == "200", "\(kept)")
  }

  // MARK: Without a sync

  private func store(
    _ directory: TemporaryDirectory, _ durability: Durability = .always, boot: String, split: RecordingSplit? = nil
  ) throws -> FileStore {
    try FileStore(in: directory, durability: durability, hasSidecars: split != nil, split: split, boot: boot)
  }

  private func stream(_ name: StreamName, in store: FileStore, isUpload: Bool) throws -> any StoredStream {
    let purpose = StreamPurpose.request(credential: nil, offset: 0, creating: true, isUpload: isUpload)
    return try #require(try store.open(name, for: purpose))
  }

  private func append(_ bytes: [UInt8], to stream: any StoredStream) -> StoredBytes {
    stream.write(bytes.span, [0..<bytes.count], skipping: 0, at: stream.length, maySplit: true)
  }

  private func mark(_ directory: TemporaryDirectory, _ name: String) throws -> SyncedMark? {
    let file = open("\(directory.path)/\(name)", O_RDONLY | O_CLOEXEC)
    defer { close(file) }
    return try SyncedMark.of(file)
  }

  private func set(_ mark: SyncedMark, _ directory: TemporaryDirectory, _ name: String) throws {
    let file = open("\(directory.path)/\(name)", O_RDONLY | O_CLOEXEC)
    defer { close(file) }
    try mark.set(file)
  }

  @Test(
    "a server syncs and marks the files that a killed one has left, and no others, so that no later boot removes bytes",
    arguments: [Durability.interval, .always], [1, 250])
  func leftByKilled(_ durability: Durability, count: Int) throws {
    let directory = TemporaryDirectory()
    let names = (0..<count).map { StreamName(path: "/t.txt", streamID: "a\($0)", mediaType: "text/plain") }
    let bytes = Array("abcdef".utf8)
    for name in names {
      try directory.write(name.partial, bytes)
      try set(SyncedMark(boot: "0", size: 3), directory, name.partial)
    }
    // One of an earlier boot is shortened when its stream is opened. Another one has bytes of a plain request.
    for name in ["earlier-a.part", "plain-a.part"] { try directory.write(name, bytes) }
    try set(SyncedMark(boot: "-1", size: 3), directory, "earlier-a.part")
    let first = try store(directory, durability, boot: "0")
    try first.findUnfinished { _, _ in }
    try waitUntil("all are marked") {
      try names.allSatisfy { try mark(directory, $0.partial) == SyncedMark(boot: "0", size: 6) }
    }
    #expect(try mark(directory, "earlier-a.part") == SyncedMark(boot: "-1", size: 3))
    #expect(try mark(directory, "plain-a.part") == nil)
    first.unlock()
    let next = try store(directory, durability, boot: "1")
    for name in names { #expect(try next.growth(of: name)?.length == 6) }
  }

  @Test("bytes that a killed server has left and that the disk refuses do not count, and a shortage refuses none")
  func leftAndRefused() async {
    await #expect(processExitsWith: .success) {
      for code in [EIO, EMFILE] {
        let directory = TemporaryDirectory()
        let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
        try directory.write(name.partial, Array("abcdef".utf8))
        func mark() throws -> SyncedMark? {
          let file = open("\(directory.path)/\(name.partial)", O_RDONLY | O_CLOEXEC)
          defer { close(file) }
          return try SyncedMark.of(file)
        }
        let file = open("\(directory.path)/\(name.partial)", O_RDONLY | O_CLOEXEC)
        try SyncedMark(boot: "0", size: 3).set(file)
        close(file)
        let store = try FileStore(in: directory, durability: .interval, boot: "0")
        if code == EIO { sync_gate_fail_once(EIO, 0) } else { open_gate_fail(code, "/\(name.partial)") }
        try store.findUnfinished { _, _ in }
        if code == EIO {
          try waitUntil("the recording is unreliable") { try store.readGaps(name, length: 6).isDistrusted }
          try require(try store.refusals.ofAny(name)?.code == EIO && mark() == nil, "refused")
        } else {
          try waitUntil("it cannot be opened") { open_gate_failures() > 0 }
          open_gate_fail(0, "")
          // As the rounds of maintenance do.
          try waitUntil("it is marked") {
            store.markUnmarked()
            return try mark() == SyncedMark(boot: "0", size: 6)
          }
          try require(store.refusals.ofAny(name) == nil && !directory.exists(name.gaps), "nothing was refused")
        }
      }
    }
  }

  @Test(
    "without any sync, no byte of an upload counts in another boot, and each byte of a plain request does; with none, all do",
    arguments: [true, false], Durability.allCases)
  func neverSynced(isUpload: Bool, _ durability: Durability) throws {
    let directory = TemporaryDirectory()
    let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
    let first = try store(directory, durability, boot: "0")
    let stream = try stream(name, in: first, isUpload: isUpload)
    #expect(append([UInt8](repeating: 0, count: 9), to: stream).count == 9)
    first.unlock()
    for (boot, length) in [("0", 9), ("1", isUpload && durability != .none ? 0 : 9)] as [(String, UInt64)] {
      let next = try store(directory, durability, boot: boot)
      #expect(try next.growth(of: name)?.length == length, "\(boot)")
      next.unlock()
    }
  }

  @Test(
    "bytes of a plain request count in another boot, although a sync for an upload of its stream includes some of them",
    arguments: [Durability.interval, .always], [1, 20])
  func plainBehindUpload(_ durability: Durability, streamCount: Int) throws {
    let directory = TemporaryDirectory()
    let first = try store(directory, durability, boot: "0")
    let names = (0..<streamCount).map { StreamName(path: "/t.txt", streamID: "a\($0)", mediaType: "text/plain") }
    /// All of them together.
    func synchronize() throws {
      var open = names.count
      let loop = try EventLoop()
      for name in names {
        first.synchronize(name, on: loop) { error in
          #expect(error == nil)
          open -= 1
          if open == 0 { loop.stop() }
        }
      }
      loop.runAtMostAMinute()
    }
    for name in names {
      let upload = try stream(name, in: first, isUpload: true)
      #expect(append(Array("upload".utf8), to: upload).count == 6)
    }
    try synchronize()
    for name in names { #expect(try mark(directory, name.partial) == SyncedMark(boot: "0", size: 6)) }
    for name in names {
      let plain = try stream(name, in: first, isUpload: false)
      #expect(append(Array(", plain".utf8), to: plain).count == 7)
      try synchronize()
      #expect(append(Array(", more".utf8), to: plain).count == 6)
    }
    first.unlock()
    let next = try store(directory, durability, boot: "1")
    for name in names { #expect(try next.growth(of: name)?.length == 19) }
  }

  @Test(
    "a plain request whose new file cannot lose its mark leaves nothing behind",
    .enabled(if: disk_faults_are_possible() != 0), arguments: [false, true])
  func keptMark(isNextPart: Bool) async {
    await #expect(processExitsWith: .success) { [isNextPart = isNextPart as Bool] in
      let directory = TemporaryDirectory()
      let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
      let token = [UInt8](repeating: 1, count: 32)
      let store = try FileStore(in: directory, durability: .interval)
      if isNextPart {
        var closed = RecordingPart(file: name.final)
        (closed.end, closed.count) = (3, 3)
        try store.parts.append(closed, to: name.base)
        try directory.write(name.final, Array("abc".utf8))
        try store.owners.record(token, of: name, isBeginner: true)
      }
      let log = try store.parts.lines(of: name.base)
      let names = directory.names
      let purpose = StreamPurpose.request(credential: token, offset: 3, creating: true, isUpload: false)
      disk_faults_begin(directory.path)
      // Before that, the owner of a new stream and the mark of the new file are set.
      disk_faults_fail(DISK_SET_ATTRIBUTE, isNextPart ? 2 : 3, EIO)
      var code: Int32?
      do throws(SystemError) { _ = try store.open(name, for: purpose) } catch { code = error.code }
      try require(code == EIO, "the request is not refused: \(String(describing: code))")
      disk_faults_begin("")
      try require(directory.names.filter { $0 != ".owners" } == names.filter { $0 != ".owners" }, "\(directory.names)")
      try require(try store.parts.lines(of: name.base) == log, "the log has changed")
      try require(try (store.owners.record(of: name) != nil) == isNextPart, "the owner")
      guard let stream = try store.open(name, for: purpose) else { throw TestFailure("no stream") }
      try require(stream.name.part == (isNextPart ? 2 : 1), "the next request begins it: \(stream.name.partial)")
    }
  }

  @Test("the same holds for the file in which a split stream continues", arguments: [true, false])
  func neverSyncedSplit(isUpload: Bool) throws {
    let directory = TemporaryDirectory()
    var split = RecordingSplit(duration: nil, size: 1000)
    split.leastLength = 0
    let store = try store(directory, boot: "0", split: split)
    let name = StreamName(path: "/k.wav", streamID: "a", mediaType: "audio/wav")
    let stream = try stream(name, in: store, isUpload: isUpload)
    let stored = append(StreamedHead.all[0].bytes + [UInt8](repeating: 1, count: 1500), to: stream)
    #expect(stored.splits.count == 1 && stored.error == nil)
    for file in ["k-a.part", "k-a~2.part"] {
      #expect(directory.exists(file))
      #expect(try mark(directory, file) == (isUpload ? SyncedMark(boot: "0", size: 0) : nil), "\(file)")
    }
    // The syncs of the log use the store's directory.
    let isOver = try EventLog<Bool>()
    store.worker.execute { isOver.append(true) }
    _ = try isOver.first("the worker has done all") { _ in true }
  }

  @Test("the last sync of a file that was split off marks all of its bytes")
  func splitOff() throws {
    let directory = TemporaryDirectory()
    var split = RecordingSplit(duration: nil, size: 1000)
    split.leastLength = 0
    let store = try store(directory, boot: "0", split: split)
    let name = StreamName(path: "/k.wav", streamID: "a", mediaType: "audio/wav")
    let stream = try stream(name, in: store, isUpload: true)
    let stored = append(StreamedHead.all[0].bytes + [UInt8](repeating: 1, count: 1500), to: stream)
    // The step after the sync fails, so the file keeps its mark.
    store.refusals.add(SystemError(operation: "sync", code: EIO), name)
    let (loop, first) = (try EventLoop(), try #require(stored.splits.first))
    first.finish(loop) { _ in loop.stop() }
    loop.run()
    let size = UInt64(try directory.contents("k-a.part").count)
    #expect(try mark(directory, "k-a.part") == SyncedMark(boot: "0", size: size))
    // The syncs of the log and of the gaps use the store's directory.
    let isOver = try EventLog<Bool>()
    store.worker.execute { isOver.append(true) }
    _ = try isOver.first("the worker has done all") { _ in true }
  }

  @Test(
    "the mark of a recording that cannot get its final name includes its synced bytes, because it may still grow",
    arguments: [Durability.interval, .always])
  func notNamed(_ durability: Durability) throws {
    let directory = TemporaryDirectory()
    let store = try store(directory, durability, boot: "0")
    let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
    let stream = try stream(name, in: store, isUpload: true)
    #expect(append(Array("abcdef".utf8), to: stream).count == 6)
    var errors: [SystemError?] = []
    func finish() throws {
      let loop = try EventLoop()
      stream.finish(.complete(isLive: false, sha256: nil), on: loop) { failure in
        errors.append(failure?.error)
        loop.stop()
      }
      loop.runAtMostAMinute()
    }
    try directory.write("t-a.txt", Array("other".utf8))
    try finish()
    #expect(errors.map(\.?.code) == [EEXIST])
    #expect(try mark(directory, "t-a.part") == SyncedMark(boot: "0", size: 6))
    #expect(unlink("\(directory.path)/t-a.txt") == 0)
    try finish()
    #expect(errors.map(\.?.code) == [EEXIST, nil])
    #expect(directory.exists("t-a.txt") && !directory.exists("t-a.part"))
    #expect(try mark(directory, "t-a.txt") == nil)
  }

  @Test("bytes of a stream in place of removed ones do not count in another boot before they are synced")
  func removedOfStream() throws {
    let directory = TemporaryDirectory()
    let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
    let first = try store(directory, boot: "0")
    let stream = try stream(name, in: first, isUpload: true)
    #expect(append(Array("abcdef".utf8), to: stream).count == 6)
    try set(SyncedMark(boot: "0", size: 5), directory, "t-a.part")
    try stream.truncate(to: 5)
    #expect(try mark(directory, "t-a.part") == SyncedMark(boot: "0", size: 5), "all of these are synced")
    try stream.truncate(to: 3)
    #expect(append(Array("xyz".utf8), to: stream).count == 3)
    first.unlock()
    #expect(try store(directory, boot: "1").growth(of: name)?.length == 3)
  }

  @Test("the mark of spooled bytes counts none that were removed")
  func removedOfBody() throws {
    let directory = TemporaryDirectory()
    try directory.write("body", Array("abcdef".utf8))
    try set(SyncedMark(boot: "0", size: 6), directory, "body")
    let parent = open(directory.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    defer { close(parent) }
    let (files, flags, usage) = (OpenFiles(), O_RDWR | O_APPEND, UploadUsage(.init()))
    let (descriptor, status) = try files.openWithStatus("body", in: parent, flags)
    let body = SpooledBody(
      OpenFile(descriptor, "body", in: parent, flags, status, files), keptCount: 6, account: StreamAccount(usage),
      share: usage.add(UploadOwner(address: "unix")), handler: Silent(), loop: try EventLoop(),
      records: UnwrittenUploadRecords(), unreadable: { _ in })
    try body.drop(to: 4)
    #expect(body.keptCount == 4)
    #expect(try mark(directory, "body") == SyncedMark(boot: "0", size: 4))
  }

  @Test("a mark that is removed while its file is shortened does not come back")
  func removedMeanwhile() throws {
    let directory = TemporaryDirectory()
    try directory.write("a", [])
    let parent = open(directory.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    defer { close(parent) }
    let (files, flags) = (OpenFiles(), O_RDWR | O_APPEND)
    let (descriptor, status) = try files.openWithStatus("a", in: parent, flags)
    let file = OpenFile(descriptor, "a", in: parent, flags, status, files)
    for attempt in 0..<2000 {
      try SyncedMark(boot: "0", size: 10).set(descriptor)
      // A removal that comes first leaves no mark that could be lowered.
      try concurrently({ try? file.truncate(to: 5, "ftruncate") }, { try? SyncedMark.remove(descriptor) })
      try #require(try SyncedMark.of(descriptor) == nil, "attempt \(attempt)")
    }
    withExtendedLifetime(file) {}
  }

  @Test("a file that the kernel cannot write to the device by itself gets no mark, and this is no error")
  func withoutRangeSync() throws {
    // Some file systems have no sync_file_range(2), and pipes have none either.
    var ends: [Int32] = [0, 0]
    let status = pipe(&ends)
    try #require(status == 0)
    defer { for end in ends { close(end) } }
    let end = ends[0]
    #expect(throws: Never.self) { try SyncedMark.renew(end, boot: "b") }
    #expect(try SyncedMark.of(end) == nil)
  }

  /// A directory of marked files, and a worker that begins once all of them wait.
  private final class Bench: Sendable {
    let path: String
    let directory: Int32
    let files = OpenFiles()
    let sync: DiskSync
    let results = Lock<[Int: SystemError?]>([:])
    private let mayBegin: EventLog<Bool>

    init(in directory: TemporaryDirectory, count: Int, _ marking: DiskSync.Marking) throws {
      path = directory.path
      self.directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
      let (worker, mayBegin) = (BackgroundWorker(), try EventLog<Bool>())
      self.mayBegin = mayBegin
      sync = DiskSync(directory: self.directory, worker: worker, files: files, boot: "b", marking: marking)
      for number in 0..<count {
        try directory.write("\(number)", Array("abc".utf8))
        let file = open("\(path)/\(number)", O_RDONLY | O_CLOEXEC)
        defer { close(file) }
        try SyncedMark(boot: "a", size: 1).set(file)
      }
      worker.execute { _ = try? mayBegin.wait("the test") { $0.first } }
      for number in 0..<count { take(number) }
    }

    func take(_ number: Int) {
      sync.sync(.named("\(number)", in: directory), "sync", growth: .continues) { [self] error in
        results.withLock { $0[number] = .some(error) }
      }
    }

    func begin() { mayBegin.append(true) }

    /// Returns the codes of the errors by the numbers of the files.
    func codes(_ count: Int) throws -> [Int32?] {
      try waitUntil("all are told") { results.withLock { $0.count } == count }
      let errors = self.results.withLock { $0 }
      return (0..<count).map { errors[$0]??.code }
    }

    func mark(_ number: Int) throws -> SyncedMark? {
      let file = open("\(path)/\(number)", O_RDONLY | O_CLOEXEC)
      defer { close(file) }
      return try SyncedMark.of(file)
    }
  }

  @Test("a growing file that cannot be opened for its sync keeps its mark, and the error is that of its configuration")
  func notOpened() async {
    await #expect(processExitsWith: .success) {
      // What follows a shortage, and another error.
      let expected: [(marking: DiskSync.Marking, shortage: Int32?, other: Int32?)] = [
        (.possible, EMFILE, EAGAIN), (.exceptInaccessible, EMFILE, nil), (.all, EMFILE, EACCES),
      ]
      for (marking, shortage, other) in expected {
        // Files are synced one by one, or together.
        for (code, count) in [(EMFILE, 1), (EMFILE, 16), (EACCES, 1), (EACCES, 16)] {
          let directory = TemporaryDirectory()
          let bench = try Bench(in: directory, count: count, marking)
          open_gate_fail(code, "/0")
          bench.begin()
          let codes = try bench.codes(count)
          open_gate_fail(0, "")
          let context = "\(marking), \(code), \(count)"
          try require(codes[0] == (code == EMFILE ? shortage : other), "\(context): \(codes)")
          try require(codes.dropFirst().allSatisfy { $0 == nil }, "\(context): \(codes)")
          try require(try bench.mark(0) == SyncedMark(boot: "a", size: 1), "\(context): its mark has changed")
          for number in 1..<max(count, 1) {
            try require(try bench.mark(number) == SyncedMark(boot: "b", size: 3), "\(context): \(number) is not marked")
          }
          bench.results.withLock { $0 = [:] }
          bench.take(0)
          try require(try bench.codes(1) == [nil], "\(context): the next sync fails")
          try require(try bench.mark(0) == SyncedMark(boot: "b", size: 3), "\(context): it is not marked later")
        }
      }
    }
  }

  @Test(
    "if a file is shortened between the two syncs of many, no mark relies on the first one",
    .enabled(if: disk_faults_are_possible() != 0))
  func shortenedBetween() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let bench = try Bench(in: directory, count: 16, .possible)
      let flags = O_RDWR | O_APPEND
      let (descriptor, status) = try bench.files.openWithStatus("3", in: bench.directory, flags)
      let file = OpenFile(descriptor, "3", in: bench.directory, flags, status, bench.files)
      disk_faults_begin(directory.path)
      // Each file is opened for its size before the first sync, and for its mark after it.
      open_gate_close_after("/3", 1)
      bench.begin()
      try waitUntil("the files are about to be marked") { open_gate_waiters() == 1 }
      try require(disk_faults_calls(DISK_SYNC) == 1, "they are synced together")
      try file.truncate(to: 1, "ftruncate")
      try require(write(descriptor, "xy", 2) == 2, "write")
      open_gate_open()
      let codes = try bench.codes(16)
      try require(codes.allSatisfy { $0 == nil }, "\(codes)")
      // One by one, because the new bytes were perhaps written after the first sync.
      try require(disk_faults_calls(DISK_SYNC) == 17, "\(disk_faults_calls(DISK_SYNC)) syncs")
      try require(disk_faults_unsynced("\(directory.path)/3") == 0, "its new bytes are not synced")
      for number in 0..<16 {
        try require(try bench.mark(number) == SyncedMark(boot: "b", size: 3), "\(number) is not marked")
      }
      withExtendedLifetime(file) {}
    }
  }

  @Test("each growing file that is synced is marked, however many wait, and one whose sync fails has no mark")
  func synced() async {
    await #expect(processExitsWith: .success) {
      for count in [1, 2, 15, 16, 40] {
        for error in [0, EIO] {
          let directory = TemporaryDirectory()
          let parent = open(directory.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
          defer { close(parent) }
          let sync = DiskSync(
            directory: parent, worker: BackgroundWorker(), files: OpenFiles(), boot: "b", marking: .all)
          let results = try EventLog<SystemError?>()
          // One more, which has no mark, because a plain request has written to it.
          for number in 0...count {
            try directory.write("\(number)", Array("abc".utf8))
            guard number < count else { continue }
            let file = open("\(directory.path)/\(number)", O_RDONLY | O_CLOEXEC)
            defer { close(file) }
            try SyncedMark(boot: "a", size: 1).set(file)
          }
          // syncfs(2) passes the gate, so its files are marked in any case.
          sync_gate_fail(error)
          for number in 0...count {
            sync.sync(.named("\(number)", in: parent), "sync", growth: .continues) { results.append($0) }
          }
          try waitUntil("all are told") { results.all.count == count + 1 }
          sync_gate_fail(0)
          let marks = try (0...count).map { number in
            let file = open("\(directory.path)/\(number)", O_RDONLY | O_CLOEXEC)
            defer { close(file) }
            return try SyncedMark.of(file)
          }
          let failures = results.all.count { $0 != nil }
          try require(error != 0 || failures == 0, "\(count): \(failures) failures")
          try require(marks.last == .some(nil), "without a mark: \(marks)")
          let unmarked = marks.count { $0 == nil }
          try require(
            unmarked == max(failures, 1) || unmarked == failures + 1, "\(count), \(error): \(failures), \(marks)")
          try require(marks.allSatisfy { $0 == nil || $0 == SyncedMark(boot: "b", size: 3) }, "\(marks)")
        }
      }
    }
  }
}
