// Sets of stream offsets, each as a list of ranges.

extension [Range<UInt64>] {
  /// The offsets that are in none of the other ranges.
  func subtracting(_ others: [Range<UInt64>]) -> [Range<UInt64>] {
    var rest = self
    for other in others {
      rest = rest.flatMap { range in
        let held = other.clamped(to: range)
        return [range.lowerBound..<held.lowerBound, held.upperBound..<range.upperBound]
      }
      rest.removeAll(where: \.isEmpty)
    }
    return rest
  }

  /// The same offsets as ascending ranges, of which no two touch.
  func merged() -> [Range<UInt64>] {
    var merged: [Range<UInt64>] = []
    for range in sorted(by: { $0.lowerBound < $1.lowerBound }) where !range.isEmpty {
      if let last = merged.last, range.lowerBound <= last.upperBound {
        merged[merged.count - 1] = last.lowerBound..<Swift.max(last.upperBound, range.upperBound)
      } else {
        merged.append(range)
      }
    }
    return merged
  }
}
