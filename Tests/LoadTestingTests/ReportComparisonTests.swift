import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("Two runs compared")
struct ReportComparisonTests {
  /// What a run is made of: its delays are drawn anew from one distribution for each of 30 seconds.
  private struct Model {
    var delay = 5e6
    var bytes = 1000
    var errorsOfThousand = 1
    var streams = 100

    func report(_ seed: UInt64) -> LoadReport {
      var random = SeededGenerator(seed: seed)
      var loop = LoopFigures()
      var stream = loop.streamStarted(index: 0, now: 0)
      loop.connected(&stream, after: nil)
      var report = LoadReport()
      for second in 0..<30 {
        for _ in 0..<200 {
          let now = Int64(second) * 1_000_000_000
          let due = now - LengthDistribution.lognormal(median: Int64(delay), sigma: 0.5).draw(using: &random)
          let size = Int.random(in: 1...(2 * bytes), using: &random)
          loop.due(bytes: size, &stream)
          loop.reached(dueAt: now - Int64.random(in: 0...1_000_000, using: &random), now: now)
          loop.acknowledged(bytes: size, dueAt: due, now: now, &stream)
          loop.connected(&stream, after: LengthDistribution.exponential(mean: Int64(delay)).draw(using: &random))
          if Int.random(in: 0..<1000, using: &random) < errorsOfThousand { loop.error("reset", example: "reset") }
        }
        var interval = loop.takeInterval()
        interval.processorTime = Int64.random(in: 10_000_000...12_000_000, using: &random)
        report.intervals.append(second: interval)
      }
      loop.streamEnded(&stream, .finished, now: 30_000_000_000)
      report.add(loop)
      report.measured = 30_000_000_000
      report.plan.streams = streams
      return report
    }
  }

  private func verdicts(_ first: LoadReport, _ second: LoadReport) -> [String: ReportComparison.Verdict] {
    let rows = ReportComparison(before: first, after: second).rows
    return Dictionary(uniqueKeysWithValues: rows.map { ($0.name, $0.verdict) })
  }

  @Test("two runs of the same thing differ in noise only, but for one figure in a hundred")
  func noise() {
    var judged = 0
    var wrong: [String] = []
    for seed in stride(from: UInt64(0), to: 60, by: 2) {
      for (name, verdict) in verdicts(Model().report(seed), Model().report(seed + 1)) where verdict != .unjudged {
        judged += 1
        if verdict != .same { wrong.append(name) }
      }
    }
    #expect(judged > 200)
    #expect(wrong.count * 100 <= judged, "\(wrong) of \(judged)")
  }

  @Test("what is a fifth slower, smaller or dearer is told, and in which direction")
  func differences() {
    let usual = Model().report(1)
    var slow = Model()
    slow.delay *= 1.2
    let slower = verdicts(usual, slow.report(2))
    #expect(slower["ack p50"] == .worse && slower["ack p99"] == .worse && slower["goodput"] == .same)
    #expect(verdicts(slow.report(2), usual)["ack p50"] == .better)
    var less = Model()
    less.bytes = 800
    #expect(verdicts(usual, less.report(2))["goodput"] == .worse)
    #expect(verdicts(less.report(2), usual)["goodput"] == .better)
    var broken = Model()
    broken.errorsOfThousand = 20
    #expect(verdicts(usual, broken.report(2))["errors"] == .worse)
    var dear = usual
    dear.intervals = IntervalSeries()
    for var interval in usual.intervals.intervals {
      interval.processorTime += interval.processorTime / 5
      dear.intervals.append(second: interval)
    }
    #expect(verdicts(usual, dear)["generator CPU per message"] == .worse)
    #expect(verdicts(usual, usual).values.allSatisfy { $0 == .same || $0 == .unjudged })
  }

  @Test("counts of runs of different size are compared by stream and second")
  func counts() throws {
    var large = Model().report(3)
    large.plan.streams *= 10
    large.totals.errors = [:]
    for _ in 0..<500 { large.totals.countError("reset", example: "") }
    var small = Model().report(4)
    small.totals.errors = [:]
    for _ in 0..<50 { small.totals.countError("reset", example: "") }
    let comparison = ReportComparison(before: small, after: large)
    let errors = try #require(comparison.rows.first { $0.name == "errors" })
    #expect(errors.ratio == 1 && errors.verdict == .same && errors.before == "50" && errors.after == "500")
    #expect(comparison.planDifferences.map(\.name) == ["number of streams"])
  }

  @Test("the first line says better, worse or the same, with the figures of the table; the generator has no say")
  func sentence() throws {
    let usual = Model().report(1)
    var slow = Model()
    slow.delay *= 1.5
    var busy = usual
    busy.intervals = IntervalSeries()
    for var interval in usual.intervals.intervals {
      interval.processorTime *= 2
      busy.intervals.append(second: interval)
    }
    let cases: [(before: LoadReport, after: LoadReport, verdict: ReportComparison.Verdict, start: String)] = [
      (usual, slow.report(2), .worse, "B is worse than A: ack p50 "),
      (slow.report(2), usual, .better, "B is better than A: ack p50 "),
      (usual, usual, .same, "B is the same as A: "),
      (usual, busy, .same, "B is the same as A: "),
      (LoadReport(), usual, .unjudged, "A and B cannot be compared: "),
    ]
    for (before, after, verdict, start) in cases {
      let comparison = ReportComparison(before: before, after: after)
      #expect(comparison.verdict == verdict && comparison.sentence.hasPrefix(start), "\(comparison.sentence)")
      #expect(comparison.table.hasPrefix(start) && comparison.html.contains("id=\"verdict\"><p>\(start)"))
      let delay = try #require(comparison.rows.first { $0.name == "ack p99" })
      // The page has one figure for one thing.
      for (name, figure) in [("A", delay.before), ("B", delay.after)] where figure != "–" {
        #expect(comparison.html.contains(try Regex("id=\"verdict-\(name)\">.*p99 from due to acknowledged \(figure);")))
      }
    }
    var otherSeed = usual
    otherSeed.plan.seed = 99
    let comparison = ReportComparison(before: usual, after: otherSeed)
    #expect(comparison.planDifferences.isEmpty && comparison.html.contains("Both runs were asked for the same."))
  }

  @Test("what one of the runs did not measure is shown as missing, and not judged")
  func missing() throws {
    let row = try #require(
      ReportComparison(before: LoadReport(), after: Model().report(1)).rows.first { $0.name == "ack p99" })
    #expect(row.before == "–" && row.ratio == nil && row.verdict == .unjudged)
  }
}
