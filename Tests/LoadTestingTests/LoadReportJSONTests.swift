import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("A report as JSON")
struct LoadReportJSONTests {
  @Test("a report that was written is read again as it was", arguments: Seed.several(5))
  func roundTrip(_ seed: Seed) throws {
    var random = seed.generator
    let run = RandomRun(
      loops: Int.random(in: 1...3, using: &random), streams: stride(from: 0, to: 20, by: 1),
      seconds: Int.random(in: 0...20, using: &random), using: &random)
    let report = run.report(streams: 20)
    #expect(try LoadReport(json: Array(report.json.utf8), file: "a.json") == report)
  }

  @Test("an empty report is read again as well")
  func empty() throws {
    #expect(try LoadReport(json: Array(LoadReport().json.utf8), file: "a.json") == LoadReport())
  }
}
