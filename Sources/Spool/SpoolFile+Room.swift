// Space in the file system: allocated ahead of the head, and returned behind the oldest byte.

internal import EventLoops
internal import Glibc

extension SpoolFile {
  /// Allocates space for the blocks before `end` and for further ones, in large steps.
  ///
  /// A file system writes its metadata about a file's space at each sync after a change. Space that was allocated in
  /// one piece causes fewer changes. A file that keeps little allocates none ahead.
  func takeRoom(from first: UInt64, to end: UInt64) {
    let ring = header.blockCount
    let oldestBlock = SpoolFormat.blockIndex(oldest)
    guard canAllocate, end > allocatedBlock, first >= oldestBlock else { return }
    let kept = first - oldestBlock
    guard kept >= SpoolFormat.smallestAllocation else { return }
    var index = max(first, allocatedBlock)
    // It is requested only once, even if refused, because the writes themselves show whether the disk is full.
    allocatedBlock = min(max(end, index + min(kept, SpoolFormat.largestAllocation)), oldestBlock + ring)
    while index < allocatedBlock {
      let run = min(allocatedBlock - index, ring - index % ring)
      do throws(SpoolError) {
        try descriptor.allocate(
          at: SpoolFormat.blockOffset(index, blockCount: ring), byteCount: run * UInt64(SpoolFormat.blockSize))
      } catch {
        if error.code == EOPNOTSUPP || error.code == ENOSYS { canAllocate = false }
        return
      }
      index += run
    }
  }

  /// Returns the space allocated for blocks from `first` on, because nothing is kept or nothing follows.
  func giveBackAhead(from first: UInt64) {
    // What follows may be the bytes that are missed.
    guard !mayLackBytes else { return }
    let ring = header.blockCount
    var index = first
    let end = min(allocatedBlock, SpoolFormat.blockIndex(oldest) + ring)
    allocatedBlock = min(allocatedBlock, index)
    while canPunchHoles, index < end {
      let run = min(end - index, ring - index % ring)
      // As below, nothing depends on it.
      try? descriptor.punchHole(
        at: SpoolFormat.blockOffset(index, blockCount: ring), byteCount: run * UInt64(SpoolFormat.blockSize))
      index += run
    }
  }

  /// Punches out the slots of blocks that will not be read again, if there are at least this many.
  func giveBack(atLeast count: UInt64) {
    let ring = header.blockCount
    if oldest == head { giveBackAhead(from: tail.index) }
    // Earlier blocks share their slots with blocks in use.
    let first = max(returnedBlock, tail.index > ring ? tail.index - ring : 0)
    let end = SpoolFormat.blockIndex(oldest)
    guard canPunchHoles, end > first, end - first >= count else { return }
    var index = first
    while index < end {
      let run = min(end - index, ring - index % ring)
      do throws(SpoolError) {
        try descriptor.punchHole(
          at: SpoolFormat.blockOffset(index, blockCount: ring), byteCount: run * UInt64(SpoolFormat.blockSize))
      } catch {
        // The file does not depend on this space being returned. If the file system does not support it, it is not
        // tried again.
        if error.code == EOPNOTSUPP || error.code == ENOSYS { canPunchHoles = false }
        return
      }
      index += run
      returnedBlock = index
    }
  }
}
