// The named figures of a report, which thresholds can limit.

/// One figure of a report.
public enum LoadMetric: Equatable, Sendable {
  /// A statistic of a delay: `ack.p99`.
  case delay(LoadMeasure, Statistic)
  /// Errors of one class, or of all: `errors`, `errors.connection-lost`.
  case errors(class: String?)
  /// Final responses with one status, or with those of a class: `status.503`, `status.5xx`.
  case status(ClosedRange<Int>)
  /// `streams.failed`
  case streamsFailed
  /// Interruptions that were not on purpose: `interruptions`.
  case interruptions
  /// Requests that could not begin when they were due: `dropped`.
  case dropped
  /// Lost bytes: `lost`.
  case lost
  /// Bytes sent more than once: `resent`.
  case resent
  /// Acknowledged bytes, per second or as a fraction of the offered bytes: `goodput`.
  case goodput

  /// A statistic of a distribution.
  public enum Statistic: Equatable, Sendable {
    /// 0.99 for the 99th percentile, and its name: `p99`.
    case quantile(Double, name: String)
    /// The arithmetic mean.
    case mean
    /// The largest value.
    case max
    /// The number of values.
    case count
  }

  /// The unit of a metric's value.
  enum Unit { case nanoseconds, count, bytes, rate }

  var unit: Unit {
    switch self {
    case .delay(_, .count), .errors, .status, .streamsFailed, .interruptions, .dropped: .count
    case .delay: .nanoseconds
    case .lost, .resent: .bytes
    case .goodput: .rate
    }
  }

  // MARK: Names

  static let delays: [(name: String, measure: LoadMeasure)] = [
    ("ack", .acknowledged), ("slow.ack", .acknowledgedSlow), ("accepted", .accepted), ("connect", .connect),
    ("interim", .interim), ("lateness", .lateness), ("stall", .stall), ("resume", .resume), ("outage", .outage),
    ("response", .response), ("rhythm", .rhythm),
  ]

  private static let others: [(name: String, metric: LoadMetric)] = [
    ("errors", .errors(class: nil)), ("streams.failed", .streamsFailed), ("interruptions", .interruptions),
    ("dropped", .dropped), ("lost", .lost), ("resent", .resent), ("goodput", .goodput),
  ]

  /// Each metric and its meaning, for a page of help. A delay's name lacks its statistic.
  package static let descriptions: [(label: String, text: String)] =
    delays.map { ($0.name, $0.measure.meaning) } + [
      ("errors, errors.CLASS", "errors of all classes, or of one (below), such as errors.http-503"),
      ("status.NNN, status.Nxx", "final responses with a status, or with those of a class: status.5xx"),
      ("streams.failed", "streams that gave up"),
      ("interruptions", "lost connections, except those that were cut on purpose"),
      ("dropped", "requests that could not begin when they were due: too many were in progress"),
      ("lost", "bytes that will never be acknowledged, also as a percentage of the bytes offered"),
      ("resent", "bytes sent more than once, also as a percentage of the bytes offered"),
      ("goodput", "acknowledged bytes, per second or as a percentage of the bytes offered"),
    ]

  /// The names without statistics and classes, for a summary. A status has the form `status.NNN`.
  package static let families = delays.map(\.name) + others.map(\.name) + ["status.NNN"]

  /// All metrics, for messages.
  static let names =
    delays.flatMap { delay in
      ["p50", "p90", "p95", "p99", "p99.9", "mean", "max", "count"].map { "\(delay.name).\($0)" }
    }
    + others.map(\.name) + ["status.5xx"] + ErrorClass.allCases.map { "errors.\($0.rawValue)" }

  /// Creates the metric with this name. Nil if there is none.
  public init?(_ name: some StringProtocol) {
    if let other = Self.others.first(where: { $0.name == name }) {
      self = other.metric
    } else if name.hasPrefix("errors."), ErrorClass.isKnown(name.dropFirst(7)) {
      self = .errors(class: String(name.dropFirst(7)))
    } else if name.hasPrefix("status.") {
      let status = name.dropFirst(7)
      if status.count == 3, let number = Int(status), (100...599).contains(number) {
        self = .status(number...number)
      } else if status.count == 3, status.hasSuffix("xx"), let hundreds = status.first?.wholeNumberValue,
        (1...5).contains(hundreds)
      {
        self = .status(hundreds * 100...hundreds * 100 + 99)
      } else {
        return nil
      }
    } else if let delay = Self.delays.first(where: { name.hasPrefix($0.name + ".") }),
      let statistic = Statistic(name.dropFirst(delay.name.count + 1))
    {
      self = .delay(delay.measure, statistic)
    } else {
      return nil
    }
  }

