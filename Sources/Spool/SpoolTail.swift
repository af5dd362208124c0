// The incomplete block in memory.

/// The block that contains the head. It is written to its slot in the file when it is complete. Until then, each
/// checkpoint has a copy of it.
struct SpoolTail {
  var index: UInt64
  var shape = BlockShape()
  /// ``SpoolFormat/payloadSize`` bytes, with zeros where the block has none.
  var payload = [UInt8](repeating: 0, count: SpoolFormat.payloadSize)

  init(index: UInt64) { self.index = index }

  /// The block from a checkpoint's copy.
  init(_ stored: StoredCheckpoint) {
    index = SpoolFormat.blockIndex(stored.checkpoint.head)
    shape = stored.tail
    if !isEmpty { payload.replaceSubrange(Int(shape.first)..<shape.end, with: stored.tailBytes) }
  }

  /// A block that begins with a hole.
  init(at position: UInt64, missingBefore: UInt64) {
    index = SpoolFormat.blockIndex(position)
    shape.first = UInt16(clamping: SpoolFormat.place(position))
    shape.missingBefore = UInt32(clamping: missingBefore)
  }

  var isEmpty: Bool { shape.length == 0 }
  var isComplete: Bool { shape.end == SpoolFormat.payloadSize }
  /// The position after its last byte.
  var head: UInt64 { SpoolFormat.start(ofBlock: index) + UInt64(shape.end) }

  /// Adds as many of `bytes` as fit, and returns their number.
  mutating func append(_ bytes: UnsafeRawBufferPointer, time: Int64) -> Int {
    let count = min(bytes.count, SpoolFormat.payloadSize - shape.end)
    if isEmpty { shape.time = time }
    let end = shape.end
    payload.withUnsafeMutableBytes {
      UnsafeMutableRawBufferPointer(rebasing: $0[end..<end + count])
        .copyMemory(from: UnsafeRawBufferPointer(rebasing: bytes[..<count]))
    }
    shape.length += UInt16(clamping: count)
    return count
  }

  /// The bytes for a checkpoint: from the first to the head.
  var bytes: [UInt8] { Array(payload[Int(shape.first)..<shape.end]) }

  /// Its form as a block in the file.
  func encoded(seed: UInt32) -> [UInt8] {
    var block = [UInt8](repeating: 0, count: SpoolFormat.blockHeaderSize) + payload
    block.withUnsafeMutableBytes { block in
      BlockHeader(index: index, shape: shape).encode(
        into: UnsafeMutableRawBufferPointer(rebasing: block[..<SpoolFormat.blockHeaderSize]),
        payload: UnsafeRawBufferPointer(rebasing: block[SpoolFormat.blockHeaderSize...]), seed: seed)
    }
    return block
  }

  init(index: UInt64, shape: BlockShape, bytes: some Collection<UInt8>) {
    self.index = index
    self.shape = shape
    payload.replaceSubrange(Int(shape.first)..<shape.end, with: bytes)
  }
}
