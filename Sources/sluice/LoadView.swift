// The output of a load test while it runs, as human-readable text and for programs.

internal import EventLoops
internal import JSONLines
internal import LoadReports
internal import LoadTesting
internal import Synchronization

/// A load test at one moment: its progress and the figures of its last second.
struct LoadSnapshot: Sendable {
  var elapsed: Duration
  /// The planned duration of the run, including the ramp.
  var planned: Duration
  var plannedStreams: Int
  /// The time between two messages of a stream, in nanoseconds. Lateness is judged by it.
  var chunk: Int64
  /// The measurements of the last second.
  var second = LoadInterval()
  /// The counts since the start.
  var totals = LoadTotals()
  /// The processor time that the generator uses. 1 means one busy processor.
  var processors = 0.0
}

/// Shows snapshots as `--progress` requires: status lines that change in place, a JSON line per second, or nothing.
final class LoadView: Sendable {
  private let progress: ProgressKind
  /// The last whole second that was reported as JSON.
  private let told = Mutex<Int64>(-1)

  init(progress: ProgressKind) { self.progress = progress }

  /// Shows a snapshot. Called for each change, about twice per second. Any thread.
  func show(_ snapshot: LoadSnapshot) {
    switch progress {
    case .bar: Console.shared.show(status: Self.lines(snapshot, width: Console.width))
    case .json:
      let second = snapshot.elapsed.nanoseconds / 1_000_000_000
      let isNew = told.withLock { told in
        defer { told = max(told, second) }
        return second > told
      }
      if isNew { Console.shared.put(Self.jsonLine(snapshot, time: WallClock.now.iso8601)) }
    case .none: break
    }
  }

  // MARK: Human-readable text

  /// The status lines. None reaches the last column of a terminal that is `width` columns wide.
  static func lines(_ snapshot: LoadSnapshot, width: Int) -> [String] {
    let (second, totals) = (snapshot.second, snapshot.totals)
    func text(_ value: Int64?) -> String { value.map(Figure.text(nanoseconds:)) ?? "–" }
    let delay = second.acknowledgedDelay
    let goodput = Figure.text(bytesPerSecond: Double(second.acknowledged))
    let offered = Figure.text(bytesPerSecond: Double(second.offered))
    let interruptions = totals.interruptions
    let rows: [(name: String, parts: [String])] = [
      (
        "streams",
        ["\(Figure.text(count: second.live)) live of \(Figure.text(count: UInt64(max(0, snapshot.plannedStreams))))"]
          + named([("connecting", second.connecting), ("failed", totals.streams.failed)])
      ),
      ("goodput", ["\(goodput) of \(offered) offered"] + share(second)),
      (
        "delay",
        ["p50 \(text(delay.quantile(0.5)))", "p99 \(text(delay.quantile(0.99)))", "max \(text(delay.max))"]
      ),
      (
        "trouble",
        [
          "errors \(Figure.text(count: totals.errorCount))",
          "interruptions \(Figure.text(count: interruptions.unplanned))",
        ]
          + named([("on purpose", interruptions.onPurpose)])
          + (totals.bytes.lost > 0 ? ["lost \(Figure.text(bytes: totals.bytes.lost))"] : [])
      ),
      (
        "generator",
        [
          "lateness p99 \(text(second.lateness.quantile(0.99)))",
          "processor \(Units.fixed(snapshot.processors * 100, decimals: 0)) %",
        ]
      ),
    ]
    return [bar(snapshot, width: width)] + rows.map { fitted($0.name, $0.parts, width: width) }
      + ["→ \(judgement(snapshot))".clipped(to: width)]
  }

