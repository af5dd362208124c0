import Glibc
import PropertyTesting
import SpoolTesting
import Testing

@testable import Spool

/// Files with one defect: it is reported, the rest is used, and nothing is lost silently.
@Suite("Damaged spool files")
struct SpoolDamageTests {
  static let pattern = OffsetPattern(seed: 5)
  static let path = "/tmp/1795403376004-0001020304050607.spool"
  static let blockCount: UInt64 = 16
  /// 12 complete blocks, and 1000 bytes of a 13th.
  static let head: UInt64 = 12 * 4064 + 1000
  static let header = SpoolHeader(
    id: Array(0..<16), created: 1_795_403_376_004, blockCount: blockCount, description: "d")

  /// The file of a process that was killed between two commits: three checkpoints, and two blocks after them.
  static func file() throws -> [UInt8] {
    let disk = TestDisk()
    try disk.makeFolder("/tmp", mode: 0)
    let folder = try SpoolFolder(directory: "/tmp", stream: "s", disk: disk)
    let file = try SpoolFile.create(in: folder, description: "d", capacity: blockCount * 4064)
    for commit in 0..<3 {
      try file.append(pattern, at: file.head, count: 13_000)
      file.release(upTo: UInt64(commit) * 100)
      try file.commit(state: "commit \(commit)", sync: commit == 0)
    }
    try file.append(pattern, at: file.head, count: Int(head - file.head))
    return try #require(disk.withFile(file.path) { $0 })
  }

  private func open(_ bytes: [UInt8]) throws -> SpoolFile {
    let disk = TestDisk()
    try disk.makeFolder("/tmp", mode: 0)
    disk.place(bytes, at: Self.path)
    return try SpoolFile.open(Self.path, access: .readOnly, disk: disk)
  }

  /// Opens, reads and verifies. Every returned byte must be right, and every other position must be reported.
  @discardableResult
  private func judge(_ bytes: [UInt8], _ comment: Comment) throws -> (file: SpoolFile, verification: SpoolVerification)
  {
    let file = try open(bytes)
    let verification = try file.verify()
    let (pieces, missing) = try file.readAll(from: file.oldest)
    for (position, piece) in pieces {
      #expect(piece.withUnsafeBytes { Self.pattern.matches($0, at: position) }, comment)
    }
    #expect(pieces.reduce(0) { $0 + UInt64($1.1.count) } == verification.intactByteCount, comment)
    let named = (verification.holes + verification.damage.map(\.lostPositions)).sorted { $0.lowerBound < $1.lowerBound }
    for range in missing {
      var position = range.lowerBound
      for other in named where other.contains(position) { position = max(position, other.upperBound) }
      #expect(position >= range.upperBound, comment)
    }
    // Missing bytes after the head are explained by damage.
    #expect(file.head >= Self.head - 1000 || !verification.damage.isEmpty, comment)
    return (file, verification)
  }

  @Test("an intact file has no damage, except bytes after the last commit")
  func intact() throws {
    let (file, verification) = try judge(try Self.file(), "intact")
    #expect(verification.damage.isEmpty && !verification.hasLoss)
    #expect((file.head, file.released) == (12 * 4064, 200))
    #expect(file.checkpoint.state == "commit 2")
  }

