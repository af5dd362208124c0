// Recovers the content of an existing file: the newest intact checkpoint, and the blocks after it.

internal import EventLoops
internal import Glibc

/// The state of a file when it is opened or created.
struct RecoveredState {
  var checkpoint = SpoolCheckpoint()
  var tail = SpoolTail(index: 0)
  var slots: CheckpointSlots
  var damage: [SpoolDamage] = []
  /// Whether no byte can be added.
  var isSealed: Bool
  /// Whether the newest checkpoint states that no block follows its head.
  var hasSealedCheckpoint = false
  /// See ``BlockReader/substitutes``.
  var substitutes: [UInt64: SpoolTail] = [:]
  /// The first block that an intact checkpoint does not know as complete. This block and later ones may not be on the
  /// disk.
  var unsyncedBlock: UInt64 = 0
  /// See ``SpoolFile/memoryRecord``.
  var memoryRecord: MemoryRecord?
}

extension SpoolFile {
  /// The permitted operations on an open file.
  package enum Access: Sendable {
    /// Everything except ``append(_:at:time:)``. Only one object at a time may open a file like this.
    case readWrite
    /// Reading, even while another process writes.
    case readOnly
  }

  /// Opens a stretch that another object left, in this process or an earlier one, and recovers its content.
  ///
  /// Nothing can be added, because a stretch is what one process captured. ``damage`` reports the problems found.
  ///
  /// - Parameters:
  ///   - folder: stays locked as long as this object lives. For ``Access/readWrite``, the caller must have the lock.
  /// - Throws: ``SpoolError``, with ``SpoolError/Cause/inUse(_:)`` if another object can write to it because the
  ///   folder's lock was removed.
  package static func open(
    _ path: String, access: Access = .readWrite, folder: SpoolFolder? = nil, disk: any SpoolDisk = .system
  ) throws(SpoolError) -> SpoolFile {
    let isReadOnly = access == .readOnly
    let descriptor = try SpoolDescriptor(
      path, flags: (isReadOnly ? O_RDONLY : O_RDWR) | O_NOFOLLOW, disk: folder?.disk ?? disk)
    if !isReadOnly { try descriptor.lockStretch() }
    let recovery = try SpoolRecovery(descriptor)
    let file = SpoolFile(
      descriptor: descriptor, header: recovery.header, folder: folder, isReadOnly: isReadOnly,
      recovered: recovery.state)
    // Its process may have allocated any block, and nothing is captured any more.
    (file.allocatedBlock, file.canAllocate) = (.max, false)
    if !isReadOnly { try file.makeDurable() }
    try file.findHoles()
    return file
  }

  /// The writes of a killed process are in the page cache, and the following steps rely on them being on the disk. A
  /// sync of that process may have failed, and then the cache may have pages that will not be written. So the next
  /// commit with `sync` writes the blocks again, and this method writes the newest checkpoint. Its bytes are unchanged,
  /// so no write can tear it.
  private func makeDurable() throws(SpoolError) {
    if let newest = slots.newest {
      let offset = SpoolFormat.checkpointOffsets[newest]
      let bytes = try descriptor.read(SpoolFormat.regionSize, at: offset)
      try descriptor.write(bytes, at: offset)
    }
    try descriptor.synchronize()
    hasFailedSync = true
  }
}

/// Reads a file's header, checkpoints, and the blocks that are not in any checkpoint yet.
struct SpoolRecovery {
  let header: SpoolHeader
  private(set) var state = RecoveredState(
    slots: CheckpointSlots(newest: nil, durable: nil, sequence: 0), isSealed: true)
  private let reader: BlockReader

  init(_ descriptor: SpoolDescriptor) throws(SpoolError) {
    var damage: [SpoolDamage] = []
    (header, state.memoryRecord) = try Self.header(descriptor, &damage)
    state.damage = damage
    reader = BlockReader(descriptor, header)
    let size = try descriptor.status().byteCount
    // Cannot overflow, because the header's block count is limited.
    if size < SpoolFormat.dataStart + header.blockCount * UInt64(SpoolFormat.blockSize) {
      state.damage.append(SpoolDamage(.truncated, fileOffset: size))
    }
    let checkpoints = try checkpoints(descriptor)
    if let newest = checkpoints.first {
      state.checkpoint = newest.checkpoint
      state.tail = SpoolTail(newest)
      state.hasSealedCheckpoint = newest.isSealed || newest.checkpoint.isFinished
      if let doubt = newest.doubt, !state.damage.contains(where: { $0.kind == doubt }) {
        let head = newest.checkpoint.head
        state.damage.append(
          SpoolDamage(
            doubt, fileOffset: SpoolFormat.checkpointOffsets[state.slots.newest ?? 0],
            lostPositions: doubt == .lostMemory ? head..<head : 0..<0))
      }
      if !state.hasSealedCheckpoint { try searchBehindHead() }
      // Newest first, because it contains the most bytes of the same block.
      for stored in checkpoints { try substitute(SpoolTail(stored)) }
    } else {
      state.damage.append(SpoolDamage(.allCheckpoints, fileOffset: SpoolFormat.checkpointOffsets[0]))
      try searchRing(descriptor)
    }
  }

