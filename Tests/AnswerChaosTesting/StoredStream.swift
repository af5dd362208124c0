// The bytes that the server of a case has stored, and their comparison with the stream.

import NetworkTesting

/// Bytes at stream offsets, in upload resources or from plain requests.
struct StoredStream: Sendable {
  struct Upload: Sendable {
    /// Stream offset of its first byte.
    var base: UInt64
    var bytes: [UInt8] = []
    var isComplete = false
    /// How many requests it has received since its creation.
    var turn = 0
    var length: UInt64?
  }

  /// A plain request: where it began, and the bytes it brought.
  struct Request: Sendable {
    var target: String
    /// Stream offset of its first byte. A numbered URL has a stream of its own, whose requests have no offset.
    var offset: UInt64?
    var bytes: [UInt8] = []
    /// Whether it was complete.
    var isWhole = false
    /// Whether it was answered with an error, so that its client counts it as not stored.
    var isRefused = false

    var range: Range<UInt64> { (offset ?? 0)..<(offset ?? 0) + UInt64(bytes.count) }
  }

  var uploads: [Upload] = []
  var requests: [Request] = []

  /// The same with the offsets of requests to numbered URLs, taken from the client's reports.
  func located(at starts: [UInt64]) -> StoredStream {
    located { bytes in starts.first { OffsetNoise.firstDifference(bytes, at: $0) == nil } }
  }

  /// The same with the offsets of requests to numbered URLs, taken from their bytes.
  func locatedByBytes() -> StoredStream { located(OffsetNoise.offset) }

  private func located(_ offset: ([UInt8]) -> UInt64?) -> StoredStream {
    var stored = self
    for (index, request) in requests.enumerated() where request.offset == nil {
      stored.requests[index].offset = offset(request.bytes)
    }
    return stored
  }

  /// Ranges of stream offsets, ascending and not adjacent.
  var ranges: [Range<UInt64>] {
    Self.union(uploads.map { $0.base..<($0.base + UInt64($0.bytes.count)) } + requests.map(\.range))
  }

  /// The same if each request replaces the previous one's bytes at its URL.
  var rangesLeft: [Range<UInt64>] {
    var last: [String: Range<UInt64>] = [:]
    for request in requests where !request.bytes.isEmpty && !request.isRefused { last[request.target] = request.range }
    return Self.union(Array(last.values))
  }

  /// A request that has replaced earlier bytes of the stream by later ones, in words.
  var replacement: String? {
    var last: [String: Range<UInt64>] = [:]
    for request in requests where !request.bytes.isEmpty && !request.isRefused {
      if let before = last[request.target], request.range.lowerBound > before.lowerBound {
        return "at \(request.target), \(request.range) has replaced \(before)"
      }
      last[request.target] = request.range
    }
    return nil
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

  /// The parts of `0..<end` that are in none of the ranges.
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

  /// The position of a wrong stored byte, in words.
  var difference: String? {
    for (index, upload) in uploads.enumerated() {
      if let offset = OffsetNoise.firstDifference(upload.bytes, at: upload.base) {
        return "upload \(index), which begins at \(upload.base), has a wrong byte at stream offset \(offset)"
      }
    }
    for request in requests {
      guard let start = request.offset else {
        return "a request to \(request.target) has bytes that begin where no request does"
      }
      if let offset = OffsetNoise.firstDifference(request.bytes, at: start) {
        return "the request from \(start) on has a wrong byte at stream offset \(offset)"
      }
    }
    return nil
  }

  var byteCount: Int { uploads.map(\.bytes.count).reduce(0, +) + requests.map(\.bytes.count).reduce(0, +) }
}
