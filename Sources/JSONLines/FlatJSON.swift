// A line that `JSONLine` writes, read back: how the parts of Sluice that are processes of their own understand each
// other.

/// One flat JSON object (RFC 8259) whose values are strings, whole numbers, `true`, `false`, or lists of strings.
///
/// Everything else is rejected: nested objects, fractions, `null`, a key that comes twice, anything behind the object.
package struct FlatJSON: Equatable, Sendable {
  package enum Value: Equatable, Sendable {
    case string(String)
    case integer(Int64)
    case flag(Bool)
    case strings([String])
  }

  package private(set) var values: [String: Value] = [:]

  /// Nil if the line is not such an object. Spaces between its parts are allowed.
  package init?(_ line: some Collection<UInt8>) {
    var reader = Reader(bytes: Array(line))
    guard reader.skip("{") else { return nil }
    if !reader.skip("}") {
      repeat {
        guard let key = reader.string(), reader.skip(":"), let value = reader.value(),
          values.updateValue(value, forKey: key) == nil
        else { return nil }
      } while reader.skip(",")
      guard reader.skip("}") else { return nil }
    }
    guard reader.isAtEnd else { return nil }
  }

  package func string(_ key: String) -> String? {
    if case .string(let text)? = values[key] { text } else { nil }
  }

  package func integer<Number: FixedWidthInteger>(_ key: String, as type: Number.Type = Number.self) -> Number? {
    if case .integer(let number)? = values[key] { Number(exactly: number) } else { nil }
  }

  package func flag(_ key: String) -> Bool? {
    if case .flag(let flag)? = values[key] { flag } else { nil }
  }

  package func strings(_ key: String) -> [String]? {
    if case .strings(let list)? = values[key] { list } else { nil }
  }
}

/// The bytes of a line, and how far they are read.
private struct Reader {
  let bytes: [UInt8]
  var position = 0

  init(bytes: [UInt8]) { self.bytes = bytes }

  var isAtEnd: Bool {
    mutating get {
      skipSpaces()
      return position == bytes.count
    }
  }

  private mutating func skipSpaces() {
    while position < bytes.count, [0x20, 0x09, 0x0A, 0x0D].contains(bytes[position]) { position += 1 }
  }

  private mutating func next() -> UInt8? {
    guard position < bytes.count else { return nil }
    defer { position += 1 }
    return bytes[position]
  }

  /// Whether the next part is `word`, which is read then.
  mutating func skip(_ word: StaticString) -> Bool {
    skipSpaces()
    return word.withUTF8Buffer { word in
      guard bytes[position...].starts(with: word) else { return false }
      position += word.count
      return true
    }
  }

  mutating func value() -> FlatJSON.Value? {
    if skip("true") { return .flag(true) }
    if skip("false") { return .flag(false) }
    if skip("[") {
      var list: [String] = []
      if skip("]") { return .strings(list) }
      repeat {
        guard let text = string() else { return nil }
        list.append(text)
      } while skip(",")
      return skip("]") ? .strings(list) : nil
    }
    if position < bytes.count, bytes[position] == UInt8(ascii: "\"") { return string().map { .string($0) } }
    return integer().map { .integer($0) }
  }

  private mutating func integer() -> Int64? {
    let start = position
    if position < bytes.count, bytes[position] == UInt8(ascii: "-") { position += 1 }
    let digits = position
    while position < bytes.count, (0x30...0x39).contains(bytes[position]) { position += 1 }
    // No number begins with a zero but zero itself.
    guard position > digits, bytes[digits] != 0x30 || position == digits + 1 else { return nil }
    return Int64(String(decoding: bytes[start..<position], as: UTF8.self))
  }

  mutating func string() -> String? {
    guard skip("\"") else { return nil }
    var text: [UInt8] = []
    while let byte = next() {
      switch byte {
      case UInt8(ascii: "\""): return String(validating: text, as: UTF8.self)
      case UInt8(ascii: "\\"):
        guard let escaped = escape() else { return nil }
        text += escaped
      case 0x00..<0x20: return nil
      default: text.append(byte)
      }
    }
    return nil
  }

  /// What stands behind a backslash, in UTF-8.
  private mutating func escape() -> [UInt8]? {
    guard let letter = next() else { return nil }
    switch letter {
    case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): return [letter]
    case UInt8(ascii: "b"): return [0x08]
    case UInt8(ascii: "f"): return [0x0C]
    case UInt8(ascii: "n"): return [0x0A]
    case UInt8(ascii: "r"): return [0x0D]
    case UInt8(ascii: "t"): return [0x09]
    case UInt8(ascii: "u"):
      guard let first = unit() else { return nil }
      guard (0xD800..<0xDC00).contains(first) else { return Unicode.Scalar(first).map { Array(String($0).utf8) } }
      guard next() == UInt8(ascii: "\\"), next() == UInt8(ascii: "u"), let second = unit(),
        (0xDC00..<0xE000).contains(second)
      else { return nil }
      let value = 0x10000 + UInt32(first - 0xD800) << 10 + UInt32(second - 0xDC00)
      return Unicode.Scalar(value).map { Array(String($0).utf8) }
    default: return nil
    }
  }

  private mutating func unit() -> UInt16? {
    guard position + 4 <= bytes.count else { return nil }
    let digits = bytes[position..<position + 4]
    // No sign, which the number's initializer would accept.
    guard digits.allSatisfy({ (0x30...0x39).contains($0) || (0x61...0x66).contains($0 | 0x20) }) else { return nil }
    position += 4
    return UInt16(String(decoding: digits, as: UTF8.self), radix: 16)
  }
}
