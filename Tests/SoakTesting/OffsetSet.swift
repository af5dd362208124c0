// A set of stream offsets.

/// Stream offsets, as ranges that are ascending and do not touch each other.
package struct OffsetSet: Equatable, Sendable {
  package private(set) var ranges: [Range<Int>] = []

  package init(_ ranges: [Range<Int>] = []) {
    for range in ranges.filter({ !$0.isEmpty }).sorted(by: { $0.lowerBound < $1.lowerBound }) {
      if let last = self.ranges.last, range.lowerBound <= last.upperBound {
        self.ranges[self.ranges.count - 1] = last.lowerBound..<max(last.upperBound, range.upperBound)
      } else {
        self.ranges.append(range)
      }
    }
  }

  package var count: Int { ranges.reduce(0) { $0 + $1.count } }

  package func union(_ other: OffsetSet) -> OffsetSet { OffsetSet(ranges + other.ranges) }

  /// The offsets of this set that are not in `other`.
  package func subtracting(_ other: OffsetSet) -> OffsetSet {
    OffsetSet(
      ranges.flatMap { range in
        var rest: [Range<Int>] = []
        var start = range.lowerBound
        for hole in other.ranges where hole.overlaps(range) {
          if start < hole.lowerBound { rest.append(start..<hole.lowerBound) }
          start = hole.upperBound
        }
        if start < range.upperBound { rest.append(start..<range.upperBound) }
        return rest
      })
  }
}