  /// The name for ``init(_:)``, such as `ack.p99`.
  public var name: String {
    switch self {
    case .delay(let measure, let statistic):
      (Self.delays.first { $0.measure == measure }?.name ?? measure.rawValue) + "." + statistic.name
    case .errors(let name?): "errors." + name
    case .status(let range): range.count == 1 ? "status.\(range.lowerBound)" : "status.\(range.lowerBound / 100)xx"
    default: Self.others.first { $0.metric == self }?.name ?? ""
    }
  }

  // MARK: Values

  /// The figure in a report, in nanoseconds, bytes, bytes per second, or as a count. Nil if it was not measured.
  public func value(in report: LoadReport) -> Double? {
    let totals = report.totals
    switch self {
    case .delay(let measure, let statistic): return statistic.value(of: report.histograms[measure])
    case .errors(let name?): return Double(totals.errors[name]?.count ?? 0)
    case .errors(nil): return Double(totals.errorCount)
    case .status(let range):
      return Double(totals.responses.filter { range.contains($0.key) }.values.reduce(0, +))
    case .streamsFailed: return Double(totals.streams.failed)
    case .interruptions: return Double(totals.interruptions.unplanned)
    case .dropped: return Double(totals.messages.dropped)
    case .lost: return Double(totals.bytes.lost)
    case .resent: return Double(totals.bytes.sentAgain)
    case .goodput:
      return report.measured > 0 ? Double(totals.bytes.acknowledged) * 1e9 / Double(report.measured) : nil
    }
  }

  /// The figure as a share of the offered bytes. Nil if nothing was offered, or if the figure does not count bytes.
  func shareOfOffered(in report: LoadReport) -> Double? {
    let bytes = report.totals.bytes
    guard bytes.offered > 0 else { return nil }
    return switch self {
    case .goodput: Double(bytes.acknowledged) / Double(bytes.offered)
    case .lost: Double(bytes.lost) / Double(bytes.offered)
    case .resent: Double(bytes.sentAgain) / Double(bytes.offered)
    case .delay, .errors, .status, .streamsFailed, .interruptions, .dropped: nil
    }
  }

  /// Whether a missing value means that nothing went wrong.
  var isGoodWithoutValue: Bool {
    switch self {
    case .delay(.stall, _), .delay(.resume, _), .delay(.outage, _): true
    default: false
    }
  }

  func text(_ value: Double) -> String {
    switch unit {
    case .nanoseconds: Figure.text(nanoseconds: Int64(saturating: value))
    case .count: Figure.text(count: UInt64(Int64(saturating: value)))
    case .bytes: Figure.text(bytes: UInt64(Int64(saturating: value)))
    case .rate: Figure.text(bytesPerSecond: value)
    }
  }
}

extension LoadMetric.Statistic {
  /// `p50` to `p99.99`, `mean`, `max`, `count`.
  init?(_ name: some StringProtocol) {
    switch String(name) {
    case "mean": self = .mean
    case "max": self = .max
    case "count": self = .count
    default:
      guard name.first == "p", let (percent, unit) = Quantity.parts(name.dropFirst()), unit.isEmpty,
        (50...99.99).contains(percent)
      else { return nil }
      self = .quantile(percent / 100, name: String(name))
    }
  }

  var name: String {
    switch self {
    case .quantile(_, let name): name
    case .mean: "mean"
    case .max: "max"
    case .count: "count"
    }
  }

  func value(of histogram: LatencyHistogram) -> Double? {
    switch self {
    case .quantile(let fraction, _): histogram.quantile(fraction).map(Double.init)
    case .mean: histogram.mean.map(Double.init)
    case .max: histogram.max.map(Double.init)
    case .count: Double(histogram.count)
    }
  }
}
