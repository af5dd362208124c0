// The bars that the plot of a histogram computes before drawing.

import Glibc
import PropertyTesting
import Testing

@testable import LoadReports

@Suite("The plot of a histogram")
struct HistogramPlotTests {
  @Test("every value is counted in its bar, and bars are in order", arguments: Seed.several(5))
  func bins(seed: Seed) {
    var random = seed.generator
    var all = LatencyHistogram()
    var count: UInt64 = 0
    for _ in 0..<300 {
      let value = Int64(pow(10, Double.random(in: 2...12, using: &random)))
      let repetitions = UInt64.random(in: 1...9, using: &random)
      var one = LatencyHistogram()
      for _ in 0..<repetitions {
        one.record(value)
        all.record(value)
      }
      count += repetitions
      let bins = HistogramPlot.bins(of: one)
      #expect(bins.count == 1 && bins.first?.count == repetitions)
      // The histogram itself has a precision of one per cent.
      let isInside = bins.first.map {
        Double(value) >= $0.range.lowerBound * 0.99 && Double(value) < $0.range.upperBound * 1.01
      }
      #expect(isInside == true, "\(value) in \(bins)")
    }
    let bins = HistogramPlot.bins(of: all)
    #expect(bins.reduce(0) { $0 + $1.count } == count)
    #expect(zip(bins, bins.dropFirst()).allSatisfy { $0.range.upperBound <= $1.range.lowerBound * 1.000_001 })
  }
}
