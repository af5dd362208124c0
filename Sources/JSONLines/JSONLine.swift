// One flat JSON object on one line (RFC 8259, jsonlines.org), by which Sluice reports events to programs.
//
// FoundationEssentials' encoder takes 0.8 MiB more resident memory and does not keep the order of keys. The objects
// here are never nested, so this small encoder is enough.

/// Builds one line. The keys keep the order in which they are added.
package struct JSONLine {
  private var text: String

  /// - Parameter event: the line's kind, its first key.
  package init(event: String) { text = "{\"event\":" + Self.quote(event) }

  package mutating func add(_ key: String, _ value: String?) {
    if let value { append(key, Self.quote(value)) }
  }

  package mutating func add(_ key: String, _ value: (some FixedWidthInteger)?) {
    if let value { append(key, String(value)) }
  }

  package mutating func add(_ key: String, _ value: Bool) { append(key, value ? "true" : "false") }

  /// A number with three decimals, for example milliseconds if the unit is seconds. Omitted if it is not finite.
  package mutating func add(_ key: String, thousandths value: Double) {
    if let number = Self.number(value) { append(key, number) }
  }

  /// A list of such numbers; `null` for those that are not finite.
  package mutating func add(_ key: String, thousandths values: [Double]) {
    append(key, "[" + values.map { Self.number($0) ?? "null" }.joined(separator: ",") + "]")
  }

  package mutating func add(_ key: String, _ values: [String]) {
    append(key, "[" + values.map(Self.quote).joined(separator: ",") + "]")
  }

  package mutating func add(_ key: String, _ values: [some FixedWidthInteger]) {
    append(key, "[" + values.map { String($0) }.joined(separator: ",") + "]")
  }

  /// The line without its line feed.
  package var line: String { text + "}" }

  private mutating func append(_ key: String, _ value: String) {
    text += "," + Self.quote(key) + ":" + value
  }

  private static func number(_ value: Double) -> String? {
    guard value.isFinite, abs(value) < 1e15 else { return nil }
    let scaled = Int64((value * 1000).rounded())
    return (scaled < 0 ? "-" : "") + "\(abs(scaled) / 1000)." + String(1000 + abs(scaled) % 1000).dropFirst()
  }

  /// `text` in quotation marks, with every character escaped except plain printable ASCII. Text from a peer can damage
  /// neither the line nor the terminal that shows it.
  package static func quote(_ text: String) -> String {
    var result = "\""
    for unit in text.utf16 {
      switch unit {
      case 0x22: result += "\\\""
      case 0x5C: result += "\\\\"
      case 0x20...0x7E: result.unicodeScalars.append(Unicode.Scalar(UInt8(unit)))
      default:
        let digits = String(unit, radix: 16)
        result += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
      }
    }
    return result + "\""
  }
}
