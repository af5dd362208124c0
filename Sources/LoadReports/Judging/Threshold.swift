// A condition for a failed run, for automatic judgement: `--fail-if 'ack.p99 > 500ms'`.

internal import JSONDocuments

/// A condition under which a run has failed.
///
/// `METRIC OPERATOR VALUE`: a ``LoadMetric``, one of `>` `>=` `<` `<=` `==`, and a number with its unit. The units are
/// `ns`, `us`, `ms`, `s`, `min` for delays, `B`, `kB`, `KiB` and so on to `TB`, `TiB` for bytes, and a rate (`1MB/s`,
/// or `1MB`) for `goodput`. Bytes and `goodput` may also be a percentage of the offered bytes (`95%`). Counts have no
/// unit. 0 needs no unit.
public struct Threshold: Equatable, Sendable {
  /// The limited metric.
  public let metric: LoadMetric
  let comparison: Comparison
  private let limit: Double
  /// Whether the limit is a share of the offered bytes instead of a number of bytes, or of bytes per second.
  private let isShare: Bool
  /// The original text.
  public let text: String

  enum Comparison: String, CaseIterable {
    // The longer ones first, because they are tried in this order.
    case atLeast = ">="
    case atMost = "<="
    case equal = "=="
    case above = ">"
    case below = "<"
  }

  /// Parses a threshold.
  ///
  /// - Throws: ``ThresholdError`` with the mistake in words.
  public init(_ text: String) throws(ThresholdError) {
    func fail(_ problem: String) -> ThresholdError { ThresholdError(text: text, problem: problem) }
    let form = "write METRIC > VALUE, for example ack.p99 > 500ms"
    guard let start = text.firstIndex(where: { "<>=".contains($0) }) else {
      throw fail("has none of > >= < <= ==: " + form)
    }
    guard let comparison = Comparison.allCases.first(where: { text[start...].hasPrefix($0.rawValue) }) else {
      throw fail("has none of > >= < <= ==: " + form)
    }
    let name = Self.trimmed(text[..<start])
    let value = Self.trimmed(text[start...].dropFirst(comparison.rawValue.count))
    guard let metric = LoadMetric(name) else {
      throw fail("\"\(name)\" is an unknown metric. The nearest is \(Spelling.nearest(to: name, of: LoadMetric.names))")
    }
    guard let (limit, isShare) = Self.limit(value, of: metric) else {
      throw fail("\"\(value)\" is an invalid value of \(metric.name): \(Self.example(of: metric))")
    }
    (self.metric, self.comparison, self.limit, self.isShare, self.text) = (metric, comparison, limit, isShare, text)
  }

  private static func trimmed(_ text: Substring) -> String {
    String(text.drop { $0 == " " }.reversed().drop { $0 == " " }.reversed())
  }

  private static func limit(_ text: String, of metric: LoadMetric) -> (value: Double, isShare: Bool)? {
    if Quantity.parts(text).map({ $0.number == 0 && $0.unit.isEmpty }) ?? false { return (0, false) }
    switch metric.unit {
    case .nanoseconds: return Quantity.nanoseconds(text).map { (Double($0), false) }
    case .bytes:
      if let share = Quantity.share(text) { return (share, true) }
      return Quantity.bytes(text).map { (Double($0), false) }
    case .count: return UInt64(text).map { (Double($0), false) }
    case .rate:
      if let share = Quantity.share(text) { return (share, true) }
      return Quantity.bytes(text.hasSuffix("/s") ? text.dropLast(2) : text[...]).map { (Double($0), false) }
    }
  }

  private static func example(of metric: LoadMetric) -> String {
    switch metric.unit {
    case .nanoseconds: "write a time like 500ms (ns, us, ms, s, min)"
    case .bytes:
      "write a size like 64kB (B, kB, KiB, MB, MiB, GB, GiB, TB, TiB), or a share of the offered bytes such as 1%"
    case .count: "write a whole number like 0"
    case .rate: "write bytes per second such as 1MB/s, or a share of the offered bytes such as 95%"
    }
  }

  // MARK: Judging

