// The bytes of a stretch that are lost although later ones are kept.

/// Positions whose bytes are lost, because the circular buffer dropped them before the disk took them. Guarded by a
/// lock.
///
/// The file has bytes between two of them, so its size limits their number.
struct StretchHoles: Equatable {
  /// Ascending and disjoint.
  private(set) var ranges: [Range<UInt64>] = []

  /// Adds bytes of which some may be among the holes already.
  mutating func add(_ hole: Range<UInt64>) {
    guard !hole.isEmpty else { return }
    var merged = hole
    ranges.removeAll { other in
      guard other.lowerBound <= merged.upperBound, merged.lowerBound <= other.upperBound else { return false }
      merged = min(other.lowerBound, merged.lowerBound)..<max(other.upperBound, merged.upperBound)
      return true
    }
    ranges.insert(merged, at: ranges.firstIndex { $0.lowerBound > merged.lowerBound } ?? ranges.endIndex)
  }

  /// Removes the holes that end before `position` or there.
  mutating func forget(before position: UInt64) {
    guard let first = ranges.first, first.upperBound <= position else { return }
    ranges.removeAll { $0.upperBound <= position }
  }

  /// How many lost bytes are at these positions.
  func byteCount(in positions: Range<UInt64>) -> UInt64 {
    ranges.reduce(0) { sum, hole in
      let part = hole.clamped(to: positions)
      return sum + (part.upperBound - part.lowerBound)
    }
  }
}
