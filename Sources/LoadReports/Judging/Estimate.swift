// The certainty of a figure from one run, which decides whether two runs differ. See `ReportComparison` for the rule.

/// A figure, and its possible distance from the true value.
struct Estimate {
  var value: Double
  var error: ErrorOfEstimate
  /// The part that the generator's own lateness may have added. A smaller difference is not the server's.
  var floor = 0.0

  enum ErrorOfEstimate {
    /// A mean over intervals, with its variance and degrees of freedom.
    case mean(variance: Double, freedom: Double)
    case quantile(RankedQuantile)
    /// A count of events in a number of stream-seconds.
    case poisson(exposure: Double)
    /// It is printed, but not judged.
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

  /// Positive if the second is larger, negative if it is smaller, and 0 if they differ only by noise; nil if that
  /// cannot be determined.
  ///
  /// - Parameter significance: the permitted probability of a difference between two equal runs.
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
      // The second count scaled to the first one's time, and the variance of each.
      let scale = before / after
      let deviation = StudentDistribution.deviation(exceededWith: significance, freedom: .infinity)
      // If none was counted, three have a probability of one in twenty. A variance of zero would judge a single event.
      allowed = deviation * (max(1, first.value) + max(1, second.value) * scale * scale).squareRoot()
      (low, high) = (first.value, second.value * scale)
    default: return nil
    }
    let difference = high - low
    return abs(difference) > max(allowed, ReportComparison.leastDifference * max(abs(low), abs(high))) ? difference : 0
  }

  /// The mean of an interval's figure, without the largest and the smallest fifth, with the standard error by Yuen
  /// ("The two-sample trimmed t for unequal population variances", Biometrika 61, 1974). A single pause of the machine
  /// affects neither.
  ///
  /// - Parameter values: in the order of time. With fewer than five there is no error.
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
    // Consecutive seconds resemble each other, so they contain less information than independent ones. The first
    // autocorrelation shows how much. For few samples, it is too small by one part of their number.
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

/// A quantile of many delays, and the range of the true one.
struct RankedQuantile {
  let histogram: LatencyHistogram
  let fraction: Double
  /// The factor by which the variance exceeds that of independent delays, because a pause makes many of them long
  /// together.
  let clumping: Double

  /// The delays at the ranks between which the true quantile lies (binomial), `deviation` standard errors to either
  /// side; nil if these ranks are outside the measured ones, because the largest delay is no evidence about larger
  /// ones.
  func range(_ deviation: Double) -> ClosedRange<Double>? {
    let spread = deviation * (fraction * (1 - fraction) / Double(histogram.count) * clumping).squareRoot()
    guard fraction - spread > 0, fraction + spread < 1, let low = histogram.quantile(fraction - spread),
      let high = histogram.quantile(fraction + spread)
    else { return nil }
    return Double(low)...Double(high)
  }
}
