// The only place that makes text from the network safe for a terminal and a log.

/// `text` without characters that control a terminal, and without secrets.
///
/// Control characters, including those of the upper half of Latin-1, and marks that change the direction of text become
/// visible escapes. The user and password of any URL in the text are removed, because libcurl's messages quote those of
/// the proxy.
package func printable(_ text: String) -> String {
  // Nearly all text needs no change, and is not copied.
  if text.utf8.allSatisfy({ $0 >= 0x20 && $0 < 0x7F && $0 != UInt8(ascii: "@") }) { return text }
  var result = ""
  for scalar in withoutUserinfo(text).unicodeScalars {
    if isUnprintable(scalar) {
      result += "\\u{\(String(scalar.value, radix: 16))}"
    } else {
      result.unicodeScalars.append(scalar)
    }
  }
  return result
}

/// The beginning of a long `text`, enough to recognize it in a log.
package func excerpt(_ text: String, limit: Int = 200) -> String {
  // A single character may be arbitrarily long.
  let scalars = text.unicodeScalars
  return scalars.count <= limit ? text : String(String.UnicodeScalarView(scalars.prefix(limit))) + "…"
}

/// Whether the scalar controls a terminal, ends a line, or changes the direction of text.
package func isUnprintable(_ scalar: Unicode.Scalar) -> Bool {
  switch scalar.value {
  case 0..<0x20, 0x7F..<0xA0, 0x2028...0x202E, 0x2066...0x2069, 0x200E, 0x200F, 0x61C: true
  default: false
  }
}

/// Removes the text between `://`, a quotation mark or a space and an `@`, if it has a colon or follows `://`. A
/// password may contain any character that does not end a URL's authority.
private func withoutUserinfo(_ text: String) -> String {
  var rest = text[...]
  var result = ""
  while var sign = rest.firstIndex(of: "@") {
    let before = rest[..<sign]
    if let scheme = before.lastRange(of: "://"), !before[scheme.upperBound...].contains(where: isAuthorityEnd) {
      result += before[..<scheme.upperBound]
      // A password may contain the sign itself.
      let authority = rest[sign...].prefix { !isAuthorityEnd($0) && !$0.isWhitespace }
      sign = authority.lastIndex(of: "@") ?? sign
    } else {
      let start = before.lastIndex { $0.isWhitespace || isAuthorityEnd($0) }.map { before.index(after: $0) }
      let user = before[(start ?? before.startIndex)...]
      result += user.contains(":") ? before[..<user.startIndex] : before + "@"
    }
    rest = rest[rest.index(after: sign)...]
  }
  return result + rest
}

private func isAuthorityEnd(_ character: Character) -> Bool { "/?#'\"\n".contains(character) }

extension Substring {
  fileprivate func lastRange(of other: String) -> Range<Index>? { ranges(of: other).last }
}

/// `text` in quotation marks, made safe for printing.
func quoted(_ text: String) -> String { "\"" + printable(text) + "\"" }
