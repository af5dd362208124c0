// The lost bytes of a stream. Each counts once, even if it is lost several times.

/// Ranges of stream offsets that will not reach the server. The size is bounded: the oldest ranges are only counted.
struct LossLedger: Equatable {
  /// Ascending and disjoint.
  private var ranges: [Range<UInt64>] = []
  /// The number of lost bytes before ``floor``.
  private var older: UInt64 = 0
  /// Losses before this offset are no longer stored as ranges.
  private var floor: UInt64 = 0

  private static let limit = 256

  /// The number of lost bytes.
  var total: UInt64 { older + ranges.reduce(0) { $0 + ($1.upperBound - $1.lowerBound) } }

  /// The stream offset after the last lost byte, or 0.
  var end: UInt64 { ranges.last?.upperBound ?? floor }

  mutating func add(_ range: Range<UInt64>) {
    var merged = max(range.lowerBound, floor)..<max(range.upperBound, floor)
    guard !merged.isEmpty else { return }
    ranges.removeAll { other in
      guard other.lowerBound <= merged.upperBound, merged.lowerBound <= other.upperBound else { return false }
      merged = min(other.lowerBound, merged.lowerBound)..<max(other.upperBound, merged.upperBound)
      return true
    }
    ranges.insert(merged, at: ranges.firstIndex { $0.lowerBound > merged.lowerBound } ?? ranges.endIndex)
    if ranges.count > Self.limit {
      let first = ranges.removeFirst()
      older += first.upperBound - first.lowerBound
      floor = first.upperBound
    }
  }

  /// The parts of `range` that are not yet recorded as lost.
  func unknown(in range: Range<UInt64>) -> [Range<UInt64>] {
    var rest = range
    var found: [Range<UInt64>] = []
    for known in ranges where known.overlaps(rest) {
      if rest.lowerBound < known.lowerBound { found.append(rest.lowerBound..<known.lowerBound) }
      rest = min(known.upperBound, rest.upperBound)..<rest.upperBound
    }
    return rest.isEmpty ? found : found + [rest]
  }

  /// The parts of `range` before and after a pause, which contains no bytes.
  static func lost(_ range: Range<UInt64>, pause: Range<UInt64>?) -> [Range<UInt64>] {
    let pause = (pause ?? range.upperBound..<range.upperBound).clamped(to: range)
    return [range.lowerBound..<pause.lowerBound, pause.upperBound..<range.upperBound].filter { !$0.isEmpty }
  }

  /// How many bytes disjoint ranges have within `bounds`.
  static func byteCount(of ranges: [Range<UInt64>], in bounds: Range<UInt64>) -> UInt64 {
    ranges.reduce(0) { sum, range in
      let part = range.clamped(to: bounds)
      return sum + (part.upperBound - part.lowerBound)
    }
  }

  /// Divides the first `captured` bytes of a stream into acknowledged and lost ones. The other bytes are unsent.
  ///
  /// - Parameters:
  ///   - oldest: the stream offset of the oldest byte in the buffer.
  ///   - offset: the stream offset before which the server has the stream, except for losses.
  ///   - pause: offsets without bytes. They count as acknowledged, because nothing is missing there.
  func account(
    captured: UInt64, oldest: UInt64, acknowledgedUpTo offset: UInt64, pause: Range<UInt64>? = nil
  ) -> (acknowledged: UInt64, lost: UInt64) {
    let oldest = min(oldest, captured)
    let settled = max(min(max(offset, end), captured), oldest)
    var losses = self
    // Neither in the buffer nor acknowledged: a gap after which no request has begun.
    if offset < oldest { for range in Self.lost(offset..<oldest, pause: pause) { losses.add(range) } }
    let lost = min(losses.total, settled)
    return (settled - lost, lost)
  }
}
