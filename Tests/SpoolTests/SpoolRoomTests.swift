// How much a spool file reads, and how much space it returns to the file system.

import Glibc
import PropertyTesting
import SpoolTesting
import Testing

@testable import Spool

@Suite("A spool file's use of space")
struct SpoolRoomTests {
  private let pattern = OffsetPattern(seed: 5)

  private func make(_ disk: TestDisk, blocks: UInt64) throws -> SpoolFile {
    try disk.makeFolder("/spool", mode: 0o700)
    let folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
    return try SpoolFile.create(in: folder, description: "", capacity: blocks * SpoolFormat.payload)
  }

  @Test("a ring spans more positions than bytes, but only where released space is returned")
  func reach() throws {
    let capacity = 100 * SpoolFormat.payload
    for (call, code, blocks) in [
      (nil, 0, 1600), (.punchHole, EOPNOTSUPP, 100), (.punchHole, ENOSYS, 100), (.punchHole, EIO, 100),
      (.setSize, EFBIG, 100), (.setSize, EINVAL, 100),
    ] as [(TestDisk.Operation?, Int32, UInt64)] {
      let disk = TestDisk()
      try disk.makeFolder("/spool", mode: 0o700)
      let folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
      if let call { disk.faults[call] = [(disk.calls[call] ?? 0) + 1: .error(code)] }
      let file = try SpoolFile.create(
        in: folder, StretchIdentity(), description: "", capacity: capacity, reach: 16 * capacity)
      #expect(file.header.blockCount == blocks)
      #expect(try file.descriptor.status().byteCount == SpoolFile.size(blockCount: blocks))
      // A hole that is longer than the capacity.
      let jump: UInt64 = 500 * SpoolFormat.payload + 7
      try file.append(pattern, at: 0, count: 50 * SpoolFormat.payloadSize)
      if blocks == 1600 {
        try file.append(pattern, at: file.head + jump, count: 40 * SpoolFormat.payloadSize)
        #expect(file.keptByteCount == 90 * SpoolFormat.payload && file.oldest == 0)
        #expect(file.position(afterKeeping: 49 * SpoolFormat.payload) == 49 * SpoolFormat.payload)
        let end = 50 * SpoolFormat.payload + jump
        #expect(file.position(afterKeeping: 51 * SpoolFormat.payload) == end + SpoolFormat.payload)
        #expect(file.position(afterKeeping: .max) == file.head)
        file.evict(upTo: file.position(afterKeeping: 50 * SpoolFormat.payload))
        #expect(file.keptByteCount == 40 * SpoolFormat.payload)
      } else {
        #expect(throws: SpoolError.self) {
          try file.append(pattern, at: file.head + jump, count: 40 * SpoolFormat.payloadSize)
        }
      }
    }
  }

  @Test("a disk that refuses the size of a file for another reason refuses the file", arguments: [ENOSPC, EIO])
  func refusedSize(code: Int32) throws {
    let disk = TestDisk()
    try disk.makeFolder("/spool", mode: 0o700)
    let folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
    disk.faults[.setSize] = [(disk.calls[.setSize] ?? 0) + 1: .error(code)]
    let error = #expect(throws: SpoolError.self) {
      _ = try SpoolFile.create(in: folder, StretchIdentity(), description: "", capacity: 1 << 20, reach: 1 << 24)
    }
    #expect(error?.code == code)
    #expect(try folder.stretches().isEmpty)
  }

  @Test("the holes of a file are found again, also where the ring begins again", arguments: Seed.several(4))
  func holesFound(seed: Seed) throws {
    var random = seed.generator
    let disk = TestDisk()
    try disk.makeFolder("/spool", mode: 0o700)
    let folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
    // Twice the ring at most, so the second lap meets slots that the first one has used or not.
    let file = try SpoolFile.create(in: folder, description: "", capacity: 400 * SpoolFormat.payload)
    while file.head < 700 * SpoolFormat.payload {
      let jump = random.chance(40) ? UInt64(Int.random(in: 1...60, using: &random)) * SpoolFormat.payload : 0
      let count = Int.random(in: 1...30, using: &random) * SpoolFormat.payloadSize
      let end = file.head + jump + UInt64(count)
      if end > 390 * SpoolFormat.payload {
        file.release(upTo: end - 390 * SpoolFormat.payload)
        // Returns what is released, so that a hole on the disk is a hole of the stretch.
        file.giveBack(atLeast: 1)
      }
      try file.append(pattern, at: file.head + jump, count: count)
    }
    try file.commit()
    let kept = file.keptByteCount
    file.close()
    let found = try SpoolFile.open(file.path, access: .readOnly, disk: disk)
    // All holes are whole blocks, but the rest of one that is partly released may count as bytes.
    #expect(found.keptByteCount >= kept && found.keptByteCount < kept + SpoolFormat.smallestHole, "\(seed)")
  }

  @Test(
    "released space is returned, in each lap, but no block that is still needed", arguments: Seed.several(2))
  func givenBack(seed: Seed) throws {
    var random = seed.generator
    let disk = TestDisk()
    let file = try make(disk, blocks: 300)
    var released: UInt64 = 0
    while file.head < 3 * file.capacity {
      let room = file.capacity - (file.head - released)
      try file.append(pattern, at: file.head, count: min(Int(room), random.size(upTo: 1 << 20)))
      if random.chance(70) { released = .random(in: released...file.head, using: &random) }
      file.release(upTo: released)
      try file.commit(sync: random.chance(50))
      let found = try file.readAll(from: released)
      #expect(
        found.missing.isEmpty && found.bytes.reduce(0) { $0 + $1.1.count } == Int(file.head - released), "\(seed)")
      for (start, bytes) in found.bytes { try #require(bytes == pattern.bytes(bytes.count, at: start), "\(seed)") }
    }
    file.release(upTo: file.head)
    try file.commit()
    // In each lap, some of it was reused for blocks of the next one instead.
    #expect(disk.punchedByteCount > file.head / 4, "\(seed): \(disk.punchedByteCount)")
    // A run of blocks beyond the ring's end continues at its beginning.
    #expect(!disk.hasPunchedBeyondEnd, "\(seed)")
  }

  @Test(
    "space is allocated ahead of the head in large steps, refused or not, and returned when the spool is empty",
    arguments: [nil, ENOSPC, EOPNOTSUPP])
  func takenAhead(refusal: Int32?) throws {
    let disk = TestDisk()
    let file = try make(disk, blocks: 3000)
    if let refusal { disk.lasting[.allocate] = (from: 2, code: refusal) }
    // Two laps, the second of which begins in the middle of the first.
    while file.head < 2 * file.capacity {
      try file.append(pattern, at: file.head, count: 47 * SpoolFormat.payloadSize)
      file.evict(upTo: file.head - min(file.head, 2500 * SpoolFormat.payload))
      try file.commit()
      #expect(file.allocatedBlock <= file.oldest / SpoolFormat.payload + 3000)
    }
    #expect(!disk.hasAllocatedBeyondEnd)
    let calls = try #require(disk.calls[.allocate])
    #expect(refusal == EOPNOTSUPP ? calls == 2 : (5...40).contains(calls), "\(calls) calls in 128 steps")
    let found = try file.readAll(from: file.oldest)
    #expect(found.missing.isEmpty)
    for (start, bytes) in found.bytes { try #require(bytes == pattern.bytes(bytes.count, at: start)) }
    let punched = disk.punchedByteCount
    file.release(upTo: file.head)
    try file.commit()
    #expect(disk.punchedByteCount - punched > 2500 * 4096 && file.allocatedBlock <= file.head / SpoolFormat.payload)
    #expect(!disk.hasPunchedBeyondEnd)
  }

  @Test(
    "space that could not be returned is returned later, unless the file system does not support it",
    arguments: [(EIO, 3), (EOPNOTSUPP, 1), (ENOSYS, 1)] as [(Int32, Int)])
  func notReturned(code: Int32, attempts: Int) throws {
    let disk = TestDisk()
    let file = try make(disk, blocks: 3000)
    try file.append(pattern, at: 0, count: 1000 * SpoolFormat.payloadSize)
    try file.commit()
    let before = disk.calls[.punchHole] ?? 0
    disk.lasting[.punchHole] = (from: 1, code: code)
    for released in [300, 600, 900] as [UInt64] {
      file.release(upTo: released * SpoolFormat.payload)
      try file.commit()
    }
    #expect((disk.calls[.punchHole] ?? 0) - before == attempts)
    #expect(try file.readAll(from: 900 * SpoolFormat.payload).missing.isEmpty)
  }

  @Test("synced blocks without a checkpoint survive a power cut, and nothing else is written")
  func blocksAlone() throws {
    let disk = TestDisk()
    let file = try make(disk, blocks: 3000)
    try file.append(pattern, at: 0, count: 1000)
    #expect(!file.canSynchronizeBlocks)
    try file.commit(state: "first")
    let written = disk.writtenByteCount
    try file.append(pattern, at: 1000, count: 9000)
    #expect(file.canSynchronizeBlocks)
    #expect(try file.synchronizeBlocks() == 2 * SpoolFormat.payload)
    #expect(disk.writtenByteCount - written == 2 * SpoolFormat.blockSize)
    // Not only bytes have changed.
    file.release(upTo: 1)
    #expect(!file.canSynchronizeBlocks)
    disk.cutPower()
    let found = try SpoolFile.open(file.path, access: .readOnly, disk: disk)
    #expect((found.head, found.oldest, found.checkpoint.state) == (2 * SpoolFormat.payload, 0, "first"))
    #expect(try found.readAll(from: 0).missing.isEmpty && found.damage.isEmpty)
  }

  /// How a stretch ends.
  enum Ending: CaseIterable {
    case finished, killed, killedWithRemains
  }

  @Test("a stretch that has ended keeps no space that was allocated ahead", arguments: Ending.allCases)
  func nothingAhead(_ ending: Ending) throws {
    let temporary = try TemporaryFolder()
    let folder = try SpoolFolder(directory: temporary.path, stream: "s")
    var file = try SpoolFile.create(in: folder, description: "", capacity: 16 << 20)
    try file.append(pattern, at: 0, count: 4_100_000)
    try file.commit()
    // The next step allocates as much again.
    try file.append(pattern, at: 4_100_000, count: 200_000)
    try file.commit()
    #expect(try file.diskByteCount > 6 << 20)
    if ending != .finished {
      let path = file.path
      file.close()
      file = try SpoolFile.open(path, folder: folder)
    }
    if ending == .killedWithRemains {
      file.acceptRemains()
      try file.append(pattern, at: 4_300_000, count: 300_000)
    }
    try file.commit(state: "", pausedByteCount: 0, pauses: [], isFinished: true, sync: true)
    #expect(try file.diskByteCount < file.head + 1 << 20)
    let found = try file.readAll(from: 0)
    #expect(found.missing.isEmpty && found.bytes.reduce(0) { $0 + $1.1.count } == Int(file.head))
    for (start, bytes) in found.bytes { try #require(bytes == pattern.bytes(bytes.count, at: start)) }
  }

  @Test("a real file system regains the space of released bytes")
  func realRoom() throws {
    let temporary = try TemporaryFolder()
    let folder = try SpoolFolder(directory: temporary.path, stream: "s")
    let file = try SpoolFile.create(in: folder, description: "", capacity: 16 << 20)
    try file.append(pattern, at: 0, count: 8 << 20)
    try file.commit()
    var before = try file.diskByteCount
    #expect(before >= 8 << 20)
    for released in [3 << 20, 8 << 20] as [UInt64] {
      file.release(upTo: released)
      try file.commit()
      let now = try file.diskByteCount
      // In steps of 1 MiB.
      #expect(now + (2 << 20) < before, "\(now) after \(before)")
      before = now
      #expect(try file.readAll(from: released).missing.isEmpty)
    }
  }

  @Test("reading a few bytes reads a few blocks")
  func fewBlocks() throws {
    let disk = TestDisk()
    let file = try make(disk, blocks: 200)
    try file.append(pattern, at: 0, count: 180 * SpoolFormat.payloadSize)
    try file.commit()
    for position in [0, 1, 4063, 4064, 100 * 4064 - 1] as [UInt64] {
      let before = disk.readByteCount
      let found = try withUnsafeTemporaryAllocation(byteCount: 10, alignment: 1) { buffer in
        guard case .bytes(10) = try file.read(at: position, into: UnsafeMutableRawBufferPointer(buffer)) else {
          return false
        }
        return pattern.matches(UnsafeRawBufferPointer(buffer), at: position)
      }
      #expect(found && disk.readByteCount - before <= 3 * SpoolFormat.blockSize, "\(disk.readByteCount - before)")
    }
  }

  @Test(
    "bytes are lost, or may be, if positions, the newest checkpoint or the memory are missing",
    arguments: SpoolDamage.Kind.allCases)
  func loss(_ kind: SpoolDamage.Kind) {
    var found = SpoolVerification()
    #expect(!found.hasLoss)
    found.damage = [SpoolDamage(kind, fileOffset: 4096)]
    let leavesDoubt = [.allCheckpoints, .newestCheckpoint, .lostMemory].contains(kind)
    #expect(found.hasLoss == leavesDoubt && found.lostByteCount == 0)
    found.damage = [SpoolDamage(kind, fileOffset: 4096, lostPositions: 5..<6)]
    #expect(found.hasLoss && found.lostByteCount == 1)
  }
}
