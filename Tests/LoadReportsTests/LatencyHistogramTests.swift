import PropertyTesting
import Testing

@testable import LoadReports

@Suite("A latency histogram")
struct LatencyHistogramTests {
  @Test("every quantile is within 1 % of the sorted values'", arguments: Seed.several(10))
  func precision(_ seed: Seed) throws {
    var random = seed.generator
    var values: [Int64] = []
    var histogram = LatencyHistogram()
    for _ in 0..<Int.random(in: 1...5000, using: &random) {
      // Any order of magnitude from nanoseconds to an hour.
      let value = Int64.random(in: 0...(3_600_000_000_000 >> Int64.random(in: 0...41, using: &random)), using: &random)
      values.append(value)
      histogram.record(value)
    }
    values.sort()
    for fraction in [0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 0.9999, 1] {
      let rank = max(1, Int((fraction * Double(values.count) * (1 - 1e-12)).rounded(.up)))
      let exact = values[rank - 1]
      let quantile = try #require(histogram.quantile(fraction))
      #expect(abs(Double(quantile - exact)) <= 0.008 * Double(exact), "p\(fraction * 100) of \(values.count)")
    }
    #expect(histogram.count == UInt64(values.count))
    #expect(histogram.min == values.first && histogram.max == values.last)
    #expect(histogram.sum == values.reduce(0, +))
    #expect(histogram.mean == values.reduce(0, +) / Int64(values.count))
  }

  private func random(_ random: inout SplitMix64) -> LatencyHistogram {
    var histogram = LatencyHistogram()
    for _ in 0..<Int.random(in: 0...50, using: &random) {
      histogram.record(
        Int64.random(in: 0...(Int64.max >> Int64.random(in: 0...62, using: &random)), using: &random),
        count: UInt64(random.size(upTo: 1000)))
    }
    return histogram
  }

  @Test(
    "merging is associative and commutative, and equals recording everything in one", arguments: Seed.several(20))
  func merging(_ seed: Seed) {
    var random = seed.generator
    let (a, b, c) = (self.random(&random), self.random(&random), self.random(&random))
    func merged(_ x: LatencyHistogram, _ y: LatencyHistogram) -> LatencyHistogram {
      var result = x
      result.merge(y)
      return result
    }
    #expect(merged(merged(a, b), c) == merged(a, merged(b, c)))
    #expect(merged(a, b) == merged(b, a))
    #expect(merged(a, LatencyHistogram()) == a && merged(LatencyHistogram(), a) == a)

    var (whole, first, second) = (LatencyHistogram(), LatencyHistogram(), LatencyHistogram())
    for _ in 0..<1000 {
      let value = Int64(random.size(upTo: 1 << 43))
      whole.record(value)
      if random.chance(30) { first.record(value) } else { second.record(value) }
    }
    #expect(merged(first, second) == whole)
  }

  @Test("every bucket's values are between its bounds, and its bounds are those of its neighbours")
  func buckets() {
    for bucket in 0..<LatencyHistogram.bucketCount {
      let lower = LatencyHistogram.lowerBound(of: bucket)
      let upper = LatencyHistogram.lowerBound(of: bucket + 1)
      #expect(lower < upper)
      #expect(LatencyHistogram.bucket(of: lower) == bucket && LatencyHistogram.bucket(of: upper - 1) == bucket)
      let middle = LatencyHistogram.representative(of: bucket)
      #expect(Double(max(middle - lower, upper - 1 - middle)) <= 0.008 * Double(lower))
    }
    #expect(LatencyHistogram.lowerBound(of: LatencyHistogram.bucketCount) == LatencyHistogram.limit)
  }

  @Test("a value out of range is counted at the end of the range, and minimum, maximum and sum are exact")
  func outOfRange() {
    var histogram = LatencyHistogram()
    histogram.record(-5)
    histogram.record(LatencyHistogram.limit)
    #expect(histogram.count == 2 && histogram.aboveRangeCount == 1)
    #expect(histogram.min == 0 && histogram.max == LatencyHistogram.limit && histogram.sum == LatencyHistogram.limit)
    histogram.record(.max)
    #expect(histogram.sum == .max && histogram.max == .max && histogram.quantile(1) == .max)
    #expect(histogram.bars.map(\.count) == [1, 2])
    #expect(histogram.count(upTo: 0) == 1 && histogram.count(upTo: .max) == 3 && histogram.count(upTo: -1) == 0)
  }

  @Test("the mean of values whose sum exceeds 63 bits is within 1 % of the true one", arguments: Seed.several(5))
  func longMean(_ seed: Seed) throws {
    var random = seed.generator
    var histogram = LatencyHistogram()
    var (sum, count) = (0.0, 0.0)
    for _ in 0..<100 {
      let value = Int64.random(in: 1_000_000_000...(LatencyHistogram.limit - 1), using: &random)
      let times = UInt64.random(in: 10_000_000...20_000_000, using: &random)
      histogram.record(value, count: times)
      sum += Double(value) * Double(times)
      count += Double(times)
    }
    let mean = Double(try #require(histogram.mean))
    #expect(histogram.sum == .max && abs(mean - sum / count) <= 0.01 * sum / count, "\(seed): \(mean)")
    var longest = LatencyHistogram()
    longest.record(.max)
    #expect(longest.mean == Int64.max, "a value without a bucket")
  }

  @Test("without values there is no quantile, and with one value all are equal to it")
  func few() {
    var histogram = LatencyHistogram()
    #expect(histogram.quantile(0.5) == nil && histogram.mean == nil && histogram.min == nil && histogram.max == nil)
    histogram.record(123_456_789)
    for fraction in [0, 0.5, 0.99, 1] { #expect(histogram.quantile(fraction) == 123_456_789) }
  }

  @Test("an empty one takes less than 200 bytes")
  func size() { #expect(MemoryLayout<LatencyHistogram>.stride < 200) }
}
