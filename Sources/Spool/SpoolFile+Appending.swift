// Adds bytes to the ring.

extension SpoolFile {
  /// Adds bytes at `position`, which is the head, or beyond it if bytes before it were lost.
  ///
  /// Complete blocks are written at once, up to 1 MiB per call. The rest stays in memory, and each commit includes it.
  /// If this fails, nothing has changed, and the call can be repeated. Blocks that it has written are harmless, because
  /// they contain the bytes that belong there.
  ///
  /// A block has at most one hole between its bytes. If a second one begins in the same 4064 bytes, the hole extends to
  /// the end of these bytes: the bytes before are discarded, and ``head`` stays where it is if there are no others.
  /// ``read(at:into:)`` reports them as missing, and ``discardedByteCount`` counts them.
  ///
  /// - Parameter time: when the first of the bytes was captured, in milliseconds since 1970.
  /// - Throws: ``SpoolError/Cause/full`` before anything is written, if the ring does not reach from ``oldest`` to the
  ///   end of these bytes. Once everything up to the head is released or evicted, a hole may have any length.
  package func append(_ bytes: UnsafeRawBufferPointer, at position: UInt64, time: Int64) throws(SpoolError) {
    guard !isReadOnly else { throw SpoolError(.readOnly, path: path) }
    guard !isSealed else { throw SpoolError(.sealed, path: path) }
    guard position >= head, position <= SpoolFormat.largestPosition - UInt64(bytes.count) else {
      throw SpoolError(.outOfOrder(head: head), path: path)
    }
    guard !bytes.isEmpty else { return }
    try checkRoom(from: position, count: bytes.count)

    var (position, bytes) = (position, bytes)
    // If everything so far is released or evicted, the head's block is not needed, and the ring starts again.
    let isFresh = position > head && oldest == head
    var work = isFresh ? SpoolTail(index: tail.index) : tail
    var batch = BlockBatch(self)
    var discarded = 0
    if position > head, work.shape.holeLength > 0, SpoolFormat.blockIndex(position) == work.index {
      let skipped = SpoolFormat.payloadSize - SpoolFormat.place(position)
      discarded = min(skipped, bytes.count)
      guard bytes.count > skipped else {
        discardedByteCount += UInt64(discarded)
        return
      }
      position += UInt64(skipped)
      bytes = UnsafeRawBufferPointer(rebasing: bytes[skipped...])
    }
    if position > head {
      let index = SpoolFormat.blockIndex(position)
      if !work.isEmpty, index != work.index {
        try batch.add(work)
        work = SpoolTail(at: position, missingBefore: index - work.index - 1)
      } else if work.isEmpty {
        work = SpoolTail(at: position, missingBefore: index - work.index)
      } else {
        work.shape.openHole(upTo: SpoolFormat.place(position))
      }
    }
    var rest = bytes
    while !rest.isEmpty {
      if work.shape == BlockShape(), rest.count >= SpoolFormat.payloadSize {
        // Directly from the caller's memory.
        let payload = UnsafeRawBufferPointer(rebasing: rest[..<SpoolFormat.payloadSize])
        try batch.add(
          BlockHeader(index: work.index, shape: BlockShape(length: UInt16(SpoolFormat.payloadSize), time: time)),
          payload)
        work.index += 1
        rest = UnsafeRawBufferPointer(rebasing: rest[SpoolFormat.payloadSize...])
      } else {
        let count = work.append(rest, time: time)
        rest = UnsafeRawBufferPointer(rebasing: rest[count...])
        if work.isComplete {
          try batch.add(work)
          work = SpoolTail(index: work.index + 1)
        }
      }
    }
    try batch.write()
    if position > head, !isFresh { noteHole(head..<position) }
    // Nothing before the hole had to be kept. Now the ring begins after it.
    if isFresh { oldest = position }
    tail = work
    head = position + UInt64(bytes.count)
    discardedByteCount += UInt64(discarded)
  }

  /// Checks that the ring reaches from the oldest byte that must be kept to the end of these bytes. The last block may
  /// be one beyond the ring, because it stays in memory until it is complete.
  private func checkRoom(from position: UInt64, count: Int) throws(SpoolError) {
    let first = SpoolFormat.blockIndex(oldest < head ? oldest : position)
    let end = SpoolFormat.blockIndex(position + UInt64(count))
    guard end - first <= header.blockCount else { throw SpoolError(.full, path: path) }
  }
}

/// Consecutive blocks in the file, for one pwritev(2).
private struct BlockBatch {
  private let file: SpoolFile
  private var pieces: [UnsafeRawBufferPointer] = []
  private var count = 0
  private var next: UInt64 = 0
  private var first: UInt64 = 0
  /// How many payloads were copied to the scratch memory, at most two per append.
  private var copyCount = 0

  init(_ file: SpoolFile) { self.file = file }

  /// Adds a block from memory that the caller keeps unchanged.
  mutating func add(_ header: BlockHeader, _ payload: UnsafeRawBufferPointer) throws(SpoolError) {
    let blockCount = file.header.blockCount
    if count == SpoolFormat.blocksPerStep || count > 0 && (header.index != next || header.index % blockCount == 0) {
      try write()
    }
    if count == 0 { first = header.index }
    let place = UnsafeMutableRawBufferPointer(
      rebasing: file.scratch[count * SpoolFormat.blockHeaderSize..<(count + 1) * SpoolFormat.blockHeaderSize])
    header.encode(into: place, payload: payload, seed: file.seed)
    pieces.append(UnsafeRawBufferPointer(place))
    pieces.append(payload)
    count += 1
    next = header.index + 1
  }

  /// Adds a block through a copy of its payload, so that it can be part of one write with later ones.
  mutating func add(_ tail: SpoolTail) throws(SpoolError) {
    let start = SpoolFormat.blocksPerStep * SpoolFormat.blockHeaderSize + copyCount * SpoolFormat.payloadSize
    copyCount += 1
    let place = UnsafeMutableRawBufferPointer(rebasing: file.scratch[start..<start + SpoolFormat.payloadSize])
    tail.payload.withUnsafeBytes { place.copyMemory(from: $0) }
    try add(BlockHeader(index: tail.index, shape: tail.shape), UnsafeRawBufferPointer(place))
  }

  mutating func write() throws(SpoolError) {
    guard count > 0 else { return }
    file.takeRoom(from: first, to: next)
    try file.descriptor.write(pieces, at: SpoolFormat.blockOffset(first, blockCount: file.header.blockCount))
    pieces.removeAll(keepingCapacity: true)
    count = 0
  }
}
