// Reads and accounts for every byte of a stretch.

/// The result of ``SpoolFile/verify()``. Each unacknowledged position of the stretch is intact, evicted, in a hole, or
/// reported in ``damage``.
package struct SpoolVerification: Equatable, Sendable {
  /// The number of bytes that are unchanged since they were appended.
  package var intactByteCount: UInt64 = 0
  /// Bytes that were dropped for newer ones before the server had them.
  package var evicted: Range<UInt64> = 0..<0
  /// Positions that were lost before they reached the spool.
  package var holes: [Range<UInt64>] = []
  /// The damage, including that found by the recovery.
  package var damage: [SpoolDamage] = []

  /// The server has acknowledged everything before it, so it need not be sent.
  package var released: UInt64 = 0

  /// The number of captured, unacknowledged bytes that are missing, as far as the file shows.
  package var lostByteCount: UInt64 {
    var (count, end) = (UInt64(0), released)
    for range in ([evicted] + holes + damage.map(\.lostPositions)).sorted(by: { $0.lowerBound < $1.lowerBound })
    where range.upperBound > end {
      count += range.upperBound - max(range.lowerBound, end)
      end = range.upperBound
    }
    return count
  }

  /// Discards findings before `position`, which are no longer relevant.
  package mutating func forget(before position: UInt64) {
    holes.removeAll { $0.upperBound <= position }
    damage.removeAll { !$0.lostPositions.isEmpty && $0.lostPositions.upperBound <= position }
  }

  /// Whether bytes are missing, or may be.
  package var hasLoss: Bool {
    lostByteCount > 0 || mayLackBytes
  }

  /// Whether bytes may be lost, although nothing shows which.
  package var mayLackBytes: Bool { damage.contains { $0.kind.leavesDoubt } }
}

extension SpoolFile {
  /// Reads all blocks from ``oldest`` to ``head``. Nothing is changed.
  package func verify() throws(SpoolError) -> SpoolVerification {
    var found = SpoolVerification()
    found.released = released
    found.evicted = released..<oldest
    // The ring's content between these is read again here, perhaps with a better result than in the recovery.
    found.damage = recoveredDamage.filter {
      $0.lostPositions.isEmpty || $0.lostPositions.lowerBound < oldest || $0.lostPositions.upperBound > head
    }
    var missing = MissingBlocks()
    var cursor = oldest
    func take(_ index: UInt64, _ shape: BlockShape) {
      let start = SpoolFormat.start(ofBlock: index)
      let unexplained = missing.take(before: index, shape)
      var place = oldest > start ? SpoolFormat.place(oldest) : 0
      while let run = shape.run(at: place) {
        let first = start + UInt64(max(place, run.lowerBound))
        account(for: cursor..<first, unexplained, in: &found)
        found.intactByteCount += start + UInt64(run.upperBound) - first
        cursor = start + UInt64(run.upperBound)
        place = run.upperBound
      }
    }
    let first = SpoolFormat.blockIndex(oldest)
    if oldest < head {
      try reader.visit(first..<max(first, tail.index)) { block throws(SpoolError) in
        if let shape = block.shape { take(block.index, shape) } else { missing.add(block) }
        return true
      }
      if !tail.isEmpty { take(tail.index, tail.shape) }
      account(for: cursor..<max(cursor, head), missing.take(before: tail.index, BlockShape()), in: &found)
    }
    return found
  }

  /// Splits positions without bytes into damage, where `runs` are, and holes.
  private func account(for gap: Range<UInt64>, _ runs: [MissingBlocks.Run], in found: inout SpoolVerification) {
    var cursor = gap.lowerBound
    for run in runs {
      let blocks = SpoolFormat.start(ofBlock: run.blocks.lowerBound)..<SpoolFormat.start(ofBlock: run.blocks.upperBound)
      let lost = blocks.clamped(to: cursor..<gap.upperBound)
      guard !lost.isEmpty else { continue }
      if cursor < lost.lowerBound { found.holes.append(cursor..<lost.lowerBound) }
      // The recovery has already reported it if it was in no checkpoint.
      let offset = SpoolFormat.blockOffset(run.blocks.lowerBound, blockCount: header.blockCount)
      let damage = SpoolDamage(run.kind, fileOffset: offset, lostPositions: lost)
      if !found.damage.contains(damage) { found.damage.append(damage) }
      cursor = lost.upperBound
    }
    if cursor < gap.upperBound { found.holes.append(cursor..<gap.upperBound) }
  }
}
