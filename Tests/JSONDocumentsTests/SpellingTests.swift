import Testing

@testable import JSONDocuments

@Suite("Similar words")
struct SpellingTests {
  @Test("the distance is Levenshtein's")
  func distance() {
    let pairs = [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("a", "b", 1)]
    for (first, second, expected) in pairs {
      #expect(Spelling.distance(first, second) == expected && Spelling.distance(second, first) == expected)
    }
  }

  @Test("a similar word begins like the written one, or differs from it by one letter")
  func similar() {
    let words = ["load", "serve", "--metrics"]
    #expect(Spelling.similar(to: "laod", of: words) == "load")
    #expect(Spelling.similar(to: "oad", of: words) == "load")
    #expect(Spelling.similar(to: "upload", of: words) == nil)
    #expect(Spelling.similar(to: "--retries", of: words, within: 3, sharing: 3) == nil)
    #expect(Spelling.similar(to: "--metric", of: words, within: 3, sharing: 3) == "--metrics")
    #expect(Spelling.similar(to: "srv", of: words) == "serve")
    #expect(Spelling.similar(to: "s", of: words) == nil)
    #expect(Spelling.similar(to: "load", of: []) == nil)
  }
}
