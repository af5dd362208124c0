// The pieces of a buffer that contain a body. Octets between them belong to its framing.

extension [Range<Int>] {
  /// The first `count` octets of these ranges.
  package func prefix(octets count: Int) -> [Range<Int>] {
    var left = count
    var result: [Range<Int>] = []
    for range in self where left > 0 {
      let length = Swift.min(left, range.count)
      result.append(range.lowerBound..<(range.lowerBound + length))
      left -= length
    }
    return result
  }

  /// The pieces without their first `count` octets.
  package func dropped(octets count: Int) -> [Range<Int>] {
    var left = count
    return compactMap { piece in
      let cut = Swift.min(left, piece.count)
      left -= cut
      return cut == piece.count ? nil : (piece.lowerBound + cut)..<piece.upperBound
    }
  }
}
