// One block of a spool file: a header of 32 bytes, and up to 4064 bytes of the stream.

internal import Glibc

/// The bytes of its positions that a block contains: one run, or two with a hole between them.
struct BlockShape: Equatable {
  /// How many bytes are missing at the front of the payload.
  var first: UInt16 = 0
  /// The length from there to the end of its last byte.
  var length: UInt16 = 0
  /// A hole between two runs, counted from the start of the payload. Its length is 0 if there is none.
  var holeStart: UInt16 = 0
  var holeLength: UInt16 = 0
  /// How many blocks before this one were never written, because their bytes were lost earlier.
  var missingBefore: UInt32 = 0
  /// The wall clock when its first byte was captured, in milliseconds since 1970.
  var time: Int64 = 0

  /// The end of its last byte in the payload.
  var end: Int { Int(first) + Int(length) }

  /// Whether these numbers are consistent.
  var isPossible: Bool {
    guard end <= SpoolFormat.payloadSize else { return false }
    guard holeLength > 0 else { return true }
    return holeStart > first && Int(holeStart) + Int(holeLength) < end
  }

  /// The run of bytes that contains `place`, or the next one; nil after the last.
  func run(at place: Int) -> Range<Int>? {
    guard place < end else { return nil }
    guard holeLength > 0 else { return Int(first)..<end }
    return place < Int(holeStart) ? Int(first)..<Int(holeStart) : Int(holeStart) + Int(holeLength)..<end
  }

  /// Whether it contains every byte that `other` contains, for two versions of the same block.
  func contains(_ other: BlockShape) -> Bool {
    var place = 0
    while let run = other.run(at: place) {
      guard let own = self.run(at: run.lowerBound), own.lowerBound <= run.lowerBound, own.upperBound >= run.upperBound
      else { return false }
      place = run.upperBound
    }
    return true
  }

  /// Adds a hole from the last byte to `place`. A block has at most one hole between its bytes, so there must be none
  /// yet.
  mutating func openHole(upTo place: Int) {
    holeStart = UInt16(clamping: end)
    holeLength = UInt16(clamping: place - end)
    length = UInt16(clamping: place - Int(first))
  }
}

/// The 32-byte header of a block.
struct BlockHeader: Equatable {
  var index: UInt64
  var shape: BlockShape

  /// Writes the header, with its checksum, before `payload`.
  func encode(into header: UnsafeMutableRawBufferPointer, payload: UnsafeRawBufferPointer, seed: UInt32) {
    header.set(shape.first, at: 4)
    header.set(shape.length, at: 6)
    header.set(index, at: 8)
    header.set(shape.time, at: 16)
    header.set(shape.holeStart, at: 24)
    header.set(shape.holeLength, at: 26)
    header.set(shape.missingBefore, at: 28)
    header.set(checksum(payload, from: checksum(UnsafeRawBufferPointer(rebasing: header[4..<32]), from: seed)), at: 0)
  }

  /// The values of the fields, valid or not.
  init(_ block: UnsafeRawBufferPointer) {
    index = block.integer(at: 8)
    shape = BlockShape(
      first: block.integer(at: 4), length: block.integer(at: 6), holeStart: block.integer(at: 24),
      holeLength: block.integer(at: 26), missingBefore: block.integer(at: 28), time: block.integer(at: 16))
  }

  init(index: UInt64, shape: BlockShape) {
    self.index = index
    self.shape = shape
  }
}

/// What a slot of the ring contains for an index.
enum BlockContent: Equatable {
  case valid(BlockShape)
  /// Zeros: it was never written, or was returned to the file system.
  case empty
  /// A block of an earlier lap: the write of this index did not reach the disk.
  case earlierLap
  /// A block of a later lap: the bytes were released or evicted.
  case laterLap
  /// One bit differs from the written block.
  case flippedBit
  /// Part of it was written, or several bits differ.
  case torn

  /// The shape of a valid block.
  var shape: BlockShape? { if case .valid(let shape) = self { shape } else { nil } }

  /// - Parameter block: ``SpoolFormat/blockSize`` bytes.
  init(_ block: UnsafeRawBufferPointer, index: UInt64, seed: UInt32) {
    let stored = block.integer(at: 0, as: UInt32.self)
    let computed = checksum(UnsafeRawBufferPointer(rebasing: block[4...]), from: seed)
    let header = BlockHeader(block)
    guard stored == computed else {
      if Self.isZero(block) {
        self = .empty
      } else {
        self = SingleBitErrors.explain(stored ^ computed) ? .flippedBit : .torn
      }
      return
    }
    if header.index < index {
      self = .earlierLap
    } else if header.index > index {
      self = .laterLap
    } else {
      // If the checksum matches, only other software can have written inconsistent numbers.
      self = header.shape.isPossible && header.shape.length > 0 ? .valid(header.shape) : .torn
    }
  }

  /// Whether each byte is zero, because the first one is and each equals the one before it: memcmp(3).
  private static func isZero(_ block: UnsafeRawBufferPointer) -> Bool {
    guard let base = block.baseAddress, block[0] == 0 else { return false }
    return memcmp(base, base + 1, block.count - 1) == 0
  }
}
