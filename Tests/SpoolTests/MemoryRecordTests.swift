// The record of a spool file about bytes that may be only in the memory of its process.

import PropertyTesting
import SpoolTesting
import Testing

@testable import Spool

@Suite("The record of bytes in memory")
struct MemoryRecordTests {
  private static let place = 16_376
  private let disk: TestDisk
  private let folder: SpoolFolder

  init() throws {
    disk = TestDisk()
    try disk.makeFolder("/spool", mode: 0o700)
    folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
  }

  /// The file as another process sees it.
  private func opened() throws -> SpoolFile {
    try SpoolFile.open(try #require(try folder.stretches().first), access: .readOnly, disk: disk)
  }

  private func change(_ body: (inout [UInt8]) -> Void) throws {
    let path = try #require(try folder.stretches().first)
    _ = disk.withFile(path) { body(&$0) }
  }

  @Test("it is there after each change, without a sync and without a commit, and is written only if it changes")
  func changes() throws {
    let file = try SpoolFile.create(in: folder, description: String(repeating: "d", count: 15_360), capacity: 1 << 20)
    #expect(file.needsNoMemory && !file.needsMemory)
    #expect(try opened().needsNoMemory)
    let syncs = disk.calls[.synchronizeData]
    for isNeeded in [true, false, true] {
      try file.noteMemory(isNeeded: isNeeded)
      let writes = disk.calls[.write]
      try file.noteMemory(isNeeded: isNeeded)
      #expect(disk.calls[.write] == writes)
      let other = try opened()
      #expect(other.needsMemory == isNeeded && other.needsNoMemory != isNeeded && other.damage.isEmpty)
      #expect(other.description.utf8.count == 15_360)
    }
    #expect(disk.calls[.synchronizeData] == syncs)
    // No byte follows the end.
    try file.commit(state: "", pausedByteCount: 0, pauses: [], isFinished: true, sync: true)
    let other = try opened()
    #expect(!other.needsMemory && other.needsNoMemory)
    #expect(throws: SpoolError(.readOnly, path: other.path)) { try other.noteMemory(isNeeded: false) }
  }

  @Test("a record of another boot, of an earlier version or with a wrong checksum shows nothing")
  func invalid() throws {
    let file = try SpoolFile.create(in: folder, description: "d", capacity: 1 << 20)
    try file.noteMemory(isNeeded: true)
    let place = Self.place..<Self.place + MemoryRecord.size
    let former = MemoryRecord(boot: MemoryRecord.currentBoot ^ 2).encoded(seed: file.seed)
    for record in [former, [UInt8](repeating: 0, count: 8), Array(former.reversed())] {
      try change { $0.replaceSubrange(place, with: record) }
      let other = try opened()
      #expect(!other.needsMemory && !other.needsNoMemory && !other.mayLackBytes && other.damage.isEmpty)
    }
  }

  @Test("each later checkpoint records that the memory is lost, and where")
  func lost() throws {
    let file = try SpoolFile.create(in: folder, description: "d", capacity: 1 << 20)
    try file.append(OffsetPattern(seed: 1), at: 0, count: 5000)
    try file.commit()
    file.noteLostMemory()
    file.noteLostMemory()
    #expect(file.damage == [SpoolDamage(.lostMemory, fileOffset: UInt64(Self.place), lostPositions: 5000..<5000)])
    #expect(try file.verify().hasLoss && file.verify().lostByteCount == 0)
    // The memory would show what damaged checkpoints do not. It is gone.
    file.forgetDoubt()
    #expect(file.mayLackBytes && file.hasLostMemory)
    for _ in 0..<4 {
      try file.commit()
      let other = try opened()
      #expect(other.hasLostMemory && other.mayLackBytes)
      #expect(other.damage.map(\.lostPositions) == [5000..<5000])
      #expect(try other.verify().mayLackBytes)
    }
  }
}
