// Reads the lines that Sluice's processes exchange.

import PropertyTesting
import Testing

@testable import JSONLines

@Suite("Flat JSON")
struct FlatJSONTests {
  @Test("a line is read again unchanged, for any strings", arguments: Seed.several(20))
  func roundTrip(seed: Seed) {
    var random = seed.generator
    for _ in 0..<50 {
      func text() -> String {
        String(
          String.UnicodeScalarView(
            (0..<random.size(upTo: 40)).compactMap { _ in
              Unicode.Scalar(UInt32.random(in: 0...(random.chance(20) ? 0x10FFFF : 0x100), using: &random))
            }))
      }
      let (word, list) = (text(), (0..<Int.random(in: 0...3, using: &random)).map { _ in text() })
      let (number, flag) = (Int64.random(in: .min ... .max, using: &random), random.chance(50))
      var line = JSONLine(event: word)
      line.add("number", number)
      line.add("flag", flag)
      line.add("list", list)
      let read = FlatJSON(line.line.utf8)
      #expect(read?.string("event") == word)
      #expect(read?.integer("number") == number && read?.flag("flag") == flag && read?.strings("list") == list)
      #expect(read?.values.count == 4)
      // With fewer bytes, it is not an object.
      #expect(FlatJSON(line.line.utf8.dropLast(Int.random(in: 1...line.line.utf8.count, using: &random))) == nil)
    }
  }

  @Test("spaces, escapes and unescaped characters are read")
  func accepts() {
    let read = FlatJSON(#" { "a" : "\"\\\/\b\f\n\r\té\u00e9\ud83c\udfa4" , "b":[ "x" ,"y"],"c":-0 } "#.utf8)
    #expect(read?.string("a") == "\"\\/\u{08}\u{0C}\n\r\téé🎤")
    #expect(read?.strings("b") == ["x", "y"] && read?.integer("c") == 0)
    #expect(FlatJSON("{}".utf8)?.values.isEmpty == true)
    #expect(FlatJSON(#"{"n":300}"#.utf8)?.integer("n", as: UInt8.self) == nil, "a number that does not fit")
  }

  @Test(
    "a value that is not a flat object is rejected",
    arguments: [
      "", "{", "}", "[]", "null", #"{"a"}"#, #"{"a":}"#, #"{"a":1,}"#, #"{"a":1}x"#, #"{"a":{}}"#, #"{"a":null}"#,
      #"{"a":1.5}"#, #"{"a":1e3}"#, #"{"a":01}"#, #"{"a":-}"#, #"{"a":[1]}"#, #"{"a":["x",]}"#, #"{"a":1,"a":2}"#,
      #"{"a":"\x"}"#, #"{"a":"\u12"}"#, #"{"a":"\ud800"}"#, #"{"a":"\udc00"}"#, #"{"a":"\ud800\u0041"}"#,
      #"{"a":"\u+123"}"#, "{\"a\":\"\n\"}", #"{"a":99999999999999999999}"#, #"{a:1}"#, #"{"a":"b}"#, #"{"a":tru}"#,
    ])
  func rejects(_ text: String) {
    #expect(FlatJSON(text.utf8) == nil)
  }

  @Test("a string that is not UTF-8 is rejected")
  func notUTF8() {
    #expect(FlatJSON([UInt8(ascii: "{")] + #""a":""#.utf8 + [0xFF] + #""}"#.utf8) == nil)
  }
}