  // MARK: Header and checkpoints

  /// A region of the file, possibly truncated; nil if the disk failed to read it twice.
  private static func region(at offset: UInt64, _ descriptor: SpoolDescriptor) throws(SpoolError) -> [UInt8]? {
    for _ in 0..<2 {
      do throws(SpoolError) {
        return try descriptor.read(SpoolFormat.regionSize, at: offset)
      } catch { if error.code != EIO { throw error } }
    }
    return nil
  }

  private static func header(
    _ descriptor: SpoolDescriptor, _ damage: inout [SpoolDamage]
  ) throws(SpoolError) -> (SpoolHeader, MemoryRecord?) {
    var found: SpoolHeader?
    var record: [UInt8] = []
    var isForeign = false
    for offset in [SpoolFormat.headerOffset, SpoolFormat.headerCopyOffset] {
      let region = try Self.region(at: offset, descriptor)
      if offset == SpoolFormat.headerOffset, let region, region.count == SpoolFormat.regionSize {
        record = Array(region.suffix(MemoryRecord.size))
      }
      let decoding = region?.withUnsafeBytes { SpoolHeader.decoded($0) } ?? .damaged
      switch decoding {
      case .header(let header):
        // A copy of another file's header does not count.
        if let found, found != header { damage.append(SpoolDamage(.header, fileOffset: offset)) }
        found = found ?? header
      case .unsupportedVersion(let version):
        if found == nil { throw SpoolError(.unsupportedVersion(version), path: descriptor.path) }
        damage.append(SpoolDamage(.header, fileOffset: offset))
      case .foreign:
        // Only the beginning shows what kind of file it is.
        if offset == SpoolFormat.headerOffset { isForeign = true }
        damage.append(SpoolDamage(.header, fileOffset: offset))
      case .empty, .damaged: damage.append(SpoolDamage(.header, fileOffset: offset))
      }
    }
    guard let found else { throw SpoolError(isForeign ? .notASpool : .damagedHeader, path: descriptor.path) }
    return (found, MemoryRecord(record, seed: found.seed))
  }

  /// The intact checkpoints, newest first.
  private mutating func checkpoints(_ descriptor: SpoolDescriptor) throws(SpoolError) -> [StoredCheckpoint] {
    var intact: [(slot: Int, stored: StoredCheckpoint)] = []
    // With their apparent numbers.
    var damaged: [(slot: Int, sequence: UInt64)] = []
    for (slot, offset) in SpoolFormat.checkpointOffsets.enumerated() {
      let region = try Self.region(at: offset, descriptor)
      let decoding = region?
        .withUnsafeBytes { StoredCheckpoint.decoded($0, seed: header.seed, blockCount: header.blockCount) }
      switch decoding ?? .damaged {
      case .checkpoint(let stored): intact.append((slot, stored))
      case .empty: continue
      case .damaged:
        damaged.append((slot, region?.withUnsafeBytes { $0.count < 24 ? .max : $0.integer(at: 16) } ?? .max))
      }
    }
    intact.sort { $0.stored.sequence > $1.stored.sequence }
    for (slot, sequence) in damaged {
      // No byte follows the end of a stream.
      let isStale = intact.first.map { sequence < $0.stored.sequence || $0.stored.checkpoint.isFinished } ?? true
      state.damage.append(
        SpoolDamage(isStale ? .checkpoint : .newestCheckpoint, fileOffset: SpoolFormat.checkpointOffsets[slot]))
    }
    state.unsyncedBlock = intact.map { SpoolFormat.blockIndex($0.stored.checkpoint.head) }.min() ?? 0
    if let newest = intact.first {
      state.slots = CheckpointSlots(newest: newest.slot, durable: newest.slot, sequence: newest.stored.sequence)
    }
    state.slots.damaged = damaged.max { $0.sequence < $1.sequence }?.slot
    return intact.map(\.stored)
  }

  // MARK: Blocks

  /// Blocks that were written after the newest checkpoint.
  private mutating func searchBehindHead() throws(SpoolError) {
    let first = SpoolFormat.blockIndex(state.checkpoint.head)
    var missing = MissingBlocks()
    var last: UInt64?
    var gap: UInt64 = 0
    try reader.visit(first..<first + header.blockCount) { block throws(SpoolError) in
      // A failed append may have left the head's own block in the file. The block may also have started again after the
      // head, if nothing before the head had to be kept.
      guard let shape = block.shape, block.index > first || shape.contains(state.tail.shape) || isFresh(shape) else {
        missing.add(block)
        gap += 1
        return gap < SpoolFormat.longestGapInSearch
      }
      gap = 0
      if block.index == first, !shape.contains(state.tail.shape) {
        state.checkpoint.oldest = max(state.checkpoint.oldest, state.checkpoint.head)
      }
      accept(block, shape, missing: missing.take(before: block.index, shape))
      last = block.index
      return true
    }
    if let last, last >= header.blockCount { raiseOldest(toBlock: last - header.blockCount + 1) }
    // A block that was being written when the process ended or the power failed. Nothing was found after it, and
    // further on are the slots of blocks that are kept.
    let kept = SpoolFormat.blockIndex(state.checkpoint.oldest) + header.blockCount
    for run in missing.runs where run.kind != .unwritten && run.kind != .overwritten && run.blocks.lowerBound < kept {
      let run = MissingBlocks.Run(kind: run.kind, blocks: run.blocks.clamped(to: 0..<kept))
      note(run, from: state.checkpoint.head, to: SpoolFormat.start(ofBlock: run.blocks.upperBound))
    }
  }

