// One of two reports that are compared, and how figures are estimated from it.

/// A report's figures with their errors.
struct ReportSample: Sendable {
  let report: LoadReport
  private let steadyIntervals: [LoadInterval]
  /// How much more the delays above the 99th percentile vary from second to second than independent ones would; nil if
  /// a run is too short to determine it.
  private let clumping: Double?

  init(_ report: LoadReport) {
    self.report = report
    // Complete intervals after the ramp in which at least nine tenths of the maximum number of streams were live.
    let series = report.intervals
    let whole = series.intervals.prefix(Int(series.seconds * 1_000_000_000 / series.length))
    let most = whole.map(\.live).max() ?? 0
    steadyIntervals = whole.enumerated().filter { index, interval in
      series.start(of: index) >= report.plan.ramp && interval.live * 10 >= most * 9
    }.map(\.element)
    clumping = Self.clumping(of: steadyIntervals.map(\.acknowledgedDelay).filter { !$0.isEmpty })
  }

  func plain(_ value: Int64?) -> Estimate? { value.map { Estimate(value: Double($0), error: .unknown) } }

  func count(_ count: UInt64) -> Estimate {
    Estimate(
      value: Double(count), error: .poisson(exposure: Double(report.measured) * Double(max(0, report.plan.streams))))
  }

  /// The mean over the steady intervals, without the largest and the smallest.
  func steady(_ figure: (LoadInterval) -> Int64?) -> Estimate? {
    .trimmedMean(steadyIntervals.compactMap(figure).map(Double.init))
  }

  /// A quantile of the delays from due to acknowledged, which includes the generator's lateness.
  func steadyDelay(_ fraction: Double) -> Estimate? {
    steady { $0.acknowledgedDelay.quantile(fraction) }.map { ofServer($0, lateness: fraction) }
  }

  func steadyRate(_ bytes: (LoadInterval) -> UInt64) -> Estimate? {
    let length = Double(report.intervals.length) / 1e9
    return steady { Int64(Double(bytes($0)) / length) }.map { ofServer($0, lateness: nil) }
  }

  func quantile(_ measure: LoadMeasure, _ fraction: Double) -> Estimate? {
    quantile(measure, fraction, clumping: clumping)
  }

  /// A quantile of the delays of final responses.
  ///
  /// A plain stream is acknowledged only at its end, so the intervals cannot show how its delays cluster. Then strong
  /// clustering is assumed.
  func response(_ fraction: Double) -> Estimate? {
    quantile(
      .response, fraction,
      clumping: clumping ?? (steadyIntervals.count >= Self.leastIntervals ? Self.assumedClumping : nil))
  }

  private static let leastIntervals = 5
  private static let assumedClumping = 16.0

  private func quantile(_ measure: LoadMeasure, _ fraction: Double, clumping: Double?) -> Estimate? {
    let histogram = report.histograms[measure]
    guard let value = histogram.quantile(fraction) else { return nil }
    let error = clumping.map {
      Estimate.ErrorOfEstimate.quantile(.init(histogram: histogram, fraction: fraction, clumping: $0))
    }
    return ofServer(Estimate(value: Double(value), error: error ?? .unknown), lateness: fraction)
  }

  /// The figures of a generator that did not keep up describe itself, and judge no server.
  private func ofServer(_ estimate: Estimate, lateness fraction: Double?) -> Estimate {
    var estimate = estimate
    if report.generator.isBottleneck { estimate.error = .unknown }
    if let fraction { estimate.floor = Double(report.histograms[.lateness].quantile(fraction) ?? 0) }
    return estimate
  }

  var memoryOfStream: Int64? {
    let live = report.totals.streams.peakLive
    return live > 0 ? Int64(clamping: report.generator.maximumResident / live) : nil
  }

  /// The variance between intervals of the number of delays above the overall 99th percentile, as a multiple of the
  /// variance for independent delays (an index of dispersion).
  private static func clumping(of intervals: [LatencyHistogram]) -> Double? {
    guard intervals.count >= leastIntervals else { return nil }
    var all = LatencyHistogram()
    for interval in intervals { all.merge(interval) }
    guard let limit = all.quantile(0.99) else { return nil }
    let above = intervals.map { Double($0.count - $0.count(upTo: limit)) }
    let share = above.reduce(0, +) / Double(all.count)
    // All are equally long, so nothing clumps.
    guard share > 0 else { return 1 }
    let dispersion = zip(intervals, above).reduce(0) { sum, next in
      let expected = Double(next.0.count) * share
      return sum + (next.1 - expected) * (next.1 - expected) / (expected * (1 - share))
    }
    return max(1, dispersion / Double(intervals.count - 1))
  }
}

extension LoadInterval {
  /// The generator's processor time per processed message.
  var processorTimeOfMessage: Int64? { lateness.isEmpty ? nil : processorTime / Int64(clamping: lateness.count) }
}
