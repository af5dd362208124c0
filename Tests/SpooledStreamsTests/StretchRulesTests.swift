// A stretch without its thread: each call, and its exact effect on the file, the memory and the consumer.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import SpoolTesting
import StreamBuffers
import Testing

@testable import SpooledStreams

@Suite("The rules of a stretch")
struct StretchRulesTests {
  private static let pattern = OffsetPattern(seed: 6)

  // MARK: The backing

  /// What a stretch has asked of its thread.
  private final class Calls: Sendable {
    struct All: Equatable {
      var loads: [UInt64] = []
      var rooms = 0
      var keeps = 0
    }

    private let state = Lock(All())
    var all: All { state.withLock { $0 } }

    func load(_ position: UInt64) { state.withLock { $0.loads.append(position) } }
    func tellRoom() { state.withLock { $0.rooms += 1 } }
    func keep() { state.withLock { $0.keeps += 1 } }
  }

  private func stretch(_ kept: Range<UInt64>, released: UInt64, _ calls: Calls) -> SpooledStretch {
    SpooledStretch(
      kept: kept, released: released, capacity: 77, resumption: "old", load: { calls.load($0) },
      roomIsThere: { calls.tellRoom() }, keep: { calls.keep() })
  }

  /// The result of a read, as text: bytes with their beginning, nothing yet, or where others begin.
  private func read(_ stretch: SpooledStretch, _ offset: UInt64, maximum: Int = 1000, inMemory: UInt64 = 0) -> String {
    switch stretch.read(at: offset, maximum: maximum, oldestInMemory: inMemory) {
    case .bytes(let bytes):
      bytes.indices.allSatisfy { bytes[$0] == Self.pattern[offset + UInt64($0)] } ? "\(bytes.count)" : "wrong"
    case .empty: "empty"
    case .overwritten(let oldest): "from \(oldest)"
    }
  }

  private func piece(_ range: Range<UInt64>) -> SpoolReadAhead.Piece {
    let piece = SpoolReadAhead.Piece(start: range.lowerBound)
    piece.count = range.count
    Self.pattern.fill(UnsafeMutableRawBufferPointer(rebasing: piece.memory[..<range.count]), at: range.lowerBound)
    return piece
  }

