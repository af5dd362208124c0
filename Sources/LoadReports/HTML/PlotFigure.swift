// What all plots of the page have in common: the frame, the axes, the words around them.
//
// Looked for before this was written: GNU plotutils (libplot, no release since 2009, no dark paper, no titles for
// screen readers), PLplot (Cairo and ten megabytes), ploticus, giza (draws in C, knows no histograms of its own),
// gnuplot and Matplotlib (programs of their own that a report would need at run time). SVG itself is the library here.

/// A plot with all that a person needs to read it.
struct PlotFigure {
  /// Unique on the page: what the title and the description are found by.
  let id: String
  let title: String
  /// A sentence that says how to read it.
  let reading: String
  /// What is to be seen, in words and numbers, for those who do not see it.
  let description: String
  let legend: [LegendEntry]
  /// The plot in a frame: the page has it twice, for a wide window and for a phone.
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

/// How wide a plot is, in its own pixels, and how much fits in it.
struct PlotFrame: Sendable {
  let width: Double
  /// Where the axis of time, or of delays, begins and ends.
  let left: Double
  let right: Double
  /// How many ticks with a label fit below it.
  let mostTicks: Int
  /// Whether a browser names the values at the mouse: there is none on a phone.
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

  /// Lines and numbers at the ticks of an upright axis, and its name above it.
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

  /// Numbers below the ticks of a level axis, and its name at its end.
  mutating func levelAxis(_ axis: Axis, named name: String, top: Double, bottom: Double) {
    var marks = SVGPath()
    marks.move(to: frame.left, bottom)
    marks.line(to: frame.right, bottom)
    for tick in axis.ticks(atMost: frame.mostTicks) {
      let x = frame.x(axis, tick.value)
      marks.move(to: x, bottom)
      marks.line(to: x, bottom + 4)
      // The last may stand at the very edge.
      text(tick.label, x: x, y: bottom + 18, anchor: x > frame.right - 12 ? "end" : "middle")
    }
    path(marks, style: "base")
    text(name, x: frame.right, y: bottom + 35, anchor: "end", style: "axis")
  }
}
