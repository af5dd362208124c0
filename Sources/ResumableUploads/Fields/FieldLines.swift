// The fields of a message, as this room sees them: names and values, nothing of who parsed them.

/// Field lines in order. Names compare without regard to case (RFC 9110, section 5.1).
package struct FieldLines: Equatable, Sendable, ExpressibleByDictionaryLiteral {
  package struct Line: Equatable, Sendable {
    package var name: String
    package var value: String

    package init(name: String, value: String) {
      self.name = name
      self.value = value
    }
  }

  package var lines: [Line]

  package init(_ lines: [Line] = []) { self.lines = lines }

  package init(dictionaryLiteral elements: (String, String)...) {
    lines = elements.map { Line(name: $0.0, value: $0.1) }
  }

  /// All values of that name, joined by commas as RFC 9110, section 5.2, allows; nil if there is none.
  package subscript(name: String) -> String? {
    var combined: String?
    for line in lines where Self.isSameName(line.name, name) {
      combined = combined.map { "\($0), \(line.value)" } ?? line.value
    }
    return combined
  }

  package mutating func append(_ name: String, _ value: String) { lines.append(Line(name: name, value: value)) }

  package func contains(_ name: String) -> Bool { self[name] != nil }

  /// The same without the fields of these names.
  package func without(_ names: [String]) -> FieldLines {
    FieldLines(lines.filter { line in !names.contains { Self.isSameName(line.name, $0) } })
  }

  /// Octet by octet, letters of ASCII alone folded: `lowercased()` would take the Kelvin sign for a k, and Swift's `==`
  /// takes texts for equal that are not the same octets.
  static func isSameName(_ a: String, _ b: String) -> Bool {
    // The lengths first: most names differ in them, and every message asks for many.
    guard a.utf8.count == b.utf8.count else { return false }
    // By index: `zip` takes a hundred instructions for each octet.
    let (a, b) = (a.utf8.span, b.utf8.span)
    for index in a.indices where a[index] != b[index] && lowercased(a[index]) != lowercased(b[index]) { return false }
    return true
  }

  private static func lowercased(_ octet: UInt8) -> UInt8 {
    (UInt8(ascii: "A")...UInt8(ascii: "Z")).contains(octet) ? octet | 0x20 : octet
  }
}
