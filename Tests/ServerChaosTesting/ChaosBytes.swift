// The content of requests: each stream's bytes follow from their offset, and no two tokens ever send the same.

internal import Digests
internal import PropertyTesting

/// The content of one token's stream.
struct ChaosBytes: Sendable {
  private static let pattern: [UInt8] = {
    var random = SplitMix64(state: 20_261_122)
    return (0..<65_521).map { _ in UInt8(truncatingIfNeeded: random.next()) }
  }()

  /// The offset in the pattern at which the stream begins.
  let shift: UInt64

  subscript(range: Range<UInt64>) -> [UInt8] {
    let pattern = Self.pattern
    let period = UInt64(pattern.count)
    var result: [UInt8] = []
    result.reserveCapacity(range.count)
    var position = range.lowerBound
    while position < range.upperBound {
      let start = (position + shift) % period
      let count = min(period - start, range.upperBound - position)
      result += pattern[Int(start)..<Int(start + count)]
      position += count
    }
    return result
  }

  /// The first offset at which `found`, which begins at `offset`, differs.
  func firstDifference(_ found: ArraySlice<UInt8>, at offset: UInt64) -> UInt64? {
    let expected = self[offset..<(offset + UInt64(found.count))]
    if found.elementsEqual(expected) { return nil }
    return zip(found, expected).enumerated().first { $1.0 != $1.1 }.map { offset + UInt64($0.offset) }
  }

  /// The value of a `Content-Digest` field of these bytes.
  static func contentDigest(_ bytes: [UInt8]) -> String {
    "sha-256=:\(Digest(.sha256, of: bytes.span.bytes).base64):"
  }
}
