// Base64 (RFC 4648, section 4), in which JetStream's API encodes messages.

enum Base64 {
  /// The bytes of a text with padding; nil if it is not one.
  static func decoded(_ text: String) -> [UInt8]? {
    var text = text
    return text.withUTF8 { decoded($0) }
  }

  private static func decoded(_ text: UnsafeBufferPointer<UInt8>) -> [UInt8]? {
    guard text.count % 4 == 0 else { return nil }
    var padding = 0
    while padding < 2, padding < text.count, text[text.count - 1 - padding] == UInt8(ascii: "=") { padding += 1 }
    var result: [UInt8] = []
    result.reserveCapacity(text.count / 4 * 3)
    var (bits, count): (UInt32, Int) = (0, 0)
    for octet in text[..<(text.count - padding)] {
      let value = values[Int(octet)]
      guard value < 64 else { return nil }
      bits = bits << 6 | UInt32(value)
      count += 1
      guard count == 4 else { continue }
      result.append(UInt8(truncatingIfNeeded: bits >> 16))
      result.append(UInt8(truncatingIfNeeded: bits >> 8))
      result.append(UInt8(truncatingIfNeeded: bits))
      (bits, count) = (0, 0)
    }
    switch count {
    case 3:
      result.append(UInt8(truncatingIfNeeded: bits >> 10))
      result.append(UInt8(truncatingIfNeeded: bits >> 2))
    case 2: result.append(UInt8(truncatingIfNeeded: bits >> 4))
    // A quantum of less than two characters contains no byte.
    case 1: return nil
    default: break
    }
    return result
  }

  /// The value of each octet; 255 for an invalid one.
  private static let values: [UInt8] = {
    var values = [UInt8](repeating: 255, count: 256)
    for (value, octet) in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".utf8.enumerated() {
      values[Int(octet)] = UInt8(value)
    }
    return values
  }()
}
