// Two runs side by side, and the differences that are larger than those between two runs of the same test.

/// A comparison of a run with an earlier one.
///
/// A difference counts if it is more than 2 %, more than the generator's own lateness, and more than chance explains.
/// Of a hundred pairs of runs of the same test, at most one shows any difference. This significance is divided among
/// all judged figures (Bonferroni). The effect of chance is estimated from:
///
/// - for figures of every interval (delays, goodput, processor time): their trimmed mean over the intervals in which
///   all streams were live (`Estimate.trimmedMean`);
/// - for other quantiles: the ranks that enclose the true one (binomial), wider where delays cluster. Responses of
///   plain streams are assumed to cluster, because the intervals do not show it;
/// - for counts: their square root (Poisson), with both runs scaled to the same time and number of streams.
///
/// Figures from a single value, such as a maximum or memory, are shown and not judged. The same applies to a quantile
/// of so few delays that the true one may be beyond all of them, and to a delay of a generator that did not keep up.
public struct ReportComparison: Sendable {
  /// The minimum relative difference that counts, whatever its error.
  static let leastDifference = 0.02
  /// The permitted probability of any difference between two equal runs.
  static let significance = 0.01

  /// One figure of both runs.
  public struct Row: Equatable, Sendable {
    /// The name with its unit: `ack p99, ms`.
    public let name: String
    /// The value of the earlier run as text. `–` if it was not measured.
    public let before: String
    /// The value of the later run as text.
    public let after: String
    /// The later value divided by the earlier one. Nil if this has no meaning.
    public let ratio: Double?
    /// The judgement of the change from the earlier run to the later one.
    public let verdict: Verdict
    /// Whether the figure describes the server, and not the generator.
    public let isOfServer: Bool
  }

  /// The judgement of a change.
  public enum Verdict: String, Sendable {
    /// Better, by more than chance.
    case better
    /// Worse, by more than chance.
    case worse
    /// A difference that can occur between two runs of the same test.
    case same
    /// Printed, but not judged.
    case unjudged = ""
  }

  /// The earlier run, A.
  public let before: LoadReport
  /// The later run, B.
  public let after: LoadReport
  /// Every figure that both runs have, in the order of the table.
  public let rows: [Row]

  /// Compares two runs, the earlier one first.
  public init(before: LoadReport, after: LoadReport) {
    self.before = before
    self.after = after
    let sides = (ReportSample(before), ReportSample(after))
    let pairs = Self.figures.map { figure in (figure, figure.estimate(sides.0), figure.estimate(sides.1)) }
    let judged = pairs.count { $0.1?.isJudged == true && $0.2?.isJudged == true }
    rows = pairs.map { figure, before, after in
      figure.row(before, after, significance: Self.significance / Double(max(1, judged)))
    }
  }

  /// The differences between the plans. These differences are enough to explain different figures.
  public var planDifferences: [(name: String, ours: String, theirs: String)] {
    before.plan.differences(from: after.plan).filter { $0.name != "seed" }
  }

  // MARK: The verdict

  /// The judgement of the server from the earlier run to the later one. The figures of the generator do not count.
  public var verdict: Verdict {
    let verdicts = Set(rows.filter(\.isOfServer).map(\.verdict))
    return verdicts.contains(.worse)
      ? .worse
      : verdicts.contains(.better)
        ? .better : verdicts.contains(.same) && lateGenerators.isEmpty ? .same : .unjudged
  }

  /// The runs whose generator did not keep up.
  private var lateGenerators: [String] {
    [("A", before), ("B", after)].filter { $0.1.generator.isBottleneck }.map(\.0)
  }

  /// ``verdict`` and its reasons in words, ended by a full stop. It is read first, and often the only text that is
  /// read.
  public var sentence: String {
    func list(_ verdict: Verdict) -> String? {
      let found = rows.filter { $0.isOfServer && $0.verdict == verdict }
      guard !found.isEmpty else { return nil }
      let more = found.count > 3 ? " and \(found.count - 3) more" : ""
      return found.prefix(3).map { "\($0.name) \($0.after) instead of \($0.before)" }.joined(separator: ", ") + more
    }
    let (worse, better) = (list(.worse), list(.better))
    return switch verdict {
    case .worse: "B is worse than A: \(worse ?? "")\(better.map { "; better: \($0)" } ?? "")."
    case .better: "B is better than A: \(better ?? "")."
    case .same: "B is the same as A: no figure of the server differs by more than chance."
    case .unjudged where !lateGenerators.isEmpty:
      "A and B cannot be compared: the generator did not keep up in \(lateGenerators.joined(separator: " and in "))."
    case .unjudged: "A and B cannot be compared: a figure needs five whole seconds after the ramp in both runs."
    }
  }

