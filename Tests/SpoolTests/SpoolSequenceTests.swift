import EventLoops
import Glibc
import PropertyTesting
import SpoolTesting
import Testing

@testable import Spool

/// Random calls on one stretch, on a disk that may fail, die or lose power.
struct SpoolSequence {
  let disk: TestDisk
  var random: SplitMix64
  let pattern = OffsetPattern(seed: 3)
  var model = SpoolModel()
  let folder: SpoolFolder
  let file: SpoolFile
  let capacity: UInt64

  init(_ random: SplitMix64) throws {
    self.random = random
    disk = TestDisk(SplitMix64(state: self.random.next()))
    // Some have space for a long hole.
    let blocks: ClosedRange<UInt64> = self.random.chance(70) ? 4...24 : 25...120
    capacity = UInt64.random(in: blocks, using: &self.random) * 4064
    try disk.makeFolder("/tmp", mode: 0)
    try disk.synchronizeFolder("/")
    folder = try SpoolFolder(directory: "/tmp/spool", stream: "s", disk: disk)
    file = try SpoolFile.create(in: folder, description: "text", capacity: capacity)
  }

  /// One random call. Disk errors are part of the sequence. Returns false when the process has died.
  mutating func step() throws -> Bool {
    switch Int.random(in: 0..<100, using: &random) {
    case ..<55: try append()
    case ..<65:
      let position = UInt64.random(in: 0...model.head + 100, using: &random)
      file.release(upTo: position)
      model.release(upTo: position)
    case ..<70:
      let position = UInt64.random(in: 0...model.head + 100, using: &random)
      file.evict(upTo: position)
      model.evict(upTo: position)
    case ..<85: try commit(sync: random.chance(40))
    case ..<95: try synchronizeBlocks()
    // Not if it may die in the middle of that.
    default: if disk.dies == nil { try model.check(file, pattern) }
    }
    return !disk.isDead
  }

  private mutating func append() throws {
    var position = model.head
    if random.chance(15) { position += UInt64(random.size(upTo: random.chance(80) ? 9000 : 200_000)) }
    let bytes = pattern.bytes(random.size(upTo: 30_000), at: position)
    let range = position..<position + UInt64(bytes.count)
    do throws(SpoolError) {
      var result: SpoolError?
      bytes.withUnsafeBytes { pointer in
        do throws(SpoolError) { try file.append(pointer, at: position, time: Int64(position)) } catch { result = error }
      }
      if let result { throw result }
      model.append(range)
    } catch {
      if error.cause == .full { return evict() }
      #expect(error.code != nil, "\(error)")
      model.appendFailed(range)
    }
  }

  /// The reaction of a caller to a full ring.
  private mutating func evict() {
    let kept = file.keptByteCount
    let count = random.chance(10) ? 0 : kept / UInt64.random(in: 1...3, using: &random)
    let position = file.position(afterKeeping: count)
    #expect((model.oldest...model.head).contains(position))
    #expect(model.presentCount(in: model.oldest..<position) <= count, "more is evicted than requested")
    // Either hole or byte by byte.
    #expect(position == model.head || model.presentCount(in: position..<model.head) <= kept - count)
    file.evict(upTo: position)
    model.evict(upTo: position)
  }

  private mutating func commit(sync: Bool) throws {
    let text = "commit at \(model.head), \(random.next() % 1000)"
    model.commitBegins(text)
    let syncs = disk.calls[.synchronizeData]
    do throws(SpoolError) {
      try file.commit(state: text, pausedByteCount: 1, pauses: [], isFinished: false, sync: sync)
      model.commitSucceeded(sync: sync)
    } catch {
      #expect(error.code != nil, "\(error)")
      if disk.calls[.synchronizeData] != syncs, error.code != EINTR { model.syncFailed() }
    }
  }

  private mutating func synchronizeBlocks() throws {
    guard file.canSynchronizeBlocks else { return }
    let syncs = disk.calls[.synchronizeData]
    do throws(SpoolError) {
      #expect(try file.synchronizeBlocks() == model.head / 4064 * 4064)
      model.blocksSynchronized()
    } catch {
      #expect(error.code != nil, "\(error)")
      if disk.calls[.synchronizeData] != syncs, error.code != EINTR { model.syncFailed() }
    }
  }

