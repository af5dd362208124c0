// Limits for the text of the repository: the length of README and of comments, unchecked claims about threads, and time
// limits of tests.

import NetworkTesting
import Testing

@Suite("The text of the repository")
struct TextTests {
  private static func lines(of path: String) throws -> [ArraySlice<UInt8>] {
    try fileContents(path).split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false)
  }

  private static func text(_ line: ArraySlice<UInt8>) -> String { String(decoding: line, as: UTF8.self) }

  @Test("README has at most 150 lines")
  func readme() throws {
    let lines = try Self.lines(of: "\(Repository.root)/README.md")
    // The last line ends with a line feed.
    #expect(lines.count <= 151)
  }

  @Test("no comment has a line of more than 120 columns", arguments: ["Sources", "Tests"])
  func comments(folder: String) throws {
    let starts = ["swift": ["//"], "c": ["//", "/*", "*"], "h": ["//", "/*", "*"], "sh": ["#"], "py": ["#"]]
    for path in try Repository.files(below: folder) {
      guard let suffix = path.split(separator: ".").last, let marks = starts[String(suffix)] else { continue }
      for (index, bytes) in try Self.lines(of: path).enumerated() where bytes.count > 120 {
        let line = Self.text(bytes)
        let text = line.drop { $0 == " " }
        let isComment = marks.contains { text.hasPrefix($0) }
        #expect(!isComment || line.count <= 120, "\(path):\(index + 1) has \(line.count) columns")
      }
    }
  }

  @Test("there are at most as many unchecked claims about threads as today")
  func unchecked() throws {
    // Lower it when one is gone. A value that only a loop's thread uses is a `LoopOwned`.
    let limit = 72
    var claims: [String] = []
    for path in try Repository.files(below: "Sources") where path.hasSuffix(".swift") {
      for bytes in try Self.lines(of: path) where bytes.contains(UInt8(ascii: "@")) {
        let line = Self.text(bytes)
        let isComment = line.drop { $0 == " " }.hasPrefix("//")
        if line.contains("@unchecked Sendable"), !isComment { claims.append("\(path): \(line)") }
      }
    }
    #expect(claims.count <= limit, "\(claims.count) instead of \(limit):\n\(claims.joined(separator: "\n"))")
  }

  @Test("a test with a time limit runs apart from those that block threads: the wait for a thread would count")
  func timeLimits() throws {
    let mark = "AWAITING := "
    let makefile = try Self.lines(of: "\(Repository.root)/Makefile").map(Self.text)
    let rule = try #require(makefile.first { $0.hasPrefix(mark) })
    let awaiting = try Regex(String(rule.dropFirst(mark.count)))
    var suites = 0
    for path in try Repository.files(below: "Tests") where path.hasSuffix("Tests.swift") {
      guard String(decoding: try fileContents(path), as: UTF8.self).contains(".time" + "Limit(") else { continue }
      suites += 1
      let name = path.split(separator: "/").suffix(2).joined(separator: ".").dropLast(".swift".count)
      #expect(name.firstMatch(of: awaiting) != nil, "\(path) has a time limit, and is not in AWAITING of the Makefile")
    }
    #expect(suites > 0)
  }
}
