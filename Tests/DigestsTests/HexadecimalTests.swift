// Bytes as hexadecimal text, and back.

import Testing

@testable import Digests

@Suite("Hexadecimal")
struct HexadecimalTests {
  @Test("all bytes become two digits each, and return")
  func round() {
    let all = Array(UInt8.min...UInt8.max)
    let text = Hexadecimal.text(all)
    #expect(text.utf8.count == 512 && text.hasPrefix("000102") && text.hasSuffix("fdfeff"))
    #expect(Hexadecimal.bytes(text.utf8) == all)
    #expect(Hexadecimal.bytes(text.uppercased().utf8) == all)
    #expect(Hexadecimal.text([]) == "")
    #expect(Hexadecimal.bytes([]) == [])
  }

  @Test("half a byte, and any octet that is not a digit, are refused in either place")
  func refused() {
    for text in ["0", "000", "f00"] { #expect(Hexadecimal.bytes(text.utf8) == nil) }
    let digits = Set("0123456789abcdefABCDEF".utf8)
    for octet in UInt8.min...UInt8.max where !digits.contains(octet) {
      #expect(Hexadecimal.bytes([octet, UInt8(ascii: "0")]) == nil)
      #expect(Hexadecimal.bytes([UInt8(ascii: "0"), octet]) == nil)
    }
  }
}
