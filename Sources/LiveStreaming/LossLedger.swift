// Which bytes of a stream are lost, each counted once however often that happens.

/// Ranges of stream offsets that will not reach the server. Bounded: the oldest of many count, and have no place any
/// more.
struct LossLedger: Equatable {
  /// Ascending, and apart from each other.
  private var ranges: [Range<UInt64>] = []
  /// How many bytes are lost before ``floor``.
  private var older: UInt64 = 0
  /// What is lost before it is not looked up any more.
  private var floor: UInt64 = 0

  private static let limit = 256

  /// How many bytes are lost.
  var total: UInt64 { older + ranges.reduce(0) { $0 + ($1.upperBound - $1.lowerBound) } }

  /// Stream offset behind the last byte that is lost; 0 when none is.
  var end: UInt64 { ranges.last?.upperBound ?? floor }

  mutating func add(_ range: Range<UInt64>) {
    let added = range.clamped(to: min(floor, range.upperBound)..<range.upperBound)
    guard !added.isEmpty, added.upperBound > floor else { return }
    var merged = max(added.lowerBound, floor)..<added.upperBound
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

  /// The parts of `range` that are not known to be lost.
  func unknown(in range: Range<UInt64>) -> [Range<UInt64>] {
    var rest = range
    var found: [Range<UInt64>] = []
    for known in ranges where known.overlaps(rest) {
      if rest.lowerBound < known.lowerBound { found.append(rest.lowerBound..<known.lowerBound) }
      rest = min(known.upperBound, rest.upperBound)..<rest.upperBound
    }
    return rest.isEmpty ? found : found + [rest]
  }

  /// The parts of `range` before and behind a pause, in which no byte is.
  static func lost(_ range: Range<UInt64>, pause: Range<UInt64>?) -> [Range<UInt64>] {
    let pause = (pause ?? range.upperBound..<range.upperBound).clamped(to: range)
    return [range.lowerBound..<pause.lowerBound, pause.upperBound..<range.upperBound].filter { !$0.isEmpty }
  }

  /// How the first `captured` bytes of a stream divide. What is in neither count is still to be sent.
  ///
  /// - Parameters:
  ///   - oldest: stream offset of the oldest byte that is kept.
  ///   - offset: stream offset before which the server has the stream, but for what is lost.
  ///   - pause: offsets that no byte has. They count as acknowledged, since nothing is missing there.
  func account(
    captured: UInt64, oldest: UInt64, acknowledgedUpTo offset: UInt64, pause: Range<UInt64>? = nil
  ) -> (acknowledged: UInt64, lost: UInt64) {
    let oldest = min(oldest, captured)
    let settled = max(min(max(offset, end), captured), oldest)
    var losses = self
    // Neither kept nor acknowledged: a gap that no request has begun behind yet.
    if offset < oldest { for range in Self.lost(offset..<oldest, pause: pause) { losses.add(range) } }
    let lost = min(losses.total, settled)
    return (settled - lost, lost)
  }
}