  @Test("a consumer reads pieces that are loaded ahead, one at a time, and learns where bytes are missing")
  func reads() {
    let calls = Calls()
    let stretch = stretch(100..<200, released: 50, calls)
    #expect(stretch.oldest == 100 && stretch.capacity == 77 && stretch.released == 50)
    #expect(read(stretch, 99) == "from 100" && calls.all.loads == [])
    #expect(read(stretch, 100) == "empty" && read(stretch, 100) == "empty" && calls.all.loads == [100])
    stretch.loaded(piece(100..<150), hole: nil)
    #expect(read(stretch, 100, maximum: 10) == "10" && calls.all.loads == [100, 150])
    #expect(read(stretch, 100) == "50" && read(stretch, 149) == "1" && calls.all.loads == [100, 150])
    #expect(read(stretch, 150) == "empty")
    stretch.loaded(piece(150..<160), hole: 160..<170)
    // The piece before is kept until the next one is read.
    #expect(read(stretch, 120) == "30" && read(stretch, 150) == "10" && calls.all.loads == [100, 150])
    #expect(read(stretch, 159) == "1" && read(stretch, 160) == "from 170" && read(stretch, 169) == "from 170")
    #expect(calls.all.loads == [100, 150] && stretch.oldest == 100)
    for (offset, isMissing) in [(159, false), (160, true), (169, true), (170, false), (199, false), (200, true)]
      as [(UInt64, Bool)]
    { #expect(stretch.isMissing(at: offset) == isMissing, "\(offset)") }
    #expect(read(stretch, 170) == "empty" && calls.all.loads == [100, 150, 170])
    stretch.loaded(piece(170..<200), hole: nil)
    #expect(read(stretch, 170) == "30" && calls.all.loads == [100, 150, 170], "nothing follows")
    // The disk has refused what follows.
    #expect(read(stretch, 200, inMemory: 230) == "from 230" && read(stretch, 200) == "from 201")
    // Once everything before a hole is acknowledged, the stretch begins after it.
    stretch.release(upTo: 160)
    #expect(stretch.oldest == 160 && read(stretch, 160) == "from 170" && stretch.oldest == 170)
    stretch.evicted(upTo: 180)
    stretch.evicted(upTo: 175)
    #expect(stretch.oldest == 180 && read(stretch, 179) == "from 180" && read(stretch, 180) == "20")
    // Until all is acknowledged, what was loaded stays.
    stretch.release(upTo: 199)
    #expect(stretch.isMissing(at: 165) && stretch.oldest == 199)
    stretch.release(upTo: 200)
    #expect(!stretch.isMissing(at: 165) && stretch.oldest == 200)
    stretch.release(upTo: 190)
    #expect(stretch.released == 200 && calls.all == Calls.All(loads: [100, 150, 170]))
  }

  @Test("a stretch without space tells its thread once when bytes are released")
  func starved() {
    let calls = Calls()
    let stretch = stretch(0..<100, released: 0, calls)
    stretch.release(upTo: 10)
    #expect(calls.all.rooms == 0)
    stretch.isStarved()
    for position in [20, 30] as [UInt64] { stretch.release(upTo: position) }
    #expect(calls.all.rooms == 1)
  }

  @Test("bytes count as unsynced until they are synced or acknowledged")
  func synced() {
    let stretch = stretch(0..<100, released: 0, Calls())
    #expect(stretch.notSynchronized(upTo: 90) == 0 && stretch.notSynchronized(upTo: 250) == 150)
    stretch.synchronized(upTo: 240)
    #expect(stretch.notSynchronized(upTo: 250) == 10)
    stretch.release(upTo: 245)
    #expect(stretch.notSynchronized(upTo: 250) == 5)
  }

  @Test("bytes that the buffer drops before the disk takes them are holes, each once, until they are passed")
  func holes() {
    let stretch = stretch(0..<100, released: 0, Calls())
    #expect(stretch.holes(before: 100) == [] && stretch.holes(before: 130) == [100..<130])
    // Those on their way are not lost.
    stretch.took(upTo: 200)
    #expect(stretch.holes(before: 180) == [100..<130] && stretch.holes(before: 220) == [100..<130, 200..<220])
    // The disk has refused them.
    #expect(!stretch.wrote(upTo: 100))
    stretch.lost(from: 130, to: 210)
    #expect(stretch.holes(before: 220) == [100..<220])
    stretch.took(upTo: 250)
    #expect(!stretch.wrote(upTo: 250) && stretch.holes(before: 240) == [100..<220])
    #expect(stretch.holes(before: 300) == [100..<220, 250..<300])
    #expect(stretch.notSynchronized(upTo: 320) == 50 && stretch.unacknowledged(upTo: 320) == 150)
    stretch.release(upTo: 220)
    #expect(stretch.holes(before: 300) == [250..<300])
    stretch.release(upTo: 260)
    stretch.lost(from: 240, to: 258)
    #expect(stretch.holes(before: 300) == [250..<300] && stretch.unacknowledged(upTo: 320) == 20)
    stretch.evicted(upTo: 300)
    #expect(stretch.holes(before: 300) == [])
    // What an earlier process has left: the server has acknowledged the bytes before 140.
    let next = SpooledStretch(
      kept: 0..<100, released: 0, capacity: 77, firstHole: 140, load: { _ in }, keep: {})
    #expect(next.holes(before: 130) == [] && next.holes(before: 150) == [140..<150])
  }

  @Test("a text is in memory at once, and on the disk if memory is not enough")
  func notes() throws {
    let path = "/dev/shm/sluice-test-note-\(getpid())"
    defer { unlink(path) }
    let calls = Calls()
    let stretch = stretch(0..<0, released: 0, calls)
    var settings = CircularBuffer.Settings(capacity: 1)
    (settings.hasCopier, settings.path) = (true, path)
    let ends = try CircularBuffer.makeCopied(settings)
    func kept() throws -> String? { try CircularBuffer.Remains(path: path)?.note }
    #expect(stretch.resumption == "old")
    stretch.note("old", isUrgent: true)
    #expect(calls.all.keeps == 0, "nothing is new")
    stretch.note("a", isUrgent: false)
    #expect(calls.all.keeps == 1 && stretch.resumption == "a", "no memory survives the process")
    stretch.noteWithRelease("b")
    #expect(try calls.all.keeps == 1 && stretch.resumption == "b" && kept() == nil)
    stretch.keepsWords(in: ends.copier.note)
    #expect(try kept() == "b")
    stretch.note("c", isUrgent: false)
    #expect(try kept() == "c" && calls.all.keeps == 1)
    stretch.note("d", isUrgent: true)
    #expect(try kept() == "d" && calls.all.keeps == 2)
    stretch.noteWithRelease("e")
    #expect(try kept() == "e" && calls.all.keeps == 2)
    stretch.keepsWords(in: nil)
    stretch.note("f", isUrgent: false)
    #expect(try kept() == "e" && calls.all.keeps == 3 && stretch.resumption == "f")
  }

  // MARK: The writer

  /// A spool's folder in memory.
  private static func folder() throws -> (disk: TestDisk, folder: SpoolFolder) {
    let disk = TestDisk()
    try disk.makeFolder("/spool", mode: 0o700)
    return (disk, try SpoolFolder(directory: "/spool", stream: "s", disk: disk))
  }

  private static func isThere(_ path: String) -> Bool { access(path, F_OK) == 0 }

  @Test("copies and commits have exact effects on the file, the memory and the consumer")
  func writer() throws {
    let (_, folder) = try Self.folder()
    let file = try SpoolFile.create(in: folder, description: "", capacity: 1 << 20)
    let calls = Calls()
    let stretch = stretch(0..<0, released: 0, calls)
    var settings = CircularBuffer.Settings(capacity: 64 << 10)
    (settings.hasCopier, settings.allowsPauses, settings.backing) = (true, true, stretch)
    var ends = try CircularBuffer.makeCopied(settings)
    let shared = SharedStretch(id: file.id)
    let writer = StretchWriter(
      file: file, stretch: stretch, copier: ends.copier, shared: shared, patience: .zero
    ) { () throws(SpoolError) -> SpoolFile in throw SpoolError(.notASpool, path: "") }
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 8192, alignment: 16)
    defer { buffer.deallocate() }
    var asked: [UInt64] = []
    func copy(atMost limit: Int = .max, hasRoom: Bool = true) -> StretchWriter.Copied {
      writer.copy(through: buffer, atMost: limit) { count, _ in
        asked.append(count)
        return hasRoom
      }
    }
    func capture(_ count: Int) {
      let head = ends.producer.head
      _ = ends.producer.write(minimum: count, maximum: count) { span in
        span.withUnsafeMutableBytes { Self.pattern.fill($0, at: head) }
        return count
      }
    }
    #expect(copy() == .nothing && writer.position == 0 && !writer.isDirty && !writer.isAtEnd)
    #expect(writer.keptByteCount == 0 && writer.byteCountInMemory == 0 && !writer.holdsRoom && !writer.holdsEviction)
    // The text "old" is not in the file yet.
    #expect(writer.hasNewResumption && writer.needsCommit)
    try writer.commit(sync: true)
    #expect(!writer.hasNewResumption && !writer.needsCommit && file.checkpoint.state == "old")

    capture(10_000)
    #expect(writer.byteCountInMemory == 10_000 && copy(hasRoom: false) == .blocked(SpoolError(.full, path: file.path)))
    #expect(writer.position == 0 && !writer.isDirty && asked == [8192])
    #expect(
      copy() == StretchWriter.Copied.some && writer.position == 10_000 && writer.isDirty && asked == [8192, 8192, 1808])
    #expect(writer.keptByteCount == 10_000 && writer.byteCountInMemory == 0 && file.head == 10_000)
    // The incomplete block exists nowhere else yet.
    #expect(ends.producer.freeByteCount == (64 << 10) - (10_000 - 2 * 4064))
    #expect(stretch.notSynchronized(upTo: 10_000) == 10_000)
    try writer.commit(sync: false)
    #expect(writer.isDirty && stretch.notSynchronized(upTo: 10_000) == 10_000)
    #expect(ends.producer.freeByteCount == 64 << 10 && file.checkpoint.head == 10_000)
    try writer.commit(sync: true)
    #expect(!writer.isDirty && stretch.notSynchronized(upTo: 10_000) == 0)

