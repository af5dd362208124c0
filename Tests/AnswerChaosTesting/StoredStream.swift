// What the server of a case has stored, and how it compares with the stream.

import NetworkTesting

/// Bytes at stream offsets, in upload resources or from plain requests.
struct StoredStream: Sendable {
  struct Upload: Sendable {
    /// Stream offset of its first byte.
    var base: UInt64
    var bytes: [UInt8] = []
    var isComplete = false
    /// How many requests have asked for it since its creation.
    var turn = 0
    var length: UInt64?
  }

  var uploads: [Upload] = []
  /// Of plain requests: where each began, what it brought, whether it came to its end.
  var requests: [(offset: UInt64, bytes: [UInt8], isWhole: Bool)] = []

  /// Ranges of stream offsets, ascending, that do not touch each other.
  var ranges: [Range<UInt64>] {
    let all =
      uploads.map { $0.base..<($0.base + UInt64($0.bytes.count)) }
      + requests.map { $0.offset..<($0.offset + UInt64($0.bytes.count)) }
    return Self.union(all)
  }

  static func union(_ ranges: [Range<UInt64>]) -> [Range<UInt64>] {
    var joined: [Range<UInt64>] = []
    for range in ranges.filter({ !$0.isEmpty }).sorted(by: { $0.lowerBound < $1.lowerBound }) {
      if let last = joined.last, range.lowerBound <= last.upperBound {
        joined[joined.count - 1] = last.lowerBound..<max(last.upperBound, range.upperBound)
      } else {
        joined.append(range)
      }
    }
    return joined
  }

  /// What of `0..<end` is in none of the ranges.
  static func holes(_ ranges: [Range<UInt64>], end: UInt64) -> [Range<UInt64>] {
    var holes: [Range<UInt64>] = []
    var reached: UInt64 = 0
    for range in ranges where range.upperBound > reached {
      if range.lowerBound > reached { holes.append(reached..<min(end, range.lowerBound)) }
      reached = range.upperBound
      if reached >= end { break }
    }
    if reached < end { holes.append(reached..<end) }
    return holes.filter { !$0.isEmpty }
  }

  /// Where a byte is stored that does not belong there, in words.
  var difference: String? {
    for (index, upload) in uploads.enumerated() {
      if let offset = OffsetNoise.firstDifference(upload.bytes, at: upload.base) {
        return "upload \(index), which begins at \(upload.base), has a wrong byte at stream offset \(offset)"
      }
    }
    for request in requests {
      if let offset = OffsetNoise.firstDifference(request.bytes, at: request.offset) {
        return "the request from \(request.offset) on has a wrong byte at stream offset \(offset)"
      }
    }
    return nil
  }

  var byteCount: Int { uploads.map(\.bytes.count).reduce(0, +) + requests.map(\.bytes.count).reduce(0, +) }
}