  /// Interprets the last second in words: whether the server or the generator is slow.
  static func judgement(_ snapshot: LoadSnapshot) -> String {
    let second = snapshot.second
    let allowed = GeneratorVerdict.allowedLateness(chunk: snapshot.chunk)
    if snapshot.planned > .zero, snapshot.elapsed >= snapshot.planned {
      return "ended: waiting for the requests in progress"
    }
    if let late = second.lateness.quantile(0.99), late > allowed {
      return "the generator is late: it causes these delays, not the server"
    }
    if second.errors > 0 { return "errors occurred: the report will name them" }
    if second.offered > 0, second.acknowledged == 0 { return "the server acknowledges nothing" }
    if second.acknowledged < second.offered / 20 * 19 { return "the server is slower than the offered load" }
    // A few connections that are cut on purpose are always missing.
    if second.live < UInt64(max(0, snapshot.plannedStreams)) / 20 * 19 { return "not all streams are live" }
    return "the server keeps up with the load"
  }

  private static func share(_ second: LoadInterval) -> [String] {
    second.offered > 0 ? [Figure.text(share: Double(second.acknowledged) / Double(second.offered))] : []
  }

  /// The counts that are not zero, with their names.
  private static func named(_ counts: [(String, UInt64)]) -> [String] {
    counts.filter { $0.1 > 0 }.map { "\(Figure.text(count: $0.1)) \($0.0)" }
  }

  /// `01:23 of 10:00 ▕███      ▏`.
  private static func bar(_ snapshot: LoadSnapshot, width: Int) -> String {
    let head = "\(Units.clock(snapshot.elapsed)) of \(Units.clock(snapshot.planned))"
    let room = min(40, width - head.count - 4)
    guard room >= 5, snapshot.planned > .zero else { return head.clipped(to: width) }
    let share = min(1, snapshot.elapsed.seconds / snapshot.planned.seconds)
    let filled = Int((Double(room) * share).rounded(.down))
    return "\(head) ▕\(String(repeating: "█", count: filled))\(String(repeating: " ", count: room - filled))▏"
  }

  /// The name, and as many of the parts as fit.
  private static func fitted(_ name: String, _ parts: [String], width: Int) -> String {
    var line = name + String(repeating: " ", count: max(1, 11 - name.count))
    for (index, part) in parts.enumerated() {
      let piece = (index == 0 ? "" : "   ") + part
      guard line.count + piece.count < width else { break }
      line += piece
    }
    return line.clipped(to: width)
  }

  // MARK: For programs

  /// Times are in nanoseconds and rates in bytes per second, as in the report's JSON.
  static func jsonLine(_ snapshot: LoadSnapshot, time: String) -> String {
    let (second, totals) = (snapshot.second, snapshot.totals)
    var line = JSONLine(event: "progress")
    line.add("elapsed_seconds", thousandths: snapshot.elapsed.seconds)
    line.add("planned_seconds", thousandths: snapshot.planned.seconds)
    line.add("live", second.live)
    line.add("connecting", second.connecting)
    line.add("planned_streams", snapshot.plannedStreams)
    line.add("failed", totals.streams.failed)
    line.add("offered_bytes_per_second", second.offered)
    line.add("acknowledged_bytes_per_second", second.acknowledged)
    line.add("acknowledged_p50_ns", second.acknowledgedDelay.quantile(0.5))
    line.add("acknowledged_p99_ns", second.acknowledgedDelay.quantile(0.99))
    line.add("acknowledged_max_ns", second.acknowledgedDelay.max)
    line.add("lateness_p99_ns", second.lateness.quantile(0.99))
    line.add("errors", totals.errorCount)
    line.add("interruptions", totals.interruptions.unplanned)
    line.add("interruptions_on_purpose", totals.interruptions.onPurpose)
    line.add("lost_bytes", totals.bytes.lost)
    line.add("processors", thousandths: snapshot.processors)
    line.add("judgement", judgement(snapshot))
    line.add("time", time)
    return line.line
  }
}

extension String {
  /// The prefix that leaves the last of `width` columns free.
  fileprivate func clipped(to width: Int) -> String { String(prefix(max(0, width - 1))) }
}
