// The output of some runs, compared line by line with the files of `Golden/`: pages, tables, rows and documents. A
// reviewer should check every difference.
//
// After an intended change, check the pages in a browser, and then let this command write the files again:
//
//     SLUICE_GOLDEN=write swift test --filter GoldenReportTests

import Glibc
import Testing

@testable import LoadReports

@Suite("The output of a report")
struct GoldenReportTests {
  private static let quiet = SampleRun(streams: 60, seconds: 24, seed: 7)
  private static let trouble = SampleRun(streams: 60, seconds: 24, trouble: 9..<13)
  private static let late = SampleRun(streams: 3, seconds: 12, isLate: true, delay: 40_000_000, seed: 3)

  private static let samples: [String: @Sendable () -> String] = [
    "trouble.html": { page(trouble.report.html) },
    "late.html": { page(late.report.html) },
    "nothing.html": { page(LoadReport().html) },
    "comparison.html": { page(ReportComparison(before: quiet.report, after: trouble.report).html) },
    "trouble.txt": { trouble.report.table },
    "late.txt": { late.report.table },
    "comparison.txt": { ReportComparison(before: quiet.report, after: trouble.report).table },
    "trouble.csv": { trouble.report.csv },
    "late.json": { late.report.json },
  ]

  @Test("each line equals the reviewed one", arguments: samples.keys.sorted())
  func lines(name: String) throws {
    let sample = try #require(Self.samples[name])
    let shown = sample()
    let path = Self.folder + name
    if getenv("SLUICE_GOLDEN") != nil { return Self.write(shown, to: path) }
    let expected = Self.read(path).split(separator: "\n", omittingEmptySubsequences: false)
    let found = shown.split(separator: "\n", omittingEmptySubsequences: false)
    #expect(found.count == expected.count)
    if let line = zip(found, expected).enumerated().first(where: { $0.element.0 != $0.element.1 })?.offset {
      Issue.record("line \(line + 1) of \(name) is\n\(found[line])\nand was\n\(expected[line])")
    }
  }

  /// Without the style and the script, which only a browser can check. Each element is on a line of its own.
  private static func page(_ html: String) -> String {
    var html = html
    for element in ["style", "script"] {
      while let start = html.firstRange(of: "<\(element)"), let end = html.firstRange(of: "</\(element)>") {
        html.removeSubrange(start.lowerBound..<end.upperBound)
      }
    }
    return html.replacing("><", with: ">\n<")
  }

  private static let folder: String = {
    let file = #filePath
    let parts = file.split(separator: "/").dropLast(2)
    return "/" + parts.joined(separator: "/") + "/Golden/"
  }()

  private static func read(_ path: String) -> String {
    guard let file = fopen(path, "r") else { return "" }
    defer { fclose(file) }
    var bytes: [UInt8] = []
    var chunk = [UInt8](repeating: 0, count: 1 << 16)
    while case let count = fread(&chunk, 1, chunk.count, file), count > 0 { bytes += chunk[..<count] }
    return String(decoding: bytes, as: UTF8.self)
  }

  private static func write(_ text: String, to path: String) {
    guard let file = fopen(path, "w") else {
      Issue.record("cannot write \(path)")
      return
    }
    defer { fclose(file) }
    let bytes = Array(text.utf8)
    #expect(fwrite(bytes, 1, bytes.count, file) == bytes.count)
  }
}
