// The results of a soak run, and their judgement.

internal import CommandTesting
internal import JSONLines
internal import NetworkTesting

/// One run.
package struct SoakReport: Sendable {
  /// The permitted growth of descriptors, timers and threads in the life of a process: less than one.
  static let countLimit = 1.0

  /// One figure of one process.
  private struct Row: Sendable {
    let process: String
    let figure: String
    let trend: Trend
    let limit: Double
  }

  private let options: SoakRun.Options
  private let faults: [SoakFault: Int]
  private let steps: Int
  private let rows: [Row]
  private let figures: [(name: String, value: UInt64)]
  /// The bytes that are missing at the server and were not reported.
  package let unreported: OffsetSet
  /// The losses whose reports were removed on purpose.
  package let forgotten: OffsetSet
  /// The broken promises; empty after a successful run.
  package let violations: [String]

  init(_ run: SoakRun, _ summary: FlatObject, code: Int32) throws {
    options = run.options
    (faults, steps) = (run.counts, run.steps.count)
    func figure(_ name: String) throws -> UInt64 {
      guard let value = summary.integer(name) else { throw TestFailure("the summary has no \(name): \(summary)") }
      return UInt64(value)
    }
    let (captured, acknowledged) = (try figure("captured"), try figure("acknowledged"))
    let (lost, unsent) = (try figure("lost"), try figure("unsent"))
    let sourceLost = try figure("source_lost_frames")
    let events = run.client.events
    let losses = LossComparison(
      captured: Int(captured), stored: run.timeline.stored, silent: run.timeline.silent,
      reported: LossComparison.reported(events), droppedLines: LossComparison.droppedLines(events),
      wasClosed: run.timeline.count > run.splitCount + 1)
    rows = try Self.rows(run)
    figures = [
      ("captured", captured), ("acknowledged", acknowledged), ("lost", lost), ("source_lost_frames", sourceLost),
      ("outages", try figure("outages")), ("resent", try figure("resent")),
      ("stored", UInt64(losses.stored.count)), ("silent", UInt64(losses.silent.count)),
      ("recordings", UInt64(run.timeline.count)), ("splits", UInt64(run.splitCount)),
      ("silences", UInt64(losses.silent.ranges.count)),
      ("dropped_lines", UInt64(losses.droppedLines)), ("samples", UInt64(run.clientSamples.count)),
    ]
    var violations: [String] = []
    if captured != acknowledged + lost + unsent || unsent != 0 { violations.append("the sum is wrong: \(summary)") }
    if code != (lost + sourceLost > 0 ? 4 : 0) { violations.append("the exit code is \(code): \(summary)") }
    if run.options.split != nil, run.splitCount == 0 { violations.append("no recording was split") }
    violations += losses.violations
    let repeated = LossComparison.repeated(events)
    if !repeated.isEmpty { violations.append("reported as gaps more than once: stream offsets \(repeated)") }
    for range in losses.unreported.ranges.prefix(3) { violations += Self.nearby(range, events) }
    for row in rows where row.trend.growth >= row.limit {
      violations.append("\(row.process): \(row.figure) grows by \(row.trend.growth) (\(row.trend))")
    }
    (self.violations, unreported) = (violations, losses.unreported)
    forgotten = LossComparison.reported(run.client.forgotten)
  }

  /// The events about offsets near `range`, a few minutes on each side.
  private static func nearby(_ range: Range<Int>, _ events: [FlatObject]) -> [String] {
    let margin = 225 * Int(SoakRun.bytesPerSecond)
    return events.filter { event in
      event.event == "output-dropped"
        || event.integer("offset").map { $0 > range.lowerBound - margin && $0 < range.upperBound + margin } ?? false
    }.map { "  near \(range): \($0)" }
  }

  private static func rows(_ run: SoakRun) throws -> [Row] {
    try [("sluice mic", run.clientSamples), ("sluice serve", run.serverSamples)].flatMap { name, samples in
      // Until every buffer has reached its maximum.
      let warm = samples.filter { $0.age >= run.options.pace.warmUp / 3600 }
      func row(_ figure: String, _ limit: Double, _ value: (ProcessSample) -> Int) throws -> Row {
        guard let trend = Trend(warm, value) else { throw TestFailure("too few samples: \(samples.count)") }
        return Row(process: name, figure: figure, trend: trend, limit: limit)
      }
      let memory = run.options.pace.memoryLimit
      return try [
        row("resident memory", memory, \.resident), row("anonymous memory", memory, \.anonymous),
        row("descriptors", countLimit, \.descriptors), row("timers", countLimit, \.timers),
        row("threads", countLimit, \.threads),
      ]
    }
  }

  /// JSON Lines: the run, and then a line for each figure of each process.
  package var jsonLines: [String] {
    var head = JSONLine(event: "soak")
    head.add("seed", options.seed)
    head.add("hours", UInt64(options.hours))
    head.add("factor", UInt64(options.factor))
    head.add("clock_steps", UInt64(steps))
    if let split = options.split { head.add("split", split) }
    for fault in SoakFault.allCases { head.add(fault.rawValue, UInt64(faults[fault] ?? 0)) }
    var found = JSONLine(event: "found")
    for (name, value) in figures { found.add(name, value) }
    let trends = rows.map { row in
      var line = JSONLine(event: "trend")
      line.add("process", row.process)
      line.add("figure", row.figure)
      line.add("first", UInt64(row.trend.first))
      line.add("last", UInt64(row.trend.last))
      line.add("least", UInt64(row.trend.least))
      line.add("most", UInt64(row.trend.most))
      line.add("growth", thousandths: row.trend.growth)
      line.add("limit", thousandths: row.limit)
      return line.line
    }
    return [head.line, found.line] + trends
  }
}
