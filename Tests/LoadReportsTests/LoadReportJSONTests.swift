import PropertyTesting
import Testing

@testable import LoadReports

@Suite("A report as JSON")
struct LoadReportJSONTests {
  @Test("a written report is read again unchanged", arguments: Seed.several(5))
  func roundTrip(_ seed: Seed) throws {
    var random = seed.generator
    let run = RandomRun(
      loops: Int.random(in: 1...3, using: &random), streams: stride(from: 0, to: 20, by: 1),
      seconds: Int.random(in: 0...20, using: &random), using: &random)
    let report = run.report(loops: Array(run.loops.indices), streams: 20)
    #expect(try LoadReport(json: Array(report.json.utf8), file: "a.json") == report)
  }

  @Test(
    "an invalid or contradictory report is refused with its line and path",
    arguments: [
      ("\"streams\": {", "\"streams\": 7, \"x\": {", "report.totals.streams: an object, not 7"),
      ("\"sluice_load_report\"", "\"other\"", "report: is not a report of sluice load"),
      ("\"sluice_load_report\": 1", "\"sluice_load_report\": 2", "is a report of format 2, and this version of sluice"),
      ("\"target\"", "\"targe\"", "report.target: is missing"),
      ("\"seed\": \"", "\"seed\": \"x", "report.plan.seed: a whole number as a string"),
      ("\"started\": ", "\"started\": -", "report.totals.streams.started: a whole number from 0 to 2⁵³, not -"),
      ("\"above_range\": 0, \"buckets\": [[", "\"above_range\": 0, \"buckets\": [[9999, 1], [", "has no such bucket"),
      ("\"above_range\": 0, \"buckets\": [[", "\"above_range\": 0, \"buckets\": [[2000, 1], [", "contradicts itself"),
      ("\"max\": ", "\"max\": 9", "contradicts itself"),
      ("\"min\": ", "\"min\": 9", "contradicts itself"),
      ("\"seconds\": ", "\"seconds\": 1", "report.intervals: has not as many rows"),
      ("\"outcome\": \"", "\"outcome\": \"x", "report.spread.worst[0].outcome: \"finished\" or"),
      ("\"index\": 1,", "\"index\": 9,", "report.parts[0].index: is part 9 of 1"),
      ("\"index\": 1, \"count\": 1", "\"index\": 1, \"count\": 1000000", "report.parts[0].index: is part 1 of 1000000"),
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

  @Test("a report with arbitrary numbers is refused or usable like any other", arguments: Seed.several(5))
  func hostile(_ seed: Seed) throws {
    var random = seed.generator
    let run = RandomRun(loops: 1, streams: stride(from: 0, to: 3, by: 1), seconds: 3, using: &random)
    let report = run.report(part: 1, of: 2, loops: [0], streams: 3)
    let pieces = report.json.split(separator: ": ", omittingEmptySubsequences: false)
    let numbers = ["0", "1", "9007199254740992", "9223372036854775807", "-9223372036854775808", "-1", "1e308"]
    let places = pieces.indices.filter { pieces[$0].first?.isNumber == true }
    let thresholds = try (LoadMetric.names.map { $0 + " > 0" } + ["goodput > 0%"]).map { try Threshold($0) }
    var usable = 0
    for _ in 0..<60 {
      var changed = pieces
      for _ in 0...Int.random(in: 0...2, using: &random) {
        let place = places.randomElement(using: &random) ?? 1
        let number = Substring(numbers.randomElement(using: &random) ?? "0")
        changed[place] = number + changed[place].drop { $0.isNumber || $0 == "." || $0 == "e" }
      }
      let text = changed.joined(separator: ": ")
      guard let read = try? LoadReport(json: Array(text.utf8), file: "a.json") else { continue }
      usable += 1
      #expect(!read.table.isEmpty && !ReportComparison(before: read, after: report).table.isEmpty)
      for threshold in thresholds { _ = threshold.failure(in: read) }
      var other = read
      other.parts[0].index = 3 - min(2, max(1, read.parts[0].index))
      if let merged = try? LoadReport.merge([("a", read), ("b", other)]) { #expect(!merged.summaryJSON.isEmpty) }
    }
    #expect(usable > 0)
  }

  @Test("a report without the fewest live streams of its intervals is read with those at their ends")
  func olderReport() throws {
    var report = LoadReport()
    var interval = LoadInterval()
    (interval.live, interval.fewestAfterLoss) = (60, 59)
    report.intervals.append(second: interval)
    let json = report.json
    let read = try LoadReport(json: Array(json.utf8), file: "a.json")
    #expect(read == report && read.intervals.intervals.map(\.fewestLive) == [59])
    let older = json.replacing("\"fewest_live\": 59, ", with: "")
    #expect(older != json)
    let readOlder = try LoadReport(json: Array(older.utf8), file: "a.json")
    #expect(readOlder.intervals.intervals.map(\.fewestLive) == [60])
  }

  @Test("an empty report is read again, too")
  func empty() throws {
    #expect(try LoadReport(json: Array(LoadReport().json.utf8), file: "a.json") == LoadReport())
  }
}