  /// The delay of the table's row `ack p99` for each run, so that every sentence names the same figure.
  var acknowledgedDelays: (before: String, after: String)? {
    rows.first { $0.name == "ack p99" }.map { ($0.before, $0.after) }
  }

  // MARK: Figures

  private static let figures: [ComparedFigure] = [
    .init("ack p50", .nanoseconds) { $0.steadyDelay(0.5) },
    .init("ack p90", .nanoseconds) { $0.steadyDelay(0.9) },
    .init("ack p99", .nanoseconds) { $0.steadyDelay(0.99) },
    .init("ack max", .nanoseconds) { $0.plain($0.report.histograms[.acknowledged].max) },
    .init("slow ack p99", .nanoseconds) { $0.quantile(.acknowledgedSlow, 0.99) },
    .init("accepted p99", .nanoseconds) { $0.quantile(.accepted, 0.99) },
    .init("connect p99", .nanoseconds) { $0.quantile(.connect, 0.99) },
    .init("interim p99", .nanoseconds) { $0.quantile(.interim, 0.99) },
    .init("response p50", .nanoseconds) { $0.response(0.5) },
    .init("response p99", .nanoseconds) { $0.response(0.99) },
    .init("stall p99", .nanoseconds) { $0.quantile(.stall, 0.99) },
    .init("resume p99", .nanoseconds) { $0.quantile(.resume, 0.99) },
    .init("outage p99", .nanoseconds) { $0.quantile(.outage, 0.99) },
    .init("goodput", .rate, isMoreBetter: true) { $0.steadyRate { $0.acknowledged } },
    .init("streams failed", .count) { $0.count($0.report.totals.streams.failed) },
    .init("errors", .count) { $0.count($0.report.totals.errorCount) },
    .init("interruptions", .count) { $0.count($0.report.totals.interruptions.unplanned) },
    .init("sent again", .bytes) { $0.plain(Int64(clamping: $0.report.totals.bytes.sentAgain)) },
    .init("lost", .bytes) { $0.plain(Int64(clamping: $0.report.totals.bytes.lost)) },
    .init("lateness p99", .nanoseconds, isOfServer: false) { $0.steady { $0.lateness.quantile(0.99) } },
    .init("generator CPU per message", .nanoseconds, isOfServer: false) { $0.steady { $0.processorTimeOfMessage } },
    .init("generator memory per stream", .bytes, isOfServer: false) { $0.plain($0.memoryOfStream) },
  ]
}

/// How one figure is taken from a report and judged.
private struct ComparedFigure: Sendable {
  enum Unit { case nanoseconds, bytes, rate, count }

  private let name: String
  private let unit: Unit
  private let isMoreBetter: Bool
  private let isOfServer: Bool
  let estimate: @Sendable (ReportSample) -> Estimate?

  init(
    _ name: String, _ unit: Unit, isMoreBetter: Bool = false, isOfServer: Bool = true,
    _ estimate: @escaping @Sendable (ReportSample) -> Estimate?
  ) {
    (self.name, self.unit, self.isMoreBetter, self.isOfServer) = (name, unit, isMoreBetter, isOfServer)
    self.estimate = estimate
  }

  func row(_ first: Estimate?, _ second: Estimate?, significance: Double) -> ReportComparison.Row {
    .init(
      name: name, before: first.map(text) ?? "–", after: second.map(text) ?? "–",
      ratio: Estimate.ratio(first, second), verdict: verdict(first, second, significance), isOfServer: isOfServer)
  }

  private func verdict(_ first: Estimate?, _ second: Estimate?, _ significance: Double) -> ReportComparison.Verdict {
    guard let first, let second,
      let difference = Estimate.difference(first, second, significance: significance)
    else { return .unjudged }
    if difference == 0 { return .same }
    return (difference > 0) == isMoreBetter ? .better : .worse
  }

  private func text(_ estimate: Estimate) -> String {
    switch unit {
    case .nanoseconds: Figure.text(nanoseconds: Int64(saturating: estimate.value))
    case .bytes: Figure.text(bytes: UInt64(Int64(saturating: estimate.value)))
    case .rate: Figure.text(bytesPerSecond: estimate.value)
    case .count: Figure.text(count: UInt64(Int64(saturating: estimate.value)))
    }
  }
}
