// The common parts of all plots of the page: the frame, the axes, and the texts around them.
//
// No plotting library is used. GNU plotutils has had no release since 2009, and has no dark mode and no titles for
// screen readers. PLplot requires Cairo and ten megabytes. giza draws in C, without histograms. ploticus, gnuplot and
// Matplotlib are separate programs that a report would need at run time. SVG itself is the library here.

/// A plot with everything that a reader needs.
struct PlotFigure {
  /// Unique on the page, for references to the title and the description.
  let id: String
  let title: String
  /// A sentence that explains how to read it.
  let reading: String
  /// The content of the plot in words and numbers, for those who cannot see it.
  let description: String
  let legend: [LegendEntry]
  /// The plot in a frame. The page has it twice, for a wide window and for a phone.
  let drawing: (PlotFrame) -> PlotDrawing

  struct LegendEntry {
    let style: String
    let label: String
  }

  var markup: Markup {
    let keys = legend.map { entry -> Markup in
      "<li><svg width=\"22\" height=\"10\" aria-hidden=\"true\"><path class=\"\(entry.style)\" d=\"M0 5h22\"/></svg>\(entry.label)</li>"
    }
    let (wide, narrow) = (drawing(.wide), drawing(.narrow))
    return """
      <figure id="\(id)">
      <figcaption><h2>\(title)</h2><p>\(reading)</p></figcaption>
      <ul class="legend">\(keys)</ul>
      <div class="plot"><svg class="wide" viewBox="0 0 \(at: PlotFrame.wide.width) \(at: wide.height)" role="img" aria-labelledby="\(id)-t \(id)-d">\
      <title id="\(id)-t">\(title)</title><desc id="\(id)-d">\(description)</desc>\(wide.markup)</svg>\
      <svg class="narrow" viewBox="0 0 \(at: PlotFrame.narrow.width) \(at: narrow.height)" role="img" aria-labelledby="\(id)-t \(id)-d">\
      \(narrow.markup)</svg></div>
      </figure>

      """
  }
}

/// The width of a plot in its own pixels, and how much fits in it.
struct PlotFrame: Sendable {
  let width: Double
  /// The left and right ends of the axis of time or delays.
  let left: Double
  let right: Double
  /// The maximum number of labelled ticks below it.
  let mostTicks: Int
  /// Whether a browser shows the values under the mouse pointer, which a phone does not have.
  let hasReadings: Bool

  static let wide = PlotFrame(width: 960, left: 78, right: 944, mostTicks: 16, hasReadings: true)
  static let narrow = PlotFrame(width: 360, left: 66, right: 350, mostTicks: 5, hasReadings: false)

  func x(_ axis: Axis, _ value: Double) -> Double { left + axis.position(value) * (right - left) }
}

/// The drawing itself, in pixels of its frame.
struct PlotDrawing {
  let frame: PlotFrame
  private(set) var markup: Markup = .empty
  var height: Double

  init(_ frame: PlotFrame, height: Double) { (self.frame, self.height) = (frame, height) }

  mutating func add(_ piece: Markup) { markup += piece }

  mutating func text(_ text: String, x: Double, y: Double, anchor: String, style: String = "tick") {
    add("<text class=\"\(style)\" x=\"\(at: x)\" y=\"\(at: y)\" text-anchor=\"\(anchor)\">\(text)</text>")
  }

  mutating func path(_ path: SVGPath, style: String) {
    if !path.text.isEmpty { add("<path class=\"\(style)\" d=\"\(path)\"/>") }
  }

  /// Draws the lines and numbers at the ticks of a vertical axis, and its name above it.
  mutating func uprightAxis(_ axis: Axis, named name: String, top: Double, bottom: Double) {
    text(name, x: frame.left, y: top - 9, anchor: "start", style: "axis")
    var grid = SVGPath()
    for tick in axis.ticks {
      let y = bottom - axis.position(tick.value) * (bottom - top)
      grid.move(to: frame.left, y)
      grid.line(to: frame.right, y)
      text(tick.label, x: frame.left - 8, y: y + 4, anchor: "end")
    }
    path(grid, style: "grid")
  }

  /// Draws the numbers below the ticks of a horizontal axis, and its name at its end.
  mutating func levelAxis(_ axis: Axis, named name: String, top: Double, bottom: Double) {
    var marks = SVGPath()
    marks.move(to: frame.left, bottom)
    marks.line(to: frame.right, bottom)
    for tick in axis.ticks(atMost: frame.mostTicks) {
      let x = frame.x(axis, tick.value)
      marks.move(to: x, bottom)
      marks.line(to: x, bottom + 4)
      // The last one may be at the very edge.
      text(tick.label, x: x, y: bottom + 18, anchor: x > frame.right - 12 ? "end" : "middle")
    }
    path(marks, style: "base")
    text(name, x: frame.right, y: bottom + 35, anchor: "end", style: "axis")
  }
}
