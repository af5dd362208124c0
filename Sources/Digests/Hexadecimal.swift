// Bytes as text: two hexadecimal digits each.

/// Hexadecimal text (RFC 4648, section 8).
package enum Hexadecimal {
  /// The bytes in lower case, as sha256sum(1) prints them.
  package static func text(_ bytes: [UInt8]) -> String {
    let digits = StaticString("0123456789abcdef").utf8Start
    return String(unsafeUninitializedCapacity: bytes.count * 2) { text in
      for (index, byte) in bytes.enumerated() {
        (text[2 * index], text[2 * index + 1]) = (digits[Int(byte >> 4)], digits[Int(byte & 15)])
      }
      return bytes.count * 2
    }
  }

  /// The bytes of a text, in upper or lower case. Nil if it is not hexadecimal.
  package static func bytes(_ text: some Collection<UInt8>) -> [UInt8]? {
    guard text.count.isMultiple(of: 2) else { return nil }
    var bytes: [UInt8] = []
    bytes.reserveCapacity(text.count / 2)
    var high: UInt8?
    for octet in text {
      guard let digit = Character(Unicode.Scalar(octet)).hexDigitValue.map(UInt8.init) else { return nil }
      if let first = high {
        bytes.append(first << 4 | digit)
        high = nil
      } else {
        high = digit
      }
    }
    return bytes
  }
}
