// Types that list their members once: writing, reading, and errors for other content.

import PropertyTesting
import Testing

@testable import JSONDocuments

@Suite("Types as JSON")
struct JSONMappingTests {
  private struct Part: JSONObject, Equatable {
    var name = "part"
    var weight: Int64 = 0

    mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
      try member("name", &name)
      try member.mapIfPresent("weight", &weight)
      if weight > 1000 { throw member.error("is too heavy", at: "weight") }
      try member.refuseUnknownKeys()
    }
  }

  private struct Whole: JSONObject, Equatable {
    var isComplete = false
    var share = 0.5
    var count: UInt64 = 0
    var number = 0
    var note: String?
    var parts: [Part] = []
    var sizes: [String: Int64] = [:]

    mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
      try member("is_complete", &isComplete)
      try member("share", &share)
      try member("count", &count)
      try member("number", &number)
      try member.optional("note", &note)
      try member("parts", &parts)
      try member("sizes", &sizes)
    }
  }

  private func read<Value: JSONMapped>(_ type: Value.Type, _ text: String) throws -> Value {
    try JSONDocument(Array(text.utf8), root: "whole", file: "a.json").read { node throws(DocumentError) in
      try Value(json: node)
    }
  }

  /// The error for a text; empty if it is valid.
  private func problem(_ text: String) -> String {
    do { _ = try read(Whole.self, text) } catch { return "\(error)" }
    return ""
  }

  private static let complete =
    #"{"is_complete": true, "share": 1, "count": 2, "number": 3, "parts": [], "sizes": {}}"#

  @Test("a written value is read again unchanged", arguments: Seed.several(20))
  func roundTrip(_ seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<50 {
      var whole = Whole()
      whole.isComplete = random.chance(50)
      whole.share = Double.random(in: -1e9...1e9, using: &random)
      whole.count = UInt64.random(in: 0...1 << 53, using: &random)
      whole.number = Int.random(in: 0...Int.max, using: &random)
      whole.note = random.chance(50) ? "\"\n\(random.next())" : nil
      for index in 0..<Int.random(in: 0...3, using: &random) {
        whole.parts.append(Part(name: "\(index)", weight: Int64.random(in: 0...1000, using: &random)))
        whole.sizes["size \(index)"] = Int64.random(in: 0...Int64.max, using: &random)
      }
      #expect(try read(Whole.self, whole.jsonValue.text) == whole)
    }
  }

  @Test("nil is omitted, null is nil, and unknown keys are allowed unless the type refuses them")
  func optional() throws {
    #expect(!Whole().jsonValue.text.contains("note"))
    let extended = Self.complete.dropLast() + #", "note": null, "more": 1}"#
    let whole = try read(Whole.self, String(extended))
    #expect(whole.note == nil && whole.isComplete && whole.share == 1 && whole.count == 2 && whole.number == 3)
  }

  @Test("an optional member keeps its default")
  func defaults() throws {
    #expect(try read(Part.self, #"{"name": "a"}"#) == Part(name: "a", weight: 0))
    #expect(try read([Part].self, #"[{"name": "a", "weight": 7}]"#) == [Part(name: "a", weight: 7)])
  }

  @Test(
    "an error has the line, the path and the expected value",
    arguments: [
      (#""share": 1"#, "\n\"share\": true", "a.json:2: whole.share: a number, not true"),
      (#""is_complete": true"#, #""is_complete": 1"#, "a.json:1: whole.is_complete: true or false, not 1"),
      (#""count": 2"#, #""count": -1"#, "a.json:1: whole.count: a whole number from 0 to 2⁵³, not -1"),
      (
        #""count": 2"#, #""count": 9007199254740993"#, "whole.count: a whole number from 0 to 2⁵³, not 9007199254740993"
      ),
      (#""number": 3"#, #""number": -1"#, "whole.number: a whole number of 0 or more, not -1"),
      (#""number": 3"#, #""number": 1.5"#, "whole.number: a whole number of 0 or more, not 1.5"),
      (#""number": 3, "#, "", "a.json:1: whole.number: is missing"),
      (#""number": 3"#, #""number": 3, "note": []"#, "whole.note: a string, not a list"),
      (#""parts": []"#, #""parts": {}"#, "whole.parts: a list, not an object"),
      (#""sizes": {}"#, #""sizes": []"#, "whole.sizes: an object, not a list"),
      (#""sizes": {}"#, #""sizes": {"a": "b"}"#, #"whole.sizes.a: a whole number of 0 or more, not "b""#),
      (#""parts": []"#, #""parts": [{"name": "a"}, 7]"#, "whole.parts[1]: an object, not 7"),
      (#""parts": []"#, #""parts": [{}]"#, "whole.parts[0].name: is missing"),
      (#""parts": []"#, #""parts": [{"name": null}]"#, "whole.parts[0].name: a string, not null"),
      (
        #""parts": []"#, "\"parts\": [{\"name\": \"a\",\n\"weight\": 1001}]",
        "a.json:2: whole.parts[0].weight: is too heavy"
      ),
      (
        #""parts": []"#, #""parts": [{"name": "a", "wieght": 1}]"#,
        #"whole.parts[0].wieght: is an unknown key. The nearest is "weight""#
      ),
    ])
  func refused(_ found: String, _ replacement: String, _ expected: String) throws {
    let at = try #require(Self.complete.firstRange(of: found))
    let text = Self.complete[..<at.lowerBound] + replacement + Self.complete[at.upperBound...]
    #expect(problem(String(text)).hasSuffix(expected) && problem(Self.complete).isEmpty, "\(problem(String(text)))")
  }

  @Test("the nearest word has the fewest changes, and the first of several wins; an empty list has none")
  func spelling() {
    #expect(Spelling.nearest(to: "jiter", of: ["chunk", "jitter", "rate"]) == "\"jitter\"")
    #expect(Spelling.nearest(to: "kitten", of: ["sit", "sitting", "mitten"]) == "\"mitten\"")
    #expect(Spelling.nearest(to: "ab", of: ["ba", "cb", "a"]) == "\"cb\"")
    #expect(Spelling.nearest(to: "", of: ["abc", "de"]) == "\"de\"")
    #expect(Spelling.nearest(to: "a", of: []) == "none")
  }
}
