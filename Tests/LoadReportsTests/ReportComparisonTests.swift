import Glibc
import PropertyTesting
import Testing

@testable import LoadReports
@testable import LoadTesting

@Suite("The comparison of two runs")
struct ReportComparisonTests {
  /// The model of a run. Its delays are drawn from one distribution in each of its seconds.
  private struct Model: CustomTestStringConvertible {
    var delay = 5e6
    var bytes = 1000
    var errorsOfThousand = 1
    var streams = 100
    var seconds = 30
    var perSecond = 200
    /// The variation of the factor for the delays of a second: the standard deviation of its logarithm, and the share
    /// that persists in the next second.
    var unrest = 0.0
    var memory = 0.0
    /// Connections in the first second; one for each message if nil.
    var connects: Int?
    /// The maximum lateness of the generator.
    var lateness: Int64 = 1_000_000

    var testDescription: String {
      "\(seconds) s, \(perSecond)/s, unrest \(unrest), memory \(memory), connects \(connects ?? -1)"
    }

    func report(_ seed: UInt64) -> LoadReport {
      var random = SeededGenerator(seed: seed)
      var loop = LoopFigures()
      var stream = loop.streamStarted(index: 0, now: 0)
      loop.connected(&stream, after: nil)
      var report = LoadReport()
      var mood = 0.0
      for second in 0..<seconds {
        mood = memory * mood + (1 - memory * memory).squareRoot() * unrest * random.normal()
        let usual = LengthDistribution.lognormal(median: Int64(delay * exp(mood)), sigma: 0.5)
        for message in 0..<perSecond {
          let now = Int64(second) * 1_000_000_000
          let due = now - usual.draw(using: &random)
          let size = Int.random(in: 1...(2 * bytes), using: &random)
          loop.due(bytes: size, &stream)
          loop.reached(dueAt: now - Int64.random(in: 0...lateness, using: &random), now: now)
          loop.acknowledged(bytes: size, dueAt: due, now: now, &stream)
          if connects == nil || second == 0 && message < connects ?? 0 {
            loop.connected(&stream, after: LengthDistribution.exponential(mean: Int64(delay)).draw(using: &random))
          }
          if Int.random(in: 0..<1000, using: &random) < errorsOfThousand { loop.error("reset", example: "reset") }
        }
        var interval = loop.takeInterval()
        interval.processorTime = Int64.random(in: 10_000_000...12_000_000, using: &random)
        report.intervals.append(second: interval)
      }
      loop.streamEnded(&stream, .finished, now: Int64(seconds) * 1_000_000_000)
      report.add(loop)
      report.measured = Int64(seconds) * 1_000_000_000
      report.plan.streams = streams
      return report
    }
  }

  private func verdicts(_ first: LoadReport, _ second: LoadReport) -> [String: ReportComparison.Verdict] {
    let rows = ReportComparison(before: first, after: second).rows
    return Dictionary(uniqueKeysWithValues: rows.map { ($0.name, $0.verdict) })
  }

