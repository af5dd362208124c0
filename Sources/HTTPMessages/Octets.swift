// The character classes of RFC 9110 (section 5.6) and RFC 3986 that the parser uses, one octet at a time.

@usableFromInline package enum Octet {
  @inlinable package static var carriageReturn: UInt8 { 0x0D }
  @inlinable package static var lineFeed: UInt8 { 0x0A }
  @inlinable package static var space: UInt8 { 0x20 }
  @inlinable package static var tab: UInt8 { 0x09 }
  @inlinable package static var colon: UInt8 { 0x3A }

  @inlinable package static func isDigit(_ octet: UInt8) -> Bool { octet &- 0x30 < 10 }

  @inlinable package static func isLetter(_ octet: UInt8) -> Bool { (octet | 0x20) &- 0x61 < 26 }

  /// Converts A to Z to lower case, and returns any other octet unchanged. Text from the network must only be folded in
  /// this way: `lowercased()` turns the Kelvin sign into a k.
  @inlinable package static func lowercased(_ octet: UInt8) -> UInt8 {
    octet &- UInt8(ascii: "A") < 26 ? octet | 0x20 : octet
  }

  /// The value of a hexadecimal digit, or nil.
  @inlinable package static func hexValue(_ octet: UInt8) -> UInt8? {
    if isDigit(octet) { return octet &- 0x30 }
    let folded = (octet | 0x20) &- 0x61
    return folded < 6 ? folded &+ 10 : nil
  }

  /// `tchar` (RFC 9110, section 5.6.2), the characters of methods and field names.
  @inlinable package static func isToken(_ octet: UInt8) -> Bool {
    if isDigit(octet) || isLetter(octet) { return true }
    switch octet {
    case UInt8(ascii: "!"), UInt8(ascii: "#"), UInt8(ascii: "$"), UInt8(ascii: "%"), UInt8(ascii: "&"),
      UInt8(ascii: "'"), UInt8(ascii: "*"), UInt8(ascii: "+"), UInt8(ascii: "-"), UInt8(ascii: "."),
      UInt8(ascii: "^"), UInt8(ascii: "_"), UInt8(ascii: "`"), UInt8(ascii: "|"), UInt8(ascii: "~"):
      return true
    default: return false
    }
  }

  /// White space within a line (RFC 9110, section 5.6.3).
  @inlinable package static func isBlank(_ octet: UInt8) -> Bool { octet == space || octet == tab }

  /// The octets of a field value (RFC 9110, section 5.5): visible characters, space, tab, and octets above ASCII.
  @inlinable package static func isFieldContent(_ octet: UInt8) -> Bool {
    octet == tab || (octet >= space && octet != 0x7F)
  }

  /// `unreserved` and `sub-delims` of RFC 3986, which a host name, a path and a query have in common.
  @inlinable package static func isUnreservedOrSubDelimiter(_ octet: UInt8) -> Bool {
    if isDigit(octet) || isLetter(octet) { return true }
    switch octet {
    case UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"), UInt8(ascii: "~"), UInt8(ascii: "!"),
      UInt8(ascii: "$"), UInt8(ascii: "&"), UInt8(ascii: "'"), UInt8(ascii: "("), UInt8(ascii: ")"),
      UInt8(ascii: "*"), UInt8(ascii: "+"), UInt8(ascii: ","), UInt8(ascii: ";"), UInt8(ascii: "="):
      return true
    default: return false
    }
  }

  /// The octets that may be unescaped in a path or a query (RFC 3986, sections 3.3 and 3.4). The caller checks `%`.
  @inlinable package static func isPathOrQuery(_ octet: UInt8) -> Bool {
    if isUnreservedOrSubDelimiter(octet) { return true }
    switch octet {
    case UInt8(ascii: "/"), UInt8(ascii: "?"), UInt8(ascii: ":"), UInt8(ascii: "@"): return true
    default: return false
    }
  }

  /// The octets of an authority without user information: names, IPv4, `[IPv6]`, a port (RFC 3986, section 3.2).
  @inlinable package static func isAuthority(_ octet: UInt8) -> Bool {
    if isUnreservedOrSubDelimiter(octet) { return true }
    switch octet {
    case UInt8(ascii: "["), UInt8(ascii: "]"), UInt8(ascii: ":"), UInt8(ascii: "%"): return true
    default: return false
    }
  }
}

extension StringProtocol {
  /// The text with A to Z in lower case, and every other octet unchanged.
  package var lowercasedASCII: String {
    // Contiguous text is converted in one go, because octet by octet takes ten times as many instructions.
    utf8.withContiguousStorageIfAvailable { octets in
      String(unsafeUninitializedCapacity: octets.count) { target in
        for index in octets.indices { target[index] = Octet.lowercased(octets[index]) }
        return octets.count
      }
    } ?? String(decoding: utf8.lazy.map(Octet.lowercased), as: UTF8.self)
  }

  /// Whether the octets equal `word` apart from the case of letters. `word` is ASCII in lower case.
  package func equals(lowercase word: String) -> Bool { utf8.lazy.map(Octet.lowercased).elementsEqual(word.utf8) }
}
