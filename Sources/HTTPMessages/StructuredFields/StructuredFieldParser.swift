// Parses structured fields by the algorithms of RFC 9651, section 4.2. It is strict, so that both ends read the same.

/// Reads one field's combined value, from its first octet to its last.
struct StructuredFieldParser {
  private var rest: ArraySlice<UInt8>

  init(_ text: String) { rest = Array(text.utf8)[...] }

  /// Parses the whole field: the value of `parse`, surrounded only by spaces.
  mutating func field<Value>(_ parse: (inout Self) -> Value?) -> Value? {
    skip(whileIn: [0x20])
    guard let value = parse(&self) else { return nil }
    skip(whileIn: [0x20])
    return rest.isEmpty ? value : nil
  }

  /// The value of a field that consists only of digits, as many as an Integer may have; nil for any other field.
  static func plainInteger(_ text: String) -> Int64? {
    let octets = text.utf8.span
    guard (1...15).contains(octets.count) else { return nil }
    var value: Int64 = 0
    for index in octets.indices {
      guard isDigit(octets[index]) else { return nil }
      value = value * 10 + Int64(octets[index] - UInt8(ascii: "0"))
    }
    return value
  }

  // MARK: Section 4.2.2, 4.2.1.2, 4.2.3

  mutating func dictionary() -> StructuredDictionary? {
    var members: [StructuredDictionary.Member] = []
    var places: [String: Int] = [:]
    while !rest.isEmpty {
      guard let key = key() else { return nil }
      let value: StructuredDictionary.Value
      if take("=") {
        guard let given = itemOrInnerList() else { return nil }
        value = given
      } else {
        guard let parameters = parameters() else { return nil }
        value = .item(Item(.boolean(true), parameters))
      }
      Self.set(StructuredDictionary.Member(key: key, value: value), key, in: &members, at: &places)
      skip(whileIn: [0x20, 0x09])
      if rest.isEmpty { break }
      guard take(",") else { return nil }
      skip(whileIn: [0x20, 0x09])
      // A member must follow a comma.
      if rest.isEmpty { return nil }
    }
    return StructuredDictionary(distinct: members)
  }

  /// Step 6 of section 4.2.2, step 8 of section 4.2.3.2: a later value replaces the earlier one in its place. A table
  /// contains the places, because a search would cost the square of the length for a field of many keys.
  private static func set<Entry>(
    _ entry: Entry, _ key: String, in entries: inout [Entry], at places: inout [String: Int]
  ) {
    if let place = places[key] {
      entries[place] = entry
    } else {
      places[key] = entries.count
      entries.append(entry)
    }
  }

  private mutating func itemOrInnerList() -> StructuredDictionary.Value? {
    guard rest.first == UInt8(ascii: "(") else { return item().map { .item($0) } }
    rest.removeFirst()
    var items: [Item] = []
    while true {
      skip(whileIn: [0x20])
      if take(")") { return parameters().map { .innerList(items, parameters: $0) } }
      guard let item = item() else { return nil }
      items.append(item)
      guard rest.first == 0x20 || rest.first == UInt8(ascii: ")") else { return nil }
    }
  }

  mutating func item() -> Item? {
    guard let value = bareItem(), let parameters = parameters() else { return nil }
    return Item(value, parameters)
  }

  private mutating func parameters() -> [Parameter]? {
    var result: [Parameter] = []
    var places: [String: Int] = [:]
    while take(";") {
      skip(whileIn: [0x20])
      guard let key = key() else { return nil }
      var value = BareItem.boolean(true)
      if take("=") {
        guard let given = bareItem() else { return nil }
        value = given
      }
      Self.set(Parameter(key: key, value: value), key, in: &result, at: &places)
    }
    return result
  }

  /// Section 4.2.3.3.
  mutating func key() -> String? {
    guard let first = rest.first, Self.isLowercase(first) || first == UInt8(ascii: "*") else { return nil }
    return text {
      Self.isLowercase($0) || Self.isDigit($0) || Self.isOne(of: "_-.*", $0)
    }
  }

  // MARK: Section 4.2.3.1

  private mutating func bareItem() -> BareItem? {
    guard let first = rest.first else { return nil }
    switch first {
    case UInt8(ascii: "-"), UInt8(ascii: "0")...UInt8(ascii: "9"): return number()
    case UInt8(ascii: "\""): return string().map { .string($0) }
    case UInt8(ascii: ":"): return byteSequence().map { .bytes($0) }
    case UInt8(ascii: "?"): return boolean()
    case UInt8(ascii: "@"):
      rest.removeFirst()
      guard case .integer(let seconds)? = number() else { return nil }
      return .date(seconds)
    case UInt8(ascii: "%"): return displayString().map { .displayString($0) }
    case _ where Self.isLetter(first) || first == UInt8(ascii: "*"):
      // `tchar`, colon and slash (section 3.3.4).
      return .token(text { Self.isLetter($0) || Self.isDigit($0) || Self.isOne(of: "!#$%&'*+-.^_`|~:/", $0) })
    default: return nil
    }
  }

