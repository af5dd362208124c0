// The rows of a run for spreadsheets, read back and compared with the report that they come from.

import PropertyTesting
import Testing

@testable import LoadReports

@Suite("The intervals of a report as CSV")
struct ReportCSVTests {
  @Test("each row is an interval, and each column adds up to the report's total", arguments: Seed.several(10))
  func rows(_ seed: Seed) throws {
    var random = SplitMix64(state: seed.value)
    let trouble = Int.random(in: 0..<20, using: &random)
    var report = SampleRun(streams: 5, seconds: 30, trouble: trouble..<trouble + 5, seed: seed.value).report
    // The last second was incomplete.
    report.measured -= 250_000_000
    let lines = report.csv.split(separator: "\n", omittingEmptySubsequences: false)
    #expect(lines.last == "", "the last line is ended as well")
    let names = lines[0].split(separator: ",").map(String.init)
    let rows = lines.dropFirst().dropLast().map { $0.split(separator: ",", omittingEmptySubsequences: false) }
    #expect(rows.count == 30 && rows.allSatisfy { $0.count == names.count })
    func sum(_ name: String) throws -> Double {
      let column = try #require(names.firstIndex(of: name))
      return rows.compactMap { Double($0[column]) }.reduce(0, +)
    }
    let totals = report.totals
    #expect(try sum("offered_bytes") == Double(totals.bytes.offered))
    #expect(try sum("acknowledged_bytes") == Double(totals.bytes.acknowledged))
    #expect(try sum("sent_bytes") == Double(totals.bytes.sent))
    #expect(try sum("errors") == Double(totals.errorCount))
    #expect(try sum("interruptions") == Double(totals.interruptions.total))
    #expect(try sum("outage_ns") == 5e9)
    #expect(try sum("length_s") == 29.75)
    let start = try #require(names.firstIndex(of: "start_s"))
    #expect(rows.map { String($0[start]) } == (0..<30).map(String.init))
    let delay = try #require(names.firstIndex(of: "ack_p99_ns"))
    #expect(
      rows.map { Int64($0[delay]) } == report.intervals.intervals.map { $0.acknowledgedDelay.quantile(0.99) },
      "a second without acknowledgement has an empty field")
  }

  @Test("an empty report is a row of names, and a long run has its longer intervals")
  func edges() {
    #expect(LoadReport().csv.split(separator: "\n").count == 1)
    var report = LoadReport()
    for _ in 0..<2000 { report.intervals.append(second: LoadInterval()) }
    report.measured = 2000 * 1_000_000_000 - 1_500_000_000
    let rows = report.csv.split(separator: "\n").dropFirst()
    #expect(rows.count == 1000)
    #expect(rows.dropFirst().first?.hasPrefix("2,2,0,") == true && rows.last?.hasPrefix("1998,0.5,0,") == true)
  }
}
