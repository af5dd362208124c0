// What a spool file reports about positions: lost before they arrived, evicted, and the times of capture.

import Glibc
import PropertyTesting
import SpoolTesting
import Testing

@testable import Spool

@Suite("Positions of a spool file")
struct SpoolPositionTests {
  private let pattern = OffsetPattern(seed: 9)
  private let disk = TestDisk()
  private let folder: SpoolFolder

  init() throws {
    try disk.makeFolder("/spool", mode: 0o700)
    folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
  }

  private func make(blocks: UInt64) throws -> SpoolFile {
    try SpoolFile.create(in: folder, description: "", capacity: blocks * SpoolFormat.payload)
  }

  private func reopened(_ file: SpoolFile) throws -> SpoolFile {
    file.close()
    return try SpoolFile.open(file.path, folder: folder)
  }

  @Test(
    "omitted bytes are not damage, for any number, before and after the file is reopened",
    arguments: [1, 255, 256])
  func holes(blockCount: UInt64) throws {
    for (place, count) in [(0, 1), (0, 4064), (4063, 2), (100, 9000)] as [(UInt64, Int)] {
      for end in [5000, 4064] as [UInt64] {
        let file = try make(blocks: 300)
        try file.append(pattern, at: 0, count: Int(end))
        let position = (2 + blockCount) * SpoolFormat.payload + place
        try file.append(pattern, at: position, count: count)
        try file.commit()
        var current = file
        for opened in 0..<3 {
          let comment: Comment = "\(blockCount), \(place), \(count), \(end), opened \(opened) times"
          let found = try current.verify()
          #expect(found.damage.isEmpty && found.holes == [end..<position], comment)
          #expect(found.intactByteCount == end + UInt64(count) && found.lostByteCount == position - end, comment)
          // Readers find them, too.
          #expect(try joined(current.readAll(from: 0).missing) == [end..<position], comment)
          #expect(current.damage.isEmpty, comment)
          current = try reopened(current)
        }
        try current.remove()
      }
    }
  }

  @Test("bytes after a second hole in one block are discarded and counted")
  func discarded() throws {
    let file = try make(blocks: 10)
    for (position, count, discarded) in [(0, 100, 0), (200, 100, 0), (400, 100, 100), (500, 5000, 3664)]
      as [(UInt64, Int, UInt64)]
    {
      try file.append(pattern, at: position, count: count)
      #expect(file.discardedByteCount == discarded, "\(position)")
    }
    #expect(file.head == 5500)
  }

  @Test(
    "one append after a hole may begin and end within blocks, with any number of them between",
    arguments: Seed.several(3))
  func longAppends(seed: Seed) throws {
    var random = seed.generator
    for count in [1, 127, 128, 129, 254, 255, 256, 257, 300] {
      let file = try make(blocks: 1000)
      try file.append(pattern, at: 0, count: .random(in: 1...9000, using: &random))
      let start = file.head + .random(in: 1...20_000, using: &random)
      try file.append(
        pattern, at: start, count: count * SpoolFormat.payloadSize + .random(in: 0..<4064, using: &random))
      try file.commit()
      let (pieces, _) = try reopened(file).readAll(from: start)
      #expect(pieces.reduce(0) { $0 + $1.1.count } == Int(file.head - start), "\(count) blocks, \(seed)")
      for (position, bytes) in pieces {
        #expect(bytes == pattern.bytes(bytes.count, at: position), "\(count) blocks, \(seed)")
      }
      try disk.unlink(file.path)
    }
  }

  @Test("a torn block after the head is reported, also if it is the first of the file", arguments: [0, 3] as [UInt64])
  func tornFirst(block: UInt64) throws {
    let file = try make(blocks: 10)
    try file.append(pattern, at: 0, count: Int(block) * SpoolFormat.payloadSize)
    try file.commit()
    try file.append(pattern, at: file.head, count: SpoolFormat.payloadSize)
    let offset = SpoolFormat.blockOffset(block, blockCount: 10)
    _ = disk.withFile(file.path) { $0[Int(offset) + 2000] ^= 0xff }
    let found = try reopened(file)
    #expect(found.head == block * SpoolFormat.payload)
    let lost = SpoolFormat.start(ofBlock: block)..<SpoolFormat.start(ofBlock: block + 1)
    #expect(found.damage == [SpoolDamage(.torn, fileOffset: offset, lostPositions: lost)])
  }

