// A path's data in a compact form, because a report of ten minutes has some ten thousand points.

/// The `d` attribute of an SVG path (SVG 2, section 9.3): absolute moves, relative lines, tenths of a pixel.
struct SVGPath: Sendable, Equatable {
  private(set) var text = ""
  /// The position of the pen, in integer tenths so that rounding errors do not add up.
  private var pen = (x: 0, y: 0)

  static func == (left: SVGPath, right: SVGPath) -> Bool { left.text == right.text }

  mutating func move(to x: Double, _ y: Double) {
    pen = (Self.whole(x), Self.whole(y))
    text += "M" + Self.tenths(pen.x) + Self.separated(pen.y)
  }

  mutating func line(to x: Double, _ y: Double) {
    let next = (x: Self.whole(x), y: Self.whole(y))
    let (dx, dy) = (next.x - pen.x, next.y - pen.y)
    pen = next
    if dx == 0 && dy == 0 { return }
    if dy == 0 {
      text += "h" + Self.tenths(dx)
    } else if dx == 0 {
      text += "v" + Self.tenths(dy)
    } else {
      text += "l" + Self.tenths(dx) + Self.separated(dy)
    }
  }

  mutating func close() { text += "z" }

  /// The separator before a further number. A minus sign already separates.
  private static func separated(_ tenths: Int) -> String { (tenths < 0 ? "" : " ") + Self.tenths(tenths) }

  private static func whole(_ coordinate: Double) -> Int { Int((coordinate * 10).rounded()) }

  private static func tenths(_ value: Int) -> String {
    let magnitude = value.magnitude
    let sign = value < 0 ? "-" : ""
    if magnitude % 10 == 0 { return sign + String(magnitude / 10) }
    return sign + (magnitude < 10 ? "" : String(magnitude / 10)) + "." + String(magnitude % 10)
  }

  /// A coordinate in SVG's notation: `12`, `12.5`, `-.5`.
  static func tenths(_ coordinate: Double) -> String { tenths(whole(coordinate)) }
}
