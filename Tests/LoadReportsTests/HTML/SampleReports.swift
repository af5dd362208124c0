// Reports for the tests of their output, made through the same calls as those of a real run.

import PropertyTesting

@testable import LoadReports
@testable import LoadTesting

/// The events of a simulated run.
struct SampleRun {
  var streams = 200
  var seconds = 60
  /// The seconds in which the server answers thirty times slower, and some connections break.
  var trouble: Range<Int> = 0..<0
  var isLate = false
  var target = "http://127.0.0.1:8080/ingest"
  var host = "generator-1"
  var error = "the connection was reset by the server"
  /// The typical delay, in nanoseconds.
  var delay = 3_000_000.0
  var seed: UInt64 = 1
  var part = (index: 1, count: 1)

  var report: LoadReport {
    var random = SplitMix64(state: seed &+ UInt64(part.index))
    var figures = LoopFigures()
    var report = LoadReport()
    report.intervals = IntervalSeries()
    var live: [StreamFigures] = []
    let ramp = seconds / 6
    for second in 0..<seconds {
      let wanted = ramp == 0 ? streams : min(streams, streams * (second + 1) / ramp)
      let now = Int64(second) * 1_000_000_000
      while live.count < wanted {
        var stream = figures.streamStarted(index: live.count, now: now)
        figures.connected(&stream, after: 200_000 + Int64.random(in: 0...2_000_000, using: &random))
        figures.interim(after: 400_000 + Int64.random(in: 0...3_000_000, using: &random))
        live.append(stream)
      }
      for index in live.indices { message(second, &live[index], &figures, &random) }
      var interval = figures.takeInterval()
      interval.processorTime = 100_000_000 + Int64.random(in: 0...40_000_000, using: &random)
      report.intervals.append(second: interval)
    }
    let end = Int64(seconds) * 1_000_000_000
    for index in live.indices {
      figures.streamEnded(&live[index], !trouble.isEmpty && index < 2 ? .failed : .finished, now: end)
    }
    report.totals = figures.totals
    report.histograms = figures.histograms
    report.spread = figures.spread
    if !trouble.isEmpty {
      report.totals.outages = OutageLedger([
        LoadOutage(
          Int64(trouble.lowerBound) * 1_000_000_000..<Int64(trouble.upperBound) * 1_000_000_000, cause: error)
      ])
    }
    fill(&report)
    return report
  }

  private func message(
    _ second: Int, _ stream: inout StreamFigures, _ figures: inout LoopFigures, _ random: inout SplitMix64
  ) {
    let due = Int64(second) * 1_000_000_000 + Int64.random(in: 0..<1_000_000_000, using: &random)
    let isTrouble = trouble.contains(second)
    figures.due(bytes: 1000, &stream)
    // A sum of several is skewed like real delays.
    let shape = (0..<4).reduce(0.2) { sum, _ in sum + Double.random(in: 0...1, using: &random) * 0.4 }
    let late = Int64(shape * (isLate ? 200_000_000 : 300_000))
    figures.reached(dueAt: due, now: due + late)
    figures.sent(bytes: 1000, &stream)
    if isTrouble, random.chance(2) {
      figures.interrupted(&stream, cause: random.chance(30) ? nil : "reset", now: due)
      figures.error("reset", example: error)
      figures.connected(&stream, after: 300_000)
      figures.sentAgain(bytes: 500)
    }
    let delay = Int64(shape * shape * self.delay * (isTrouble ? 30 : 1)) + late
    figures.accepted(bytes: 1000, dueAt: due, now: due + delay / 2, &stream)
    if isTrouble, random.chance(20) { return }
    figures.acknowledged(bytes: 1000, dueAt: due, now: due + delay, &stream)
  }

  private func fill(_ report: inout LoadReport) {
    report.sluiceVersion = "0.1.0"
    report.target = target
    report.startedAt = "2026-01-31T12:00:00Z"
    report.measured = Int64(seconds) * 1_000_000_000
    report.plan.streams = streams * part.count
    report.plan.ramp = Int64(seconds / 6) * 1_000_000_000
    report.plan.duration = report.measured
    report.plan.profile = "heartbeat"
    report.plan.rate = 1000
    report.plan.chunk = 1_000_000_000
    report.plan.body = "pattern"
    report.plan.resumable = "always"
    report.plan.httpVersion = "1.1"
    report.plan.seed = seed
    var part = LoadPart()
    (part.index, part.count, part.host, part.cores, part.threads) = (self.part.index, self.part.count, host, 2, 2)
    part.seed = seed
    report.parts = [part]
    report.generator.userTime = Int64(seconds) * 60_000_000
    report.generator.systemTime = Int64(seconds) * 50_000_000
    report.generator.maximumResident = UInt64(streams) * 24_000 + 6_000_000
    report.generator.busiestLoop = isLate ? 0.97 : 0.18
    report.generator.bottlenecks = GeneratorVerdict.bottlenecks(
      lateness: report.histograms[.lateness], chunk: report.plan.chunk, busiestLoop: report.generator.busiestLoop)
  }
}
