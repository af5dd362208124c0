import FoundationEssentials
import PropertyTesting
import Testing

@testable import JSONLines

@Suite("One event as one line of JSON")
struct JSONLineTests {
  private struct Parsed: Decodable, Equatable {
    var event: String
    var text: String?
    var number: UInt64?
    var small: Int8?
    var decimal: Double?
    var flag: Bool?
    var list: [String]?
    var decimals: [Double?]?
    var integers: [Int]?
  }

  private func parse(_ line: JSONLine) throws -> Parsed {
    try JSONDecoder().decode(Parsed.self, from: Data(line.line.utf8))
  }

  @Test("any text is restored from one line of printable ASCII", arguments: Seed.several(20))
  func anyText(_ seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<100 {
      var text = ""
      for _ in 0..<Int.random(in: 0...20, using: &random) {
        let scalar =
          random.chance(50)
          ? Unicode.Scalar(UInt8.random(in: 0...127, using: &random))
          : Unicode.Scalar(UInt32.random(in: 0...0x10FFFF, using: &random))
        if let scalar { text.unicodeScalars.append(scalar) }
      }
      var line = JSONLine(event: text)
      line.add("text", text)
      line.add("list", [text, "b"])
      #expect(line.line.utf8.allSatisfy { (0x20...0x7E).contains($0) })
      #expect(try parse(line) == Parsed(event: text, text: text, list: [text, "b"]))
    }
  }

  @Test("numbers keep their value, and non-numbers are omitted")
  func numbers() throws {
    var line = JSONLine(event: "e")
    line.add("number", UInt64.max)
    line.add("small", Int8.min)
    line.add("decimal", thousandths: -0.0625)
    line.add("flag", true)
    line.add("decimals", thousandths: [1.5, .nan, -.infinity, 1e300, -2.0006])
    line.add("integers", [1, -2])
    line.add("text", nil)
    #expect(
      line.line
        == #"{"event":"e","number":18446744073709551615,"small":-128,"decimal":-0.063,"flag":true,"decimals":[1.500,null,null,null,-2.001],"integers":[1,-2]}"#
    )
    #expect(try parse(line).decimals == [1.5, nil, nil, nil, -2.001])
    var none = JSONLine(event: "e")
    none.add("decimal", thousandths: .infinity)
    none.add("number", Optional<Int>.none)
    #expect(none.line == #"{"event":"e"}"#)
  }
}
