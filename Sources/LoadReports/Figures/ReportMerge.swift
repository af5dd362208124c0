// Combines the parts of one run, each from a separate machine or process, into one report.

/// The reason why reports are not parts of one run.
public enum ReportMergeError: Error, Equatable, CustomStringConvertible, Sendable {
  /// There are no reports to merge.
  case nothing
  /// Two of them have different plans. `figure` names the difference in words.
  case differentRuns(first: String, second: String, figure: String)
  /// The same part occurs twice.
  case samePart(first: String, second: String, part: Int)

  /// The mismatch, in words.
  public var description: String {
    switch self {
    case .nothing: "there is no report to merge"
    case .differentRuns(let first, let second, let figure):
      "\(first) and \(second) are not parts of one run: \(figure)"
    case .samePart(let first, let second, let part):
      "\(first) and \(second) are both part \(part), so its streams would count twice"
    }
  }
}

extension LoadReport {
  /// Combines the parts of one run. The result is the same as if one process had measured all of it, except for
  /// ``LoadTotals/Streams/peakLive``, which adds up the maximum of each part. The intervals are those at the same time
  /// since each part's own start.
  ///
  /// Parts may be missing. The report and its page name them.
  ///
  /// - Parameter reports: each with its name for errors. It is the report of a part, or of several merged parts.
  /// - Throws: ``ReportMergeError`` when they are of different runs, or have a part in common.
  public static func merge(_ reports: [(name: String, report: LoadReport)]) throws(ReportMergeError) -> LoadReport {
    guard var (name, merged) = reports.first else { throw .nothing }
    var names: [Int: String] = [:]
    for part in merged.parts { names[part.index] = name }
    for (other, report) in reports.dropFirst() {
      if let figure = merged.differenceOfRun(from: report) {
        throw .differentRuns(first: name, second: other, figure: figure)
      }
      for part in report.parts {
        if let first = names[part.index] { throw .samePart(first: first, second: other, part: part.index) }
        names[part.index] = other
      }
      merged.add(report)
      name = other
    }
    return merged
  }

  /// The numbers of the run's parts that this report lacks.
  package var missingParts: [Int] {
    guard let count = parts.first?.count else { return [] }
    let present = Set(parts.map(\.index))
    return (1...max(1, count)).filter { !present.contains($0) }
  }

  /// Which of the run's parts this report has, in words; nil if it has all.
  var partsSentence: String? {
    guard let first = parts.first, let count = parts.map(\.count).max(), count > parts.count else { return nil }
    return parts.count == 1 ? "part \(first.index) of \(count) only" : "\(parts.count) of \(count) parts only"
  }

  /// Which of the run's parts this report lacks, in words; nil if it has all.
  var missingSentence: String? {
    let missing = missingParts
    guard !missing.isEmpty else { return nil }
    let numbers = missing.map(String.init).joined(separator: ", ")
    return "of \(parts.first?.count ?? 0) parts these are missing: \(numbers)"
  }

  /// Whether this report and another can be parts of one run by their target and their part numbers.
  package func isOtherPart(of other: LoadReport) -> Bool {
    guard let count = parts.first?.count, count > 1, count == other.parts.first?.count else { return false }
    return target == other.target && Set(parts.map(\.index)).isDisjoint(with: other.parts.map(\.index))
  }

  /// Whether the plans are equal apart from their seeds, which are different.
  package func differsOnlyInSeed(from other: LoadReport) -> Bool {
    plan.differences(from: other.plan).map(\.name) == ["seed"]
  }

  /// What shows that this report and another belong to different runs, in words; nil if nothing does.
  package func differenceOfRun(from other: LoadReport) -> String? {
    func differs<Value: Equatable>(_ what: String, _ ours: Value, _ theirs: Value) -> String? {
      ours == theirs ? nil : "\(what) is \(ours) in one and \(theirs) in the other"
    }
    return differs("the number of parts", parts.first?.count ?? 0, other.parts.first?.count ?? 0)
      ?? differs("the target", target, other.target)
      ?? plan.differences(from: other.plan).first.map { differs("the \($0.name)", $0.ours, $0.theirs) ?? $0.name }
      ?? differs("the version of sluice", sluiceVersion, other.sluiceVersion)
  }

  private mutating func add(_ other: LoadReport) {
    let (ours, theirs) = (bottlenecksByPart, other.bottlenecksByPart)
    parts = (measuredParts + other.measuredParts).sorted { $0.index < $1.index }
    startedAt = min(startedAt, other.startedAt)
    measured = max(measured, other.measured)
    totals.merge(other.totals)
    histograms.merge(other.histograms)
    spread.merge(other.spread)
    intervals.merge(other.intervals)
    generator.userTime = generator.userTime.addingSaturated(other.generator.userTime)
    generator.systemTime = generator.systemTime.addingSaturated(other.generator.systemTime)
    generator.maximumResident += other.generator.maximumResident
    generator.busiestLoop = max(generator.busiestLoop, other.generator.busiestLoop)
    generator.bottlenecks = (ours + theirs).sorted()
  }

  /// The parts, each with the duration of its measurement, which ``measured`` does not have after the merge.
  private var measuredParts: [LoadPart] {
    guard parts.count == 1, var part = parts.first else { return parts }
    part.measured = part.measured ?? measured
    return [part]
  }

  /// If there are several generators, each reason names its own.
  private var bottlenecksByPart: [String] {
    guard parts.count == 1, let part = parts.first else { return generator.bottlenecks }
    return generator.bottlenecks.map { "part \(part.index) on \(part.host): \($0)" }
  }
}

extension LoadPlan {
  /// The differences between two plans: the figure's name, and its value in each, in words.
  func differences(from other: LoadPlan) -> [(name: String, ours: String, theirs: String)] {
    zip(figures, other.figures).compactMap { ours, theirs in
      ours.value == theirs.value ? nil : (ours.name, ours.value, theirs.value)
    }
  }

  /// All settings of the plan in words, exactly.
  var figures: [(name: String, value: String)] {
    [
      ("number of streams", String(streams)), ("ramp", Quantity.text(nanoseconds: ramp)),
      (
        "stages",
        stages.isEmpty
          ? "none" : stages.map { "\(Quantity.text(nanoseconds: $0.duration)):\($0.streams)" }.joined(separator: " ")
      ),
      ("duration", Quantity.text(nanoseconds: duration)), ("profile", profile),
      ("rate", rate == 0 ? "max" : Quantity.text(bytes: rate) + "/s"), ("chunk", Quantity.text(nanoseconds: chunk)),
      ("body", body), ("resumable", resumable), ("request per message", requestPerMessage ? "yes" : "no"),
      ("arrival rate", arrivalRate.map { "\(Figure.digits($0))/s" } ?? "the profile's"),
      ("requests in progress", maximumUnderWay.map { "at most \($0)" } ?? "one per stream"),
      ("HTTP version", httpVersion),
      ("streams per connection", String(streamsPerConnection ?? 1)),
      ("drop-every", dropEvery.map { Quantity.text(nanoseconds: $0) } ?? "never"),
      ("slow fraction", String(slowFraction)), ("seed", String(seed)),
    ]
  }
}
