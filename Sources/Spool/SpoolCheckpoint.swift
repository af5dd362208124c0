// The information about its stream that a spool file stores at one moment.

/// A pause of the stream, in positions of its file.
package struct SpoolPause: Equatable, Sendable {
  package var position: UInt64
  /// The number of bytes omitted there.
  package var length: UInt64

  package init(position: UInt64, length: UInt64) {
    self.position = position
    self.length = length
  }
}

/// The content of a commit.
package struct SpoolCheckpoint: Equatable, Sendable {
  /// The position after the last byte.
  package var head: UInt64 = 0
  /// The server has acknowledged everything before it.
  package var released: UInt64 = 0
  /// Everything before it is released or evicted. Evicted bytes are those from ``released`` to here.
  package var oldest: UInt64 = 0
  /// The stream has ended, and no byte follows ``head``.
  package var isFinished = false
  package var pausedByteCount: UInt64 = 0
  /// At most 16.
  package var pauses: [SpoolPause] = []
  /// At most 8 KiB of UTF-8 for the process that drains the file. This module does not interpret it.
  package var state = ""

  package init() {}
}

/// A checkpoint as stored in the file: numbered, and with the bytes of the incomplete block.
struct StoredCheckpoint: Equatable {
  var sequence: UInt64
  var checkpoint: SpoolCheckpoint
  /// The process that captured is gone. No block follows the head, whatever the ring contains after it.
  var isSealed = false
  /// The damage that an earlier process has found: bytes may be lost since then, whatever the checkpoints show now.
  var doubt: SpoolDamage.Kind?
  var tail = BlockShape()
  /// The bytes from the tail's first byte to the head.
  var tailBytes: [UInt8] = []

  static let magic = Array("SLUCHECK".utf8)
  static let fixedSize = 88

  func encoded(seed: UInt32) -> [UInt8] {
    let state = Array(checkpoint.state.utf8)
    let size = Self.fixedSize + checkpoint.pauses.count * 16 + state.count + tailBytes.count
    var bytes = Self.magic
    bytes.append(number: UInt32(0))
    bytes.append(number: UInt32(clamping: size))
    bytes.append(number: sequence)
    bytes.append(number: checkpoint.head)
    bytes.append(number: checkpoint.released)
    bytes.append(number: checkpoint.oldest)
    bytes.append(number: checkpoint.pausedByteCount)
    var flags: UInt32 = (checkpoint.isFinished ? 1 : 0) | (isSealed ? 2 : 0)
    switch doubt {
    case .allCheckpoints: flags |= 8
    case .lostMemory: flags |= 16
    case .some: flags |= 4
    case nil: break
    }
    bytes.append(number: flags)
    bytes.append(number: UInt16(clamping: checkpoint.pauses.count))
    bytes.append(number: UInt16(clamping: state.count))
    bytes.append(number: tail.first)
    bytes.append(number: tail.length)
    bytes.append(number: tail.holeStart)
    bytes.append(number: tail.holeLength)
    bytes.append(number: tail.time)
    bytes.append(number: tail.missingBefore)
    bytes.append(number: UInt32(0))
    for pause in checkpoint.pauses {
      bytes.append(number: pause.position)
      bytes.append(number: pause.length)
    }
    bytes += state
    bytes += tailBytes
    let sum = bytes.withUnsafeBytes { checksum(UnsafeRawBufferPointer(rebasing: $0[12...]), from: seed) }
    bytes.withUnsafeMutableBytes { $0.set(sum, at: 8) }
    return bytes
  }

  enum Decoding: Equatable {
    case checkpoint(StoredCheckpoint)
    case empty
    /// The checksum is wrong, or a field is invalid.
    case damaged
  }

  /// - Parameter region: ``SpoolFormat/regionSize`` bytes, or fewer for a truncated file.
  static func decoded(_ region: UnsafeRawBufferPointer, seed: UInt32, blockCount: UInt64) -> Decoding {
    guard region.contains(where: { $0 != 0 }) else { return .empty }
    guard region.count >= fixedSize, region.prefix(8).elementsEqual(magic) else { return .damaged }
    let size = Int(region.integer(at: 12, as: UInt32.self))
    guard (fixedSize...region.count).contains(size),
      checksum(UnsafeRawBufferPointer(rebasing: region[12..<size]), from: seed) == region.integer(at: 8)
    else { return .damaged }
    var stored = StoredCheckpoint(sequence: region.integer(at: 16), checkpoint: SpoolCheckpoint())
    stored.checkpoint.head = region.integer(at: 24)
    stored.checkpoint.released = region.integer(at: 32)
    stored.checkpoint.oldest = region.integer(at: 40)
    stored.checkpoint.pausedByteCount = region.integer(at: 48)
    let flags = region.integer(at: 56, as: UInt32.self)
    stored.checkpoint.isFinished = flags & 1 == 1
    stored.isSealed = flags & 2 == 2
    stored.doubt =
      flags & 8 == 8
      ? .allCheckpoints : flags & 4 == 4 ? .newestCheckpoint : flags & 16 == 16 ? .lostMemory : nil
    stored.tail = BlockShape(
      first: region.integer(at: 64), length: region.integer(at: 66), holeStart: region.integer(at: 68),
      holeLength: region.integer(at: 70), missingBefore: region.integer(at: 80), time: region.integer(at: 72))
    let pauses = Int(region.integer(at: 60, as: UInt16.self))
    let state = Int(region.integer(at: 62, as: UInt16.self))
    let afterPauses = fixedSize + pauses * 16
    guard afterPauses + state + Int(stored.tail.length) == size else { return .damaged }
    for number in 0..<pauses {
      let offset = fixedSize + number * 16
      stored.checkpoint.pauses.append(
        SpoolPause(position: region.integer(at: offset), length: region.integer(at: offset + 8)))
    }
    stored.checkpoint.state = String(decoding: region[afterPauses..<afterPauses + state], as: UTF8.self)
    stored.tailBytes = Array(region[(afterPauses + state)..<size])
    return stored.isPossible(blockCount: blockCount) ? .checkpoint(stored) : .damaged
  }

  /// Whether the numbers are consistent, so that users need not check.
  private func isPossible(blockCount: UInt64) -> Bool {
    let (head, oldest) = (checkpoint.head, checkpoint.oldest)
    guard head <= SpoolFormat.largestPosition, oldest <= head, checkpoint.released <= oldest, tail.isPossible,
      SpoolFormat.blockIndex(head) - SpoolFormat.blockIndex(oldest) <= blockCount
    else { return false }
    let place = SpoolFormat.place(head)
    return place == 0 ? tail.length == 0 : tail.length > 0 && tail.end == place
  }
}
