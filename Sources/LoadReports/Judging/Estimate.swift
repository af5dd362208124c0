// How sure a figure of one run is: what decides whether two runs differ. The rule is told at `ReportComparison`.

/// A figure and how far it may be from the true one.
struct Estimate {
  var value: Double
  var error: ErrorOfEstimate
  /// What the generator's own lateness may have added to it: a difference below that is not the server's.
  var floor = 0.0

  enum ErrorOfEstimate {
    /// A mean over intervals: its variance, and the degrees of freedom of that.
    case mean(variance: Double, freedom: Double)
    case quantile(RankedQuantile)
    /// A count of events in so many stream-seconds.
    case poisson(exposure: Double)
    /// It is shown, and not judged.
    case unknown
  }

  var isJudged: Bool { if case .unknown = error { false } else { true } }

  static func ratio(_ first: Estimate?, _ second: Estimate?) -> Double? {
    guard let first, let second, first.value > 0 else { return nil }
    if case .poisson(let before) = first.error, case .poisson(let after) = second.error {
      return before > 0 && after > 0 ? (second.value / after) / (first.value / before) : nil
    }
    return second.value / first.value
  }

  /// Above 0 where the second is more, below where it is less, 0 where they are the same but for noise; nil where that
  /// cannot be said.
  ///
  /// - Parameter significance: how probable a difference may be between two runs of the same thing.
  static func difference(_ first: Estimate, _ second: Estimate, significance: Double) -> Double? {
    var allowed = max(first.floor, second.floor)
    var (low, high) = (first.value, second.value)
    switch (first.error, second.error) {
    case (.mean(let before, let freedomBefore), .mean(let after, let freedomAfter)):
      let variance = before + after
      guard variance > 0 else { break }
      // Welch and Satterthwaite: the variances of two runs need not be equal.
      let freedom = variance * variance / (before * before / freedomBefore + after * after / freedomAfter)
      let deviation = StudentDistribution.deviation(exceededWith: significance, freedom: freedom)
      allowed = max(allowed, deviation * variance.squareRoot())
    case (.quantile(let before), .quantile(let after)):
      let deviation = StudentDistribution.deviation(exceededWith: significance, freedom: .infinity)
      guard let before = before.range(deviation), let after = after.range(deviation) else { return nil }
      if before.overlaps(after) { return 0 }
    case (.poisson(let before), .poisson(let after)):
      guard before > 0, after > 0 else { return nil }
      // What the second would have counted in the first one's time, and the variance of each.
      let scale = before / after
      let deviation = StudentDistribution.deviation(exceededWith: significance, freedom: .infinity)
      // Where none was counted, three are as likely as one in twenty: a variance of none would judge a single event.
      allowed = deviation * (max(1, first.value) + max(1, second.value) * scale * scale).squareRoot()
      (low, high) = (first.value, second.value * scale)
    default: return nil
    }
    let difference = high - low
    return abs(difference) > max(allowed, ReportComparison.leastDifference * max(abs(low), abs(high))) ? difference : 0
  }

  /// The mean of an interval's figure, without the fifth that is largest and the fifth that is smallest, with the error
  /// that Yuen gave for it ("The two-sample trimmed t for unequal population variances", Biometrika 61, 1974); one pause
  /// of the machine moves neither.
  ///
  /// - Parameter values: in the order of time. Fewer than five give no error.
  static func trimmedMean(_ values: [Double]) -> Estimate? {
    guard !values.isEmpty else { return nil }
    let (sorted, cut) = (values.sorted(), values.count / 5)
    let kept = sorted[cut..<sorted.count - cut]
    let mean = kept.reduce(0, +) / Double(kept.count)
    guard values.count >= 5, let least = kept.first, let most = kept.last else {
      return Estimate(value: mean, error: .unknown)
    }
    let winsorized = values.map { min(max($0, least), most) }
    let center = winsorized.reduce(0, +) / Double(values.count)
    let squares = winsorized.reduce(0) { $0 + ($1 - center) * ($1 - center) }
    // A second resembles the one before it, so that many say less than as many that are independent: by the first
    // autocorrelation, which few samples show as too small by one part of their number.
    let products = zip(winsorized, winsorized.dropFirst()).reduce(0) { $0 + ($1.0 - center) * ($1.1 - center) }
    let likeness = squares > 0 ? min(0.9, max(0, products / squares + 1 / Double(values.count))) : 0
    let repetition = (1 + likeness) / (1 - likeness)
    let count = Double(kept.count)
    return Estimate(
      value: mean,
      error: .mean(
        variance: squares / (count * (count - 1)) * repetition, freedom: max(1, (count - 1) / repetition)))
  }
}

/// A quantile of many delays, and between which of them the true one lies.
struct RankedQuantile {
  let histogram: LatencyHistogram
  let fraction: Double
  /// How many times the variance is that of as many independent delays: a pause makes many of them long together.
  let clumping: Double

  /// The delays at the ranks between which the true quantile lies (binomial), `deviation` standard errors to either
  /// side; nil where they do not lie within those that were measured: the largest one says nothing about larger ones.
  func range(_ deviation: Double) -> ClosedRange<Double>? {
    let spread = deviation * (fraction * (1 - fraction) / Double(histogram.count) * clumping).squareRoot()
    guard fraction - spread > 0, fraction + spread < 1, let low = histogram.quantile(fraction - spread),
      let high = histogram.quantile(fraction + spread)
    else { return nil }
    return Double(low)...Double(high)
  }
}
