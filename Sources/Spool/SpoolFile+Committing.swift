// Checkpoints, and what follows from them.

internal import EventLoops
internal import Glibc

extension SpoolFile {
  /// Writes a checkpoint: everything appended so far survives SIGKILL. With `sync`, it is on the disk as well, and
  /// survives a power cut.
  ///
  /// After a synchronization, ranges that are released or evicted are given back to the file system, in steps of at
  /// least 1 MiB. A file system that cannot do so keeps them.
  ///
  /// If fdatasync(2) fails, the kernel may have dropped pages that it reported as written. Therefore the next commit
  /// with `sync` reads everything since the last good one back, writes it again, and names what it cannot read in
  /// ``damage``.
  ///
  /// - Parameters:
  ///   - state: at most 8 KiB of UTF-8 for whoever drains the file.
  ///   - pauses: at most 16.
  ///   - isFinished: whether the stream is at its end. No byte can be added afterwards.
  /// - Throws: ``SpoolError``. The last checkpoint still holds, and this can be called again.
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
      sequence: slots.sequence &+ 1, checkpoint: new, isSealed: wasOpened,
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
    giveBack(atLeast: SpoolFormat.smallestReturn)
  }

  /// Whether ``synchronizeBlocks()`` would do: there are complete blocks behind the last checkpoint, not too many for a
  /// recovery to read, and everything else is as that checkpoint says.
  package var canSynchronizeBlocks: Bool {
    let blocks = tail.index - SpoolFormat.blockIndex(checkpoint.head)
    return !isReadOnly && !isSealed && !hasFailedSync && reader.substitutes.isEmpty
      && (released, oldest) == (checkpoint.released, checkpoint.oldest)
      && (1...SpoolFormat.farthestFromCheckpoint).contains(blocks)
  }

  /// Has the complete blocks survive a power cut, without a checkpoint: a recovery finds them behind the last one.
  ///
  /// The head's block is not among them. Call this only where ``canSynchronizeBlocks`` says so.
  ///
  /// - Returns: the position before which everything is on the disk.
  /// - Throws: ``SpoolError``, as ``commit(state:pausedByteCount:pauses:isFinished:sync:)`` does.
  package func synchronizeBlocks() throws(SpoolError) -> UInt64 {
    try synchronizeFile()
    // No checkpoint has the head's block of now.
    if durableTail.index < tail.index { durableTail = SpoolTail(index: tail.index) }
    return SpoolFormat.start(ofBlock: tail.index)
  }

  private func synchronizeFile() throws(SpoolError) {
    do throws(SpoolError) {
      try descriptor.synchronize()
    } catch {
      hasFailedSync = true
      // The block may be in the file by now, and gone with its page.
      if !durableTail.isEmpty, durableTail.index < tail.index {
        reader.substitutes[durableTail.index] = durableTail
      }
      throw error
    }
    hasFailedSync = false
    slots.durable = slots.newest
    unsyncedBlock = tail.index
  }

  /// Puts blocks in the ring that only checkpoints have, before their places are taken.
  private func writeSubstitutes() throws(SpoolError) {
    guard !reader.substitutes.isEmpty else { return }
    for (index, substitute) in reader.substitutes where index >= SpoolFormat.blockIndex(oldest) {
      let block = substitute.encoded(seed: seed)
      // The reader returns the substitute itself where the file has nothing better.
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

  /// To whole sectors, so that a write never ends in one that holds something else.
  private func padded(_ bytes: [UInt8]) -> [UInt8] {
    bytes + [UInt8](repeating: 0, count: (512 - bytes.count % 512) % 512)
  }

  /// After a failed synchronization, the page cache says that pages are clean that are not on the disk: they are read
  /// while they are still there, and made dirty again.
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

  /// Names blocks that are gone, once.
  func note(_ run: MissingBlocks.Run) {
    let start = max(oldest, SpoolFormat.start(ofBlock: run.blocks.lowerBound))
    let end = min(head, SpoolFormat.start(ofBlock: run.blocks.upperBound))
    let found = SpoolDamage(
      run.kind, fileOffset: SpoolFormat.blockOffset(run.blocks.lowerBound, blockCount: header.blockCount),
      lostPositions: start < end ? start..<end : 0..<0)
    if !damage.contains(found) { damage.append(found) }
  }
}
