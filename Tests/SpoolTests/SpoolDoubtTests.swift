// Files that do not show which bytes are lost, or whether any are, because checkpoints are damaged.

import PropertyTesting
import SpoolTesting
import Testing

@testable import Spool

@Suite("Spool files that may lack bytes")
struct SpoolDoubtTests {
  private static let path = SpoolDamageTests.path

  enum Damage: CaseIterable, Sendable {
    case newest, all

    var kind: SpoolDamage.Kind { self == .newest ? .newestCheckpoint : .allCheckpoints }
  }

  /// A disk with a damaged file whose third checkpoint is the newest.
  private func disk(_ damage: Damage) throws -> TestDisk {
    var bytes = try SpoolDamageTests.file()
    for offset in damage == .newest ? [SpoolFormat.checkpointOffsets[2]] : SpoolFormat.checkpointOffsets {
      bytes[Int(offset) + 30] ^= 4
    }
    let disk = TestDisk()
    try disk.makeFolder("/tmp", mode: 0)
    disk.place(bytes, at: Self.path)
    return disk
  }

  private func open(_ disk: TestDisk, _ access: SpoolFile.Access = .readOnly) throws -> SpoolFile {
    try SpoolFile.open(Self.path, access: access, disk: disk)
  }

  private func commit(_ file: SpoolFile, isFinished: Bool = false) throws {
    try file.commit(state: "again", pausedByteCount: 0, pauses: [], isFinished: isFinished, sync: true)
  }

  @Test("all later checkpoints record that bytes may be lost", arguments: Damage.allCases)
  func recorded(damage: Damage) throws {
    let disk = try disk(damage)
    for round in 0..<5 {
      let file = try open(disk, .readWrite)
      #expect(file.mayLackBytes && file.damage.contains { $0.kind == damage.kind }, "\(round): \(file.damage)")
      // The damaged checkpoint has a lower number than the newest one after some commits.
      for _ in 0...round { try commit(file, isFinished: round > 2) }
      file.release(upTo: file.head)
      try commit(file, isFinished: round > 2)
    }
    let file = try open(disk)
    #expect(file.checkpoint.state == "again" && file.checkpoint.isFinished && file.oldest == file.head)
    let found = try file.verify()
    #expect(file.mayLackBytes && found.hasLoss, "\(file.damage)")
  }

  @Test("a damaged checkpoint that may be the only place of some bytes is not overwritten while there is another one")
  func preserved() throws {
    let disk = try disk(.newest)
    let range = Int(SpoolFormat.checkpointOffsets[2])..<Int(SpoolFormat.headerCopyOffset)
    let before = try #require(disk.withFile(Self.path) { Array($0[range]) })
    let file = try open(disk, .readWrite)
    for _ in 0..<5 { try commit(file) }
    #expect(disk.withFile(Self.path) { Array($0[range]) } == before)
  }

  @Test("what another source has shown is recorded no longer", arguments: Damage.allCases)
  func settled(damage: Damage) throws {
    let disk = try disk(damage)
    let file = try open(disk, .readWrite)
    file.forgetDoubt()
    let found = try file.verify()
    #expect(!file.mayLackBytes && !found.mayLackBytes)
    // The damaged checkpoints have lower numbers than the newest one then.
    for _ in 0..<5 { try commit(file) }
    try commit(file, isFinished: true)
    #expect(try open(disk).mayLackBytes == false)
  }

  @Test("a damaged checkpoint after the end of the stream leaves no doubt, because no byte follows")
  func afterEnd() throws {
    let disk = TestDisk()
    try disk.makeFolder("/tmp", mode: 0)
    disk.place(try SpoolDamageTests.file(), at: Self.path)
    let file = try open(disk, .readWrite)
    for _ in 0..<2 { try commit(file, isFinished: true) }
    let newest = SpoolFormat.checkpointOffsets[try #require(file.slots.newest)]
    _ = disk.withFile(Self.path) { $0[Int(newest) + 30] ^= 4 }
    let found = try open(disk)
    #expect(found.damage == [SpoolDamage(.checkpoint, fileOffset: newest)] && !found.mayLackBytes)
    #expect(found.head == file.head && found.checkpoint.isFinished)
  }

  @Test("what follows the known bytes stays in the file", arguments: Damage.allCases)
  func laterBlocks(damage: Damage) throws {
    let disk = try disk(damage)
    let file = try open(disk, .readWrite)
    let last = SpoolFormat.blockIndex(file.head)
    _ = disk.withFile(Self.path) { bytes in
      for block in Int(last)..<Int(SpoolDamageTests.blockCount) {
        let start = Int(SpoolFormat.dataStart) + block * SpoolFormat.blockSize
        bytes[start..<start + SpoolFormat.blockSize] = ArraySlice(repeatElement(7, count: SpoolFormat.blockSize))
      }
    }
    file.release(upTo: file.head)
    try commit(file, isFinished: true)
    let kept = disk.withFile(Self.path) { bytes in
      bytes[(Int(SpoolFormat.dataStart) + Int(last) * SpoolFormat.blockSize)...].allSatisfy { $0 == 7 }
    }
    #expect(kept == true)
  }

  @Test("what precedes the known bytes stays in the file, and the space of bytes that are released later is returned")
  func earlierBlocks() throws {
    let disk = TestDisk()
    try disk.makeFolder("/tmp", mode: 0)
    let folder = try SpoolFolder(directory: "/tmp", stream: "s", disk: disk)
    let whole = try SpoolFile.create(in: folder, description: "d", capacity: 700 * 4064)
    try whole.append(SpoolDamageTests.pattern, at: 0, count: 600 * 4064)
    try whole.commit()
    var bytes = try #require(disk.withFile(whole.path) { $0 })
    for offset in SpoolFormat.checkpointOffsets { bytes[Int(offset) + 30] ^= 4 }
    let damaged = Int(SpoolFormat.dataStart)..<Int(SpoolFormat.dataStart) + 300 * SpoolFormat.blockSize
    bytes.replaceSubrange(damaged, with: repeatElement(7, count: damaged.count))
    disk.place(bytes, at: Self.path)
    let file = try open(disk, .readWrite)
    #expect((file.oldest, file.head) == (300 * 4064, 600 * 4064) && file.mayLackBytes)
    let before = disk.punchedByteCount
    file.release(upTo: file.head)
    try commit(file, isFinished: true)
    #expect(disk.punchedByteCount - before == 300 * UInt64(SpoolFormat.blockSize))
    let kept = disk.withFile(Self.path) { bytes in bytes[damaged].allSatisfy { $0 == 7 } }
    #expect(kept == true)
  }
}
