// How often which delay was measured: bars over a logarithmic axis, with the percentiles marked.

internal import Glibc

/// A histogram of durations in bins of equal width on a logarithmic axis.
struct HistogramPlot {
  /// Values counted within a range, in nanoseconds.
  struct Bin: Sendable, Equatable {
    let range: Range<Double>
    let count: UInt64
  }

  struct Mark {
    let name: String
    let value: Double
  }

  /// Whose counts these are: one run, or one of two that are compared.
  struct Run {
    let name: String
    let style: String
    let bins: [Bin]
    let marks: [Mark]

    var count: UInt64 { bins.reduce(0) { $0 + $1.count } }
  }

  /// Filled bars when there is one, outlines when there are more.
  let runs: [Run]
  var height = 190.0

  /// How wide a bar is: 24 for each power of ten, ten per cent each.
  static let binsPerDecade = 24.0

  /// Puts a histogram's buckets, of one per cent each, into those of the plot; one across a border goes where its middle is.
  static func bins(of histogram: LatencyHistogram) -> [Bin] {
    var counts: [Int: UInt64] = [:]
    for bar in histogram.bars {
      // Nothing is quicker than a nanosecond, which is where the axis begins.
      let middle = max(1, Double(bar.lower + bar.upper) / 2)
      counts[Int((log10(middle) * binsPerDecade).rounded(.down)), default: 0] += bar.count
    }
    return counts.sorted { $0.key < $1.key }.map { index, count in
      Bin(range: pow(10, Double(index) / binsPerDecade)..<pow(10, Double(index + 1) / binsPerDecade), count: count)
    }
  }

  var drawing: PlotDrawing {
    let top = 28.0 + 16 * Double(rows)
    let bottom = top + height
    var drawing = PlotDrawing(height: bottom + 44)
    let all = runs.flatMap(\.bins)
    guard let low = all.map(\.range.lowerBound).min(), let high = all.map(\.range.upperBound).max() else {
      drawing.text(
        "nothing was measured", x: (PlotDrawing.left + PlotDrawing.right) / 2, y: bottom - height / 2,
        anchor: "middle", style: "note")
      return drawing
    }
    let axis = Axis.logarithmic(from: low, to: high, .duration)
    let share = Axis.linear(to: runs.map(highestShare).max() ?? 1, .share)
    drawing.uprightAxis(share, named: "share of all messages in each bar", top: top, bottom: bottom)
    for run in runs { draw(run, &drawing, axis, share, top: top, bottom: bottom) }
    drawing.levelAxis(axis, named: "delay (logarithmic)", top: top, bottom: bottom)
    drawMarks(&drawing, axis, top: top, bottom: bottom)
    return drawing
  }

  private func highestShare(_ run: Run) -> Double {
    Double(run.bins.map(\.count).max() ?? 0) / Double(max(1, run.count))
  }

  private func draw(
    _ run: Run, _ drawing: inout PlotDrawing, _ axis: Axis, _ share: Axis, top: Double, bottom: Double
  ) {
    var path = SVGPath()
    var readings = Markup.empty
    let total = Double(max(1, run.count))
    for bin in run.bins {
      let (from, to) = (PlotDrawing.x(axis, bin.range.lowerBound), PlotDrawing.x(axis, bin.range.upperBound))
      // A single slow message is seen, however many were quick.
      let high = min(bottom - 1.5, bottom - share.position(Double(bin.count) / total) * (bottom - top))
      path.move(to: from, bottom)
      path.line(to: from, high)
      path.line(to: to - (runs.count == 1 ? 1 : 0), high)
      path.line(to: to - (runs.count == 1 ? 1 : 0), bottom)
      if runs.count == 1 { path.close() }
      let duration = Quantity.duration
      let words =
        "\(duration.text(bin.range.lowerBound)) to \(duration.text(bin.range.upperBound))\n"
        + "\(Quantity.count.text(Double(bin.count))) messages, \(Quantity.share.text(Double(bin.count) / total))"
      readings +=
        "<rect class=\"strip\" x=\"\(at: from)\" y=\"\(at: top)\" width=\"\(at: to - from)\" height=\"\(at: bottom - top)\"><title>\(words)</title></rect>"
    }
    drawing.path(path, style: runs.count == 1 ? "\(run.style) solid" : run.style)
    if runs.count == 1 { drawing.add(readings) }
  }

  // MARK: Percentiles

  /// Rows of names above the bars, so that percentiles close to each other can both be read.
  private var rows: Int { max(1, runs.reduce(0) { $0 + $1.marks.count } > 3 ? 3 : 1) }

  private func drawMarks(_ drawing: inout PlotDrawing, _ axis: Axis, top: Double, bottom: Double) {
    var ends = [Double](repeating: -.infinity, count: rows)
    var lines = SVGPath()
    // After all lines, so that none of them crosses a name.
    var names: [(text: String, x: Double, y: Double, anchor: String)] = []
    for run in runs {
      for mark in run.marks {
        let x = PlotDrawing.x(axis, mark.value)
        let label = "\(mark.name) \(Quantity.duration.text(mark.value))"
        // By the eye: no measure of the font can be had here.
        let width = Double(label.count) * 6.6
        let isLeft = x + width + 4 < PlotDrawing.right
        let start = isLeft ? x + 3 : x - width - 3
        let row = ends.firstIndex { $0 < start } ?? ends.indices.min { ends[$0] < ends[$1] } ?? 0
        ends[row] = start + width + 6
        let y = 14 + 16 * Double(row)
        lines.move(to: x, y - 9)
        lines.line(to: x, bottom)
        names.append((label, isLeft ? x + 3 : x - 3, y, isLeft ? "start" : "end"))
      }
    }
    drawing.path(lines, style: "mark")
    for name in names { drawing.text(name.text, x: name.x, y: name.y, anchor: name.anchor, style: "note") }
  }
}
