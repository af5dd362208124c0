// Curves over the time of a run, in panels below each other, so that simultaneous events are aligned.

/// One curve: a value for each moment, or nil if there was nothing to measure.
struct TimeSeries {
  enum Kind: Sendable {
    case line
    /// A line with the area below it filled.
    case area
    /// A bar for each moment. The bars of one panel are stacked.
    case bars
  }

  let name: String
  /// The class that defines its colour and its stroke.
  let style: String
  var kind: Kind = .line
  /// One value for each of the plot's ``TimePlot/moments``.
  let values: [Double?]
}

struct TimePlot {
  struct Panel {
    let name: String
    let quantity: AxisQuantity
    let axis: Axis
    let series: [TimeSeries]
    /// A horizontal line with a name, such as a planned or a permitted value.
    var limits: [(name: String, value: Double)] = []
    var height = 170.0
  }

  /// The moments of all curves, in seconds since the start, ascending.
  let moments: [Double]
  /// How long the run took, in seconds.
  let end: Double
  let panels: [Panel]
  /// The end of the ramp, before which not all streams were live.
  var rampEnd: Double?
  /// When at least one stream was in an outage, and why. Drawn as a band over all panels.
  var outages: [LoadOutage] = []
  /// Whether the first panel explains the shade over the ramp.
  var namesRamp = false

  /// The space above each panel for its name, and below the last one for the clock.
  private static let above = 30.0
  private static let below = 44.0

  func drawing(in frame: PlotFrame) -> PlotDrawing {
    let height = panels.reduce(Self.below) { $0 + Self.above + $1.height }
    var drawing = PlotDrawing(frame, height: height)
    let time = Axis.time(to: end)
    var top = 0.0
    for panel in panels {
      top += Self.above
      draw(panel, &drawing, time, top: top, bottom: top + panel.height)
      top += panel.height
    }
    drawing.levelAxis(time, named: "time since the start, min:s", top: Self.above, bottom: top)
    if frame.hasReadings { drawing.add(readings(frame, time, bottom: top)) }
    return drawing
  }

  private func draw(_ panel: Panel, _ drawing: inout PlotDrawing, _ time: Axis, top: Double, bottom: Double) {
    let frame = drawing.frame
    if let rampEnd, rampEnd > 0 {
      let width = frame.x(time, rampEnd) - frame.left
      drawing.add(
        "<rect class=\"ramp\" x=\"\(at: frame.left)\" y=\"\(at: top)\" width=\"\(at: width)\" height=\"\(at: bottom - top)\"/>"
      )
      if width > 60, namesRamp, top == Self.above {
        drawing.text("ramp", x: frame.left + 6, y: top + 14, anchor: "start", style: "note")
      }
    }
    for outage in outages {
      let (from, to) = (frame.x(time, Double(outage.start) / 1e9), frame.x(time, Double(outage.end) / 1e9))
      // So that a short one stays visible in a run of hours.
      drawing.add(
        "<rect class=\"outage\" x=\"\(at: from)\" y=\"\(at: top)\" width=\"\(at: max(2, to - from))\" height=\"\(at: bottom - top)\"/>"
      )
    }
    drawing.uprightAxis(panel.axis, named: panel.name, top: top, bottom: bottom)
    for limit in panel.limits {
      let y = bottom - panel.axis.position(limit.value) * (bottom - top)
      var line = SVGPath()
      line.move(to: frame.left, y)
      line.line(to: frame.right, y)
      drawing.path(line, style: "limit")
      drawing.text(limit.name, x: frame.right - 4, y: y - 5, anchor: "end", style: "note")
    }
    var base = [Double](repeating: 0, count: moments.count)
    for series in panel.series {
      switch series.kind {
      case .bars:
        drawing.path(bars(series, &base, frame, panel.axis, time, top: top, bottom: bottom), style: series.style)
      case .line, .area:
        let (line, area) = curve(series, frame, panel.axis, time, top: top, bottom: bottom)
        if series.kind == .area { drawing.path(area, style: "\(series.style) filled") }
        drawing.path(line, style: series.style)
      }
    }
  }

