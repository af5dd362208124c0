// Libraries report causes and remedies. Only the command names its options.

import NetworkTesting
import Testing

@Suite("Names of options")
struct OptionNamesTests {
  @Test("no library has the name of an option in its code")
  func libraries() throws {
    var count = 0
    for path in try Repository.files(below: "Sources") where path.hasSuffix(".swift") {
      let name = String(path.dropFirst(Repository.root.count + 1))
      guard !Self.exempt.contains(where: { name.hasPrefix($0) }) else { continue }
      count += 1
      let text = String(decoding: try fileContents(path), as: UTF8.self)
      for (index, line) in text.split(separator: "\n", omittingEmptySubsequences: false).enumerated() {
        #expect(
          Self.option(in: line) == nil,
          "\(name):\(index + 1) names an option. Give the error a remedy case, and let Sources/sluice word it.")
      }
    }
    #expect(count > 300)
  }

  private static let exempt = [
    // The command.
    "Sources/sluice/",
    // Variables of CSS.
    "Sources/LoadReports/HTML/PageStyle.swift",
    // The arguments of the agent that it starts, which is the command.
    "Sources/TransferClient/AgentLaunch.swift",
  ]

  /// The first name of an option in a line of code. A comment may name one.
  static func option(in line: Substring) -> Substring? {
    let code = line.firstRange(of: "// ").map { line[..<$0.lowerBound] } ?? line
    return code.firstMatch(of: #/--[a-z]/#).map { code[$0.range.lowerBound...].prefix { $0 == "-" || $0.isLetter } }
  }

  @Test(
    "an option is found in code, and not in a comment",
    arguments: [
      (#"  case .gaveUp: "no progress for --give-up""#, "--give-up"), ("  /// The value of `--json`.", nil),
      (#"let url = "http://h/" // for --json"#, nil), (#"let url = "http://h/?--json""#, "--json"), ("i -= 1", nil),
    ] as [(String, Substring?)])
  func finding(_ line: String, _ option: Substring?) { #expect(Self.option(in: line[...]) == option) }
}
