// Nested JSON (RFC 8259). `JSONLines` supports only flat objects; its quoting is used here too.

internal import JSONLines

/// One value of a document, its members in their order.
package indirect enum JSONValue: Equatable, Sendable {
  case null
  case bool(Bool)
  case integer(Int64)
  case number(Double)
  case string(String)
  case array([JSONValue])
  case object([Member])

  package struct Member: Equatable, Sendable {
    package var key: String
    package var value: JSONValue

    package init(key: String, value: JSONValue) {
      self.key = key
      self.value = value
    }
  }

  /// The kind of the value, for messages.
  package var kind: String {
    switch self {
    case .null: "null"
    case .bool(let value): value ? "true" : "false"
    case .integer(let value): String(value)
    case .number(let value): String(value)
    case .string(let text): JSONLine.quote(text)
    case .array: "a list"
    case .object: "an object"
    }
  }

  /// The value as text that ends with a line feed. Members of the first two levels, and each object in a list, have
  /// their own lines, so that two reports can be compared line by line.
  package var text: String {
    var text = ""
    write(to: &text, depth: 0)
    return text + "\n"
  }

  private func write(to text: inout String, depth: Int) {
    switch self {
    case .null: text += "null"
    case .bool(let value): text += value ? "true" : "false"
    case .integer(let value): text += String(value)
    // The shortest digits that give the same number again; JSON has no others.
    case .number(let value): text += value.isFinite ? String(value) : "null"
    case .string(let value): text += JSONLine.quote(value)
    case .array(let values):
      let holdsObjects = values.contains { if case .object = $0 { true } else { false } }
      Self.write("[", values, "]", to: &text, depth: depth, breaks: holdsObjects) { value, text in
        value.write(to: &text, depth: depth + (holdsObjects ? 2 : 1))
      }
    case .object(let members):
      Self.write("{", members, "}", to: &text, depth: depth, breaks: depth < 2) { member, text in
        text += JSONLine.quote(member.key) + ": "
        member.value.write(to: &text, depth: depth + 1)
      }
    }
  }

  private static func write<Element>(
    _ opening: String, _ elements: [Element], _ closing: String, to text: inout String, depth: Int, breaks: Bool,
    _ write: (Element, inout String) -> Void
  ) {
    let breaks = breaks && !elements.isEmpty
    let indentation = "\n" + String(repeating: "  ", count: depth)
    text += opening
    for (index, element) in elements.enumerated() {
      if index > 0 { text += breaks ? "," : ", " }
      if breaks { text += indentation + "  " }
      write(element, &text)
    }
    if breaks { text += indentation }
    text += closing
  }
}