  @Test("if the disk fails to read a block at first and can later, it is not reported as lost")
  func unreadableAtFirst() throws {
    let bytes = try Self.file()
    let disk = TestDisk()
    try disk.makeFolder("/tmp", mode: 0)
    disk.place(bytes, at: Self.path)
    _ = try SpoolFile.open(Self.path, access: .readOnly, disk: disk)
    var recovered = 0
    for call in 1...(disk.calls[.read] ?? 0) {
      disk.resetCalls()
      // The step, and one block twice, or a checkpoint twice.
      disk.faults[.read] = [call: .error(EIO), call + 1: .error(EIO), call + 2: .error(EIO)]
      guard let file = try? SpoolFile.open(Self.path, access: .readOnly, disk: disk) else { continue }
      disk.faults = [:]
      let verification = try file.verify()
      let (pieces, missing) = try file.readAll(from: file.oldest)
      #expect(pieces.reduce(0) { $0 + UInt64($1.1.count) } == verification.intactByteCount, "call \(call)")
      for damage in verification.damage where damage.lostPositions.overlaps(file.oldest..<file.head) {
        #expect(
          missing.contains { $0.overlaps(damage.lostPositions) }, "call \(call): \(damage), and \(missing) is missing")
      }
      if file.damage.contains(where: { $0.kind == .unreadable && !$0.lostPositions.isEmpty }) { recovered += 1 }
    }
    #expect(recovered > 0)
  }

  @Test("any flipped bit of the header leaves its copy intact, and vice versa")
  func header() throws {
    let original = try Self.file()
    for region in [SpoolFormat.headerOffset, SpoolFormat.headerCopyOffset] {
      for bit in stride(from: 0, to: (SpoolHeader.fixedSize + 1) * 8, by: 7) {
        var bytes = original
        bytes[Int(region) + bit / 8] ^= 1 << UInt8(bit % 8)
        let (file, verification) = try judge(bytes, "bit \(bit)")
        #expect(verification.damage == [SpoolDamage(.header, fileOffset: region)], "bit \(bit)")
        #expect((file.head, file.description) == (12 * 4064, "d"))
      }
    }
  }

  @Test("a file without an intact header is refused with the cause")
  func noHeader() throws {
    var bytes = try Self.file()
    bytes[20] ^= 1
    bytes[Int(SpoolFormat.headerCopyOffset) + 20] ^= 1
    #expect(throws: SpoolError(.damagedHeader, path: Self.path)) { try open(bytes) }
    #expect(throws: SpoolError(.damagedHeader, path: Self.path)) { try open([]) }
    let zeros = [UInt8](repeating: 0, count: bytes.count)
    #expect(throws: SpoolError(.damagedHeader, path: Self.path), "the disk has lost it") { try open(zeros) }
    #expect(throws: SpoolError(.notASpool, path: Self.path)) {
      try open(Array("RIFF".utf8) + Array(repeating: 7, count: 99))
    }
  }

  @Test("a header with impossible numbers is refused, whatever its checksum")
  func impossibleHeader() throws {
    for (offset, value) in [(16, 8192), (20, 4096), (24, 0), (24, 3), (24, Int(1 << 40) + 1), (24, -1), (32, 65_536)] {
      var bytes = try Self.file()
      for region in [SpoolFormat.headerOffset, SpoolFormat.headerCopyOffset] {
        Self.change(&bytes, at: Int(region) + offset, UInt64(bitPattern: Int64(value)), size: offset < 24 ? 4 : 8)
        Self.signHeader(&bytes, at: Int(region))
      }
      #expect(throws: SpoolError(.damagedHeader, path: Self.path), "\(offset): \(value)") { try open(bytes) }
    }
    var bytes = try Self.file()
    bytes[8] = 2
    Self.signHeader(&bytes, at: 0)
    #expect(throws: SpoolError(.unsupportedVersion(2), path: Self.path)) { try open(bytes) }
  }

  @Test("any flipped bit of a checkpoint leaves the others intact", arguments: 0..<3)
  func checkpoint(slot: Int) throws {
    let original = try Self.file()
    let offset = SpoolFormat.checkpointOffsets[slot]
    let size = original.withUnsafeBytes { Int($0.integer(at: Int(offset) + 12, as: UInt32.self)) }
    for bit in Array(stride(from: 0, to: StoredCheckpoint.fixedSize * 8, by: 7))
      + Array(stride(from: 704, to: size * 8, by: 701))
    {
      var bytes = original
      bytes[Int(offset) + bit / 8] ^= 1 << UInt8(bit % 8)
      let (file, verification) = try judge(bytes, "bit \(bit)")
      let kinds = verification.damage.filter { $0.fileOffset == offset }.map(\.kind)
      // The third slot has the newest. A damaged number may make another one seem newer.
      #expect(kinds == [.newestCheckpoint] || slot != 2 && kinds == [.checkpoint], "bit \(bit): \(kinds)")
      #expect(file.checkpoint.state.hasPrefix("commit"))
      #expect(file.head == 12 * 4064, "bit \(bit)")
    }
  }

  @Test("a checkpoint with impossible numbers is damaged, whatever its checksum")
  func impossibleCheckpoint() throws {
    let original = try Self.file()
    let seed = Self.header.seed
    for (offset, size) in [(24, 8), (32, 8), (40, 8), (48, 8), (60, 2), (62, 2), (64, 2), (66, 2), (68, 2), (70, 2)] {
      for value: UInt64 in [0, 1, 4063, 4064, 65_535, 1 << 32, 1 << 60, 1 << 63, .max] {
        var bytes = original
        for region in SpoolFormat.checkpointOffsets {
          let start = Int(region)
          Self.change(&bytes, at: start + offset, value, size: size)
          let end = bytes.withUnsafeBytes { Int($0.integer(at: start + 12, as: UInt32.self)) }
          let sum = checksum(Array(bytes[(start + 12)..<start + end]), from: SpoolHeader.seed(of: bytes))
          Self.change(&bytes, at: start + 8, UInt64(sum), size: 4)
        }
        // It must never trap. Any consistent numbers are used.
        try judgeWithoutPattern(bytes, "\(offset): \(value)")
      }
    }
    #expect(seed != SpoolHeader.seed(of: original))
  }

  private func judgeWithoutPattern(_ bytes: [UInt8], _ comment: Comment) throws {
    let file = try open(bytes)
    let verification = try file.verify()
    let (pieces, _) = try file.readAll(from: file.oldest)
    #expect(pieces.reduce(0) { $0 + UInt64($1.1.count) } == verification.intactByteCount, comment)
    #expect(file.released <= file.oldest && file.oldest <= file.head, comment)
  }

  @Test("without any checkpoint, the blocks determine the contents of the file")
  func noCheckpoint() throws {
    var bytes = try Self.file()
    for offset in SpoolFormat.checkpointOffsets { bytes[Int(offset) + 30] ^= 4 }
    let (file, verification) = try judge(bytes, "no checkpoint")
    #expect(verification.hasLoss && verification.damage.contains { $0.kind == .allCheckpoints })
    // None of them can be the newest, because no intact one has a number to compare.
    let offsets = SpoolFormat.checkpointOffsets
    let found = verification.damage.filter { offsets.contains($0.fileOffset) }
    let each = offsets.map { SpoolDamage(.checkpoint, fileOffset: $0) }
    #expect(found == each + [SpoolDamage(.allCheckpoints, fileOffset: offsets[0])])
    #expect((file.head, file.oldest) == (12 * 4064, 0))
    #expect(verification.intactByteCount == 12 * 4064)
  }

  @Test("without any checkpoint, recovery does not read the holes of a large file")
  func noCheckpointInLargeFile() throws {
    let disk = TestDisk()
    try disk.makeFolder("/tmp", mode: 0)
    let folder = try SpoolFolder(directory: "/tmp", stream: "s", disk: disk)
    let file = try SpoolFile.create(in: folder, description: "d", capacity: 32 << 20)
    try file.append(Self.pattern, at: 0, count: 13_000)
    try file.commit(state: "", sync: true)
    var bytes = try #require(disk.withFile(file.path) { $0 })
    for offset in SpoolFormat.checkpointOffsets { bytes[Int(offset) + 30] ^= 4 }
    disk.place(bytes, at: Self.path)
    let before = disk.calls[.read] ?? 0
    #expect(try SpoolFile.open(Self.path, access: .readOnly, disk: disk).head == 3 * 4064)
    #expect((disk.calls[.read] ?? 0) - before < 16)
  }

  @Test(
    "without any checkpoint, recovery finds the contents of the ring at any start",
    arguments: [0, 1, 300, 499] as [UInt64], [0, 700] as [UInt64])
  func noCheckpointAfterRelease(releasedBlocks: UInt64, earlierBlocks: UInt64) throws {
    let disk = TestDisk()
    try disk.makeFolder("/tmp", mode: 0)
    let folder = try SpoolFolder(directory: "/tmp", stream: "s", disk: disk)
    let file = try SpoolFile.create(in: folder, description: "d", capacity: 512 * 4064)
    // The position of the ring's oldest block, and whether the ring has wrapped.
    var head: UInt64 = 0
    while head < earlierBlocks * 4064 {
      try file.append(Self.pattern, at: head, count: 100 * 4064)
      head = file.head
      file.release(upTo: head)
      try file.commit()
    }
    try file.append(Self.pattern, at: head, count: 500 * 4064)
    file.release(upTo: head + releasedBlocks * 4064)
    try file.commit()
    var bytes = try #require(disk.withFile(file.path) { $0 })
    for offset in SpoolFormat.checkpointOffsets { bytes[Int(offset) + 30] ^= 4 }
    disk.place(bytes, at: Self.path)
    let found = try SpoolFile.open(Self.path, access: .readOnly, disk: disk)
    #expect(found.head == head + 500 * 4064 && found.oldest <= head + releasedBlocks * 4064)
    let (pieces, missing) = try found.readAll(from: head + releasedBlocks * 4064)
    #expect(missing.isEmpty && pieces.reduce(0) { $0 + $1.1.count } == (500 - Int(releasedBlocks)) * 4064)
    for (position, piece) in pieces { #expect(piece.withUnsafeBytes { Self.pattern.matches($0, at: position) }) }
  }

  @Test("a flipped bit of a block is reported with its positions, and only that block is lost")
  func block() throws {
    let original = try Self.file()
    for index: UInt64 in [1, 5] {
      let offset = Int(SpoolFormat.dataStart + index * 4096)
      for bit in Array(stride(from: 0, to: 32 * 8, by: 7)) + Array(stride(from: 32 * 8, to: 4096 * 8, by: 3989)) {
        var bytes = original
        bytes[offset + bit / 8] ^= 1 << UInt8(bit % 8)
        let (_, verification) = try judge(bytes, "bit \(bit)")
        let lost = index * 4064..<(index + 1) * 4064
        #expect(
          verification.damage == [SpoolDamage(.flippedBit, fileOffset: UInt64(offset), lostPositions: lost)],
          "bit \(bit)")
        #expect(verification.lostByteCount == 4064)
      }
    }
  }

  @Test("a torn write, a missing write, and an exchanged block are distinguished")
  func blockKinds() throws {
    let original = try Self.file()
    func kinds(_ change: (inout [UInt8]) -> Void) throws -> [SpoolDamage.Kind] {
      var bytes = original
      change(&bytes)
      return try judge(bytes, "kind").verification.damage.map(\.kind)
    }
    let (start, size) = (Int(SpoolFormat.dataStart) + 4 * 4096, 4096)
    #expect(try kinds { $0.replaceSubrange(start + 512..<start + 1024, with: repeatElement(1, count: 512)) } == [.torn])
    #expect(try kinds { $0.replaceSubrange(start..<start + size, with: repeatElement(0, count: size)) } == [.unwritten])
    // A block of a later or an earlier index in its place.
    #expect(
      try kinds { $0.replaceSubrange(start..<start + size, with: $0[start + size..<start + 2 * size]) } == [
        .overwritten
      ])
    #expect(try kinds { $0.replaceSubrange(start..<start + size, with: $0[start - size..<start]) } == [.unwritten])
  }

  @Test("a file may end at any position")
  func truncated() throws {
    let original = try Self.file()
    for length in [
      0, 1, 71, 72, 16_383, 16_384, 16_400, 40_000, 60_000, 65_536, 70_000, 81_920, 90_000, 120_000, 131_071,
    ] {
      let bytes = Array(original[..<length])
      if length < 73 {
        #expect(throws: SpoolError.self, "\(length)") { try open(bytes) }
        continue
      }
      let (_, verification) = try judge(bytes, "\(length)")
      #expect(verification.damage.contains { $0.kind == .truncated && $0.fileOffset == UInt64(length) }, "\(length)")
      #expect(verification.hasLoss, "\(length)")
    }
  }

  @Test("random damage never causes a trap or wrong bytes", arguments: Seed.several(3))
  func random(seed: Seed) throws {
    var random = seed.generator
    let original = try Self.file()
    for _ in 0..<30 {
      var bytes = original
      for _ in 0..<Int.random(in: 1...4, using: &random) {
        let place = Int.random(in: 0..<bytes.count, using: &random)
        let end = min(bytes.count, place + random.size(upTo: 20_000))
        switch Int.random(in: 0..<4, using: &random) {
        case 0: for index in place..<end { bytes[index] = 0 }
        case 1: bytes[place] ^= 1 << UInt8.random(in: 0..<8, using: &random)
        case 2: for index in place..<end { bytes[index] = UInt8.random(in: 0...255, using: &random) }
        default: bytes.removeSubrange(max(place, bytes.count - 30_000)...)
        }
        if bytes.isEmpty { break }
      }
      do { try judge(bytes, "\(seed)") } catch let error as SpoolError {
        #expect([.damagedHeader, .notASpool].contains(error.cause), "\(error)")
      }
    }
  }

  private static func change(_ bytes: inout [UInt8], at offset: Int, _ value: UInt64, size: Int) {
    for index in 0..<size { bytes[offset + index] = UInt8(truncatingIfNeeded: value >> UInt64(index * 8)) }
  }

  private static func signHeader(_ bytes: inout [UInt8], at offset: Int) {
    let region = Array(bytes[offset..<offset + 73])
    change(
      &bytes, at: offset + 12, UInt64(checksum(Array(region[16...]), from: checksum(Array(region[..<12])))), size: 4)
  }
}

extension SpoolHeader {
  fileprivate static func seed(of file: [UInt8]) -> UInt32 { checksum(Array(file[48..<64])) }
}
