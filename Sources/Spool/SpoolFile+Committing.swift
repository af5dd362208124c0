// Checkpoints and their consequences.

internal import EventLoops
internal import Glibc

extension SpoolFile {
  /// Writes a checkpoint, so that everything appended so far survives SIGKILL. With `sync`, it is also on the disk, and
  /// survives a power failure.
  ///
  /// After a sync, released or evicted ranges are returned to the file system, in steps of at least 1 MiB. A file
  /// system that does not support this keeps them.
  ///
  /// If fdatasync(2) fails, the kernel may have dropped pages that it reported as written. Therefore the next commit
  /// with `sync` reads back everything since the last good one, writes it again, and reports unreadable blocks in
  /// ``damage``.
  ///
  /// - Parameters:
  ///   - state: at most 8 KiB of UTF-8 for the process that drains the file.
  ///   - pauses: at most 16.
  ///   - isFinished: whether the stream is at its end. No byte can be added afterwards.
  /// - Throws: ``SpoolError``. The last checkpoint is still valid, and this can be called again.
  package func commit(
    state: String, pausedByteCount: UInt64, pauses: [SpoolPause], isFinished: Bool, sync: Bool
  ) throws(SpoolError) {
    guard !isReadOnly else { throw SpoolError(.readOnly, path: path) }
    guard state.utf8.count <= SpoolFormat.longestState, pauses.count <= SpoolFormat.mostPauses else {
      throw SpoolError(.tooLong, path: path)
    }
    if sync, hasFailedSync { try rewriteUnsynced() }
    try writeSubstitutes()
    var new = SpoolCheckpoint()
    (new.head, new.released, new.oldest) = (head, released, oldest)
    new.isFinished = isFinished
    (new.pausedByteCount, new.pauses, new.state) = (pausedByteCount, pauses, state)
    let wasOpened = isSealed && !checkpoint.isFinished
    let stored = StoredCheckpoint(
      sequence: slots.sequence &+ 1, checkpoint: new, isSealed: wasOpened, doubt: doubt,
      tail: tail.isEmpty ? BlockShape() : tail.shape,
      tailBytes: tail.bytes)
    let slot = slots.next
    try descriptor.write(padded(stored.encoded(seed: seed)), at: SpoolFormat.checkpointOffsets[slot])
    slots.wrote(slot)
    checkpoint = new
    if isFinished { isSealed = true }
    guard sync else {
      giveBack(atLeast: SpoolFormat.smallestUnsyncedReturn)
      return
    }
    try synchronizeFile()
    durableTail = tail
    // Nothing follows, and others may need the space.
    if isSealed { giveBackAhead(from: tail.isEmpty ? tail.index : tail.index + 1) }
    giveBack(atLeast: SpoolFormat.smallestReturn)
  }

  /// Whether ``synchronizeBlocks()`` is sufficient. There must be complete blocks after the last checkpoint, few enough
  /// for a recovery to read, and everything else must be as in that checkpoint.
  package var canSynchronizeBlocks: Bool {
    let blocks = tail.index - SpoolFormat.blockIndex(checkpoint.head)
    return !isReadOnly && !isSealed && !hasFailedSync && reader.substitutes.isEmpty
      && (released, oldest) == (checkpoint.released, checkpoint.oldest)
      && (1...SpoolFormat.farthestFromCheckpoint).contains(blocks)
  }

  /// Makes the complete blocks survive a power failure without a checkpoint. A recovery finds them after the last one.
  ///
  /// The head's block is not included. Call this only if ``canSynchronizeBlocks`` is true.
  ///
  /// - Returns: the position before which everything is on the disk.
  /// - Throws: ``SpoolError``, like ``commit(state:pausedByteCount:pauses:isFinished:sync:)``.
  package func synchronizeBlocks() throws(SpoolError) -> UInt64 {
    try synchronizeFile()
    // No checkpoint has the present head's block.
    if durableTail.index < tail.index { durableTail = SpoolTail(index: tail.index) }
    return SpoolFormat.start(ofBlock: tail.index)
  }

  private func synchronizeFile() throws(SpoolError) {
    do throws(SpoolError) {
      try descriptor.synchronize()
    } catch {
      hasFailedSync = true
      // The block may be in the file by now, and lost with its page.
      if !durableTail.isEmpty, durableTail.index < tail.index {
        reader.substitutes[durableTail.index] = durableTail
      }
      throw error
    }
    hasFailedSync = false
    slots.durable = slots.newest
    unsyncedBlock = tail.index
  }

  /// Writes blocks that only checkpoints contain to the ring, before their slots are reused.
  private func writeSubstitutes() throws(SpoolError) {
    guard !reader.substitutes.isEmpty else { return }
    for (index, substitute) in reader.substitutes where index >= SpoolFormat.blockIndex(oldest) {
      let block = substitute.encoded(seed: seed)
      // The reader returns the substitute itself if the file has nothing better.
      var isNeeded = false
      try reader.visit(index..<index + 1) { found throws(SpoolError) in
        isNeeded = found.bytes.elementsEqual(block)
        return false
      }
      if isNeeded { try descriptor.write(block, at: SpoolFormat.blockOffset(index, blockCount: header.blockCount)) }
    }
    try descriptor.synchronize()
    reader.substitutes = [:]
  }

  /// Pads to whole sectors, so that a write never ends in a sector with other content.
  private func padded(_ bytes: [UInt8]) -> [UInt8] {
    bytes + [UInt8](repeating: 0, count: (512 - bytes.count % 512) % 512)
  }

  /// After a failed sync, the page cache marks pages as clean that are not on the disk. They are read while they still
  /// exist, and made dirty again.
  private func rewriteUnsynced() throws(SpoolError) {
    let first = max(unsyncedBlock, SpoolFormat.blockIndex(oldest))
    guard first < tail.index else { return }
    var missing = MissingBlocks()
    var lost: [MissingBlocks.Run] = []
    try reader.visit(first..<tail.index) { block throws(SpoolError) in
      guard let shape = block.shape else {
        missing.add(block)
        return true
      }
      lost += missing.take(before: block.index, shape)
      try descriptor.write([block.bytes], at: SpoolFormat.blockOffset(block.index, blockCount: header.blockCount))
      return true
    }
    lost += missing.take(before: tail.index, tail.shape)
    for run in lost { note(run) }
  }

  /// Reports lost blocks once.
  func note(_ run: MissingBlocks.Run) {
    let start = max(oldest, SpoolFormat.start(ofBlock: run.blocks.lowerBound))
    let end = min(head, SpoolFormat.start(ofBlock: run.blocks.upperBound))
    let found = SpoolDamage(
      run.kind, fileOffset: SpoolFormat.blockOffset(run.blocks.lowerBound, blockCount: header.blockCount),
      lostPositions: start < end ? start..<end : 0..<0)
    if !damage.contains(found) { damage.append(found) }
  }
}
