// How sure a figure of one run is: what decides whether two runs differ. The rule is told at `ReportComparison`.

/// A figure and how far it may be from the true one.
struct Estimate {
  var value: Double
  var error: ErrorOfEstimate

  enum ErrorOfEstimate {
    case standard(Double)
    /// Three standard errors to either side.
    case range(ClosedRange<Double>)
    /// A count of events in so many stream-seconds.
    case poisson(exposure: Double)
    case unknown
  }

  static func ratio(_ first: Estimate?, _ second: Estimate?) -> Double? {
    guard let first, let second, first.value > 0 else { return nil }
    if case .poisson(let before) = first.error, case .poisson(let after) = second.error {
      return before > 0 && after > 0 ? (second.value / after) / (first.value / before) : nil
    }
    return second.value / first.value
  }

  /// Above 0 where the second is more, below where it is less, 0 where they are the same but for noise; nil where that
  /// cannot be said.
  static func difference(_ first: Estimate, _ second: Estimate) -> Double? {
    let allowed: Double
    var (low, high) = (first.value, second.value)
    switch (first.error, second.error) {
    case (.standard(let before), .standard(let after)):
      allowed = ReportComparison.standardErrors * (before * before + after * after).squareRoot()
    case (.range(let before), .range(let after)):
      if before.overlaps(after) { return 0 }
      allowed = 0
    case (.poisson(let before), .poisson(let after)):
      guard before > 0, after > 0 else { return nil }
      // What the second would have counted in the first one's time, and the variance of each.
      let scale = before / after
      // Where none was counted, three are as likely as one in twenty: a variance of none would judge a single event.
      allowed =
        ReportComparison.standardErrors * (max(1, first.value) + max(1, second.value) * scale * scale).squareRoot()
      (low, high) = (first.value, second.value * scale)
    default: return nil
    }
    let difference = high - low
    return abs(difference) > max(allowed, ReportComparison.leastDifference * max(abs(low), abs(high))) ? difference : 0
  }
}

/// One of the two reports, and how figures are estimated from it.
struct ReportSample: Sendable {
  let report: LoadReport
  private let steadyIntervals: [LoadInterval]

  init(_ report: LoadReport) {
    self.report = report
    // Whole intervals after the ramp, in which as many were live as ever, but for a tenth.
    let series = report.intervals
    let whole = series.intervals.prefix(Int(series.seconds * 1_000_000_000 / series.length))
    let most = whole.map(\.live).max() ?? 0
    steadyIntervals = whole.enumerated().filter { index, interval in
      series.start(of: index) >= report.plan.ramp && interval.live * 10 >= most * 9
    }.map(\.element)
  }

  func plain(_ value: Int64?) -> Estimate? { value.map { Estimate(value: Double($0), error: .unknown) } }

  func count(_ count: UInt64) -> Estimate {
    Estimate(
      value: Double(count), error: .poisson(exposure: Double(report.measured) * Double(max(0, report.plan.streams))))
  }

  /// The median over the steady intervals, where there are enough of them for an error: five.
  func steady(_ figure: (LoadInterval) -> Int64?) -> Estimate? {
    let values = steadyIntervals.compactMap(figure).map(Double.init).sorted()
    guard let median = Self.median(values) else { return nil }
    guard values.count >= 5, let deviation = Self.median(values.map { abs($0 - median) }.sorted()) else {
      return Estimate(value: median, error: .unknown)
    }
    // The standard deviation of what is distributed normally is 1.4826 median deviations; the median's error is 1.2533
    // times the mean's.
    return Estimate(value: median, error: .standard(1.4826 * 1.2533 * deviation / Double(values.count).squareRoot()))
  }

  func steadyRate(_ bytes: (LoadInterval) -> UInt64) -> Estimate? {
    let length = Double(report.intervals.length) / 1e9
    return steady { Int64(Double(bytes($0)) / length) }
  }

  func quantile(_ measure: LoadMeasure, _ fraction: Double) -> Estimate? {
    let histogram = report.histograms[measure]
    guard let value = histogram.quantile(fraction) else { return nil }
    let count = Double(histogram.count)
    let spread = ReportComparison.standardErrors * (fraction * (1 - fraction) / count).squareRoot()
    guard let low = histogram.quantile(fraction - spread), let high = histogram.quantile(min(1, fraction + spread))
    else {
      return nil
    }
    return Estimate(value: Double(value), error: .range(Double(low)...Double(high)))
  }

  var memoryOfStream: Int64? {
    let live = report.totals.streams.peakLive
    return live > 0 ? Int64(clamping: report.generator.maximumResident / live) : nil
  }

  private static func median(_ sorted: [Double]) -> Double? {
    guard !sorted.isEmpty else { return nil }
    let middle = sorted.count / 2
    return sorted.count.isMultiple(of: 2) ? (sorted[middle - 1] + sorted[middle]) / 2 : sorted[middle]
  }
}

extension LoadInterval {
  /// Of the generator, for each message that it came to.
  var processorTimeOfMessage: Int64? { lateness.isEmpty ? nil : processorTime / Int64(clamping: lateness.count) }
}
