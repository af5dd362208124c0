import PropertyTesting
import Testing

@testable import LoadTesting

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
}
