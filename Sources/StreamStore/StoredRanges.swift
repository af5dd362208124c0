// Where a stream's bytes are stored, for a caller whose client cannot be told where to continue. Pure.

/// The received bytes of a stream, in stream offsets.
package struct StoredRanges: Equatable, Sendable {
  /// Those in recordings that cannot be continued, as ascending ranges of which no two touch.
  private let closed: [Range<UInt64>]
  /// From the offset at which the growing recording can be continued first up to its end; nil if there is none.
  private let growing: Range<UInt64>?
  /// The holes of the growing recording.
  private let holes: [Range<UInt64>]

  init(closed: [Range<UInt64>], growing: Range<UInt64>? = nil, holes: [Range<UInt64>] = []) {
    (self.closed, self.growing, self.holes) = (closed.merged(), growing, holes.merged())
  }

  /// The first offset from this one on whose byte is in no closed recording.
  package func firstUnclosed(from offset: UInt64) -> UInt64 {
    closed.first { $0.contains(offset) }?.upperBound ?? offset
  }

  /// Whether a closed recording contains the byte before an offset.
  package func isClosed(before offset: UInt64) -> Bool { offset > 0 && firstUnclosed(from: offset - 1) >= offset }

  /// Whether the growing recording continues at an offset.
  package func isGrowing(at offset: UInt64) -> Bool { growing?.upperBound == offset }

  /// Whether a body at this offset, whose byte is in no closed recording, can be stored without closing the growing
  /// recording.
  package func hasPlace(at offset: UInt64) -> Bool {
    guard let growing else { return true }
    // The bytes of a hole that arrive later belong in a separate part.
    guard offset >= growing.lowerBound, !holes.contains(where: { $0.contains(offset) }) else { return false }
    // A hole of the growing recording must not declare bytes as missing that closed ones contain.
    let hole = min(offset, growing.upperBound)..<offset
    return !closed.contains { $0.overlaps(hole) }
  }

  /// The offset up to which the body at this offset can be stored in the same recording.
  package func limit(from offset: UInt64) -> UInt64 {
    (closed + holes).map(\.lowerBound).filter { $0 > offset }.min() ?? .max
  }
}
