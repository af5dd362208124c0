// Media types, which a user may write with parameters.

/// The value of `Content-Type` (RFC 9110, section 8.3.1): a type, a subtype, and any number of parameters.
package enum MediaType {
  /// Whether the text is a media type, such as `text/plain; charset=utf-8`. White space around it does not count,
  /// because it is not part of a field's value.
  package static func isValid(_ text: String) -> Bool {
    var rest = Substring(text).utf8
    skipBlanks(&rest)
    guard takeToken(&rest), take(UInt8(ascii: "/"), &rest), takeToken(&rest) else { return false }
    while true {
      skipBlanks(&rest)
      if rest.isEmpty { return true }
      guard take(UInt8(ascii: ";"), &rest) else { return false }
      skipBlanks(&rest)
      // A parameter may be missing (section 5.6.6).
      if rest.isEmpty || rest.first == UInt8(ascii: ";") { continue }
      guard takeToken(&rest), take(UInt8(ascii: "="), &rest) else { return false }
      let isQuoted = rest.first == UInt8(ascii: "\"")
      guard isQuoted ? takeQuotedString(&rest) : takeToken(&rest) else { return false }
    }
  }

  private static func skipBlanks(_ rest: inout Substring.UTF8View) {
    while let octet = rest.first, Octet.isBlank(octet) { rest.removeFirst() }
  }

  private static func take(_ octet: UInt8, _ rest: inout Substring.UTF8View) -> Bool {
    guard rest.first == octet else { return false }
    rest.removeFirst()
    return true
  }

  /// Section 5.6.2.
  private static func takeToken(_ rest: inout Substring.UTF8View) -> Bool {
    var isEmpty = true
    while let octet = rest.first, Octet.isToken(octet) {
      rest.removeFirst()
      isEmpty = false
    }
    return !isEmpty
  }

  /// Section 5.6.4.
  private static func takeQuotedString(_ rest: inout Substring.UTF8View) -> Bool {
    guard take(UInt8(ascii: "\""), &rest) else { return false }
    while let octet = rest.popFirst() {
      if octet == UInt8(ascii: "\"") { return true }
      if octet == UInt8(ascii: "\\") {
        guard let escaped = rest.popFirst(), Octet.isFieldContent(escaped) else { return false }
      } else if !Octet.isFieldContent(octet) {
        return false
      }
    }
    return false
  }
}