    // Complete blocks are enough if nothing else has changed.
    capture(9000)
    #expect(try !writer.synchronizeBlocks(from: 0), "not all is copied")
    #expect(copy() == StretchWriter.Copied.some)
    #expect(try !writer.synchronizeBlocks(from: 4 * 4064 + 1), "the block begins too early")
    stretch.noteWithRelease("new")
    #expect(try !writer.synchronizeBlocks(from: 0) && writer.hasNewResumption)
    stretch.noteWithRelease("old")
    #expect(try writer.synchronizeBlocks(from: 4 * 4064) && stretch.notSynchronized(upTo: 19_000) == 19_000 - 4 * 4064)
    #expect(file.checkpoint.head == 10_000)
    capture(4064)
    #expect(ends.producer.pause(5) == true)
    #expect(copy() == StretchWriter.Copied.some)
    #expect(try !writer.synchronizeBlocks(from: 0), "there is a pause")
    try writer.commit(sync: true)
    #expect(file.checkpoint.pauses == [SpoolPause(position: 23_064, length: 5)] && file.checkpoint.head == 23_064)

    // Acknowledged bytes.
    ends.consumer.release(upTo: 4000)
    #expect(writer.needsCommit && !writer.isDirty && file.released == 0)
    writer.releaseAcknowledged()
    #expect(writer.isDirty && file.released == 4000 && writer.keptByteCount == 19_064 && writer.holdsEviction)
    try writer.commit(sync: true)
    writer.releaseAcknowledged()
    #expect(!writer.isDirty && !writer.needsCommit && !writer.holdsEviction && file.checkpoint.released == 4000)
    writer.evict(upTo: 5000)
    #expect(writer.holdsEviction && stretch.oldest == 5000 && file.oldest == 5000 && !writer.holdsRoom)
    try writer.commit(sync: false)
    #expect(!writer.holdsEviction)

