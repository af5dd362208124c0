// HTML and SVG as a separate type, so that text from outside cannot become markup by mistake.
//
// A report contains text of others: the target's URL, host names, and error lines of a possibly hostile server. Every
// string that is interpolated into a `Markup` literal is escaped. Only another `Markup` is inserted unchanged.

/// A piece of HTML or SVG.
struct Markup: ExpressibleByStringInterpolation, Sendable, Equatable {
  private(set) var text: String

  init(stringLiteral text: String) { self.text = text }
  init(stringInterpolation: StringInterpolation) { text = stringInterpolation.text }
  private init(text: String) { self.text = text }

  static let empty: Markup = ""

  static func += (left: inout Markup, right: Markup) { left.text += right.text }

  struct StringInterpolation: StringInterpolationProtocol {
    fileprivate var text = ""

    init(literalCapacity: Int, interpolationCount: Int) { text.reserveCapacity(literalCapacity) }

    mutating func appendLiteral(_ literal: String) { text += literal }
    /// Text, in which everything that HTML could interpret is escaped. Valid in an element's content and in a quoted
    /// attribute.
    mutating func appendInterpolation(_ outside: String) { text += Markup.escaped(outside) }
    mutating func appendInterpolation(_ markup: Markup) { text += markup.text }
    mutating func appendInterpolation(_ pieces: [Markup]) { for piece in pieces { text += piece.text } }
    mutating func appendInterpolation(_ number: Int) { text += String(number) }
    /// A coordinate, in tenths of a pixel.
    mutating func appendInterpolation(at coordinate: Double) { text += SVGPath.tenths(coordinate) }
    mutating func appendInterpolation(_ path: SVGPath) { text += path.text }
  }

  /// The content of a `<script type="application/json">`.
  ///
  /// HTML does not unescape a script's content, which ends at `</`, or elsewhere within `<!--`. JSON has `<` only in
  /// strings, where it may be written as `\u003c` (RFC 8259, section 7).
  static func script(json: String) -> Markup {
    var text = ""
    text.reserveCapacity(json.utf8.count)
    for scalar in json.unicodeScalars {
      if scalar == "<" { text += "\\u003c" } else { text.unicodeScalars.append(scalar) }
    }
    return Markup(text: text)
  }

  private static func escaped(_ outside: String) -> String {
    var text = ""
    text.reserveCapacity(outside.utf8.count)
    for scalar in outside.unicodeScalars {
      switch scalar {
      case "&": text += "&amp;"
      case "<": text += "&lt;"
      case ">": text += "&gt;"
      case "\"": text += "&quot;"
      case "'": text += "&#39;"
      // Control characters, and marks that change the direction of the following text, could make the page show false
      // content.
      case "\u{0}"..."\u{8}", "\u{B}"..."\u{1F}", "\u{7F}"..."\u{9F}", "\u{200E}", "\u{200F}", "\u{202A}"..."\u{202E}",
        "\u{2066}"..."\u{2069}":
        text += "\u{FFFD}"
      default: text.unicodeScalars.append(scalar)
      }
    }
    return text
  }
}
