// Text from the network, made fit for a terminal and a log: the one place for that.

/// `text` without what could command a terminal or give a secret away.
///
/// Control characters, also those of the upper half of Latin-1, and the marks that change the direction of text become
/// visible escapes. User and password of a URL are left out, wherever in the text it stands: libcurl's messages quote
/// the proxy's.
package func printable(_ text: String) -> String {
  // Nearly all text is: nothing is copied then.
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

/// The beginning of `text` where it is long: enough to recognize it, and no flood for a log.
package func excerpt(_ text: String, limit: Int = 200) -> String {
  // Of characters one may be as long as a book.
  let scalars = text.unicodeScalars
  return scalars.count <= limit ? text : String(String.UnicodeScalarView(scalars.prefix(limit))) + "…"
}

private func isUnprintable(_ scalar: Unicode.Scalar) -> Bool {
  switch scalar.value {
  case 0..<0x20, 0x7F..<0xA0, 0x2028...0x202E, 0x2066...0x2069, 0x200E, 0x200F, 0x61C: true
  default: false
  }
}

/// Without what is between `://`, a quotation mark or a space and an `@`, if it has a colon or follows `://`. A
/// password may have any character that does not end a URL's authority.
private func withoutUserinfo(_ text: String) -> String {
  var rest = text[...]
  var result = ""
  while var sign = rest.firstIndex(of: "@") {
    let before = rest[..<sign]
    if let scheme = before.lastRange(of: "://"), !before[scheme.upperBound...].contains(where: isAuthorityEnd) {
      result += before[..<scheme.upperBound]
      // A password may have the sign itself.
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

/// `text` between quotes, fit to be printed.
func quoted(_ text: String) -> String { "\"" + printable(text) + "\"" }
