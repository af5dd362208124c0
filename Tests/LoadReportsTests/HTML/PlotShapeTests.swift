// The shapes of a plot, to the tenth of a pixel: an axis, a curve with a gap, a label with its line.

import Testing

@testable import LoadReports

@Suite("The shapes of a plot")
struct PlotShapeTests {
  private let frame = PlotFrame(width: 200, left: 0, right: 100, mostTicks: 5, hasReadings: true)

  @Test("if a logarithmic axis has no space for all ticks, the powers of ten stay")
  func ticks() {
    let axis = Axis.logarithmic(from: 1e3, to: 200e3, .duration)
    #expect(axis.ticks.map(\.label) == ["1 µs", "2 µs", "5 µs", "10 µs", "20 µs", "50 µs", "100 µs", "200 µs"])
    #expect(axis.ticks(atMost: 8) == axis.ticks)
    #expect(axis.ticks(atMost: 5).map(\.label) == ["1 µs", "10 µs", "100 µs"])
    #expect(axis.ticks(atMost: 2).map(\.label) == ["1 µs", "100 µs"])
    let narrow = Axis.logarithmic(from: 1e3, to: 5e3, .duration)
    #expect(narrow.ticks.map(\.label) == ["1 µs", "2 µs", "5 µs"])
    #expect(narrow.ticks(atMost: 2).map(\.label) == ["1 µs", "5 µs"], "one power of ten alone is not an axis")
    #expect(Axis.linear(to: 8, .count).ticks(atMost: 3).map(\.label) == ["0", "4", "8"])
  }

  @Test("an axis of one value has a range, and its last step is its end")
  func single() {
    #expect(Axis.logarithmic(from: 10, to: 10, .duration).range == 10...20)
    #expect(Axis.logarithmic(from: 5, to: 5, .duration).range == 5...10)
    #expect(Axis.logarithmic(from: 2, to: 5, .duration).range == 2...5)
    #expect(Axis.logarithmic(from: 2.1, to: 5.1, .duration).range == 2...10)
    #expect(Axis.logarithmic(from: 0, to: 3, .duration).range == 1...5)
    #expect(Axis.logarithmic(from: .nan, to: .infinity, .duration).range == 1...2)
  }

  /// A panel from 10 px to 30 px, over four seconds. A second is 25 px wide, and a unit of two is 10 px high.
  private func plot(_ series: [TimeSeries], outages: [LoadOutage] = []) -> String {
    let panel = TimePlot.Panel(
      name: "p", quantity: .count, axis: .linear(to: 2, .count), series: series, height: 20)
    return TimePlot(moments: [0, 1, 2, 3, 4], end: 4, panels: [panel], outages: outages).drawing(in: frame).markup.text
  }

  @Test("a curve and the area below it are interrupted where nothing was measured")
  func curve() {
    let markup = plot([TimeSeries(name: "a", style: "s", kind: .area, values: [1, 2, nil, nil, 1])])
    #expect(markup.contains("<path class=\"s\" d=\"M0 40h.5h-.5l25-10M100 40h.5h-.5\"/>"), "\(markup)")
    #expect(
      markup.contains("<path class=\"s filled\" d=\"M0 50v-10l25-10v20zM100 50v-10v10z\"/>"), "\(markup)")
  }

  @Test("bars of one panel are stacked, and a single event is visible")
  func bars() {
    let markup = plot([
      TimeSeries(name: "a", style: "s", kind: .bars, values: [1, nil, nil, 0, nil]),
      TimeSeries(name: "b", style: "t", kind: .bars, values: [1, nil, 0.01, nil, 2]),
    ])
    #expect(markup.contains("<path class=\"s\" d=\"M0 50v-10h14v10z\"/>"), "\(markup)")
    #expect(
      markup.contains("<path class=\"t\" d=\"M0 40v-10h14v10zM43 50v-2h14v2zM86 50v-20h14v20z\"/>"), "\(markup)")
  }

  @Test("an outage is marked from half a step before its start to half a step after its end")
  func outage() {
    let outage = LoadOutage(1_600_000_000..<2_400_000_000, cause: "reset")
    let markup = plot(
      [TimeSeries(name: "a", style: "s", values: [1, 1, 1, 1, 1])], outages: [outage])
    #expect(markup.contains("<rect class=\"outage\" x=\"40\" y=\"30\" width=\"20\" height=\"20\"/>"), "\(markup)")
    let readings = markup.split(separator: "<title>").dropFirst().map { String($0.prefix { $0 != "<" }) }
    #expect(
      readings == ["0:00\na: 1", "0:01\na: 1", "0:02\noutage: reset\na: 1", "0:03\na: 1", "0:04\na: 1"], "\(readings)")
    let before = plot(
      [TimeSeries(name: "a", style: "s", values: [1, 1, 1, 1, 1])],
      outages: [LoadOutage(500_000_000..<1_500_000_000, cause: "reset")])
    #expect(before.matches(of: /outage: reset/).count == 1, "it touches the steps beside it, and is not in them")
  }

  @Test("the line of a percentile leads from its label to the axis, and each row of labels has its height")
  func marks() {
    func histogram(_ marks: [HistogramPlot.Mark]) -> PlotDrawing {
      HistogramPlot(
        runs: [.init(name: "r", style: "s", bins: [.init(range: 1e3..<1e6, count: 1)], marks: marks)], height: 50
      ).drawing(in: PlotFrame(width: 1000, left: 0, right: 900, mostTicks: 16, hasReadings: false))
    }
    let one = histogram([.init(name: "p50", value: 1e4)])
    // 28 above, a row of 16, the bars, 44 for the axis.
    #expect(one.height == 28 + 16 + 50 + 44)
    #expect(one.markup.text.contains("<path class=\"mark\" d=\"M300 5v89\"/>"), "\(one.markup.text)")
    #expect(
      one.markup.text.contains("<text class=\"note\" x=\"304\" y=\"14\" text-anchor=\"start\">p50 10.0 µs</text>"))
    // Too close for one row. The second line crosses the first label, and its own label is below it.
    let two = histogram([.init(name: "p90", value: 1.1e4), .init(name: "p50", value: 1e4)])
    #expect(two.height == 28 + 32 + 50 + 44)
    #expect(two.markup.text.contains("y=\"30\" text-anchor=\"start\">p90"), "\(two.markup.text)")
    // At the right end, a label is left of its line.
    let last = histogram([.init(name: "p99", value: 1e6)])
    #expect(last.markup.text.contains("x=\"896\" y=\"14\" text-anchor=\"end\">p99"), "\(last.markup.text)")
    #expect(histogram([]).height == 28 + 16 + 50 + 44)
  }
}
