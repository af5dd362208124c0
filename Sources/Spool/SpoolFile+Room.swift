// Room in the file system: taken ahead of the head, and given back behind the oldest byte.

internal import EventLoops
internal import Glibc

extension SpoolFile {
  /// Takes room for the blocks before `end`, and for more of them, in large steps.
  ///
  /// A file system writes its records of a file's room at each synchronization after which they have changed. In one
  /// piece that was taken before, they change less. A file that keeps little has none ahead.
  func takeRoom(from first: UInt64, to end: UInt64) {
    let ring = header.blockCount
    let oldestBlock = SpoolFormat.blockIndex(oldest)
    guard canAllocate, end > allocatedBlock, first >= oldestBlock else { return }
    let kept = first - oldestBlock
    guard kept >= SpoolFormat.smallestAllocation else { return }
    var index = max(first, allocatedBlock)
    // Refused or not, it is not asked for twice: the writes themselves show what a full disk refuses.
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

  /// Nothing is kept: what was taken ahead is not needed.
  private func giveBackAhead() {
    let ring = header.blockCount
    var index = tail.index
    let end = min(allocatedBlock, index + ring)
    allocatedBlock = min(allocatedBlock, index)
    while canPunchHoles, index < end {
      let run = min(end - index, ring - index % ring)
      // As below: nothing depends on it.
      try? descriptor.punchHole(
        at: SpoolFormat.blockOffset(index, blockCount: ring), byteCount: run * UInt64(SpoolFormat.blockSize))
      index += run
    }
  }

  /// Punches out the places of blocks that nobody will read, if they are at least so many.
  func giveBack(atLeast count: UInt64) {
    let ring = header.blockCount
    if oldest == head { giveBackAhead() }
    // Earlier ones gave their places to blocks that are in use.
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
        // The room is not needed for anything that this file promises. A file system that cannot is not asked again.
        if error.code == EOPNOTSUPP || error.code == ENOSYS { canPunchHoles = false }
        return
      }
      index += run
      returnedBlock = index
    }
  }
}
