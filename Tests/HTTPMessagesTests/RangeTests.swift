// Ranges, entity tags, dates and preconditions: the examples of RFC 9110, and generated ones against simple models.

import PropertyTesting
import Testing

@testable import HTTPMessages

@Suite("Ranges and preconditions")
struct RangeTests {
  // MARK: Vectors

  @Test(
    "an HTTP-date has three forms, and everything else is invalid",
    arguments: [
      ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777), ("Sunday, 06-Nov-94 08:49:37 GMT", 784_111_777),
      ("Sun Nov  6 08:49:37 1994", 784_111_777), ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
      ("Tue, 29 Feb 2000 23:59:60 GMT", 951_868_800), ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
      ("Friday, 01-Jan-99 00:00:00 GMT", 915_148_800), ("", nil), ("0", nil), ("Sun, 06 Nov 1994 08:49:37", nil),
      ("Sun, 06 Nov 1994 24:49:37 GMT", nil), ("Sun, 06 Now 1994 08:49:37 GMT", nil),
      ("Sun, 99999999999999999999 Nov 1994 08:49:37 GMT", nil), ("Sun, 6 Nov -1994 08:49:37 GMT", nil),
      ("Sun, 06 Nov 1994 8:49:37 GMT", nil), ("Sun, 06 Nov 1994 08:49 GMT", nil),
    ] as [(String, Int64?)])
  func dates(_ text: String, _ seconds: Int64?) { #expect(HTTPDate.seconds(parsing: text) == seconds) }

  @Test(
    "an entity tag is quoted, and commas separate the tags of a list",
    arguments: [
      (#""xyzzy""#, 1), (#"W/"xyzzy""#, 1), (#""""#, 1), (#""a", W/"b" ,"c""#, 3), (#", "a",, "b","#, 2), ("*", nil),
      ("", 0), (#"w/"xyzzy""#, -1), ("xyzzy", -1), (#""a" "b""#, -1), (#""a b""#, -1), (#""a"#, -1), (#"*, "a""#, -1),
    ] as [(String, Int?)])
  func tags(_ text: String, _ count: Int?) {
    switch EntityTag.List(parsing: text) {
    case .any: #expect(count == nil)
    case .tags(let tags): #expect(tags.count == count)
    case nil: #expect(count == -1)
    }
  }

  @Test("a strong comparison rejects weak tags, and a weak one accepts both")
  func comparison() throws {
    let strong = EntityTag("a")
    let weak = try #require(EntityTag(parsing: #"W/"a""#))
    #expect(strong.isStronglyEqual(to: strong) && !strong.isStronglyEqual(to: weak) && !weak.isStronglyEqual(to: weak))
    #expect(strong.isWeaklyEqual(to: weak) && !strong.isWeaklyEqual(to: EntityTag("b")))
    // The same text to Swift, and other octets.
    #expect(!EntityTag("e\u{301}").isStronglyEqual(to: EntityTag("\u{E9}")))
  }

  @Test(
    "a Content-Range has the range of bytes, or states that there is none",
    arguments: [
      ("bytes 0-9/10", .part(0..<10, of: 10)), ("bytes 5-9/*", .part(5..<10, of: nil)),
      ("Bytes 42-1233/1234", .part(42..<1234, of: 1234)), ("bytes */1234", .unsatisfied(length: 1234)),
      ("bytes 9-5/10", nil), ("bytes 0-10/10", nil), ("bytes */*", nil), ("items 0-9/10", nil), ("bytes=0-9/10", nil),
      ("bytes 0-9", nil), ("bytes -9/10", nil), ("bytes 0-9/10/11", nil), ("bytes 0-18446744073709551615/*", nil),
      ("bytes 0-9/99999999999999999999", nil), ("bytes  0-9/10", nil), ("", nil),
    ] as [(String, ContentRange?)])
  func contentRanges(_ text: String, _ range: ContentRange?) {
    #expect(ContentRange(parsing: text) == range)
    if let range { #expect(ContentRange(parsing: range.value) == range) }
  }

  // MARK: Generated

  /// A range as a client may write it, and which bytes of `length` it names; nil for what is malformed.
  private static func draw(_ length: Int, _ random: inout SplitMix64) -> (text: String, bytes: Set<Int>?) {
    func number() -> Int { Int.random(in: 0...(length + 3), using: &random) }
    let (a, b) = (number(), number())
    switch Int.random(in: 0..<8, using: &random) {
    case 0: return ("\(a)-", Set(0..<length).filter { $0 >= a })
    case 1: return ("-\(a)", Set(0..<length).filter { $0 >= length - a })
    case 2:
      return (
        ["x", "1", "--1", "1-2-3", "\(max(a, b) + 1)-\(min(a, b))", "-", "+1-2"].randomElement(using: &random)!, nil
      )
    case 3: return ("\(a)-99999999999999999999999", Set(0..<length).filter { $0 >= a })
    default: return ("\(min(a, b))-\(max(a, b))", Set(0..<length).filter { $0 >= min(a, b) && $0 <= max(a, b) })
    }
  }

  @Test("a range selects the same bytes as a model, or none", arguments: Seed.several(10))
  func ranges(_ seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<300 {
      let length = Int.random(in: 0...12, using: &random)
      let drawn = (0..<Int.random(in: 1...3, using: &random)).map { _ in Self.draw(length, &random) }
      let blank = ["", " ", "\t"].randomElement(using: &random)!
      let text = "bytes=" + drawn.map { blank + $0.text + blank }.joined(separator: random.chance(20) ? ",," : ",")
      let validators = Validators(tag: EntityTag("v"), lastModified: 1000)
      let answer = RepresentationAnswer(
        method: "GET", ["range": text], validators, length: UInt64(length), now: 5000)
      let context: Comment = "\(seed) \(text) of \(length)"
      // The blanks around the first belong to the unit's equals sign: they are allowed there, too.
      let sets = drawn.compactMap(\.bytes)
      let isWholeOfNothing = length == 0 && drawn.contains { $0.text.first == "-" && $0.text != "-0" }
      if sets.count < drawn.count || isWholeOfNothing {
        #expect(answer == .whole, context)
      } else if sets.allSatisfy(\.isEmpty) {
        #expect(answer == .unsatisfiable, context)
      } else if drawn.count > 1 {
        #expect(answer == .whole, context)
      } else {
        guard case .part(let range) = answer else {
          Issue.record("\(context): \(answer)")
          continue
        }
        #expect(Set(range.map { Int($0) }) == sets[0], context)
      }
      #expect(
        RepresentationAnswer(method: "HEAD", ["range": text], validators, length: UInt64(length), now: 5000) == .whole,
        context)
    }
  }

  @Test("preconditions are evaluated in the order of RFC 9110", arguments: Seed.several(10))
  func preconditions(_ seed: Seed) {
    var random = seed.generator
    let tags = [nil, "*", #""v""#, #"W/"v""#, #""w""#, #""w", "v""#, "v"]
    let dates: [(String?, Int64?)] = [
      (nil, nil), ("Thu, 01 Jan 1970 00:16:39 GMT", 999), ("Thu, 01 Jan 1970 00:16:40 GMT", 1000),
      ("Thu, 01 Jan 1970 00:16:41 GMT", 1001), ("yesterday", nil),
    ]
    let conditions = [
      nil, #""v""#, #"W/"v""#, #""w""#, "Thu, 01 Jan 1970 00:16:40 GMT", "Thu, 01 Jan 1970 00:16:41 GMT", "v",
    ]
    for _ in 0..<500 {
      let (match, noneMatch) = (tags.randomElement(using: &random)!, tags.randomElement(using: &random)!)
      let (since, unmodified) = (dates.randomElement(using: &random)!, dates.randomElement(using: &random)!)
      let condition = conditions.randomElement(using: &random)!
      let now: Int64 = random.chance(50) ? 1001 : 1002
      var fields: HeaderFields = ["range": "bytes=2-3"]
      for (name, value) in [
        ("if-match", match), ("if-none-match", noneMatch), ("if-modified-since", since.0),
        ("if-unmodified-since", unmodified.0), ("if-range", condition),
      ] { if let value { fields.append(name, value) } }
      let expected: RepresentationAnswer
      if let match, !["*", #""v""#, #""w", "v""#].contains(match) {
        expected = .preconditionFailed
      } else if match == nil, let date = unmodified.1, date < 1000 {
        expected = .preconditionFailed
      } else if let noneMatch, ["*", #""v""#, #"W/"v""#, #""w", "v""#].contains(noneMatch) {
        expected = .notModified
      } else if noneMatch == nil, let date = since.1, date >= 1000 {
        expected = .notModified
      } else if condition == nil || condition == #""v""# || condition == conditions[4] && now == 1002 {
        expected = .part(2..<4)
      } else {
        expected = .whole
      }
      let answer = RepresentationAnswer(
        method: "GET", fields, Validators(tag: EntityTag("v"), lastModified: 1000), length: 10, now: now)
      #expect(answer == expected, "\(seed) \(fields.all) at \(now)")
    }
  }
}
