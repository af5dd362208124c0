// Axes: every measured value has a position, and the tick values are round.

import Glibc
import PropertyTesting
import Testing

@testable import LoadReports

@Suite("The axes of a plot")
struct AxisTests {
  @Test("a linear axis begins at zero, ends at a round number that includes the maximum, and has few ticks")
  func linear() {
    #expect(
      Axis.linear(to: 10_300_000, .byteRate).ticks.map(\.label) == [
        "0", "2 MB/s", "4 MB/s", "6 MB/s", "8 MB/s", "10 MB/s", "12 MB/s",
      ])
    #expect(Axis.linear(to: 10_000, .count).range == 0...10_000)
    #expect(Axis.linear(to: 0.043, .share).ticks.map(\.label) == ["0", "1 %", "2 %", "3 %", "4 %", "5 %"])
    #expect(Axis.linear(to: 1, .count).ticks.map(\.label) == ["0", "1"], "half an error is none")
    #expect(Axis.linear(to: 0, .count).range == 0...1, "nothing happened: there is an axis all the same")
  }

  @Test("a logarithmic axis begins and ends at 1, 2 or 5 times a power of ten, with ticks at round durations")
  func logarithmic() {
    let narrow = Axis.logarithmic(from: 2.3e6, to: 47e6, .duration)
    #expect(narrow.range == 2e6...50e6 && narrow.ticks.map(\.label) == ["2 ms", "5 ms", "10 ms", "20 ms", "50 ms"])
    let wide = Axis.logarithmic(from: 40e3, to: 2.5e9, .duration)
    #expect(wide.ticks.map(\.label) == ["100 µs", "1 ms", "10 ms", "100 ms", "1 s"])
    #expect(abs(wide.position(20e3)) < 1e-9 && abs(wide.position(5e9) - 1) < 1e-9)
    #expect(abs(Axis.logarithmic(from: 1, to: 100, .duration).position(10) - 0.5) < 1e-9)
    let single = Axis.logarithmic(from: 5e6, to: 5e6, .duration)
    #expect(single.range.lowerBound <= 5e6 && single.range.upperBound > 5e6)
  }

  @Test("the time axis has ticks at clock positions, and ends with the run")
  func time() {
    #expect(Axis.time(to: 600).ticks.map(\.label).last == "10:00" && Axis.time(to: 600).ticks.count == 11)
    #expect(Axis.time(to: 7).ticks.map(\.value) == [0, 1, 2, 3, 4, 5, 6, 7])
    #expect(
      Axis.time(to: 95).ticks.map(\.label) == [
        "0:00", "0:10", "0:20", "0:30", "0:40", "0:50", "1:00", "1:10", "1:20", "1:30",
      ])
    #expect(Axis.time(to: 86_400 * 40).ticks.count <= 11 && Axis.time(to: 5000).ticks[3].label == "30:00")
  }

  @Test(
    "every value within the range has its position, in order, and every other is at an end", arguments: Seed.several(20)
  )
  func positions(_ seed: Seed) {
    var random = seed.generator
    for _ in 0..<200 {
      let low = exp(Double.random(in: 0...18, using: &random))
      let high = min(3.6e12, low * exp(Double.random(in: 0.7...20, using: &random)))
      for axis in [Axis.linear(to: high, .duration), .logarithmic(from: low, to: high, .duration), .time(to: high)] {
        #expect((2...14).contains(axis.ticks.count), "\(axis)")
        #expect(axis.range.upperBound >= high * (1 - 1e-9), "\(axis)")
        #expect(axis.ticks.allSatisfy { axis.range.contains($0.value) }, "\(axis)")
        let middle = Double.random(in: low...high, using: &random)
        let places = [-1, 0, low, middle, high, high * 10, .infinity].map(axis.position)
        #expect(places.allSatisfy { (0...1).contains($0) } && places == places.sorted(), "\(axis) \(places)")
        #expect(Set(axis.ticks.map(\.label)).count == axis.ticks.count, "two ticks of one name: \(axis)")
      }
    }
  }

  @Test("times on an axis have the format of clocks")
  func clock() {
    let words: [(Double, String)] = [
      (0, "0:00"), (9.4, "0:09"), (59, "0:59"), (59.5, "1:00"), (60, "1:00"), (3_599, "59:59"), (3_600, "1:00:00"),
      (3_661, "1:01:01"), (86_399, "23:59:59"), (360_000, "100:00:00"),
    ]
    for (seconds, text) in words {
      #expect(AxisQuantity.seconds.text(seconds) == text)
      #expect(AxisQuantity.seconds.label(seconds) == text)
    }
  }
}
