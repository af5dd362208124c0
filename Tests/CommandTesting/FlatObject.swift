// Reads the command's JSON lines: one flat object per line (RFC 8259).

/// One event: `{"event":"begun","offset":0,…}`. Lists are kept as their text.
package struct FlatObject: Sendable, CustomStringConvertible {
  package enum Value: Equatable, Sendable {
    case text(String)
    /// A number, `true`, `false`, `null` or a list, as written.
    case literal(String)
  }

  package let values: [String: Value]
  package let description: String

  package var event: String { text("event") ?? "" }

  package func text(_ key: String) -> String? {
    if case .text(let text)? = values[key] { text } else { nil }
  }

  package func integer(_ key: String) -> Int? {
    if case .literal(let text)? = values[key] { Int(text) } else { nil }
  }

  /// A number with three decimals, multiplied by a thousand.
  package func thousandths(_ key: String) -> Int? {
    guard case .literal(let text)? = values[key] else { return nil }
    return Double(text).map { Int(($0 * 1000).rounded()) }
  }

  /// Nil if the line is not a complete object.
  package init?(_ line: some StringProtocol) {
    var rest = Substring(line)
    var values: [String: Value] = [:]
    guard rest.popFirst() == "{" else { return nil }
    while true {
      guard let key = Self.string(&rest), rest.popFirst() == ":" else { return nil }
      if rest.first == "\"" {
        guard let text = Self.string(&rest) else { return nil }
        values[key] = .text(text)
      } else {
        let isList = rest.first == "["
        let end =
          isList ? rest.firstIndex(of: "]").map { rest.index(after: $0) } : rest.firstIndex { $0 == "," || $0 == "}" }
        guard let end else { return nil }
        values[key] = .literal(String(rest[..<end]))
        rest = rest[end...]
      }
      switch rest.popFirst() {
      case ",": continue
      case "}" where rest.isEmpty:
        self.values = values
        description = String(line)
        return
      default: return nil
      }
    }
  }

  /// The string at the front of `rest`, unescaped.
  private static func string(_ rest: inout Substring) -> String? {
    guard rest.popFirst() == "\"" else { return nil }
    var units: [UInt16] = []
    while let character = rest.popFirst() {
      if character == "\"" { return String(decoding: units, as: UTF16.self) }
      guard character == "\\" else {
        units += character.utf16
        continue
      }
      switch rest.popFirst() {
      case "u":
        guard let unit = UInt16(rest.prefix(4), radix: 16) else { return nil }
        units.append(unit)
        rest = rest.dropFirst(4)
      case let escaped? where escaped == "\"" || escaped == "\\": units += escaped.utf16
      default: return nil
      }
    }
    return nil
  }
}
