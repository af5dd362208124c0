// Histograms of delays: any number of values in little memory, with a relative precision that does not depend on their
// size. Merging two of them gives the same result as one that recorded all values.
//
// It uses HdrHistogram's buckets (linear within each power of two) and DDSketch's idea of storing only non-empty ones.
// Neither is available as a library. Debian has HdrHistogram only for Java and Go, and its arrays are allocated
// completely: 20 to 40 kB per histogram, of which a report has two for every second of the run.

/// A log-linear histogram of non-negative integers, which are nanoseconds unless stated otherwise.
///
/// Values below 128 are exact, and larger ones up to 2⁴² − 1 (73 minutes) are accurate to 0.8 %. Values beyond count as
/// that maximum, and in ``aboveRangeCount``. ``min``, ``max`` and ``count`` are exact, and so is ``sum`` up to 63 bits.
///
/// An empty one takes about 70 bytes. With values, each power of two among them adds 512 bytes. ``record(_:)`` is O(1)
/// and allocates only for the first value in a power of two. A value; share it between threads like any other.
package struct LatencyHistogram: Equatable, Sendable {
  /// The number of buckets per power of two.
  static let chunkSize = 64
  /// The powers of two: 0..<64, 64..<128, 128..<256, …, 2⁴¹..<2⁴².
  static let chunkCount = 37
  static let bucketCount = chunkCount * chunkSize
  /// One more than the largest value that has a bucket.
  static let limit: Int64 = 1 << 42

  /// The number of recorded values.
  package private(set) var count: UInt64 = 0
  /// The sum of all values; `Int64.max` if it is larger.
  package private(set) var sum: Int64 = 0
  /// The number of values that were too large for a bucket.
  private(set) var aboveRangeCount: UInt64 = 0
  private var smallest: Int64 = .max
  private var largest: Int64 = 0
  /// A bit for each existing chunk, and the counters of these chunks in sequence.
  private var present: UInt64 = 0
  private var counters: [UInt64] = []

  package init() {}

  package var isEmpty: Bool { count == 0 }

  /// The smallest value; nil if there is none.
  package var min: Int64? { isEmpty ? nil : smallest }

  /// The largest value; nil if there is none.
  package var max: Int64? { isEmpty ? nil : largest }

  /// The mean of all values, rounded down; nil if there is none. If ``sum`` is incomplete, it is as accurate as a
  /// quantile.
  var mean: Int64? {
    guard !isEmpty else { return nil }
    let known = Int64(clamping: UInt64(sum) / count)
    guard sum == .max else { return known }
    // It fits, because fewer than 2⁶⁴ values are below 2⁴² each.
    let total = buckets.reduce(Int128(0)) { $0 + Int128(Self.representative(of: $1.bucket)) * Int128($1.count) }
    // Values without a bucket may be larger.
    return Swift.min(Swift.max(Int64(clamping: total / Int128(count)), known), largest)
  }

  /// Counts a value. A negative value counts as zero.
  package mutating func record(_ value: Int64) { record(value, count: 1) }

  /// Counts `value` this number of times.
  package mutating func record(_ value: Int64, count times: UInt64) {
    guard times > 0 else { return }
    let value = Swift.max(0, value)
    count += times
    let (product, overflow) = value.multipliedReportingOverflow(by: Int64(clamping: times))
    sum = sum.addingSaturated(overflow ? .max : product)
    smallest = Swift.min(smallest, value)
    largest = Swift.max(largest, value)
    if value >= Self.limit { aboveRangeCount += times }
    add(times, toBucket: Self.bucket(of: value))
  }

  /// Adds the values of `other`. This is exact, so the order in which histograms are merged does not matter.
  package mutating func merge(_ other: LatencyHistogram) {
    guard !other.isEmpty else { return }
    guard !isEmpty else {
      self = other
      return
    }
    count += other.count
    sum = sum.addingSaturated(other.sum)
    aboveRangeCount += other.aboveRangeCount
    smallest = Swift.min(smallest, other.smallest)
    largest = Swift.max(largest, other.largest)
    for (bucket, count) in other.buckets { add(count, toBucket: bucket) }
  }

  /// The value that this share of all values does not exceed, accurate to 0.8 %; nil without values.
  ///
  /// - Parameter fraction: 0.99 for the 99th percentile. 0 gives the smallest value and 1 the largest, both exactly.
  package func quantile(_ fraction: Double) -> Int64? {
    guard !isEmpty else { return nil }
    // The first rank whose share is at least the fraction. The factor is for cases such as 0.07 · 100, which is
    // 7.000000000000001.
    let wanted = (fraction * Double(count) * (1 - 1e-12)).rounded(.up)
    let rank = wanted >= Double(count) ? count : UInt64(Swift.max(1, wanted))
    if rank == 1 { return smallest }
    if rank == count { return largest }
    var passed: UInt64 = 0
    for (bucket, count) in buckets {
      passed += count
      if passed >= rank {
        return Swift.min(Swift.max(Self.representative(of: bucket), smallest), largest)
      }
    }
    return largest
  }

  /// How many values are at most `value`, with the precision of the buckets: its own bucket counts completely.
  package func count(upTo value: Int64) -> UInt64 {
    guard value >= 0 else { return 0 }
    let last = Self.bucket(of: value)
    return buckets.reduce(0) { $1.bucket <= last ? $0 + $1.count : $0 }
  }

  // MARK: Buckets

  /// The non-empty buckets, in order: their inclusive lower bound, their exclusive upper bound, and their number of
  /// values.
  package var bars: [(lower: Int64, upper: Int64, count: UInt64)] {
    buckets.map { (Self.lowerBound(of: $0.bucket), Self.lowerBound(of: $0.bucket + 1), $0.count) }
  }

  /// The number and the count of each non-empty bucket, in order.
  var buckets: [(bucket: Int, count: UInt64)] {
    var result: [(bucket: Int, count: UInt64)] = []
    var rest = present
    var position = 0
    while rest != 0 {
      let first = rest.trailingZeroBitCount * Self.chunkSize
      for offset in 0..<Self.chunkSize where counters[position + offset] > 0 {
        result.append((first + offset, counters[position + offset]))
      }
      position += Self.chunkSize
      rest &= rest - 1
    }
    return result
  }

  /// A histogram read from a file; nil if it is inconsistent.
  init?(buckets: [(bucket: Int, count: UInt64)], sum: Int64, min: Int64, max: Int64, aboveRangeCount: UInt64) {
    for (bucket, count) in buckets {
      guard (0..<Self.bucketCount).contains(bucket), count > 0 else { return nil }
      let (total, overflow) = self.count.addingReportingOverflow(count)
      guard !overflow else { return nil }
      self.count = total
      add(count, toBucket: bucket)
    }
    guard !isEmpty else { return nil }
    let used = self.buckets
    guard sum >= 0, min >= 0, max >= min, aboveRangeCount <= count, used.first?.bucket == Self.bucket(of: min),
      used.last?.bucket == Self.bucket(of: max)
    else { return nil }
    self.sum = sum
    self.aboveRangeCount = aboveRangeCount
    smallest = min
    largest = max
  }

  static func bucket(of value: Int64) -> Int {
    let value = Swift.min(value, limit - 1)
    guard value >= Int64(chunkSize) else { return Int(value) }
    let octave = 63 - value.leadingZeroBitCount
    return (octave - 5) * chunkSize + Int(value >> Int64(octave - 6)) - chunkSize
  }

  static func lowerBound(of bucket: Int) -> Int64 {
    let chunk = bucket / chunkSize
    let offset = Int64(bucket % chunkSize)
    return chunk == 0 ? offset : (Int64(chunkSize) + offset) << Int64(chunk - 1)
  }

  /// The middle of a bucket. It differs from any of its values by at most half its width, a 128th.
  static func representative(of bucket: Int) -> Int64 {
    let lower = lowerBound(of: bucket)
    return lower + (lowerBound(of: bucket + 1) - lower) / 2
  }

  private mutating func add(_ times: UInt64, toBucket bucket: Int) {
    let bit: UInt64 = 1 << UInt64(bucket / Self.chunkSize)
    // The earlier chunks precede this one in the array.
    let position = (present & (bit - 1)).nonzeroBitCount * Self.chunkSize
    if present & bit == 0 {
      present |= bit
      counters.insert(contentsOf: repeatElement(0, count: Self.chunkSize), at: position)
    }
    counters[position + bucket % Self.chunkSize] += times
  }
}
