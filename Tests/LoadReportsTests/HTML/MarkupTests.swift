// Text from outside stays text, and paths have the right points.

import PropertyTesting
import Testing

@testable import LoadReports

@Suite("HTML and SVG as values")
struct MarkupTests {
  static let hostile =
    "</title></script><script>alert(\"1\")</script><img src=x onerror='alert(2)'> & \u{202E}\u{0}\u{1B}[2J"

  @Test("text within markup is escaped, in content and in attributes, and cannot change the text direction after it")
  func text() {
    let markup: Markup = "<p title=\"\(Self.hostile)\">\(Self.hostile)</p>"
    #expect(markup.text.count { $0 == "<" } == 2 && markup.text.count { $0 == "\"" } == 2)
    #expect(!markup.text.contains("'") && !markup.text.contains("\u{202E}") && !markup.text.contains("\u{0}"))
    #expect(markup.text.contains("&lt;img src=x onerror=&#39;alert(2)&#39;&gt; &amp; "))
    let piece: Markup = "<b>\("1 < 2")</b>"
    #expect(("<i>\(piece)</i>" as Markup).text == "<i><b>1 &lt; 2</b></i>", "markup is not escaped twice")
  }

  @Test("JSON within a script cannot end the script, and keeps its meaning")
  func script() {
    let script = Markup.script(json: #"{"a":"</script><!--<script>","b":1}"#)
    #expect(script.text == #"{"a":"\u003c/script>\u003c!--\u003cscript>","b":1}"#)
  }

  @Test("a path's relative steps deviate at most a twentieth of a pixel from every point", arguments: Seed.several(20))
  func path(_ seed: Seed) {
    var random = seed.generator
    var path = SVGPath()
    var points: [(Double, Double)] = []
    for index in 0..<200 {
      let point = (Double.random(in: -50...1000, using: &random), Double.random(in: 0...3, using: &random))
      if index == 0 { path.move(to: point.0, point.1) } else { path.line(to: point.0, point.1) }
      points.append(point)
    }
    let found = Self.points(of: path.text)
    // A zero step is omitted: neighbours closer than a tenth may be one point or two.
    var position = 0
    for point in points {
      if position + 1 < found.count, distance(found[position + 1], point) < distance(found[position], point) {
        position += 1
      }
      #expect(distance(found[position], point) < 0.11, "\(path.text)")
    }
    #expect(position == found.count - 1)
  }

  @Test("coordinates are as short as possible")
  func coordinates() {
    var path = SVGPath()
    path.move(to: 12, 0.5)
    path.line(to: 12.5, 0.5)
    path.line(to: 12.5, -3)
    path.line(to: 12.5, -3.04)
    path.line(to: 13.5, -2)
    path.close()
    #expect(path.text == "M12 .5h.5v-3.5l1 1z")
  }

  private func distance(_ a: (Double, Double), _ b: (Double, Double)) -> Double { max(abs(a.0 - b.0), abs(a.1 - b.1)) }

  /// The points of a path of `M`, `l`, `h` and `v`.
  static func points(of path: String) -> [(Double, Double)] {
    var points: [(Double, Double)] = []
    var rest = Substring(path)
    func number() -> Double {
      if rest.first == " " { rest.removeFirst() }
      var digits = rest.first == "-" ? String(rest.removeFirst()) : ""
      while let next = rest.first, next.isNumber || next == "." { digits.append(rest.removeFirst()) }
      return Double(digits.replacing("-.", with: "-0.")) ?? .nan
    }
    while let command = rest.popFirst() {
      let last = points.last ?? (0, 0)
      switch command {
      case "M": points.append((number(), number()))
      case "l": points.append((last.0 + number(), last.1 + number()))
      case "h": points.append((last.0 + number(), last.1))
      case "v": points.append((last.0, last.1 + number()))
      default: break
      }
    }
    return points
  }
}
