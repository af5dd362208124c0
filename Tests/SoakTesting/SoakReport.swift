// What a soak run found, and whether it is right.

internal import CommandTesting
internal import JSONLines
internal import NetworkTesting

/// One run that went well.
package struct SoakReport: Sendable {
  /// What memory may grow by in the life of a process, in bytes.
  static let memoryLimit = 512.0 * 1024
  /// The same for descriptors and threads: less than one.
  static let countLimit = 1.0

  /// One figure of one process.
  private struct Row: Sendable {
    let process: String
    let figure: String
    let trend: Trend
    let limit: Double
    var isFlat: Bool { abs(trend.growth) < limit }
  }

  private let options: SoakRun.Options
  private let faults: [SoakFault: Int]
  private let steps: Int
  private let rows: [Row]
  private let figures: [(name: String, value: UInt64)]

  /// - Throws: ``TestFailure`` for the first promise that was not kept.
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
    let timeline = run.timeline
    func expect(_ isTrue: Bool, _ what: String) throws {
      guard isTrue else {
        throw TestFailure(
          "\(what): \(summary); stored are \(timeline.length) bytes, \(timeline.silentBytes) of them silent, in "
            + "\(timeline.count) recordings")
      }
    }
    try expect(captured == acknowledged + lost + unsent && unsent == 0, "the sum is wrong")
    try expect(code == (lost + sourceLost > 0 ? 4 : 0), "the exit code is \(code)")
    // A recording that was closed while the machine slept stores nothing of that silence; the others store all.
    let isWhole = timeline.count > 1 ? timeline.length <= Int(captured) : timeline.length == Int(captured)
    try expect(isWhole, "the stored timeline has another length")
    try Self.compareSilences(run)
    rows = try Self.rows(run)
    figures = [
      ("captured", captured), ("acknowledged", acknowledged), ("lost", lost), ("source_lost_frames", sourceLost),
      ("dropouts", try figure("dropouts")), ("resent", try figure("resent")), ("stored", UInt64(timeline.length)),
      ("silent", UInt64(timeline.silentBytes)),
      ("recordings", UInt64(timeline.count)), ("silences", UInt64(timeline.silences.count)),
      ("samples", UInt64(run.clientSamples.count)),
    ]
    for row in rows {
      try expect(row.isFlat, "\(row.process): \(row.figure) grows by \(row.trend.growth) (\(row.trend))")
    }
  }

  /// Silence is stored where a loss was reported, and nowhere else.
  private static func compareSilences(_ run: SoakRun) throws {
    var reported: [Range<Int>] = []
    for event in run.client.events {
      guard let offset = event.integer("offset") else { continue }
      let length =
        event.event == "gap" ? event.integer("length") ?? 0 : 2 * (event.integer("lost_frames") ?? 0)
      if length > 0 { reported.append(offset..<offset + length) }
    }
    reported.sort { $0.lowerBound < $1.lowerBound }
    var union: [Range<Int>] = []
    for range in reported {
      if let last = union.last, range.lowerBound <= last.upperBound {
        union[union.count - 1] = last.lowerBound..<max(last.upperBound, range.upperBound)
      } else {
        union.append(range)
      }
    }
    for silence in run.timeline.silences {
      let start = try run.streamOffset(ofRecording: silence.recording) + silence.bytes.lowerBound
      let range = start..<start + silence.bytes.count
      guard union.contains(where: { $0.lowerBound <= range.lowerBound && range.upperBound <= $0.upperBound }) else {
        throw TestFailure(
          "stream offsets \(range) are silent in \(silence.recording), and no loss was reported: \(union)")
      }
    }
    let (lost, silent) = (union.reduce(0) { $0 + $1.count }, run.timeline.silentBytes)
    guard run.timeline.count > 1 ? silent <= lost : silent == lost else {
      throw TestFailure("\(lost) bytes were reported as lost, and \(silent) are silent")
    }
  }

  private static func rows(_ run: SoakRun) throws -> [Row] {
    try [("sluice mic", run.clientSamples), ("sluice serve", run.serverSamples)].flatMap { name, samples in
      // The first quarter, at most half a day: until every buffer has been as full as it gets.
      let warm = samples.filter { $0.age >= min(12, Double(run.options.hours) / 4) }
      func row(_ figure: String, _ limit: Double, _ value: (ProcessSample) -> Int) throws -> Row {
        guard let trend = Trend(warm, value) else { throw TestFailure("too few samples: \(samples.count)") }
        return Row(process: name, figure: figure, trend: trend, limit: limit)
      }
      return try [
        row("resident memory", memoryLimit, \.resident), row("anonymous memory", memoryLimit, \.anonymous),
        row("descriptors", countLimit, \.descriptors), row("threads", countLimit, \.threads),
      ]
    }
  }

  /// Lines of JSON: the run, then a line for each figure of each process.
  package var jsonLines: [String] {
    var head = JSONLine(event: "soak")
    head.add("seed", options.seed)
    head.add("hours", UInt64(options.hours))
    head.add("factor", UInt64(options.factor))
    head.add("clock_steps", UInt64(steps))
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