  /// The violation of the threshold by a report, in a sentence. Nil if there is none.
  ///
  /// If the metric was not measured, the run has failed, because a server that acknowledged nothing was not fast. The
  /// only exceptions are metrics of stalls and interruptions. Quantiles are accurate to 0.8 %, and all other metrics
  /// are exact.
  public func failure(in report: LoadReport) -> String? {
    let judgement = judgement(of: report)
    return judgement.isMet ? nil : judgement.sentence
  }

  /// Whether a report meets the threshold, with its figure and the limit in a sentence.
  package func judgement(of report: LoadReport) -> (isMet: Bool, sentence: String) {
    let value = isShare ? metric.shareOfOffered(in: report) : metric.value(in: report)
    let isMet = value.map { !isFailed(by: $0) } ?? metric.isGoodWithoutValue
    let found = value.map { "is \(words($0))" } ?? "was not measured"
    return (isMet, "\(metric.name) \(found), \(isMet ? "and" : "but") must \(wanted(value))")
  }

  private func isFailed(by value: Double) -> Bool {
    // A value that cannot be compared counts as a violation.
    if value.isNaN { return true }
    return switch comparison {
    case .above: value > limit
    case .atLeast: value >= limit
    case .below: value < limit
    case .atMost: value <= limit
    case .equal: value == limit
    }
  }

  private func wanted(_ value: Double?) -> String {
    let limit = isShare ? Self.share(self.limit, unlike: value ?? self.limit) : exactLimit
    return switch comparison {
    case .above: self.limit == 0 ? "be \(limit)" : "be at most \(limit)"
    case .atLeast: "be below \(limit)"
    case .below: "be at least \(limit)"
    case .atMost: "be above \(limit)"
    case .equal: "not be \(limit)"
    }
  }

  /// Not rounded, so that it equals the user's limit.
  private var exactLimit: String {
    switch metric.unit {
    case .nanoseconds: Self.spaced(Quantity.text(nanoseconds: Int64(saturating: limit)))
    case .bytes: Self.spaced(Quantity.text(bytes: UInt64(Int64(saturating: limit))))
    case .rate: Self.spaced(Quantity.text(bytes: UInt64(Int64(saturating: limit)))) + "/s"
    case .count: Figure.text(count: UInt64(Int64(saturating: limit)))
    }
  }

  /// Three digits, unless they would hide the difference from the limit.
  private func words(_ value: Double) -> String {
    if isShare { return Self.share(value, unlike: limit) }
    let text = metric.text(value)
    guard text == metric.text(limit), value != limit else { return text }
    return switch metric.unit {
    case .nanoseconds: Self.spaced(Quantity.text(nanoseconds: Int64(saturating: value)))
    case .bytes: Self.spaced(Quantity.text(bytes: UInt64(Int64(saturating: value))))
    case .rate: Self.spaced(Quantity.text(bytes: UInt64(Int64(saturating: value)))) + "/s"
    case .count: text
    }
  }

  /// A percentage with up to three decimals, or with more if they would hide the difference from the other share.
  private static func share(_ share: Double, unlike other: Double) -> String {
    var scale: Int64 = 1000
    func rounded(_ share: Double) -> Int64 { Int64(saturating: share * 100 * Double(scale)) }
    while share != other, rounded(share) == rounded(other), scale < 1_000_000_000_000 { scale *= 10 }
    let number = rounded(share)
    var text = "\(number / scale)"
    let fraction = String(scale + number % scale).dropFirst()
    if let end = fraction.lastIndex(where: { $0 != "0" }) { text += "." + fraction[...end] }
    return text + " % of the offered bytes"
  }

  private static func spaced(_ text: String) -> String {
    let digits = text.prefix { $0.isNumber }
    return "\(digits) \(text.dropFirst(digits.count))"
  }
}

/// A threshold that cannot be parsed.
public struct ThresholdError: Error, Equatable, CustomStringConvertible, Sendable {
  /// The original text of the threshold.
  public let text: String
  let problem: String

  /// The mistake, in words.
  public var description: String { "the threshold \"\(text)\": \(problem)" }
}
