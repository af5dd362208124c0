// Ranges of a representation (RFC 9110, section 14), as a client requests them and a server names them.

/// The content of a `Range` field.
package struct ByteRanges: Equatable, Sendable {
  /// One of its ranges, in bytes.
  package enum Spec: Equatable, Sendable {
    /// `5-9`. Without the last, all bytes from the first on.
    case from(UInt64, last: UInt64?)
    /// `-5`: the last bytes.
    case suffix(UInt64)

    /// The bytes of the range in a representation of `length` bytes; nil if it contains none.
    package func range(in length: UInt64) -> Range<UInt64>? {
      switch self {
      case .from(let first, let last):
        guard first < length else { return nil }
        return first..<(min(last ?? length - 1, length - 1) + 1)
      case .suffix(let count):
        guard count > 0, length > 0 else { return nil }
        return (length - min(count, length))..<length
      }
    }
  }

  package let specs: [Spec]

  /// nil if a server must ignore the field, because of another unit or because it is malformed.
  package init?(parsing text: String) {
    // The name of the unit is compared without regard to case, like other tokens of this kind.
    guard let equals = text.utf8.firstIndex(of: UInt8(ascii: "=")), String(text[..<equals]).isSameWord(as: "bytes")
    else { return nil }
    var specs: [Spec] = []
    for part in text.utf8[text.utf8.index(after: equals)...].split(separator: UInt8(ascii: ",")) {
      let word = Substring(part).utf8.drop(while: Octet.isBlank)
      let octets = word.reversed().drop(while: Octet.isBlank).reversed()
      if octets.isEmpty { continue }
      guard let spec = Self.spec(Array(octets)) else { return nil }
      specs.append(spec)
    }
    guard !specs.isEmpty else { return nil }
    self.specs = specs
  }

  private static func spec(_ octets: [UInt8]) -> Spec? {
    guard let dash = octets.firstIndex(of: UInt8(ascii: "-")) else { return nil }
    let (first, last) = (octets[..<dash], octets[(dash + 1)...])
    if first.isEmpty { return number(last).map { .suffix($0) } }
    guard let start = number(first) else { return nil }
    if last.isEmpty { return .from(start, last: nil) }
    guard let end = number(last), end >= start else { return nil }
    return .from(start, last: end)
  }

  /// A number beyond the size of any file is replaced by the largest number.
  private static func number(_ digits: ArraySlice<UInt8>) -> UInt64? {
    guard !digits.isEmpty, digits.allSatisfy(Octet.isDigit) else { return nil }
    return UInt64(String(decoding: digits, as: UTF8.self)) ?? .max
  }
}

/// The content of a `Content-Range` field, which describes a part or states why there is none.
package enum ContentRange: Equatable, Sendable {
  /// `bytes 5-9/10`; the length is nil for `*`.
  case part(Range<UInt64>, of: UInt64?)
  /// `bytes */10`
  case unsatisfied(length: UInt64)

  /// nil for another unit, or if the text is malformed or contradictory.
  package init?(parsing text: String) {
    let words = text.utf8.split(separator: Octet.space, maxSplits: 1, omittingEmptySubsequences: false)
    guard words.count == 2, String(decoding: words[0], as: UTF8.self).isSameWord(as: "bytes") else { return nil }
    let parts = words[1].split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
    guard parts.count == 2 else { return nil }
    let length = Self.number(parts[1])
    guard length != nil || parts[1].elementsEqual("*".utf8) else { return nil }
    if parts[0].elementsEqual("*".utf8) {
      guard let length else { return nil }
      self = .unsatisfied(length: length)
      return
    }
    let ends = parts[0].split(separator: UInt8(ascii: "-"), omittingEmptySubsequences: false)
    guard ends.count == 2, let first = Self.number(ends[0]), let last = Self.number(ends[1]), first <= last,
      last < .max, last < length ?? .max
    else { return nil }
    self = .part(first..<(last + 1), of: length)
  }

  private static func number(_ digits: some Collection<UInt8>) -> UInt64? {
    guard !digits.isEmpty, digits.allSatisfy(Octet.isDigit) else { return nil }
    return UInt64(String(decoding: digits, as: UTF8.self))
  }

  package var value: String {
    switch self {
    // A part is not empty, so its end is at least 1.
    case .part(let range, let length):
      "bytes \(range.lowerBound)-\(range.upperBound - min(range.upperBound, 1))/\(length.map(String.init) ?? "*")"
    case .unsatisfied(let length): "bytes */\(length)"
    }
  }
}
