// From structured fields to text (RFC 9651, section 4.1).

extension BareItem {
  /// The item's text; nil for a value that structured fields cannot hold.
  package var serialized: String? {
    switch self {
    case .integer(let value): return Self.isInRange(value) ? String(value) : nil
    case .decimal(let thousandths):
      let magnitude = thousandths.magnitude
      guard magnitude <= 999_999_999_999_999 else { return nil }
      var fraction = String(magnitude % 1000)
      fraction = String(repeating: "0", count: 3 - fraction.count) + fraction
      while fraction.count > 1, fraction.last == "0" { fraction.removeLast() }
      return "\(thousandths < 0 ? "-" : "")\(magnitude / 1000).\(fraction)"
    case .string(let text):
      guard text.utf8.allSatisfy({ (0x20...0x7e).contains($0) }) else { return nil }
      return "\"" + text.map { $0 == "\"" || $0 == "\\" ? "\\\($0)" : String($0) }.joined() + "\""
    case .token(let text):
      guard case .token(text)? = Item(parsing: text)?.value else { return nil }
      return text
    case .bytes(let bytes): return ":" + Base64.encode(bytes) + ":"
    case .boolean(let value): return value ? "?1" : "?0"
    case .date(let seconds): return Self.isInRange(seconds) ? "@\(seconds)" : nil
    case .displayString(let text):
      return "%\""
        + text.utf8.map { octet in
          let isPlain = (0x20...0x7e).contains(octet) && octet != UInt8(ascii: "%") && octet != UInt8(ascii: "\"")
          let digits = String(octet, radix: 16)
          return isPlain ? String(Unicode.Scalar(octet)) : "%" + (digits.count < 2 ? "0" : "") + digits
        }.joined() + "\""
    }
  }

  private static func isInRange(_ value: Int64) -> Bool { value.magnitude <= UInt64(largestInteger) }
}

/// Whether dictionaries and parameters may have this key (section 3.1.2). A key that was not parsed may be any text.
private func isKey(_ text: String) -> Bool {
  var parser = StructuredFieldParser(text)
  return parser.key().map { $0.utf8.count == text.utf8.count } ?? false
}

extension Item {
  package var serialized: String? {
    guard let text = value.serialized, let rest = Self.serialized(parameters) else { return nil }
    return text + rest
  }

  fileprivate static func serialized(_ parameters: [Parameter]) -> String? {
    var text = ""
    for parameter in parameters {
      guard isKey(parameter.key), let value = parameter.value.serialized else { return nil }
      text += ";\(parameter.key)" + (parameter.value == .boolean(true) ? "" : "=\(value)")
    }
    return text
  }
}

extension StructuredDictionary {
  /// The field's text. It is empty without members, and then the field must be left out. Nil if a key or a value cannot
  /// be represented.
  package var serialized: String? {
    var texts: [String] = []
    for member in members {
      guard isKey(member.key) else { return nil }
      switch member.value {
      case .item(let item) where item.value == .boolean(true):
        guard let parameters = Item.serialized(item.parameters) else { return nil }
        texts.append(member.key + parameters)
      case .item(let item):
        guard let text = item.serialized else { return nil }
        texts.append("\(member.key)=\(text)")
      case .innerList(let items, let parameters):
        guard let rest = Item.serialized(parameters) else { return nil }
        var inner: [String] = []
        for item in items {
          guard let text = item.serialized else { return nil }
          inner.append(text)
        }
        texts.append("\(member.key)=(\(inner.joined(separator: " ")))\(rest)")
      }
    }
    return texts.joined(separator: ", ")
  }
}
