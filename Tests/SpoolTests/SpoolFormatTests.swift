// The format of a spool file, byte by byte, and the pure rules about blocks, checkpoints and names.

import Glibc
import PropertyTesting
import SpoolTesting
import Testing

@testable import Spool

@Suite("The format of a spool file")
struct SpoolFormatTests {
  private static func readHeader(_ bytes: [UInt8]) -> SpoolHeader.Decoding {
    bytes.withUnsafeBytes { SpoolHeader.decoded($0) }
  }

  private static func integer<Number: FixedWidthInteger>(_ bytes: [UInt8], at offset: Int, as type: Number.Type)
    -> Number
  {
    bytes.withUnsafeBytes { $0.integer(at: offset, as: type) }
  }

  // MARK: Numbers

  @Test("checksums are those of zlib, continued from a seed")
  func checksums() {
    #expect(checksum(Array("123456789".utf8)) == 0xCBF4_3926)
    #expect(checksum(Array("6789".utf8), from: checksum(Array("12345".utf8))) == 0xCBF4_3926)
    #expect(checksum([], from: 7) == 7 && checksum([0]) == 0xD202_EF8D)
  }

  @Test("a position has its block and its place, and a block its offset in the ring")
  func positions() {
    for (position, index, place) in [(0, 0, 0), (4063, 0, 4063), (4064, 1, 0), (12_192, 3, 0), (12_200, 3, 8)]
      as [(UInt64, UInt64, Int)]
    {
      #expect(SpoolFormat.blockIndex(position) == index && SpoolFormat.place(position) == place)
      #expect(SpoolFormat.start(ofBlock: index) + UInt64(place) == position)
      #expect(SpoolFile.nextBlock(after: position) == (index + 1) * 4064)
    }
    for (index, offset) in [(0, 81_920), (1, 86_016), (15, 143_360), (16, 81_920), (33, 86_016)] as [(UInt64, UInt64)] {
      #expect(SpoolFormat.blockOffset(index, blockCount: 16) == offset)
    }
    #expect(SpoolFile.size(blockCount: 16) == 147_456)
    for (size, capacity) in [(0, 0), (81_920, 0), (86_015, 0), (86_016, 4064), (147_456, 65_024)] as [(UInt64, UInt64)]
    {
      #expect(SpoolFile.capacity(ofFileWith: size) == capacity)
    }
  }

  // MARK: Headers