  private func isFresh(_ shape: BlockShape) -> Bool { shape.first > 0 && Int(shape.first) >= state.tail.shape.end }

  /// A power failure can leave a checkpoint or a block that relies on an earlier block in the ring, without that block.
  /// The checkpoint's copy of it was synced with the checkpoint.
  private mutating func substitute(_ copy: SpoolTail) throws(SpoolError) {
    guard !copy.isEmpty, copy.index < state.tail.index, copy.head > state.checkpoint.oldest,
      state.substitutes[copy.index] == nil
    else { return }
    var found = BlockReader.Block(index: copy.index, content: nil, bytes: UnsafeRawBufferPointer(start: nil, count: 0))
    try reader.visit(copy.index..<copy.index + 1) { block throws(SpoolError) in
      found = block
      return false
    }
    if let shape = found.shape, shape.contains(copy.shape) { return }
    // A slot with a newer block was reused on purpose.
    if found.content == .laterLap { return }
    state.substitutes[copy.index] = copy
    var missing = MissingBlocks()
    missing.add(found)
    for run in missing.runs { note(run, from: copy.head, to: state.checkpoint.head) }
  }

  /// Adds a block at or after the head.
  private mutating func accept(_ block: BlockReader.Block, _ shape: BlockShape, missing: [MissingBlocks.Run]) {
    let start = SpoolFormat.start(ofBlock: block.index)
    for run in missing { note(run, from: state.checkpoint.head, to: start) }
    state.checkpoint.head = start + UInt64(shape.end)
    state.tail =
      shape.end < SpoolFormat.payloadSize
      ? SpoolTail(index: block.index, shape: shape, bytes: block.payload[Int(shape.first)..<shape.end])
      : SpoolTail(index: block.index + 1)
  }

  /// Reports the positions of `run` within `from..<to`.
  private mutating func note(_ run: MissingBlocks.Run, from: UInt64, to: UInt64) {
    let start = max(from, SpoolFormat.start(ofBlock: run.blocks.lowerBound))
    let end = min(to, SpoolFormat.start(ofBlock: run.blocks.upperBound))
    let found = SpoolDamage(
      run.kind, fileOffset: SpoolFormat.blockOffset(run.blocks.lowerBound, blockCount: header.blockCount),
      lostPositions: start < end ? start..<end : 0..<0)
    if !state.damage.contains(found) { state.damage.append(found) }
  }

  /// Newer blocks have reused the slots of the blocks before `index`, whatever the checkpoint states.
  private mutating func raiseOldest(toBlock index: UInt64) {
    let start = SpoolFormat.start(ofBlock: index)
    guard start > state.checkpoint.oldest else { return }
    state.damage.append(
      SpoolDamage(
        .overwritten, fileOffset: SpoolFormat.blockOffset(index - 1, blockCount: header.blockCount),
        lostPositions: state.checkpoint.oldest..<start))
    state.checkpoint.oldest = start
  }

  /// Without a checkpoint, determines the range from the blocks themselves. The holes of a large file take no time.
  private mutating func searchRing(_ descriptor: SpoolDescriptor) throws(SpoolError) {
    var oldest: UInt64?
    var newest: UInt64 = 0
    var place: UInt64 = 0
    while place < header.blockCount {
      let offset = SpoolFormat.blockOffset(place, blockCount: header.blockCount)
      guard let data = try descriptor.nextData(from: offset) else { break }
      let first = place + (data - min(data, offset)) / UInt64(SpoolFormat.blockSize)
      place = min(header.blockCount, first + UInt64(SpoolFormat.blocksPerStep))
      guard first < place else { break }
      try reader.visit(first..<place) { block throws(SpoolError) in
        let index = BlockHeader(block.bytes).index
        guard index % header.blockCount == block.index, index < SpoolFormat.largestPosition / SpoolFormat.payload,
          case .valid(let shape) = BlockContent(block.bytes, index: index, seed: header.seed), block.content != nil
        else { return true }
        let start = SpoolFormat.start(ofBlock: index) + UInt64(shape.first)
        oldest = min(oldest ?? start, start)
        if index >= newest {
          newest = index
          accept(BlockReader.Block(index: index, content: .valid(shape), bytes: block.bytes), shape, missing: [])
        }
        return true
      }
    }
    let firstInRing = newest >= header.blockCount ? SpoolFormat.start(ofBlock: newest - header.blockCount + 1) : 0
    state.checkpoint.oldest = max(oldest ?? 0, firstInRing)
    // It is unknown whether they were acknowledged, so everything in the file is kept.
    state.checkpoint.released = state.checkpoint.oldest
  }
}