  /// Section 4.2.4: fifteen digits, or twelve before a point and one to three after it.
  private mutating func number() -> BareItem? {
    let sign: Int64 = take("-") ? -1 : 1
    var whole: Int64 = 0
    var digits = 0
    while let digit = rest.first, Self.isDigit(digit) {
      digits += 1
      if digits > 15 { return nil }
      whole = whole * 10 + Int64(digit - UInt8(ascii: "0"))
      rest.removeFirst()
    }
    guard digits > 0 else { return nil }
    guard take(".") else { return .integer(sign * whole) }
    guard digits <= 12 else { return nil }
    var fraction: Int64 = 0
    var decimals = 0
    while let digit = rest.first, Self.isDigit(digit) {
      decimals += 1
      if decimals > 3 { return nil }
      fraction = fraction * 10 + Int64(digit - UInt8(ascii: "0"))
      rest.removeFirst()
    }
    guard decimals > 0 else { return nil }
    for _ in decimals..<3 { fraction *= 10 }
    return .decimal(thousandths: sign * (whole * 1000 + fraction))
  }

  private mutating func boolean() -> BareItem? {
    rest.removeFirst()
    guard let digit = rest.popFirst() else { return nil }
    switch digit {
    case UInt8(ascii: "0"): return .boolean(false)
    case UInt8(ascii: "1"): return .boolean(true)
    default: return nil
    }
  }

  private mutating func string() -> String? {
    rest.removeFirst()
    var result: [UInt8] = []
    while let octet = rest.popFirst() {
      switch octet {
      case UInt8(ascii: "\\"):
        guard let escaped = rest.popFirst(), Self.isOne(of: "\"\\", escaped) else { return nil }
        result.append(escaped)
      case UInt8(ascii: "\""): return String(decoding: result, as: UTF8.self)
      case 0x20...0x7e: result.append(octet)
      default: return nil
      }
    }
    return nil
  }

  /// Section 4.2.10: percent-encoded UTF-8 between quotes, the digits in lower case.
  private mutating func displayString() -> String? {
    rest.removeFirst()
    guard take("\"") else { return nil }
    var result: [UInt8] = []
    while let octet = rest.popFirst() {
      switch octet {
      case UInt8(ascii: "%"):
        guard let high = rest.popFirst().flatMap(Self.lowercaseHexValue),
          let low = rest.popFirst().flatMap(Self.lowercaseHexValue)
        else { return nil }
        result.append(high << 4 | low)
      case UInt8(ascii: "\""): return String(validating: result, as: UTF8.self)
      case 0x20...0x7e: result.append(octet)
      default: return nil
      }
    }
    return nil
  }

  private mutating func byteSequence() -> [UInt8]? {
    rest.removeFirst()
    guard let end = rest.firstIndex(of: UInt8(ascii: ":")) else { return nil }
    defer { rest = rest[(end + 1)...] }
    return Base64.decode(rest[..<end])
  }

  // MARK: Octets

  private mutating func take(_ character: Unicode.Scalar) -> Bool {
    guard rest.first == UInt8(ascii: character) else { return false }
    rest.removeFirst()
    return true
  }

  private mutating func skip(whileIn octets: [UInt8]) { rest = rest.drop { octets.contains($0) } }

  private mutating func text(while isPart: (UInt8) -> Bool) -> String {
    let taken = rest.prefix(while: isPart)
    rest = rest[taken.endIndex...]
    return String(decoding: taken, as: UTF8.self)
  }

  private static func isDigit(_ octet: UInt8) -> Bool { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(octet) }
  private static func isLowercase(_ octet: UInt8) -> Bool { (UInt8(ascii: "a")...UInt8(ascii: "z")).contains(octet) }
  private static func isLetter(_ octet: UInt8) -> Bool { isLowercase(octet | 0x20) }
  private static func isOne(of characters: StaticString, _ octet: UInt8) -> Bool {
    characters.withUTF8Buffer { $0.contains(octet) }
  }

  private static func lowercaseHexValue(_ octet: UInt8) -> UInt8? {
    switch octet {
    case UInt8(ascii: "0")...UInt8(ascii: "9"): octet - UInt8(ascii: "0")
    case UInt8(ascii: "a")...UInt8(ascii: "f"): octet - UInt8(ascii: "a") + 10
    default: nil
    }
  }
}
