// What is in a file that somebody else left: the newest intact checkpoint, and the blocks behind it.

internal import EventLoops
internal import Glibc

/// What a file holds when it is opened, or created.
struct RecoveredState {
  var checkpoint = SpoolCheckpoint()
  var tail = SpoolTail(index: 0)
  var slots: CheckpointSlots
  var damage: [SpoolDamage] = []
  /// Whether no byte can be added.
  var isSealed: Bool
  /// Whether the newest checkpoint says that no block follows its head.
  var hasSealedCheckpoint = false
  /// See ``BlockReader/substitutes``.
  var substitutes: [UInt64: SpoolTail] = [:]
  /// The first block that an intact checkpoint does not take for complete: it and those behind it may not be on the
  /// disk.
  var unsyncedBlock: UInt64 = 0
}

extension SpoolFile {
  /// What can be done with an open file.
  package enum Access: Sendable {
    /// Everything but ``append(_:at:time:)``. Only one object at a time may have a file open so.
    case readWrite
    /// Reading, also while another process writes.
    case readOnly
  }

  /// Opens a stretch that another object left, in this process or an earlier one, and recovers what is in it.
  ///
  /// Nothing can be added to it: a stretch is what one process captured. ``damage`` names what was found to be wrong.
  ///
  /// - Parameters:
  ///   - folder: stays locked as long as this object lives. For ``Access/readWrite``, the caller must have the lock.
  /// - Throws: ``SpoolError``, with ``SpoolError/Cause/inUse(_:)`` if another object can write to it, although the folder
  ///   is not locked, because somebody has removed its lock.
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
    if !isReadOnly { try file.makeDurable() }
    return file
  }

  /// What a killed process wrote is in the page cache, and what follows relies on it being on the disk. Perhaps a
  /// synchronization of that process failed. Then the cache may have pages that no other will write: the next commit
  /// with `sync` writes the blocks again, and this the newest checkpoint. It is the same as it was, so that no write
  /// can tear it.
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

/// Reads a file's header, checkpoints, and the blocks that no checkpoint knows yet.
struct SpoolRecovery {
  let header: SpoolHeader
  private(set) var state = RecoveredState(
    slots: CheckpointSlots(newest: nil, durable: nil, sequence: 0), isSealed: true)
  private let reader: BlockReader

  init(_ descriptor: SpoolDescriptor) throws(SpoolError) {
    var damage: [SpoolDamage] = []
    header = try Self.header(descriptor, &damage)
    state.damage = damage
    reader = BlockReader(descriptor, header)
    let size = try descriptor.status().byteCount
    // Cannot overflow: the header's block count is limited.
    if size < SpoolFormat.dataStart + header.blockCount * UInt64(SpoolFormat.blockSize) {
      state.damage.append(SpoolDamage(.truncated, fileOffset: size))
    }
    let checkpoints = try checkpoints(descriptor)
    if let newest = checkpoints.first {
      state.checkpoint = newest.checkpoint
      state.tail = SpoolTail(newest)
      state.hasSealedCheckpoint = newest.isSealed || newest.checkpoint.isFinished
      if !state.hasSealedCheckpoint { try searchBehindHead() }
      // Newest first: of the same block, it has the most.
      for stored in checkpoints { try substitute(SpoolTail(stored)) }
    } else {
      state.damage.append(SpoolDamage(.allCheckpoints, fileOffset: SpoolFormat.checkpointOffsets[0]))
      try searchRing(descriptor)
    }
  }

  // MARK: Header and checkpoints

