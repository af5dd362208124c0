// The distribution of delays: bars over a logarithmic axis, with marked percentiles.

internal import Glibc

/// A histogram of durations in bins of equal width on a logarithmic axis.
struct HistogramPlot {
  /// The number of values in a range, in nanoseconds.
  struct Bin: Sendable, Equatable {
    let range: Range<Double>
    let count: UInt64
  }

  struct Mark {
    let name: String
    let value: Double
  }

  /// The counts of one run, which may be one of two that are compared.
  struct Run {
    let name: String
    let style: String
    let bins: [Bin]
    let marks: [Mark]

    var count: UInt64 { bins.reduce(0) { $0 + $1.count } }
  }

  /// Filled bars for one run, outlines for several.
  let runs: [Run]
  var height = 190.0

  /// The width of a bar: 24 per power of ten, ten per cent each.
  static let binsPerDecade = 24.0

  /// Sorts a histogram's buckets, of one per cent each, into the plot's bins. A bucket across a border goes where its
  /// middle is.
  static func bins(of histogram: LatencyHistogram) -> [Bin] {
    var counts: [Int: UInt64] = [:]
    for bar in histogram.bars {
      // The axis begins at a nanosecond, and nothing is quicker.
      let middle = max(1, Double(bar.lower + bar.upper) / 2)
      counts[Int((log10(middle) * binsPerDecade).rounded(.down)), default: 0] += bar.count
    }
    return counts.sorted { $0.key < $1.key }.map { index, count in
      Bin(range: pow(10, Double(index) / binsPerDecade)..<pow(10, Double(index + 1) / binsPerDecade), count: count)
    }
  }

  func drawing(in frame: PlotFrame) -> PlotDrawing {
    let all = runs.flatMap(\.bins)
    guard let low = all.map(\.range.lowerBound).min(), let high = all.map(\.range.upperBound).max() else {
      var drawing = PlotDrawing(frame, height: 60)
      drawing.text(
        "nothing was measured", x: (frame.left + frame.right) / 2, y: 34, anchor: "middle", style: "note")
      return drawing
    }
    let axis = Axis.logarithmic(from: low, to: high, .duration)
    let share = Axis.linear(to: runs.map(highestShare).max() ?? 1, .share)
    let names = placed(on: axis, in: frame)
    let top = 28 + 16 * Double(1 + (names.map(\.row).max() ?? 0))
    let bottom = top + height
    var drawing = PlotDrawing(frame, height: bottom + 44)
    drawing.uprightAxis(share, named: "share of all messages in each bar", top: top, bottom: bottom)
    for run in runs { draw(run, &drawing, axis, share, top: top, bottom: bottom) }
    drawing.levelAxis(axis, named: "delay (logarithmic)", top: top, bottom: bottom)
    draw(names, &drawing, bottom: bottom)
    return drawing
  }

  private func highestShare(_ run: Run) -> Double {
    Double(run.bins.map(\.count).max() ?? 0) / Double(max(1, run.count))
  }

  /// The edges and the height of a bar.
  private struct Bar {
    let from: Double
    let to: Double
    let top: Double
  }

  private func draw(
    _ run: Run, _ drawing: inout PlotDrawing, _ axis: Axis, _ share: Axis, top: Double, bottom: Double
  ) {
    let total = Double(max(1, run.count))
    let bars = run.bins.map { bin in
      // A single slow message stays visible, however many were quick.
      Bar(
        from: drawing.frame.x(axis, bin.range.lowerBound), to: drawing.frame.x(axis, bin.range.upperBound),
        top: min(bottom - 1.5, bottom - share.position(Double(bin.count) / total) * (bottom - top)))
    }
    guard runs.count == 1 else { return drawing.path(outline(bars, bottom), style: run.style) }
    var path = SVGPath()
    for bar in bars {
      path.move(to: bar.from, bottom)
      path.line(to: bar.from, bar.top)
      path.line(to: bar.to - 1, bar.top)
      path.line(to: bar.to - 1, bottom)
      path.close()
    }
    drawing.path(path, style: "\(run.style) solid")
    guard drawing.frame.hasReadings else { return }
    for (bin, bar) in zip(run.bins, bars) {
      drawing.add(
        "<rect class=\"strip\" x=\"\(at: bar.from)\" y=\"\(at: top)\" width=\"\(at: bar.to - bar.from)\" height=\"\(at: bottom - top)\"><title>\(words(bin, of: total))</title></rect>"
      )
    }
  }

  private func words(_ bin: Bin, of total: Double) -> String {
    let (duration, count, share) = (AxisQuantity.duration, AxisQuantity.count, AxisQuantity.share)
    return "\(duration.text(bin.range.lowerBound)) to \(duration.text(bin.range.upperBound))\n"
      + "\(count.text(Double(bin.count))) messages, \(share.text(Double(bin.count) / total))"
  }

  /// Adjacent bars share an edge. If there is a gap between two bars, the line goes down to the axis.
  private func outline(_ bars: [Bar], _ bottom: Double) -> SVGPath {
    var path = SVGPath()
    var end: Double?
    for bar in bars {
      if let last = end, bar.from - last > 0.5 {
        path.line(to: last, bottom)
        end = nil
      }
      if end == nil { path.move(to: bar.from, bottom) }
      path.line(to: bar.from, bar.top)
      path.line(to: bar.to, bar.top)
      end = bar.to
    }
    if let end { path.line(to: end, bottom) }
    return path
  }

  // MARK: Percentiles

  /// The position of a percentile's name: beside its line, in the first row above the bars with enough space.
  private struct PlacedMark {
    let text: String
    let x: Double
    let isRightOfLine: Bool
    let row: Int
  }

  private func placed(on axis: Axis, in frame: PlotFrame) -> [PlacedMark] {
    // The end of the used part of each row, from left to right.
    var ends: [Double] = []
    return runs.flatMap(\.marks).sorted { $0.value < $1.value }.map { mark in
      let x = frame.x(axis, mark.value)
      let text = "\(mark.name) \(AxisQuantity.duration.text(mark.value))"
      // A generous estimate, because the reader's font is unknown.
      let width = Double(text.count) * 7.2
      let isRightOfLine = x + width + 4 < frame.right
      let start = isRightOfLine ? x + 4 : x - width - 4
      // Below every name that its line would otherwise cross.
      let covered = ends.lastIndex { $0 > x }.map { $0 + 1 } ?? 0
      let row = ends.indices.first { $0 >= covered && ends[$0] < start } ?? ends.count
      if row == ends.count { ends.append(0) }
      ends[row] = start + width + 4
      return PlacedMark(text: text, x: x, isRightOfLine: isRightOfLine, row: row)
    }
  }

  /// Draws the names after all lines, so that no line crosses a name.
  private func draw(_ marks: [PlacedMark], _ drawing: inout PlotDrawing, bottom: Double) {
    func y(_ mark: PlacedMark) -> Double { 14 + 16 * Double(mark.row) }
    var lines = SVGPath()
    for mark in marks {
      lines.move(to: mark.x, y(mark) - 9)
      lines.line(to: mark.x, bottom)
    }
    drawing.path(lines, style: "mark")
    for mark in marks {
      drawing.text(
        mark.text, x: mark.isRightOfLine ? mark.x + 4 : mark.x - 4, y: y(mark),
        anchor: mark.isRightOfLine ? "start" : "end", style: "note")
    }
  }
}
