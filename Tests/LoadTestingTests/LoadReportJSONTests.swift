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
    let report = run.report(loops: Array(run.loops.indices), streams: 20)
    #expect(try LoadReport(json: Array(report.json.utf8), file: "a.json") == report)
  }

  @Test(
    "what is no report, or contradicts itself, is refused with its line and path",
    arguments: [
      ("\"streams\": {", "\"streams\": 7, \"x\": {", "report.totals.streams: an object, not 7"),
      ("\"sluice_load_report\"", "\"other\"", "report: is no report of sluice load"),
      ("\"sluice_load_report\": 1", "\"sluice_load_report\": 2", "is a report of format 2, and this version of sluice"),
      ("\"target\"", "\"targe\"", "report.target: is missing"),
      ("\"seed\": \"", "\"seed\": \"x", "report.plan.seed: a whole number as a text"),
      ("\"started\": ", "\"started\": -", "report.totals.streams.started: a whole number of 0 or more, not -"),
      ("\"above_range\": 0, \"buckets\": [[", "\"above_range\": 0, \"buckets\": [[9999, 1], [", "has no such bucket"),
      ("\"above_range\": 0, \"buckets\": [[", "\"above_range\": 0, \"buckets\": [[2000, 1], [", "contradicts itself"),
      ("\"seconds\": ", "\"seconds\": 1", "report.intervals: has not as many rows"),
      ("\"outcome\": \"", "\"outcome\": \"x", "report.spread.worst[0].outcome: \"finished\" or"),
      ("\"index\": 1,", "\"index\": 9,", "report.parts[0].index: is part 9 of 1"),
    ])
  func refused(_ found: String, _ replacement: String, _ problem: String) throws {
    var random = Seed(1).generator
    let run = RandomRun(loops: 1, streams: stride(from: 0, to: 3, by: 1), seconds: 3, using: &random)
    let json = run.report(loops: [0], streams: 3).json
    let at = try #require(json.firstRange(of: found))
    let broken = json[..<at.lowerBound] + replacement + json[at.upperBound...]
    var message = ""
    do { _ = try LoadReport(json: Array(broken.utf8), file: "a.json") } catch { message = "\(error)" }
    #expect(message.contains(problem) && message.hasPrefix("a.json:"), "\(message)")
  }

  @Test("an empty report is read again as well")
  func empty() throws {
    #expect(try LoadReport(json: Array(LoadReport().json.utf8), file: "a.json") == LoadReport())
  }
}
