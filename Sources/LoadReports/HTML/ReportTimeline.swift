// A report's intervals as curves: one value for each moment.

/// The intervals of one report, ready to be drawn.
struct ReportTimeline {
  /// The middle of each interval, in seconds since the start.
  let moments: [Double]
  /// The run's end, in seconds.
  let end: Double
  let live: [Double?]
  /// Bytes per second.
  let offered: [Double?]
  let acknowledged: [Double?]
  /// Processor time per time: 1 means one processor that was always busy.
  let processors: [Double?]
  let errors: [Double?]
  let interruptions: [Double?]
  private let delays: [LatencyHistogram]
  private let lateness: [LatencyHistogram]

  /// - Parameter limit: the maximum number of intervals. Beyond it, adjacent ones are combined.
  init(_ report: LoadReport, limit: Int = 600) {
    let series = report.intervals.coarsened(to: limit)
    let groups = series.intervals
    let length = Double(series.length) / 1e9
    let measured = Double(report.measured) / 1e9
    end = max(measured, length)
    // The last interval ends with the run.
    let lengths = groups.indices.map { min(length, max(0, max(measured, length) - Double($0) * length)) }
    moments = groups.indices.map { Double($0) * length + lengths[$0] / 2 }
    func rate(_ value: (LoadInterval) -> Double) -> [Double?] {
      // A second that was measured only in part gives no rate.
      zip(groups, lengths).map { $1 < length / 2 ? nil : value($0) / $1 }
    }
    live = groups.map { Double($0.live) }
    offered = rate { Double($0.offered) }
    acknowledged = rate { Double($0.acknowledged) }
    processors = rate { Double($0.processorTime) / 1e9 }
    errors = groups.map { Double($0.errors) }
    interruptions = groups.map { Double($0.interruptions) }
    delays = groups.map(\.acknowledgedDelay)
    lateness = groups.map(\.lateness)
  }

  /// From due to acknowledged, in nanoseconds; nil while nothing was acknowledged.
  func delay(_ fraction: Double) -> [Double?] { delays.map { $0.quantile(fraction).map(Double.init) } }
  func lateness(_ fraction: Double) -> [Double?] { lateness.map { $0.quantile(fraction).map(Double.init) } }

  static func highest(_ curves: [[Double?]]) -> Double { curves.joined().lazy.compactMap { $0 }.max() ?? 0 }
  static func lowestAboveZero(_ curves: [[Double?]]) -> Double? {
    curves.joined().lazy.compactMap { $0 }.filter { $0 > 0 }.min()
  }
}

extension IntervalSeries {
  /// The same in at most this number of intervals.
  func coarsened(to limit: Int) -> IntervalSeries {
    var series = self
    while series.intervals.count > max(1, limit) { series.coarsen() }
    return series
  }
}

extension LoadReport {
  /// The report's JSON for its page. It has at most 60 intervals with only their quantiles, so that a page stays small.
  var pageJSON: String {
    var report = self
    report.intervals = intervals.coarsened(to: 60)
    return report.summaryJSON
  }
}
