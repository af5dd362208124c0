// Parts of a report that no run in a test fills by itself.

import PropertyTesting
import Testing

@testable import LoadReports

@Suite("The parts of a report")
struct ReportPartTests {
  @Test("merged stream data equals data recorded in one place", arguments: Seed.several(5))
  func spread(_ seed: Seed) {
    var random = seed.generator
    var (all, parts) = (StreamSpread(), [StreamSpread(), StreamSpread(), StreamSpread()])
    for index in 0..<100 {
      var row = StreamRow()
      row.index = index
      row.lasted = 2_000_000_000
      row.outcome = StreamOutcome.allCases.randomElement(using: &random) ?? .finished
      row.offered = UInt64.random(in: 0...1000, using: &random)
      if row.offered > 0, random.chance(80) {
        let delay = Int64.random(in: 0...1_000_000_000, using: &random)
        row.meanDelay = delay
        row.maximumDelay = delay + Int64.random(in: 0...1_000_000_000, using: &random)
        row.acknowledged = UInt64.random(in: 1...row.offered, using: &random)
      }
      all.record(row)
      parts[index % 3].record(row)
    }
    var merged = StreamSpread()
    for part in parts { merged.merge(part) }
    #expect(merged == all, "\(seed)")
    #expect(merged.meanDelay.count > 0 && merged.meanDelay.count == merged.maximumDelay.count)
  }

  @Test("a plan with all its members is read again unchanged")
  func plan() throws {
    var random = Seed(1).generator
    let run = RandomRun(loops: 1, streams: stride(from: 0, to: 3, by: 1), seconds: 3, using: &random)
    var report = run.report(loops: [0], streams: 3)
    report.plan.streamsPerConnection = 77
    report.plan.dropEvery = 5
    report.plan.slowFraction = 0.25
    report.plan.requestPerMessage = true
    report.plan.rate = 1001
    report.plan.chunk = 1002
    report.plan.stages = [.init(duration: 3, streams: 4)]
    #expect(try LoadReport(json: Array(report.json.utf8), file: "a.json") == report)
  }

  @Test("a run has no values before its first and after its end, and the last one in between")
  func values() {
    let timeline = ReportTimeline(SampleRun(seconds: 3).report)
    #expect(timeline.moments == [0.5, 1.5, 2.5] && timeline.end == 3)
    let values = ComparisonPage.values(timeline, [1, 2, 3], at: [0, 0.5, 1.49, 1.5, 2.6, 3, 3.01])
    #expect(values == [nil, 1, 1, 2, 3, 3, nil])
  }
}
