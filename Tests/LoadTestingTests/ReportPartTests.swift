// Parts of a report that no run of a test fills by itself.

import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("The parts of a report")
struct ReportPartTests {
  @Test("what loops know of their streams is the same merged as recorded in one place", arguments: Seed.several(5))
  func spread(_ seed: Seed) {
    var random = seed.generator
    var (all, parts) = (StreamSpread(), [StreamSpread(), StreamSpread(), StreamSpread()])
    for index in 0..<100 {
      var figures = LoopFigures()
      var stream = figures.streamStarted(index: index, now: 0)
      for _ in 0..<Int.random(in: 0...4, using: &random) {
        let now = Int64.random(in: 1...1_000_000_000, using: &random)
        figures.due(bytes: 100, &stream)
        figures.acknowledged(
          bytes: 100, dueAt: now - Int64.random(in: 0...now, using: &random), now: now, &stream)
      }
      let outcome = StreamOutcome.allCases.randomElement(using: &random) ?? .finished
      all.record(stream, outcome, now: 2_000_000_000)
      parts[index % 3].record(stream, outcome, now: 2_000_000_000)
    }
    var merged = StreamSpread()
    for part in parts { merged.merge(part) }
    #expect(merged == all, "\(seed)")
    #expect(merged.meanDelay.count > 0 && merged.meanDelay.count == merged.maximumDelay.count)
  }

  @Test("a plan with all its members is read again as it was written")
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

  @Test("one text out of an object, by its own key, and nothing out of anything else")
  func member() {
    func text(_ json: String) -> String? { stringMember("name", ofJSON: Array(json.utf8)) }
    #expect(text(#"{"other": "a", "name": "b", "more": "c"}"#) == "b")
    #expect(text(#"{"other": "a"}"#) == nil)
    #expect(text(#"{"name": 7, "other": "a"}"#) == nil)
    #expect(text(#"["name"]"#) == nil && text("name") == nil && text("") == nil)
  }

  @Test("a run has no values before its first and behind its end, and in between the last one")
  func values() {
    let timeline = ReportTimeline(SampleRun(seconds: 3).report)
    #expect(timeline.moments == [0.5, 1.5, 2.5] && timeline.end == 3)
    let values = ComparisonPage.values(timeline, [1, 2, 3], at: [0, 0.5, 1.49, 1.5, 2.6, 3, 3.01])
    #expect(values == [nil, 1, 1, 2, 3, 3, nil])
  }
}
