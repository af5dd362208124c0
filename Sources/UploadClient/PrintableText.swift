// Text from the network, made fit for a terminal and a log: the one place for that.

/// `text` without what could command a terminal or give a secret away.
///
/// Control characters, also those of the upper half of Latin-1, and the marks that change the direction of text become visible
/// escapes. User and password of a URL are left out, wherever in the text it stands: libcurl's messages quote the proxy's.
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

private func isUnprintable(_ scalar: Unicode.Scalar) -> Bool {
  switch scalar.value {
  case 0..<0x20, 0x7F..<0xA0, 0x2028...0x202E, 0x2066...0x2069, 0x200E, 0x200F, 0x61C: true
  default: false
  }
}

/// Without what is between `://`, a quotation mark or a space and an `@`, if it has a colon or follows `://`. A password may
/// have any character that does not end a URL's authority.
private func withoutUserinfo(_ text: String) -> String {
  var rest = text[...]
  var result = ""
  while let sign = rest.firstIndex(of: "@") {
    let before = rest[..<sign]
    if let scheme = before.lastRange(of: "://"),
      !before[scheme.upperBound...].contains(where: { "/?#'\"\n".contains($0) })
    {
      result += before[..<scheme.upperBound]
    } else {
      let start = before.lastIndex { " '\"\n\t".contains($0) }.map { before.index(after: $0) } ?? before.startIndex
      let user = before[start...]
      result += user.contains(":") ? before[..<start] : before + "@"
    }
    rest = rest[rest.index(after: sign)...]
  }
  return result + rest
}

extension Substring {
  fileprivate func lastRange(of other: String) -> Range<Index>? { ranges(of: other).last }
}

/// `text` between quotes, fit to be printed.
func quoted(_ text: String) -> String { "\"" + printable(text) + "\"" }