    // Loads.
    #expect(read(stretch, 6000) == "empty" && calls.all.loads == [6000])
    takeSignals(ends.consumer.dataDescriptor)
    #expect(writer.load(from: 6000) == nil && takeSignals(ends.consumer.dataDescriptor) == 1)
    #expect(read(stretch, 6000, maximum: 100) == "100" && !writer.isUnreadable)

    // A copy has a limit, which it may exceed by less than its buffer.
    capture(30_000)
    #expect(copy(atMost: 8192) == StretchWriter.Copied.some && writer.position == 23_064 + 8192)
    #expect(
      copy(atMost: 8193) == StretchWriter.Copied.some && writer.position == 23_064 + 3 * 8192
        && copy() == StretchWriter.Copied.some)
    ends.producer.finish()
    #expect(writer.isAtEnd && ends.copier.isFinished)
    #expect(try !writer.synchronizeBlocks(from: 0), "the file does not state the end yet")
    try writer.commit(sync: true)
    #expect(file.checkpoint.isFinished && file.checkpoint.head == 53_064)
    try writer.remove()
    #expect(try folder.stretches() == [])
  }

  @Test("much evicted space is returned soon: 4 MiB, and no less")
  func room() throws {
    let (_, folder) = try Self.folder()
    let file = try SpoolFile.create(in: folder, description: "", capacity: 8 << 20)
    let bytes = [UInt8](repeating: 1, count: 5 << 20)
    try bytes.withUnsafeBytes { try file.append($0, at: 0, time: 0) }
    let stretch = stretch(0..<0, released: 0, Calls())
    var settings = CircularBuffer.Settings(capacity: 1)
    settings.hasCopier = true
    let ends = try CircularBuffer.makeCopied(settings)
    let writer = StretchWriter(
      file: file, stretch: stretch, copier: ends.copier, shared: nil, patience: .zero
    ) { () throws(SpoolError) -> SpoolFile in throw SpoolError(.notASpool, path: "") }
    #expect(writer.position == 5 << 20 && writer.keptByteCount == 5 << 20)
    // What the ring has no space for, in whole blocks.
    #expect(writer.leastOldest(for: 1, in: file) == 4064)
    #expect(writer.leastOldest(for: file.capacity - (5 << 20) + 4063, in: file) == 4064)
    #expect(writer.leastOldest(for: file.capacity - (5 << 20) + 4064, in: file) == 2 * 4064)
    #expect(writer.leastOldest(for: 1 << 40, in: file) == 5 << 20)
    writer.evict(upTo: (4 << 20) - 1)
    #expect(!writer.holdsRoom && writer.holdsEviction)
    writer.evict(upTo: 4 << 20)
    #expect(writer.holdsRoom)
    try writer.commit(sync: true)
    #expect(!writer.holdsRoom && !writer.holdsEviction && !file.checkpoint.isFinished)
    writer.evict(upTo: (4 << 20) + 1)
    #expect(!writer.holdsRoom && writer.holdsEviction)
  }

  @Test("a stretch without a file begins one as soon as the disk permits, and then needs no description")
  func fileLater() throws {
    let (_, folder) = try Self.folder()
    let identity = StretchIdentity()
    let shared = SharedStretch(id: identity.id)
    defer { shared.remove() }
    try shared.write(SharedStretch.Description(identity: identity, folder: "/spool/s", text: "text"))
    #expect(Self.isThere(shared.bufferPath + ".stretch"))
    let stretch = stretch(0..<0, released: 0, Calls())
    var settings = CircularBuffer.Settings(capacity: 1)
    settings.hasCopier = true
    var ends = try CircularBuffer.makeCopied(settings)
    var isFull = true
    let full = SpoolError(.system(SystemError(operation: "write", code: ENOSPC)), path: "/spool/s")
    let writer = StretchWriter(
      file: nil, stretch: stretch, copier: ends.copier, shared: shared, patience: .zero
    ) { () throws(SpoolError) -> SpoolFile in
      if isFull { throw full }
      return try SpoolFile.create(in: folder, identity, description: "text", capacity: 1 << 20)
    }
    _ = ends.producer.write(minimum: 100, maximum: 100) { _ in 100 }
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 8192, alignment: 16)
    defer { buffer.deallocate() }
    #expect(writer.copy(through: buffer, atMost: .max) { _, _ in true } == .blocked(full))
    #expect(writer.file == nil && writer.keptByteCount == 0 && writer.byteCountInMemory == 100 && !writer.holdsRoom)
    #expect(!writer.holdsEviction && !writer.isDirty && Self.isThere(shared.bufferPath + ".stretch"))
    try writer.commit(sync: true)
    #expect(try !writer.synchronizeBlocks(from: 0) && writer.findTruncation() == nil && writer.findRemoval() == nil)
    isFull = false
    #expect(writer.copy(through: buffer, atMost: .max) { _, _ in true } == StretchWriter.Copied.some)
    #expect(writer.file?.description == "text" && writer.isDirty && writer.byteCountInMemory == 0)
    #expect(!Self.isThere(shared.bufferPath + ".stretch"))
    try writer.leaveMemory()
    writer.close()
    #expect(try folder.stretches().count == 1)
  }

  // MARK: Memory that survives the process

  @Test("the stretches without a file are those of their folder, oldest first, and empty ones are forgotten")
  func descriptions() throws {
    let directory = try TemporaryDirectory()
    let folder = SpoolFolder.resolved(directory.path)
    for name in ["missing", "missing/s"] {
      #expect(SpoolFolder.resolved("\(directory.path)/\(name)") == "\(folder)/\(name)", "it may be created later")
    }
    var all: [SharedStretch.Description] = []
    var others: [String] = []
    defer {
      for description in all { SharedStretch(id: description.identity.id).remove() }
      for path in others { unlink(path) }
    }
    for (created, text) in [(1000, ""), (20, String(repeating: "x", count: 15_360)), (20, "a\nb\n"), (3, "c")]
      as [(Int64, String)]
    {
      let identity = try #require(StretchIdentity(id: StretchIdentity().id, created: created))
      let shared = SharedStretch(id: identity.id)
      #expect(shared.bufferPath.hasPrefix("/dev/shm/sluice-") && shared.bufferPath.utf8.count == 48 && !shared.isThere)
      let description = SharedStretch.Description(identity: identity, folder: folder, text: text)
      try shared.write(description)
      all.append(description)
      others.append(shared.bufferPath)
      close(open(shared.bufferPath, O_CREAT | O_WRONLY | O_CLOEXEC, 0o600))
      #expect(shared.isThere)
    }
    // Files of others, and one without bytes, which its process has not filled.
    let digits = SharedStretch(id: StretchIdentity().id).bufferPath.suffix(31)
    for (name, content) in [
      ("sluice-\(digits).stretch", "5\n\(folder)\ntext"), ("sluice-\(digits)8.stretch", "x\n\(folder)\ntext"),
      ("sluice-\(digits)9.stretch", "5\n\(folder)"), ("sluice-\(digits)a.stretch", ""),
      ("sluice-\(digits)b.stretch", "-5\n\(folder)\ntext"), ("sluice-\(digits)g.stretch", "5\n\(folder)\ntext"),
      ("sluice-\(digits)c.stretch", "5\n/elsewhere\ntext"), ("other-\(digits)d.stretch", "5\n\(folder)\ntext"),
    ] {
      let path = "/dev/shm/\(name)"
      others.append(path)
      let file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0o600)
      #expect(Glibc.write(file, content, content.utf8.count) == content.utf8.count && close(file) == 0)
      let buffer = String(path.dropLast(8))
      others.append(buffer)
      close(open(buffer, O_CREAT | O_WRONLY | O_CLOEXEC, 0o600))
    }
    let fifo = "/dev/shm/sluice-\(digits)e.stretch"
    others.append(fifo)
    #expect(mkfifo(fifo, 0o600) == 0)
    let expected = all.sorted {
      ($0.identity.created, $0.identity.fileName) < ($1.identity.created, $1.identity.fileName)
    }
    try SharedStretch(id: all[1].identity.id).write(all[1])
    #expect(SharedStretch.withoutFile(in: directory.path) == expected)
    // Other tests open files of other names, and look at these for a moment.
    let own = others + all.map { SharedStretch(id: $0.identity.id).bufferPath }
    try SpoolDirectory.wait(for: "none of the files to be open") {
      try openPaths().allSatisfy { path in !own.contains { path.hasPrefix($0) } }
    }
    // Its process was killed before it captured anything.
    let empty = SharedStretch(id: all[0].identity.id)
    unlink(empty.bufferPath)
    #expect(SharedStretch.withoutFile(in: directory.path) == expected.filter { $0 != all[0] })
    #expect(!Self.isThere(empty.bufferPath + ".stretch") && Self.isThere(fifo))
    let next = SharedStretch(id: all[1].identity.id)
    next.remove()
    #expect(!next.isThere && !Self.isThere(next.bufferPath + ".stretch"))
  }

  @Test("a file knows how many bytes only memory has, and removes them")
  func inMemory() throws {
    let (_, folder) = try Self.folder()
    let file = try SpoolFile.create(in: folder, description: "", capacity: 1 << 20)
    let shared = SharedStretch(id: file.id)
    defer { shared.remove() }
    #expect(try file.byteCountInMemory == 0 && shared.remains() == nil)
    var settings = CircularBuffer.Settings(capacity: 4096)
    (settings.hasCopier, settings.path) = (true, shared.bufferPath)
    var ends = try CircularBuffer.makeCopied(settings)
    _ = ends.producer.write(minimum: 1000, maximum: 1000) { _ in 1000 }
    #expect(file.byteCountInMemory == 1000)
    ends.consumer.release(upTo: 300)
    #expect(file.byteCountInMemory == 700)
    let bytes = [UInt8](repeating: 0, count: 500)
    try bytes.withUnsafeBytes { try file.append($0, at: 0, time: 0) }
    #expect(file.byteCountInMemory == 500)
    try file.commit(state: "", pausedByteCount: 0, pauses: [], isFinished: true, sync: true)
    #expect(file.byteCountInMemory == 0 && shared.isThere)
    file.removeFromMemory()
    #expect(!shared.isThere)
  }

  @Test("a file has space for a buffer besides its limit, whatever its size")
  func sizes() {
    for (buffer, size) in [(-1, 1 << 20), (0, 1 << 20), (65_536, 65_536 + 1 << 20), (.max, (1 << 52) + 1 << 20)]
      as [(Int, UInt64)]
    { #expect(StreamSpool.sizeBesidesLimit(buffer: buffer) == size, "\(buffer)") }
  }

  @Test("a full or broken disk may recover, and a wrong file or configuration does not")
  func mayPass() {
    for (code, mayPass) in [
      (ENOSPC, true), (EDQUOT, true), (EMFILE, true), (ENOMEM, true), (EACCES, false), (ENOENT, false),
    ]
      as [(Int32, Bool)]
    {
      let error = SpoolError(.system(SystemError(operation: "open", code: code)), path: "")
      #expect(error.mayPass == mayPass, "\(code)")
    }
    for cause in [.notASpool, .truncated, .full, .damagedHeader, .inUse(nil)] as [SpoolError.Cause] {
      #expect(!SpoolError(cause, path: "").mayPass, "\(cause)")
    }
  }

  // MARK: With its thread

  @Test(
    "a file that another program removes or truncates is reported once, and its bytes count as lost",
    arguments: [true, false])
  func foreignChange(isRemoved: Bool) throws {
    let directory = try SpoolDirectory()
    let spool = try directory.open()
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    var ends = try buffer.ends()
    func capture(_ count: Int) { _ = ends.producer.write(minimum: count, maximum: count) { _ in count } }
    capture(10_000)
    try SpoolDirectory.wait(for: "the bytes on the disk") { try directory.newest()?.checkpoint.head == 10_000 }
    let path = try #require(try directory.stretches().last)
    if isRemoved { #expect(unlink(path) == 0) } else { #expect(truncate(path, 100) == 0) }
    capture(1000)
    try SpoolDirectory.wait(for: "the report") { !directory.events.isEmpty }
    capture(1000)
    if !isRemoved {
      try SpoolDirectory.wait(for: "the file") { try directory.newest()?.checkpoint.head == 12_000 }
    }
    ends.consumer.release(upTo: 2000)
    #expect(try spool.finish(buffer.stretch, isDelivered: false) == (isRemoved ? 10_000 : 0))
    #expect(directory.events == [isRemoved ? .removed(path) : .truncated(path)])
    #expect(try directory.stretches() == (isRemoved ? [] : [path]))
  }

  @Test("a spool that must not drop bytes has the source wait while it is full, and reports nothing")
  func full() throws {
    let directory = try TemporaryDirectory()
    var settings = SpoolSettings(limit: 100_000)
    (settings.syncInterval, settings.evicts) = (.seconds(3600), false)
    let events = try EventLog<SpoolEvent>()
    let spool = try StreamSpool(directory: directory.path, stream: "s", settings: settings) { events.append($0) }
    let buffer = try spool.begin(description: "", capacity: 16 << 10, overflow: .refuse)
    var ends = try buffer.ends()
    /// Writes as much as there is space for within the spool's limit.
    func capture(upTo total: UInt64) throws {
      while ends.producer.head < total {
        try ends.producer.waitForSpace(1000)
        _ = ends.producer.write(minimum: 1000, maximum: 1000) { _ in 1000 }
      }
    }
    for released in [0, 60_000, 120_000] as [UInt64] {
      try capture(upTo: released + 90_000)
      // Until memory is full, and the file has no space for all of it.
      var isBlocked = false
      while !isBlocked {
        while ends.producer.freeByteCount >= 1000 {
          _ = ends.producer.write(minimum: 1000, maximum: 1000) { _ in 1000 }
          try #require(ends.producer.head <= released + 100_000 + 17 << 10)
        }
        _ = ends.producer.requestSpace(1000)
        // The spool's thread tries to copy meanwhile.
        for _ in 0..<3 { #expect(try spool.opened("none") == nil) }
        isBlocked = ends.producer.freeByteCount < 1000
      }
      // What the consumer releases makes room for as much each time, although no interval has ended.
      ends.consumer.release(upTo: released + 60_000)
    }
    try capture(upTo: 270_000)
    #expect(events.all.isEmpty, "\(events.all)")
    try spool.finish(buffer.stretch, isDelivered: true)
  }
}