  /// A region of the file, or what there is of it; nil if the disk cannot read it, twice.
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
  ) throws(SpoolError) -> SpoolHeader {
    var found: SpoolHeader?
    var isForeign = false
    for offset in [SpoolFormat.headerOffset, SpoolFormat.headerCopyOffset] {
      let decoding = try region(at: offset, descriptor)?.withUnsafeBytes { SpoolHeader.decoded($0) } ?? .damaged
      switch decoding {
      case .header(let header):
        // The copy of another file would be no copy.
        if let found, found != header { damage.append(SpoolDamage(.header, fileOffset: offset)) }
        found = found ?? header
      case .unsupportedVersion(let version):
        if found == nil { throw SpoolError(.unsupportedVersion(version), path: descriptor.path) }
        damage.append(SpoolDamage(.header, fileOffset: offset))
      case .foreign:
        // Only the beginning says what kind of file it is.
        if offset == SpoolFormat.headerOffset { isForeign = true }
        damage.append(SpoolDamage(.header, fileOffset: offset))
      case .empty, .damaged: damage.append(SpoolDamage(.header, fileOffset: offset))
      }
    }
    guard let found else { throw SpoolError(isForeign ? .notASpool : .damagedHeader, path: descriptor.path) }
    return found
  }

  /// The intact ones, newest first.
  private mutating func checkpoints(_ descriptor: SpoolDescriptor) throws(SpoolError) -> [StoredCheckpoint] {
    var intact: [(slot: Int, stored: StoredCheckpoint)] = []
    // With the numbers that they seem to have.
    var damaged: [(offset: UInt64, sequence: UInt64)] = []
    for (slot, offset) in SpoolFormat.checkpointOffsets.enumerated() {
      let region = try Self.region(at: offset, descriptor)
      let decoding = region?
        .withUnsafeBytes { StoredCheckpoint.decoded($0, seed: header.seed, blockCount: header.blockCount) }
      switch decoding ?? .damaged {
      case .checkpoint(let stored): intact.append((slot, stored))
      case .empty: continue
      case .damaged:
        damaged.append((offset, region?.withUnsafeBytes { $0.count < 24 ? .max : $0.integer(at: 16) } ?? .max))
      }
    }
    intact.sort { $0.stored.sequence > $1.stored.sequence }
    for (offset, sequence) in damaged {
      let isStale = intact.first.map { sequence < $0.stored.sequence } ?? true
      state.damage.append(SpoolDamage(isStale ? .checkpoint : .newestCheckpoint, fileOffset: offset))
    }
    state.unsyncedBlock = intact.map { SpoolFormat.blockIndex($0.stored.checkpoint.head) }.min() ?? 0
    if let newest = intact.first {
      state.slots = CheckpointSlots(newest: newest.slot, durable: newest.slot, sequence: newest.stored.sequence)
    }
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
      // The head's own block may be in the file as an append that failed left it. It may also have begun anew behind
      // the head: then nothing before the head was to be kept.
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
    // A block that was being written when the process or the power ended: nothing behind it was found. Further on are
    // the places of blocks that are kept.
    let kept = SpoolFormat.blockIndex(state.checkpoint.oldest) + header.blockCount
    for run in missing.runs where run.kind != .unwritten && run.kind != .overwritten && run.blocks.lowerBound < kept {
      let run = MissingBlocks.Run(kind: run.kind, blocks: run.blocks.clamped(to: 0..<kept))
      note(run, from: state.checkpoint.head, to: SpoolFormat.start(ofBlock: run.blocks.upperBound))
    }
  }

  private func isFresh(_ shape: BlockShape) -> Bool { shape.first > 0 && Int(shape.first) >= state.tail.shape.end }

  /// A power cut can leave a checkpoint or a block that relies on an earlier block in the ring, and not that block.
  /// What a checkpoint has of it was synchronized with the checkpoint.
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
    // A place that has a newer block was given up on purpose.
    if found.content == .laterLap { return }
    state.substitutes[copy.index] = copy
    var missing = MissingBlocks()
    missing.add(found)
    for run in missing.runs { note(run, from: copy.head, to: state.checkpoint.head) }
  }

  /// Adds a block at or behind the head.
  private mutating func accept(_ block: BlockReader.Block, _ shape: BlockShape, missing: [MissingBlocks.Run]) {
    let start = SpoolFormat.start(ofBlock: block.index)
    for run in missing { note(run, from: state.checkpoint.head, to: start) }
    state.checkpoint.head = start + UInt64(shape.end)
    state.tail =
      shape.end < SpoolFormat.payloadSize
      ? SpoolTail(index: block.index, shape: shape, bytes: block.payload[Int(shape.first)..<shape.end])
      : SpoolTail(index: block.index + 1)
  }

  /// Names the positions of `run` that are in `from..<to`.
  private mutating func note(_ run: MissingBlocks.Run, from: UInt64, to: UInt64) {
    let start = max(from, SpoolFormat.start(ofBlock: run.blocks.lowerBound))
    let end = min(to, SpoolFormat.start(ofBlock: run.blocks.upperBound))
    let found = SpoolDamage(
      run.kind, fileOffset: SpoolFormat.blockOffset(run.blocks.lowerBound, blockCount: header.blockCount),
      lostPositions: start < end ? start..<end : 0..<0)
    if !state.damage.contains(found) { state.damage.append(found) }
  }

  /// Blocks before `index` gave their places to newer ones, whatever the checkpoint says.
  private mutating func raiseOldest(toBlock index: UInt64) {
    let start = SpoolFormat.start(ofBlock: index)
    guard start > state.checkpoint.oldest else { return }
    state.damage.append(
      SpoolDamage(
        .overwritten, fileOffset: SpoolFormat.blockOffset(index - 1, blockCount: header.blockCount),
        lostPositions: state.checkpoint.oldest..<start))
    state.checkpoint.oldest = start
  }

  /// Without a checkpoint, the blocks themselves say from where to where they reach. The holes of a large file take no time.
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
    // Whether they were acknowledged is unknown. What is in the file is kept, in any case.
    state.checkpoint.released = state.checkpoint.oldest
  }
}