  @Test(
    "of a hundred pairs of equal runs, about one shows any difference, for any runs",
    arguments: [
      Model(), Model(seconds: 8), Model(seconds: 12, perSecond: 50, connects: 20),
      Model(seconds: 20, perSecond: 50, unrest: 0.3), Model(seconds: 40, perSecond: 50, unrest: 0.3, memory: 0.5),
    ], Seed.several(1))
  private func noise(_ model: Model, _ seed: Seed) {
    let pairs = 50
    var wrong: [String] = []
    var judged = 0
    for pair in 0..<UInt64(pairs) {
      let (before, after) = (model.report(seed.value &+ 2 * pair), model.report(seed.value &+ 2 * pair &+ 1))
      let comparison = ReportComparison(before: before, after: after)
      judged += comparison.rows.count { $0.verdict != .unjudged }
      let different = comparison.rows.filter { $0.verdict == .better || $0.verdict == .worse }
      if !different.isEmpty { wrong.append(different.map(\.name).joined(separator: " and ")) }
      if different.isEmpty { #expect(comparison.verdict == .same) }
    }
    // Half of one is expected. Five or more occur once in five thousand times.
    #expect(judged > 6 * pairs && wrong.count < 5, "\(wrong)")
  }

  @Test(
    "a quantile of few delays is shown and not judged, because the largest of them is not representative",
    arguments: [4, 5, 10, 20, 50, 500])
  func few(_ count: Int) {
    // The same shape: one delay of ten times the others' in each run, or in only one.
    func report(largest: Int64) -> LoadReport {
      var report = Model().report(1)
      report.histograms[.connect] = LatencyHistogram()
      for number in 1..<Int64(count) { report.histograms[.connect].record(1_000_000 + 1000 * number) }
      report.histograms[.connect].record(largest)
      return report
    }
    let rows = ReportComparison(before: report(largest: 2_000_000), after: report(largest: 150_000_000)).rows
    let connect = rows.first { $0.name == "connect p99" }
    #expect(connect?.verdict == .unjudged)
    if count < 100 { #expect(connect?.before == "2.00 ms" && connect?.after == "150 ms") }
  }

  /// Final responses with delays around this one, in nanoseconds.
  private func responses(_ report: LoadReport, _ delay: Int64, count: Int = 1000, seed: UInt64 = 1) -> LoadReport {
    var changed = report
    var random = SeededGenerator(seed: seed)
    let usual = LengthDistribution.lognormal(median: delay, sigma: 0.5)
    for _ in 0..<count { changed.histograms[.response].record(usual.draw(using: &random)) }
    return changed
  }

  @Test("responses that take ten times as long are worse, also of a plain server that acknowledges only at the end")
  func slowResponses() {
    let run = Model().report(1)
    // All acknowledgements come after the last second.
    var plain = run
    plain.intervals = IntervalSeries()
    for var interval in run.intervals.intervals {
      (interval.acknowledged, interval.acknowledgedDelay) = (0, LatencyHistogram())
      plain.intervals.append(second: interval)
    }
    for report in [run, plain] {
      let (quick, slow) = (responses(report, 5_000_000), responses(report, 50_000_000))
      let comparison = ReportComparison(before: quick, after: slow)
      #expect(comparison.verdict == .worse && comparison.sentence.contains("response p50 "), "\(comparison.sentence)")
      #expect(verdicts(slow, quick)["response p50"] == .better)
      #expect(verdicts(quick, responses(report, 5_000_000, seed: 2))["response p50"] == .same)
      #expect(verdicts(report, slow)["response p99"] == .unjudged, "only one of the runs has responses")
    }
    let many = verdicts(responses(run, 5_000_000, count: 5000), responses(run, 50_000_000, count: 5000))
    #expect(many["response p99"] == .worse)
    // Thirty streams that end together may all be slow because of one pause.
    let few = verdicts(responses(plain, 5_000_000, count: 30), responses(plain, 50_000_000, count: 30))
    #expect(few["response p50"] == .unjudged)
  }

  @Test("outages that last ten times as long are worse")
  func outages() {
    var (short, long) = (Model().report(1), Model().report(1))
    for number in 1...Int64(5000) {
      short.histograms[.outage].record(1_000_000_000 + number)
      long.histograms[.outage].record(10_000_000_000 + number)
    }
    #expect(verdicts(short, long)["outage p99"] == .worse && verdicts(long, short)["outage p99"] == .better)
    #expect(verdicts(short, short)["outage p99"] == .same)
  }

  @Test("a quantile of many delays is judged, and with less confidence if long delays come together")
  func clumps() {
    var slow = Model()
    slow.delay *= 1.5
    #expect(verdicts(Model().report(1), slow.report(2))["connect p99"] == .worse)
    // Two seconds in which everything takes ten times as long are two events, and not four hundred.
    var paused = Model()
    paused.unrest = 1
    var wrong = 0
    for seed in stride(from: UInt64(0), to: 40, by: 2) {
      let verdict = verdicts(paused.report(seed), paused.report(seed + 1))["connect p99"]
      if verdict == .better || verdict == .worse { wrong += 1 }
    }
    #expect(wrong <= 1, "\(wrong) of 20")
  }

  @Test("a difference below the generator's lateness is not the server's, and a late generator judges none")
  func lateness() {
    var (late, slow) = (Model(), Model())
    slow.delay *= 1.5
    #expect(verdicts(late.report(1), slow.report(2))["ack p50"] == .worse)
    late.lateness = 8_000_000
    #expect(verdicts(late.report(1), slow.report(2))["ack p50"] == .same, "2.5 ms more, and 4 ms late")
    var behind = slow.report(2)
    behind.generator.bottlenecks = ["it was late"]
    let comparison = ReportComparison(before: Model().report(1), after: behind)
    #expect(comparison.sentence == "A and B cannot be compared: the generator did not keep up in B.")
    #expect(comparison.rows.first { $0.name == "ack p50" }?.verdict == .unjudged)
    // The server's own refusals count in any case.
    for _ in 0..<500 { behind.totals.countError("http-503", example: "") }
    #expect(ReportComparison(before: Model().report(1), after: behind).verdict == .worse)
  }

  @Test("a difference of a fifth in speed, size or cost is reported with its direction")
  func differences() {
    let usual = Model().report(1)
    var slow = Model()
    slow.delay *= 1.2
    let slower = verdicts(usual, slow.report(2))
    // A generator that is up to 1 ms late may add 1 ms to a delay.
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

  @Test(
    "a delay that is a fifth longer is detected in half a minute: always at the median, and in 19 of 20 runs at p90",
    arguments: Seed.several(1))
  func power(_ seed: Seed) {
    var random = seed.generator
    var slow = Model()
    slow.delay *= 1.2
    var detections = 0
    for _ in 0..<60 {
      let (first, second) = (random.next(), random.next())
      let found = verdicts(Model().report(first), slow.report(second))
      let back = verdicts(slow.report(first), Model().report(second))
      #expect(found["ack p50"] == .worse && back["ack p50"] == .better, "\(first), \(second)")
      #expect(found["ack p90"] != .better && back["ack p90"] != .worse, "\(first), \(second)")
      detections += (found["ack p90"] == .worse ? 1 : 0) + (back["ack p90"] == .better ? 1 : 0)
    }
    #expect(detections >= 114, "\(detections) of 120")
  }

  @Test("counts of runs of different size are compared per stream and second")
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

  @Test("the first line contains better, worse or the same, with the figures of the table, regardless of the generator")
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
      // The page shows the same figure everywhere.
      for (name, figure) in [("A", delay.before), ("B", delay.after)] where figure != "–" {
        #expect(comparison.html.contains(try Regex("id=\"verdict-\(name)\">.*p99 from due to acknowledged \(figure);")))
      }
    }
    var otherSeed = usual
    otherSeed.plan.seed = 99
    let comparison = ReportComparison(before: usual, after: otherSeed)
    #expect(comparison.planDifferences.isEmpty && comparison.html.contains("Both runs have the same plan."))
  }

  @Test("a run that lacks parts is labelled in the table and on the page")
  func parts() {
    var part = LoadPart()
    (part.index, part.count) = (2, 3)
    let whole = Model().report(1)
    var partial = whole
    partial.parts = [part]
    for (name, comparison) in [
      ("A", ReportComparison(before: partial, after: whole)), ("B", ReportComparison(before: whole, after: partial)),
    ] {
      let lines = comparison.table.split(separator: "\n").filter { $0.hasPrefix("NOT ALL OF") }
      #expect(lines == ["NOT ALL OF RUN \(name): of 3 parts these are missing: 1, 3"])
      #expect(comparison.html.matches(of: /part 2 of 3 only/).count == 1)
    }
    let complete = ReportComparison(before: whole, after: whole)
    #expect(!complete.table.contains("NOT ALL OF") && !complete.html.contains("part 2 of 3"))
  }

  @Test("a measurement that one run lacks is shown as missing, and not judged")
  func missing() throws {
    let row = try #require(
      ReportComparison(before: LoadReport(), after: Model().report(1)).rows.first { $0.name == "ack p99" })
    #expect(row.before == "–" && row.ratio == nil && row.verdict == .unjudged)
  }
}
