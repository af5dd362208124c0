// Entity tags (RFC 9110, section 8.8.3), with which a client checks whether it stores the same bytes.

/// An entity tag: `"xyzzy"`, or `W/"xyzzy"`, which does not promise the same bytes.
package struct EntityTag: Equatable, Sendable {
  package let isWeak: Bool
  /// The text between the quotes.
  package let opaque: String

  /// A strong tag. The text must contain only characters that RFC 9110 allows between the quotes.
  package init(_ opaque: String) { (isWeak, self.opaque) = (false, opaque) }

  /// nil if the text is not exactly one entity tag.
  package init?(parsing text: String) {
    var rest = Substring(text).utf8
    guard let tag = Self.next(&rest), rest.isEmpty else { return nil }
    self = tag
  }

  private init(isWeak: Bool, opaque: String) { (self.isWeak, self.opaque) = (isWeak, opaque) }

  package var text: String { (isWeak ? "W/\"" : "\"") + opaque + "\"" }

  /// Whether both identify the same bytes (section 8.8.3.2).
  package func isStronglyEqual(to other: EntityTag) -> Bool {
    !isWeak && !other.isWeak && opaque.utf8.elementsEqual(other.opaque.utf8)
  }

  /// Whether both identify equivalent representations.
  package func isWeaklyEqual(to other: EntityTag) -> Bool { opaque.utf8.elementsEqual(other.opaque.utf8) }

  /// The content of `If-Match` and `If-None-Match`.
  package enum List: Equatable, Sendable {
    /// `*`
    case any
    case tags([EntityTag])

    /// nil if the text is neither. Empty elements do not count (section 5.6.1.2).
    package init?(parsing text: String) {
      if text == "*" {
        self = .any
        return
      }
      var rest = Substring(text).utf8
      var tags: [EntityTag] = []
      while true {
        while let octet = rest.first, Octet.isBlank(octet) || octet == UInt8(ascii: ",") { rest.removeFirst() }
        if rest.isEmpty { break }
        guard let tag = EntityTag.next(&rest) else { return nil }
        tags.append(tag)
        while let octet = rest.first, Octet.isBlank(octet) { rest.removeFirst() }
        guard rest.isEmpty || rest.first == UInt8(ascii: ",") else { return nil }
      }
      self = .tags(tags)
    }

    package func contains(where matches: (EntityTag) -> Bool) -> Bool {
      switch self {
      case .any: true
      case .tags(let tags): tags.contains(where: matches)
      }
    }
  }

  private static func next(_ rest: inout Substring.UTF8View) -> EntityTag? {
    let isWeak = rest.starts(with: "W/".utf8)
    if isWeak { rest.removeFirst(2) }
    guard rest.first == UInt8(ascii: "\"") else { return nil }
    rest.removeFirst()
    guard let end = rest.firstIndex(of: UInt8(ascii: "\"")) else { return nil }
    let opaque = rest[..<end]
    // etagc: visible octets and those above ASCII.
    guard opaque.allSatisfy({ $0 > Octet.space && $0 != 0x7F }) else { return nil }
    rest = rest[rest.index(after: end)...]
    return EntityTag(isWeak: isWeak, opaque: String(Substring(opaque)))
  }
}
