// The meaning of a structured field in a notation that is independent of the serializer.

@testable import HTTPMessages

/// The notation of `Vectors/structured-fields.txt`, which explains it.
enum FieldNotation {
  static func of(_ item: Item) -> String { of(item.value) + of(item.parameters) }

  static func of(_ dictionary: StructuredDictionary) -> String {
    dictionary.members.map { member in
      switch member.value {
      case .item(let item): "\(member.key)=\(of(item))"
      case .innerList(let items, let parameters):
        "\(member.key)=[\(items.map { of($0) }.joined(separator: " "))]\(of(parameters))"
      }
    }.joined(separator: " & ")
  }

  private static func of(_ value: BareItem) -> String {
    switch value {
    case .integer(let value): String(value)
    case .decimal(let thousandths): "\(thousandths)m"
    case .string(let text): "'\(escaped(text))'"
    case .token(let text): "token:\(text)"
    case .bytes(let bytes): "hex:" + bytes.map { hex($0) }.joined()
    case .boolean(let value): String(value)
    case .date(let seconds): "date:\(seconds)"
    case .displayString(let text): "text:'\(escaped(text))'"
    }
  }

  private static func of(_ parameters: [Parameter]) -> String {
    parameters.isEmpty ? "" : "{" + parameters.map { "\($0.key)=\(of($0.value))" }.joined(separator: ",") + "}"
  }

  private static func escaped(_ text: String) -> String {
    text.utf8.map { octet in
      (0x20...0x7e).contains(octet) && octet != UInt8(ascii: "\\") && octet != UInt8(ascii: "'")
        ? String(Unicode.Scalar(octet)) : "\\x" + hex(octet)
    }.joined()
  }

  private static func hex(_ octet: UInt8) -> String {
    let digits = String(octet, radix: 16)
    return digits.count < 2 ? "0" + digits : digits
  }

  /// The text for `\xNN` and plain characters; nil for an invalid escape.
  static func unescaped(_ notation: Substring) -> String? {
    var octets: [UInt8] = []
    var rest = Array(notation.utf8)[...]
    while let octet = rest.popFirst() {
      if octet != UInt8(ascii: "\\") {
        octets.append(octet)
        continue
      }
      let digits = rest.dropFirst().prefix(2)
      guard rest.first == UInt8(ascii: "x"), digits.count == 2,
        let value = UInt8(String(decoding: digits, as: UTF8.self), radix: 16)
      else { return nil }
      octets.append(value)
      rest = rest.dropFirst(3)
    }
    return String(decoding: octets, as: UTF8.self)
  }
}