  /// Whether a read that ends with call `number` may have failed once before. A signal and a short count are part of
  /// one read, so EIO, EINTR and EIO are two failures in a row.
  func failsBefore(read number: Int) -> Bool {
    let faults = disk.faults[.read] ?? [:]
    var call = number - 1
    while let fault = faults[call] {
      if fault == .error(EIO) { return true }
      call -= 1
    }
    return false
  }

  /// Opens the remains, checks them, and opens them again after a commit.
  mutating func recover(afterPowerCut: Bool) throws {
    let folder = try SpoolFolder(directory: "/tmp/spool", stream: "s", disk: disk)
    #expect(try folder.stretches() == [file.path])
    let live = try SpoolFile.open(file.path, access: .readOnly, disk: disk)
    try model.checkRecovered(live, pattern, afterPowerCut: afterPowerCut)
    let recovered = try SpoolFile.open(file.path, folder: folder)
    try model.checkRecovered(recovered, pattern, afterPowerCut: afterPowerCut)
    #expect((live.head, live.oldest, live.damage) == (recovered.head, recovered.oldest, recovered.damage))
    // Existing bytes must stay.
    let before = try recovered.readAll(from: recovered.oldest)
    try recovered.commit(state: "again", sync: true)
    disk.cutPower()
    let again = try SpoolFile.open(file.path, folder: try SpoolFolder(directory: "/tmp/spool", stream: "s", disk: disk))
    let after = try again.readAll(from: again.oldest)
    #expect(before.missing == after.missing)
    #expect(before.bytes.map(\.1).joined().elementsEqual(after.bytes.map(\.1).joined()))
    #expect(again.checkpoint.state == "again")
  }
}

@Suite("Sequences of spool calls")
struct SpoolSequenceTests {
  /// `make chaos-spool` requests many times as many.
  static func seeds(_ count: Int) -> [Seed] {
    let factor = getenv("SLUICE_SPOOL_SEQUENCES").flatMap { Int(String(cString: $0)) } ?? 1
    return Seed.several(count * max(1, factor))
  }

  @Test("a spool behaves like its model", arguments: seeds(10))
  func model(seed: Seed) throws {
    var sequence = try SpoolSequence(seed.generator)
    for _ in 0..<120 { #expect(try sequence.step()) }
    try sequence.model.check(sequence.file, sequence.pattern)
    #expect(try sequence.file.verify().damage.isEmpty)
  }

  @Test("committed bytes survive SIGKILL at any moment", arguments: seeds(20))
  func kill(seed: Seed) throws {
    var sequence = try SpoolSequence(seed.generator)
    sequence.disk.dies = sequence.disk.callCount + sequence.random.size(upTo: 300)
    var steps = 0
    while try steps < 200 && sequence.step() { steps += 1 }
    sequence.disk.killProcess()
    try sequence.recover(afterPowerCut: false)
  }

  @Test("synced bytes survive a power cut at any moment", arguments: seeds(25))
  func powerCut(seed: Seed) throws {
    var sequence = try SpoolSequence(seed.generator)
    sequence.disk.dies = sequence.disk.callCount + sequence.random.size(upTo: 300)
    var steps = 0
    while try steps < 200 && sequence.step() { steps += 1 }
    sequence.disk.cutPower()
    try sequence.recover(afterPowerCut: true)
  }

  @Test("random disk errors lose no promised byte", arguments: seeds(25))
  func faults(seed: Seed) throws {
    var sequence = try SpoolSequence(seed.generator)
    for operation: TestDisk.Operation in [.write, .read, .synchronizeData, .punchHole, .allocate] {
      for call in 1...200 where sequence.random.chance(10) {
        let number = (sequence.disk.calls[operation] ?? 0) + call
        let code = [ENOSPC, EIO, EINTR][Int.random(in: 0...2, using: &sequence.random)]
        // A read is repeated after one failure.
        let isShort = sequence.random.chance(25) && [.write, .read].contains(operation)
        let fault: TestDisk.Fault = isShort ? .short : .error(operation == .read && code == ENOSPC ? EINTR : code)
        if operation == .read, fault == .error(EIO), sequence.failsBefore(read: number) { continue }
        sequence.disk.faults[operation, default: [:]][number] = fault
      }
    }
    for _ in 0..<80 { #expect(try sequence.step()) }
    if sequence.random.chance(50) {
      sequence.disk.cutPower()
      try sequence.recover(afterPowerCut: true)
    } else {
      sequence.disk.killProcess()
      try sequence.recover(afterPowerCut: false)
    }
  }
}