  private func joined(_ ranges: [Range<UInt64>]) -> [Range<UInt64>] {
    ranges.reduce(into: []) { result, range in
      if let last = result.last, last.upperBound == range.lowerBound {
        result[result.count - 1] = last.lowerBound..<range.upperBound
      } else {
        result.append(range)
      }
    }
  }

  @Test("a block that is damaged while the file is open is reported when it is read", arguments: 0..<5, [0, 1, 3000])
  func goneBad(block: UInt64, tail: Int) throws {
    let file = try make(blocks: 8)
    try file.append(pattern, at: 0, count: 5 * SpoolFormat.payloadSize + tail)
    try file.commit()
    let offset = Int(SpoolFormat.blockOffset(block, blockCount: 8))
    disk.withFile(file.path) { bytes in for place in [40, 500, 4000] { bytes[offset + place] ^= 0xFF } }
    let lost = SpoolFormat.start(ofBlock: block)..<SpoolFormat.start(ofBlock: block + 1)
    // Whether it is read first or after others.
    #expect(try file.readAll(from: lost.lowerBound).missing == [lost])
    #expect(file.damage.map(\.lostPositions) == [lost])
    #expect(try file.readAll(from: 0).missing == [lost])
    #expect(file.damage.map(\.lostPositions) == [lost])
    #expect(try file.verify().damage.map(\.lostPositions) == [lost])
  }

  @Test("the time of a block is that of its first byte, even after the file is reopened", arguments: Seed.several(4))
  func times(seed: Seed) throws {
    var random = seed.generator
    let file = try make(blocks: 64)
    var times: [UInt64: Int64] = [:]
    for time in 1...60 {
      let (head, count) = (file.head, random.size(upTo: 9000))
      guard head + UInt64(count) < file.capacity else { break }
      try file.append(pattern, at: head, count: count, time: Int64(time))
      for position in head..<head + UInt64(count) where times[SpoolFormat.blockIndex(position)] == nil {
        times[SpoolFormat.blockIndex(position)] = Int64(time)
      }
      if random.chance(20) { try file.commit(sync: random.chance(50)) }
    }
    try file.commit()
    var current = file
    for _ in 0..<2 {
      for (block, time) in times {
        let start = SpoolFormat.start(ofBlock: block)
        #expect(try current.time(at: start) == time, "\(seed)")
        #expect(try current.time(at: min(current.head - 1, start + 4063)) == time, "\(seed)")
      }
      #expect(try current.time(at: current.head) == nil)
      current = try reopened(current)
    }
  }

  @Test("evicted bytes that the server lacked count as lost, and released ones do not")
  func evicted() throws {
    for released in [0, 1, 4064, 20_000] as [UInt64] {
      for evicted in [0, 1, 4064, 12_192, 20_000] as [UInt64] {
        let file = try make(blocks: 8)
        try file.append(pattern, at: 0, count: 20_000)
        file.release(upTo: released)
        file.evict(upTo: evicted)
        try file.commit()
        let oldest = max(released, evicted)
        for current in [file, try SpoolFile.open(file.path, access: .readOnly, folder: folder)] {
          let found = try current.verify()
          #expect(found.evicted == released..<oldest && found.released == released)
          #expect(found.lostByteCount == oldest - released && found.hasLoss == (oldest > released))
          #expect(found.intactByteCount == 20_000 - oldest && found.damage.isEmpty && found.holes.isEmpty)
        }
        try file.remove()
      }
    }
  }

  @Test(
    "a file has space for the requested size, in whole blocks",
    arguments: [0, 1, 16_255, 16_256, 16_257, 36_575, 36_576, 36_577] as [UInt64])
  func capacity(count: UInt64) throws {
    let file = try SpoolFile.create(in: folder, description: "", capacity: count)
    #expect(file.capacity == max(4 * 4064, (count + 4063) / 4064 * 4064))
    try file.append(pattern, at: 0, count: Int(file.capacity))
    #expect(try file.readAll(from: 0).missing.isEmpty && file.head == file.capacity)
  }
}