  private func curve(_ series: TimeSeries, _ frame: PlotFrame, _ axis: Axis, _ time: Axis, top: Double, bottom: Double)
    -> (line: SVGPath, area: SVGPath)
  {
    var line = SVGPath()
    var area = SVGPath()
    var lastX: Double?
    for (moment, value) in zip(moments, series.values) {
      guard let value else {
        // No line crosses a gap.
        if let lastX {
          area.line(to: lastX, bottom)
          area.close()
        }
        lastX = nil
        continue
      }
      let x = frame.x(time, moment)
      let y = bottom - axis.position(value) * (bottom - top)
      if lastX == nil {
        line.move(to: x, y)
        area.move(to: x, bottom)
        // A value between two gaps has no line, so it becomes a dot of half a pixel, round by its stroke.
        line.line(to: x + 0.5, y)
      }
      line.line(to: x, y)
      area.line(to: x, y)
      lastX = x
    }
    if let lastX {
      area.line(to: lastX, bottom)
      area.close()
    }
    return (line, area)
  }

  private func bars(
    _ series: TimeSeries, _ base: inout [Double], _ frame: PlotFrame, _ axis: Axis, _ time: Axis, top: Double,
    bottom: Double
  ) -> SVGPath {
    var path = SVGPath()
    let step = (frame.right - frame.left) / Double(max(1, moments.count))
    let width = max(1.2, min(14, step - 1))
    for (index, value) in series.values.enumerated() {
      guard let value, value > 0 else { continue }
      let low = bottom - axis.position(base[index]) * (bottom - top)
      // A single event stays visible, however high the axis is.
      let high = min(low - 2, bottom - axis.position(base[index] + value) * (bottom - top))
      let x = min(frame.right - width, max(frame.left, frame.x(time, moments[index]) - width / 2))
      path.move(to: x, low)
      path.line(to: x, high)
      path.line(to: x + width, high)
      path.line(to: x + width, low)
      path.close()
      base[index] += value
    }
    return path
  }

  // MARK: Readings

  /// How many strips show their values under the mouse pointer.
  private static let strips = 60

  /// Strips over all panels with titles that a browser shows under the mouse pointer, without a script.
  private func readings(_ frame: PlotFrame, _ time: Axis, bottom: Double) -> Markup {
    guard !moments.isEmpty else { return .empty }
    let stride = max(1, (moments.count + Self.strips - 1) / Self.strips)
    var markup = Markup.empty
    for first in Swift.stride(from: 0, to: moments.count, by: stride) {
      let last = min(first + stride, moments.count) - 1
      let from = first == 0 ? frame.left : frame.x(time, (moments[first] + moments[first - 1]) / 2)
      let to =
        last == moments.count - 1
        ? frame.right : frame.x(time, (moments[last] + moments[last + 1]) / 2)
      markup +=
        "<rect class=\"strip\" x=\"\(at: from)\" y=\"\(at: Self.above)\" width=\"\(at: to - from)\" height=\"\(at: bottom - Self.above)\"><title>\(words(first, last))</title></rect>"
    }
    return markup
  }

  /// The worst value of each curve within the strip, with its name.
  private func words(_ first: Int, _ last: Int) -> String {
    let clock = AxisQuantity.seconds
    let when =
      first == last
      ? clock.text(moments[first]) : clock.text(moments[first]) + " to " + clock.text(moments[last])
    var lines = [when]
    let half = moments.count > 1 ? (moments[1] - moments[0]) / 2 : end
    let (from, to) = (Int64((moments[first] - half) * 1e9), Int64((moments[last] + half) * 1e9))
    for outage in outages where outage.start < to && outage.end > from {
      lines.append("outage: \(outage.cause)")
    }
    for panel in panels {
      for series in panel.series {
        let values = series.values[first...last].compactMap { $0 }
        let value = series.kind == .bars ? values.reduce(0, +) : values.max()
        lines.append("\(series.name): \(value.map(panel.quantity.text) ?? "–")")
      }
    }
    return lines.joined(separator: "\n")
  }
}
