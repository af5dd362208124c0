import PropertyTesting
import Testing

@testable import JSONDocuments

@Suite("JSON documents")
struct JSONDocumentTests {
  private func read(_ text: String) throws -> JSONValue {
    try JSONDocument(Array(text.utf8), root: "x", file: "f").root.value
  }

  private func value(_ depth: Int, _ random: inout SplitMix64) -> JSONValue {
    func text() -> String {
      var text = ""
      for _ in 0..<Int.random(in: 0...8, using: &random) {
        let code =
          random.chance(60) ? UInt32.random(in: 1...127, using: &random) : .random(in: 1...0x10FFFF, using: &random)
        if let scalar = Unicode.Scalar(code) { text.unicodeScalars.append(scalar) }
      }
      return text
    }
    switch Int.random(in: 0..<(depth > 0 ? 8 : 6), using: &random) {
    case 0: return .null
    case 1: return .bool(random.chance(50))
    case 2: return .integer(Int64(bitPattern: random.next()))
    case 3:
      let number = Double(bitPattern: random.next())
      return number.isFinite ? .number(number) : .number(0.5)
    case 4, 5: return .string(text())
    case 6: return .array((0..<Int.random(in: 0...4, using: &random)).map { _ in value(depth - 1, &random) })
    default:
      var keys: Set<String> = []
      var members: [JSONValue.Member] = []
      for _ in 0..<Int.random(in: 0...4, using: &random) {
        let key = text()
        if keys.insert(key).inserted { members.append(.init(key: key, value: value(depth - 1, &random))) }
      }
      return .object(members)
    }
  }

  @Test("any written value is read again unchanged, with its members in order", arguments: Seed.several(20))
  func roundTrip(_ seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<100 {
      let value = JSONValue.array([self.value(4, &random)])
      #expect(try read(value.text) == value, "\(value.text)")
    }
  }

  @Test(
    "a text that is not JSON, or that is ambiguous, is refused",
    arguments: [
      "", "{", "[1,]", "{\"a\":1,\"a\":2}", "[01]", "[1e999]", "[NaN]", "['a']", "[\"\\ud800\"]", "[\"\u{1}\"]", "[] x",
      "[18446744073709551616]", "// a\n[]", "{a:1}", String(repeating: "[", count: 100_000),
    ])
  func refused(_ text: String) { #expect(throws: DocumentError.self) { try read(text) } }

  @Test("invalid UTF-8 is refused")
  func encoding() {
    #expect(throws: DocumentError.self) { try JSONDocument([0x5B, 0x22, 0xFF, 0x22, 0x5D], root: "x", file: "f") }
  }

  @Test("a value's line is found after any text")
  func lines() {
    let text = """
      {"a": [1, "]}\\",", {"x": {}}],

       "b": {"c": [
         0, [[]], {},
         {"d":
            "here"}]}}
      """
    func line(_ steps: JSONPath.Step...) -> Int? {
      var path = JSONPath(root: "x")
      path.steps = steps
      return JSONLocator.line(of: path, in: Array(text.utf8))
    }
    #expect(line() == 1)
    #expect(line(.key("a"), .index(2)) == 1)
    #expect(line(.key("b")) == 3)
    #expect(line(.key("b"), .key("c"), .index(0)) == 4)
    #expect(line(.key("b"), .key("c"), .index(2)) == 4)
    #expect(line(.key("b"), .key("c"), .index(3), .key("d")) == 6)
    // The line of a missing value is that of its nearest existing parent.
    #expect(line(.key("b"), .key("c"), .index(3), .key("e")) == 5)
    #expect(line(.key("z")) == 1)
  }

  @Test("finding a line is safe in any text", arguments: Seed.several(20))
  func anyText(_ seed: Seed) {
    var random = seed.generator
    let letters = Array("{}[]\",:\\ \nab1".utf8)
    for _ in 0..<500 {
      let text = (0..<Int.random(in: 0...30, using: &random)).map { _ in letters.randomElement(using: &random) ?? 0 }
      var path = JSONPath(root: "x")
      path.steps = [.key("a"), .index(1), .key("b")]
      let line = JSONLocator.line(of: path, in: text) ?? 0
      #expect((1...text.count { $0 == 0x0A } + 1).contains(line))
    }
  }

  @Test("objects and lists of a JSON document are on separate lines down to the second level")
  func layout() {
    func object(_ members: (String, JSONValue)...) -> JSONValue {
      .object(members.map { .init(key: $0.0, value: $0.1) })
    }
    let value = object(
      ("a", .integer(1)), ("b", object(("c", .array([.integer(1), .integer(2)])), ("d", object(("e", .null))))),
      ("f", .array([object(("g", .bool(true))), object(("h", .bool(false)))])), ("i", .object([])), ("j", .array([])))
    #expect(
      value.text.split(separator: "\n") == [
        "{", "  \"a\": 1,", "  \"b\": {", "    \"c\": [1, 2],", "    \"d\": {\"e\": null}", "  },", "  \"f\": [",
        "    {\"g\": true},", "    {\"h\": false}", "  ],", "  \"i\": {},", "  \"j\": []", "}",
      ])
  }

  @Test("one text member of an object is found by its own key, and in no other value")
  func member() {
    func text(_ json: String) -> String? { stringMember("name", ofJSON: Array(json.utf8)) }
    #expect(text(#"{"other": "a", "name": "b", "more": "c"}"#) == "b")
    #expect(text(#"{"other": "a"}"#) == nil)
    #expect(text(#"{"name": 7, "other": "a"}"#) == nil)
    #expect(text(#"["name"]"#) == nil && text("name") == nil && text("") == nil)
  }
}