  @Test("a header has each field at its place, and any valid one is read as it was written")
  func header() {
    for (count, text) in [
      (4, ""), (5, "d"), (1 << 40, String(repeating: "é", count: 7680)), (16, "text"),
    ] as [(UInt64, String)] {
      let header = SpoolHeader(id: Array(1...16), created: 0x0102_0304_0506, blockCount: count, description: text)
      let bytes = header.encoded()
      #expect(bytes.count == 72 + text.utf8.count && bytes.prefix(8).elementsEqual("SLUSPOOL".utf8))
      #expect(Self.integer(bytes, at: 8, as: UInt32.self) == 1)
      #expect(
        Self.integer(bytes, at: 12, as: UInt32.self)
          == checksum(Array(bytes[16...]), from: checksum(Array(bytes[..<12]))))
      #expect(Self.integer(bytes, at: 16, as: UInt32.self) == 4096)
      #expect(Self.integer(bytes, at: 20, as: UInt32.self) == 4064)
      #expect(Self.integer(bytes, at: 24, as: UInt64.self) == count)
      #expect(Self.integer(bytes, at: 32, as: UInt64.self) == 81_920)
      #expect(Self.integer(bytes, at: 40, as: Int64.self) == 0x0102_0304_0506)
      #expect(Array(bytes[48..<64]) == Array(1...16) && header.seed == checksum(Array(1...16)))
      #expect(Self.integer(bytes, at: 64, as: UInt32.self) == UInt32(text.utf8.count))
      #expect(Self.integer(bytes, at: 68, as: UInt32.self) == 0 && Array(bytes[72...]) == Array(text.utf8))
      // With or without what follows it, but not without its last byte.
      #expect(Self.readHeader(bytes) == .header(header) && Self.readHeader(bytes + [0, 7]) == .header(header))
      #expect(Self.readHeader(Array(bytes.dropLast())) == .damaged)
    }
  }

  @Test("a region without a valid header is empty, foreign or damaged")
  func noHeader() {
    #expect(Self.readHeader([]) == .empty && Self.readHeader([UInt8](repeating: 0, count: 100)) == .empty)
    #expect(Self.readHeader([1]) == .damaged && Self.readHeader([UInt8](repeating: 1, count: 71)) == .damaged)
    #expect(Self.readHeader([UInt8](repeating: 0, count: 99) + [1]) == .foreign)
    #expect(Self.readHeader([UInt8](repeating: 9, count: 100)) == .foreign)
    let header = SpoolHeader(id: Array(1...16), created: 5, blockCount: 16, description: "")
    for place in 0..<72 {
      var bytes = header.encoded()
      bytes[place] ^= 0x10
      #expect(Self.readHeader(bytes) == (place < 8 ? .foreign : .damaged), "\(place)")
    }
    // A longer description than any process writes.
    let long = SpoolHeader(
      id: Array(1...16), created: 5, blockCount: 16, description: String(repeating: "x", count: 15_361))
    #expect(Self.readHeader(long.encoded()) == .damaged)
    for count in [3, (1 << 40) + 1] as [UInt64] {
      let other = SpoolHeader(id: Array(1...16), created: 5, blockCount: count, description: "")
      #expect(Self.readHeader(other.encoded()) == .damaged)
    }
  }

  // MARK: Checkpoints

  private static func readCheckpoint(_ bytes: [UInt8], blockCount: UInt64 = 16) -> StoredCheckpoint.Decoding {
    bytes.withUnsafeBytes { StoredCheckpoint.decoded($0, seed: 77, blockCount: blockCount) }
  }

  @Test(
    "a checkpoint has each field at its place, and any valid one is read as it was written", arguments: Seed.several(4))
  func checkpoint(seed: Seed) {
    var random = seed.generator
    for round in 0..<51 {
      var checkpoint = SpoolCheckpoint()
      checkpoint.head = .random(in: 0...20 * 4064, using: &random)
      if random.chance(20) { checkpoint.head = checkpoint.head / 4064 * 4064 }
      let first = checkpoint.head - min(checkpoint.head, 10 * 4064)
      checkpoint.oldest = random.chance(20) ? checkpoint.head : .random(in: first...checkpoint.head, using: &random)
      checkpoint.released = random.chance(20) ? checkpoint.oldest : .random(in: 0...checkpoint.oldest, using: &random)
      checkpoint.isFinished = random.chance(50)
      checkpoint.pausedByteCount = random.next()
      checkpoint.pauses = (0..<round % 17).map { _ in SpoolPause(position: random.next(), length: random.next()) }
      checkpoint.state = String(repeating: "s", count: random.chance(10) ? 8192 : random.size(upTo: 100) - 1)
      var stored = StoredCheckpoint(sequence: random.next(), checkpoint: checkpoint, isSealed: random.chance(50))
      let place = SpoolFormat.place(checkpoint.head)
      if place > 0 {
        stored.tail.first = .random(in: 0..<UInt16(place), using: &random)
        stored.tail.length = UInt16(place) - stored.tail.first
        if stored.tail.length > 3, random.chance(50) {
          stored.tail.holeStart = stored.tail.first + 1
          stored.tail.holeLength = stored.tail.length - 2
        }
        stored.tailBytes = (0..<stored.tail.length).map { UInt8(truncatingIfNeeded: $0 &* 31) }
        stored.tail.missingBefore = UInt32(truncatingIfNeeded: random.next())
        stored.tail.time = Int64(truncatingIfNeeded: random.next())
      }
      let bytes = stored.encoded(seed: 77)
      #expect(Self.readCheckpoint(bytes) == .checkpoint(stored), "\(seed), \(round)")
      #expect(Self.readCheckpoint(bytes + [1, 2]) == .checkpoint(stored), "\(seed), \(round)")
      #expect(Self.readCheckpoint(Array(bytes.dropLast())) == .damaged, "\(seed), \(round)")
      #expect(bytes.prefix(8).elementsEqual("SLUCHECK".utf8))
      #expect(Self.integer(bytes, at: 8, as: UInt32.self) == checksum(Array(bytes[12...]), from: 77))
      #expect(Int(Self.integer(bytes, at: 12, as: UInt32.self)) == bytes.count)
      #expect(Self.integer(bytes, at: 16, as: UInt64.self) == stored.sequence)
      #expect(Self.integer(bytes, at: 24, as: UInt64.self) == checkpoint.head)
      #expect(Self.integer(bytes, at: 32, as: UInt64.self) == checkpoint.released)
      #expect(Self.integer(bytes, at: 40, as: UInt64.self) == checkpoint.oldest)
      #expect(Self.integer(bytes, at: 48, as: UInt64.self) == checkpoint.pausedByteCount)
      let flags = Self.integer(bytes, at: 56, as: UInt32.self)
      #expect(flags == (checkpoint.isFinished ? 1 : 0) + (stored.isSealed ? 2 : 0))
      #expect(Int(Self.integer(bytes, at: 60, as: UInt16.self)) == checkpoint.pauses.count)
      #expect(Int(Self.integer(bytes, at: 62, as: UInt16.self)) == checkpoint.state.utf8.count)
      #expect(Self.integer(bytes, at: 64, as: UInt16.self) == stored.tail.first)
      #expect(Self.integer(bytes, at: 66, as: UInt16.self) == stored.tail.length)
      #expect(Self.integer(bytes, at: 68, as: UInt16.self) == stored.tail.holeStart)
      #expect(Self.integer(bytes, at: 70, as: UInt16.self) == stored.tail.holeLength)
      #expect(Self.integer(bytes, at: 72, as: Int64.self) == stored.tail.time)
      #expect(Self.integer(bytes, at: 80, as: UInt32.self) == stored.tail.missingBefore)
      #expect(Self.integer(bytes, at: 84, as: UInt32.self) == 0)
      for (number, pause) in checkpoint.pauses.enumerated() {
        #expect(Self.integer(bytes, at: 88 + 16 * number, as: UInt64.self) == pause.position)
        #expect(Self.integer(bytes, at: 96 + 16 * number, as: UInt64.self) == pause.length)
      }
    }
  }

  @Test(
    "a checkpoint whose numbers contradict each other is damaged",
    arguments: [
      // Head, released, oldest, the tail's first byte and length, and whether that is possible.
      (0, 0, 0, 0, 0, true), (0, 0, 1, 0, 0, false), (10, 0, 10, 0, 10, true), (10, 0, 11, 0, 10, false),
      (10, 5, 5, 0, 10, true), (10, 6, 5, 0, 10, false), (10, 0, 0, 4, 6, true), (10, 0, 0, 0, 9, false),
      (10, 0, 0, 0, 11, false), (10, 0, 0, 10, 0, false), (10, 0, 0, 0, 0, false), (4064, 0, 0, 0, 0, true),
      (4064, 0, 0, 0, 1, false), (4065, 0, 0, 0, 1, true), (4065, 0, 0, 1, 0, false),
      (65_024, 0, 0, 0, 0, true), (69_088, 0, 0, 0, 0, false), (69_088, 0, 4063, 0, 0, false),
      (69_088, 0, 4064, 0, 0, true), (69_089, 0, 4064, 0, 1, true),
      (1_152_921_504_606_846_976, 1_152_921_504_606_846_976, 1_152_921_504_606_846_976, 0, 2048, true),
      (1_152_921_504_606_846_977, 1_152_921_504_606_846_976, 1_152_921_504_606_846_976, 0, 2049, false),
    ] as [(UInt64, UInt64, UInt64, UInt16, UInt16, Bool)])
  func impossible(
    _ head: UInt64, _ released: UInt64, _ oldest: UInt64, _ first: UInt16, _ length: UInt16, _ isPossible: Bool
  ) {
    var stored = StoredCheckpoint(sequence: 3, checkpoint: SpoolCheckpoint())
    (stored.checkpoint.head, stored.checkpoint.released, stored.checkpoint.oldest) = (head, released, oldest)
    (stored.tail.first, stored.tail.length) = (first, length)
    stored.tailBytes = [UInt8](repeating: 1, count: Int(length))
    let found = Self.readCheckpoint(stored.encoded(seed: 77))
    #expect(found == (isPossible ? .checkpoint(stored) : .damaged))
  }

  @Test("a region without a checkpoint is empty or damaged")
  func noCheckpoint() {
    #expect(Self.readCheckpoint([]) == .empty)
    #expect(Self.readCheckpoint([UInt8](repeating: 0, count: 100)) == .empty)
    #expect(Self.readCheckpoint([UInt8](repeating: 0, count: 86) + [1]) == .damaged)
    let bytes = StoredCheckpoint(sequence: 1, checkpoint: SpoolCheckpoint()).encoded(seed: 77)
    #expect(bytes.count == 88)
    for place in 0..<88 {
      var other = bytes
      other[place] ^= 1
      #expect(Self.readCheckpoint(other) == .damaged, "\(place)")
    }
  }

  @Test("a checkpoint is written neither over the newest one nor over the durable one")
  func slots() {
    for newest in [nil, 0, 1, 2] as [Int?] {
      for durable in [nil, 0, 1, 2] as [Int?] {
        var slots = CheckpointSlots(newest: newest, durable: durable, sequence: 7)
        let next = slots.next
        #expect(next == (0..<3).first { $0 != newest && $0 != durable })
        slots.wrote(next)
        #expect(slots == CheckpointSlots(newest: next, durable: durable, sequence: 8))
      }
    }
  }

  // MARK: Blocks

  /// Which places of a block contain bytes, as a simple model.
  private static func places(_ shape: BlockShape) -> [Bool] {
    (0..<4064).map { place in
      let isInHole = place >= Int(shape.holeStart) && place < Int(shape.holeStart) + Int(shape.holeLength)
      return place >= Int(shape.first) && place < Int(shape.first) + Int(shape.length) && !isInHole
    }
  }

  private static func shape(_ random: inout SplitMix64) -> BlockShape {
    var shape = BlockShape()
    shape.first = random.chance(50) ? 0 : .random(in: 0...9, using: &random)
    shape.length = random.chance(30) ? 4064 - shape.first : .random(in: 1...20, using: &random)
    if shape.length > 3, random.chance(60) {
      shape.holeStart = shape.first + UInt16.random(in: 1...shape.length - 2, using: &random)
      shape.holeLength = .random(in: 1...shape.first + shape.length - shape.holeStart - 1, using: &random)
    }
    return shape
  }

  @Test(
    "the runs of a block, and whether it contains those of another version, are those of its places",
    arguments: Seed.several(2))
  func shapes(seed: Seed) {
    var random = seed.generator
    for _ in 0..<30 {
      let (shape, other) = (Self.shape(&random), Self.shape(&random))
      let (own, others) = (Self.places(shape), Self.places(other))
      #expect(shape.isPossible && shape.end == Int(shape.first) + Int(shape.length), "\(seed): \(shape)")
      for place in Array(0...31) + [shape.end - 1, shape.end, 4063, 4064].filter({ $0 >= 0 }) {
        var start = place
        // The run that contains the place, from its beginning, or the next one.
        while start < 4064, !own[start] { start += 1 }
        var expected: Range<Int>?
        if start < 4064 {
          var (lower, upper) = (start, start)
          while lower > 0, own[lower - 1] { lower -= 1 }
          while upper < 4064, own[upper] { upper += 1 }
          expected = lower..<upper
        }
        #expect(shape.run(at: place) == expected, "\(seed): \(shape) at \(place)")
      }
      let contains = zip(own, others).allSatisfy { $0 || !$1 }
      #expect(shape.contains(other) == contains, "\(seed): \(shape), \(other)")
      #expect(shape.contains(shape) && shape.contains(BlockShape()))
    }
  }

  @Test("impossible shapes are recognized")
  func impossibleShapes() {
    func isPossible(_ first: UInt16, _ length: UInt16, _ holeStart: UInt16, _ holeLength: UInt16) -> Bool {
      BlockShape(first: first, length: length, holeStart: holeStart, holeLength: holeLength).isPossible
    }
    #expect(isPossible(0, 4064, 0, 0) && !isPossible(0, 4065, 0, 0) && !isPossible(1, 4064, 0, 0))
    #expect(isPossible(1, 4063, 9, 0) && isPossible(2, 8, 3, 6) && !isPossible(2, 8, 2, 3) && !isPossible(2, 8, 1, 3))
    #expect(!isPossible(2, 8, 3, 7) && !isPossible(2, 8, 9, 1) && isPossible(2, 8, 8, 1) && !isPossible(0, 0, 0, 1))
    var shape = BlockShape(first: 5, length: 10)
    shape.openHole(upTo: 40)
    #expect(shape == BlockShape(first: 5, length: 35, holeStart: 15, holeLength: 25))
  }

  @Test("a block has each field at its place, and its content is recognized")
  func block() {
    var tail = SpoolTail(at: 7 * 4064 + 100, missingBefore: 3)
    #expect(tail.isEmpty && !tail.isComplete && tail.index == 7 && tail.head == 7 * 4064 + 100 && tail.bytes.isEmpty)
    let text = [UInt8](1...50)
    let count = text.withUnsafeBytes { tail.append($0, time: 9) }
    let again = text.withUnsafeBytes { tail.append($0, time: 10) }
    #expect(count == 50 && again == 50 && tail.bytes == text + text && tail.head == 7 * 4064 + 200)
    #expect(tail.shape == BlockShape(first: 100, length: 100, missingBefore: 3, time: 9) && !tail.isEmpty)
    let block = tail.encoded(seed: 5)
    #expect(block.count == 4096 && Array(block[132..<232]) == text + text)
    #expect(block[32..<132].allSatisfy { $0 == 0 } && block[232...].allSatisfy { $0 == 0 })
    #expect(Self.integer(block, at: 0, as: UInt32.self) == checksum(Array(block[4...]), from: 5))
    #expect(Self.integer(block, at: 4, as: UInt16.self) == 100 && Self.integer(block, at: 6, as: UInt16.self) == 100)
    #expect(Self.integer(block, at: 8, as: UInt64.self) == 7 && Self.integer(block, at: 16, as: Int64.self) == 9)
    #expect(Self.integer(block, at: 24, as: UInt16.self) == 0 && Self.integer(block, at: 28, as: UInt32.self) == 3)
    #expect(block.withUnsafeBytes { BlockHeader($0) } == BlockHeader(index: 7, shape: tail.shape))
    func content(_ block: [UInt8], _ index: UInt64) -> BlockContent {
      block.withUnsafeBytes { BlockContent($0, index: index, seed: 5) }
    }
    #expect(content(block, 7) == .valid(tail.shape) && content(block, 7).shape == tail.shape)
    #expect(content(block, 8) == .earlierLap && content(block, 6) == .laterLap && content(block, 8).shape == nil)
    #expect(content([UInt8](repeating: 0, count: 4096), 7) == .empty)
    for bit in Array(0..<600) + Array(stride(from: 600, to: 32_768, by: 97)) + [32_767] {
      var other = block
      other[bit / 8] ^= 1 << UInt8(bit % 8)
      #expect(content(other, 7) == .flippedBit, "\(bit)")
      other[(bit / 8 + 1) % 4096] ^= 1
      #expect(content(other, 7) == .torn, "\(bit)")
    }
    // Numbers that only other software can have written.
    for shape in [
      BlockShape(first: 100), BlockShape(first: 4000, length: 100), BlockShape(length: 9, holeStart: 0, holeLength: 1),
    ] {
      var other = block
      other.withUnsafeMutableBytes { bytes in
        BlockHeader(index: 7, shape: shape).encode(
          into: UnsafeMutableRawBufferPointer(rebasing: bytes[..<32]),
          payload: UnsafeRawBufferPointer(rebasing: bytes[32...]), seed: 5)
      }
      #expect(content(other, 7) == .torn, "\(shape)")
    }
    let hole = BlockShape(first: 1, length: 100, holeStart: 20, holeLength: 30, missingBefore: 4, time: -5)
    let filled = SpoolTail(index: 9, shape: hole, bytes: [UInt8](repeating: 6, count: 100))
    #expect(content(filled.encoded(seed: 5), 9) == .valid(hole) && filled.bytes.count == 100)
  }

  @Test("an incomplete block accepts bytes until it is complete, and a checkpoint has a copy of it")
  func tail() {
    var tail = SpoolTail(index: 2)
    let bytes = [UInt8](repeating: 4, count: 5000)
    let counts = [1, 4062, 5000, 1].map { count in
      bytes.withUnsafeBytes { tail.append(UnsafeRawBufferPointer(rebasing: $0[..<count]), time: 3) }
    }
    #expect(counts == [1, 4062, 1, 0] && tail.isComplete && tail.head == 3 * 4064)
    var stored = StoredCheckpoint(sequence: 1, checkpoint: SpoolCheckpoint())
    #expect(SpoolTail(stored).isEmpty && SpoolTail(stored).index == 0)
    stored.checkpoint.head = 2 * 4064 + 30
    stored.tail = BlockShape(first: 10, length: 20)
    stored.tailBytes = Array(1...20)
    let copy = SpoolTail(stored)
    #expect(copy.index == 2 && copy.bytes == Array(1...20) && copy.head == stored.checkpoint.head && !copy.isComplete)
  }

  // MARK: Missing blocks

  @Test("runs of missing blocks have one kind each, and a later block explains those that were never written")
  func missing() {
    func runs(
      _ contents: [BlockContent?], from first: UInt64 = 10, before next: UInt64? = nil, missing: UInt32 = 0
    ) -> [MissingBlocks.Run] {
      var blocks = MissingBlocks()
      let empty = UnsafeRawBufferPointer(start: nil, count: 0)
      for (number, content) in contents.enumerated() {
        blocks.add(BlockReader.Block(index: first + UInt64(number), content: content, bytes: empty))
      }
      let taken = blocks.take(
        before: next ?? first + UInt64(contents.count), BlockShape(length: 1, missingBefore: missing))
      #expect(blocks.runs.isEmpty)
      return taken
    }
    func run(_ kind: SpoolDamage.Kind, _ blocks: Range<UInt64>) -> MissingBlocks.Run {
      .init(kind: kind, blocks: blocks)
    }
    #expect(runs([]) == [])
    #expect(
      runs([.torn, .torn, .flippedBit, .empty, .earlierLap, .laterLap, nil, nil, .torn]) == [
        run(.torn, 10..<12), run(.flippedBit, 12..<13), run(.unwritten, 13..<15), run(.overwritten, 15..<16),
        run(.unreadable, 16..<18), run(.torn, 18..<19),
      ])
    for (missing, expected) in [
      (0, [run(.unwritten, 10..<14)]), (1, [run(.unwritten, 10..<13)]), (3, [run(.unwritten, 10..<11)]), (4, []),
      (5, []), (99, []),
    ] as [(UInt32, [MissingBlocks.Run])] {
      #expect(runs([.empty, .earlierLap, .empty, .empty], missing: missing) == expected, "\(missing)")
    }
    #expect(runs([.empty, .torn, .empty], missing: 3) == [run(.torn, 11..<12)])
    #expect(runs([.empty], from: 0, missing: 1) == [] && runs([.empty], from: 0, missing: 2) == [])
    #expect(runs([.empty], from: 0, before: 3, missing: 2) == [run(.unwritten, 0..<1)])
  }

  // MARK: Verification

  @Test("each missing byte counts once, from the released position on")
  func lost() {
    var found = SpoolVerification()
    #expect(found.lostByteCount == 0 && !found.hasLoss)
    found.released = 100
    found.evicted = 100..<110
    found.holes = [300..<320, 105..<120]
    found.damage = [
      SpoolDamage(.torn, fileOffset: 0, lostPositions: 50..<102), SpoolDamage(.torn, fileOffset: 0),
      SpoolDamage(.unreadable, fileOffset: 0, lostPositions: 310..<330),
      SpoolDamage(.flippedBit, fileOffset: 0, lostPositions: 120..<121),
    ]
    // 100 to 121, and 300 to 330.
    #expect(found.lostByteCount == 51 && found.hasLoss)
    found.forget(before: 120)
    #expect(found.holes == [300..<320] && found.damage.map(\.kind) == [.torn, .unreadable, .flippedBit])
    found.forget(before: 121)
    #expect(found.damage.map(\.kind) == [.torn, .unreadable] && found.damage[0].lostPositions.isEmpty)
    for kind in SpoolDamage.Kind.allCases {
      var other = SpoolVerification()
      other.damage = [SpoolDamage(kind, fileOffset: 0)]
      let leavesDoubt = [.allCheckpoints, .newestCheckpoint, .lostMemory].contains(kind)
      #expect(other.hasLoss == leavesDoubt && other.lostByteCount == 0)
    }
    found = SpoolVerification()
    found.holes = [5..<6]
    #expect(found.lostByteCount == 1 && found.hasLoss)
  }

  // MARK: Names

  @Test("the file of a stretch has its time and the beginning of its identifier as its name")
  func names() throws {
    let identity = try #require(StretchIdentity(id: [0, 1, 2, 0xAB] + [UInt8](repeating: 9, count: 12), created: 0))
    #expect(identity.fileName == "0-000102ab09090909.spool")
    #expect(StretchIdentity(id: [UInt8](repeating: 9, count: 15), created: 0) == nil)
    #expect(StretchIdentity(id: [UInt8](repeating: 9, count: 17), created: 0) == nil)
    #expect(StretchIdentity(id: [UInt8](repeating: 9, count: 16), created: -1) == nil)
    let new = StretchIdentity()
    #expect(new.id.count == 16 && new.created > 0 && new != StretchIdentity())
    #expect(Stretch(new.fileName)?.name == new.fileName && Stretch(new.fileName)?.created == new.created)
    #expect(Stretch("7-00000000000000ff.spool") == Stretch(created: 7, id: [0, 0, 0, 0, 0, 0, 0, 255]))
    for name in [
      "7-00000000000000ff", "7-00000000000000ff.spoo", "-7-00000000000000ff.spool", "-1-00000000000000ff.spool",
      "x-00000000000000ff.spool", "7-0000000000000ff.spool", "7-000000000000000ff.spool", "7-00000000000000fg.spool",
      "7.spool", "7-8-00000000000000ff.spool", "", ".spool",
    ] { #expect(Stretch(name) == nil, "\(name)") }
  }

  @Test("a stream's name has 1 to 64 of the permitted characters, and does not begin with a dot")
  func streamNames() {
    for name in ["a", "Z", "0", "9", "a.b_c-D", "_", "-", String(repeating: "x", count: 64)] {
      #expect(SpoolFolder.isValid(stream: name), "\(name)")
    }
    for name in ["", ".", ".a", "a/b", "a b", "ä", "a\n", "@", "[", "`", "{", ":", String(repeating: "x", count: 65)] {
      #expect(!SpoolFolder.isValid(stream: name), "\(name)")
    }
    for (path, folder) in [
      ("/a/b", "/a"), ("/a/b//", "/a"), ("/a", "/"), ("/", "/"), ("a", "."), ("a/", "."), ("a/b", "a"),
    ] { #expect(SpoolFolder.folder(of: path) == folder, "\(path)") }
  }

  @Test("a path names one stretch, those of one stream, or those of all streams")
  func entries() throws {
    let disk = TestDisk()
    try disk.makeFolder("/spool", mode: 0o700)
    var paths: [String: [String]] = [:]
    for stream in ["b", "a"] {
      let folder = try SpoolFolder(directory: "/spool", stream: stream, disk: disk)
      for created in [2, 10] as [Int64] {
        let id = try #require(StretchIdentity(id: [UInt8](repeating: UInt8(created), count: 16), created: created))
        paths[stream, default: []].append(try SpoolFile.create(in: folder, id, description: "", capacity: 0).path)
      }
    }
    let all = (paths["a"] ?? []) + (paths["b"] ?? [])
    for path in ["/spool", "/spool/", "/spool///"] {
      let found = try SpoolEntry.all(at: path, disk: disk)
      #expect(found.map(\.path) == all && found.map(\.stream) == ["a", "a", "b", "b"])
      #expect(found.map(\.folder) == ["/spool/a", "/spool/a", "/spool/b", "/spool/b"])
    }
    #expect(try SpoolFolder.streams(in: "/spool", disk: disk) == ["a", "b"])
    #expect(try SpoolEntry.folders(at: "/spool", disk: disk) == ["/spool/a", "/spool/b"])
    for path in ["/spool/a", "/spool/a/"] {
      #expect(try SpoolEntry.all(at: path, disk: disk).map(\.path) == paths["a"])
      #expect(try SpoolEntry.folders(at: path, disk: disk) == ["/spool/a"])
    }
    let one = try #require(all.first)
    #expect(
      try SpoolEntry.all(at: one, disk: disk) == [SpoolEntry(directory: "/spool", stream: "a", path: one)])
    var unlinked = 0
    try SpoolEntry(directory: "/spool", stream: "a", path: one).remove(disk: disk) { unlinked += 1 }
    #expect(try unlinked == 1 && SpoolEntry.all(at: "/spool/a", disk: disk).map(\.path) == Array(all[1..<2]))
  }

  @Test("a stream whose folder cannot be read is reported, and hides no other stream")
  func unreadableFolder() throws {
    let disk = TestDisk()
    try disk.makeFolder("/spool", mode: 0o700)
    for stream in ["a", "b"] {
      let folder = try SpoolFolder(directory: "/spool", stream: stream, disk: disk)
      _ = try SpoolFile.create(in: folder, description: "", capacity: 0)
    }
    /// The calls that list "a": for the names of the streams, and for its stretches.
    func fail(_ code: Int32) {
      disk.resetCalls()
      disk.faults[.names] = [2: .error(code), 4: .error(code)]
    }
    for code in [EACCES, EIO] {
      fail(code)
      var failures: [SpoolError] = []
      let found = try SpoolEntry.all(at: "/spool", disk: disk, unreadable: { failures.append($0) })
      #expect(found.map(\.stream) == ["b"] && failures.map(\.path) == ["/spool/a"] && failures.first?.code == code)
      fail(code)
      #expect(throws: SpoolError.self) { _ = try SpoolEntry.all(at: "/spool", disk: disk) }
      fail(code)
      #expect(try SpoolEntry.folders(at: "/spool", disk: disk) == ["/spool/a", "/spool/b"])
    }
    // A file of another kind contains no lock.
    try disk.unlink("/spool/a/lock")
    fail(ENOTDIR)
    let streams = try SpoolFolder.streams(in: "/spool", disk: disk)
    #expect(streams == ["b"])
  }

  @Test("the user of a folder is the process in its lock file, if that is a number")
  func user() throws {
    let disk = TestDisk()
    try disk.makeFolder("/spool", mode: 0o700)
    do {
      let folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
      #expect(disk.withFile("/spool/s/lock") { $0 } == Array("\(getpid())\n".utf8))
      for (text, process) in [
        ("12\nx", 12), ("12", 12), ("1", 1), ("0", nil), ("-1", nil), ("", nil), ("x\n", nil), ("2147483648", nil),
      ] as [(String, Int32?)] {
        _ = disk.withFile("/spool/s/lock") { $0 = Array(text.utf8) }
        #expect(try SpoolFolder.user(of: "/spool/s", disk: disk) == .process(process), "\(text)")
        #expect(throws: SpoolError(.inUse(process), path: "/spool/s")) {
          try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
        }
      }
      withExtendedLifetime(folder) {}
    }
    #expect(try SpoolFolder.user(of: "/spool/s", disk: disk) == .nobody)
    // Its number is replaced completely.
    _ = disk.withFile("/spool/s/lock") { $0 = [UInt8](repeating: 0x39, count: 16) }
    disk.place([1], at: "/spool/s/.1-00000000000000ff.spool.new")
    disk.place([1], at: "/spool/s/.other")
    disk.place([1], at: "/spool/s/1.new")
    let folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
    #expect(disk.withFile("/spool/s/lock") { $0 } == Array("\(getpid())\n".utf8))
    #expect(try Set(disk.names(in: "/spool/s")) == ["lock", ".other", "1.new"], "files that were begun are removed")
    withExtendedLifetime(folder) {}
  }

  @Test(
    "a new folder must be synced, and the parent of an existing one may be closed to this process",
    arguments: [(true, EACCES), (true, EIO), (false, EACCES), (false, EIO)] as [(Bool, Int32)])
  func parents(isNew: Bool, code: Int32) throws {
    let disk = TestDisk()
    if !isNew { for path in ["/spool", "/spool/s"] { try disk.makeFolder(path, mode: 0o700) } }
    disk.lasting[.synchronizeFolder] = (from: 1, code: code)
    let isOpened = (try? SpoolFolder(directory: "/spool", stream: "s", disk: disk)) != nil
    #expect(isOpened == (!isNew && code == EACCES))
    disk.lasting = [:]
    // The next attempt continues with what exists.
    _ = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
    let other = TestDisk()
    other.lasting[.makeFolder] = (from: 2, code: code)
    #expect(throws: SpoolError.self) { _ = try SpoolFolder(directory: "/spool", stream: "s", disk: other) }
  }

  // MARK: Limits of calls

  @Test("each limit of a spool file is exact, and a refused call changes nothing")
  func limits() throws {
    let disk = TestDisk()
    try disk.makeFolder("/spool", mode: 0o700)
    let folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
    let pattern = OffsetPattern(seed: 1)
    _ = try SpoolFile.create(in: folder, description: String(repeating: "x", count: 15_360), capacity: 1)
    #expect(throws: SpoolError.self) {
      _ = try SpoolFile.create(in: folder, description: String(repeating: "x", count: 15_361), capacity: 1)
    }
    let file = try SpoolFile.create(in: folder, description: "", capacity: 8 * 4064)
    func cause(_ work: () throws(SpoolError) -> Void) -> SpoolError.Cause? {
      do throws(SpoolError) { try work() } catch { return error.cause }
      return nil
    }
    func append(_ count: Int, at position: UInt64, to file: SpoolFile) -> SpoolError.Cause? {
      let bytes = pattern.bytes(count, at: position)
      return bytes.withUnsafeBytes { bytes in
        cause { () throws(SpoolError) in try file.append(bytes, at: position, time: 0) }
      }
    }
    func commit(_ file: SpoolFile, state: Int = 0, pauses: Int = 0, isFinished: Bool = false) -> SpoolError.Cause? {
      cause { () throws(SpoolError) in
        try file.commit(
          state: String(repeating: "s", count: state), pausedByteCount: 0,
          pauses: [SpoolPause](repeating: SpoolPause(position: 0, length: 1), count: pauses), isFinished: isFinished,
          sync: true)
      }
    }
    #expect(append(100, at: 0, to: file) == nil && append(1, at: 99, to: file) == .outOfOrder(head: 100))
    #expect(append(1, at: 1 << 60, to: file) == .outOfOrder(head: 100))
    #expect(append(1, at: (1 << 60) - 1, to: file) == .full && append(0, at: 100, to: file) == nil && file.head == 100)
    #expect(commit(file, state: 8193) == .tooLong && commit(file, pauses: 17) == .tooLong)
    #expect(file.checkpoint.head == 0)
    #expect(commit(file, state: 8192, pauses: 16) == nil)
    #expect(file.checkpoint.head == 100 && file.checkpoint.state.utf8.count == 8192)
    let reader = try SpoolFile.open(file.path, access: .readOnly, disk: disk)
    #expect(reader.checkpoint == file.checkpoint && reader.damage.isEmpty)
    #expect(append(1, at: 100, to: reader) == .readOnly && commit(reader) == .readOnly)
    #expect(cause { () throws(SpoolError) in try reader.remove() } == .readOnly && !reader.canSynchronizeBlocks)
    #expect(commit(file, isFinished: true) == nil && append(1, at: 100, to: file) == .sealed)
    #expect(file.checkpoint.isFinished && !file.isRemoved)
    file.release(upTo: 101)
    #expect(file.released == 100 && file.oldest == 100)
    var unlinked = 0
    try file.remove { unlinked += 1 }
    #expect(unlinked == 1 && commit(file).flatMap { SpoolError($0, path: "").code } == EBADF)
    #expect(try folder.stretches().count == 1)
  }
}
