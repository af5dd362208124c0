// Holes of a stretch: positions without bytes, because the disk refused them for too long.

internal import EventLoops

extension SpoolFile {
  /// How many bytes the file keeps that are neither released nor evicted. Holes of less than 64 KiB count as bytes.
  package var keptByteCount: UInt64 {
    holes.reduce(head - oldest) { $0 - UInt64($1.clamped(to: oldest..<head).count) }
  }

  /// How many bytes between those that are released and the head were evicted, or are in a hole of at least 64 KiB.
  package var lostByteCount: UInt64 { head - released - min(head - released, keptByteCount) }

  /// The position before which the file keeps `count` bytes, at most the head.
  package func position(afterKeeping count: UInt64) -> UInt64 {
    var (position, rest) = (oldest, count)
    for hole in holes where hole.upperBound > position {
      let kept = hole.lowerBound - min(hole.lowerBound, position)
      if rest < kept { break }
      (position, rest) = (hole.upperBound, rest - kept)
    }
    return min(head, position.addingSaturated(rest))
  }

  /// Nothing was written at these positions, which are before the head or begin there.
  func noteHole(_ positions: Range<UInt64>) {
    holes.removeAll { $0.upperBound <= oldest }
    guard positions.count >= SpoolFormat.smallestHole else { return }
    holes.append(positions)
  }

  /// Finds the holes of an existing file, as far as its file system reports them.
  func findHoles() throws(SpoolError) {
    let ring = header.blockCount
    var index = SpoolFormat.blockIndex(oldest)
    // The beginning of the blocks without data before `index`.
    var first: UInt64?
    while index < tail.index {
      let run = min(tail.index - index, ring - index % ring)
      let start = SpoolFormat.blockOffset(index, blockCount: ring)
      let end = start + run * UInt64(SpoolFormat.blockSize)
      var offset = start
      func block(_ offset: UInt64) -> UInt64 { index + (offset - start) / UInt64(SpoolFormat.blockSize) }
      while offset < end {
        let data = min(end, try descriptor.nextData(from: offset) ?? end)
        // A block with some data is not part of a hole.
        if data > offset { first = first ?? block(offset + UInt64(SpoolFormat.blockSize) - 1) }
        guard data < end else { break }
        if let first { note(first, before: block(data)) }
        first = nil
        offset = max(data + 1, try descriptor.nextHole(from: data, before: end))
      }
      index += run
    }
    if let first { note(first, before: tail.index) }
    areHolesIntended = false
  }

  private func note(_ first: UInt64, before end: UInt64) {
    guard first < end else { return }
    noteHole(max(oldest, SpoolFormat.start(ofBlock: first))..<SpoolFormat.start(ofBlock: end))
  }
}
