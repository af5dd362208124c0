// sluice report FILE…

internal import EventLoops
internal import Glibc
internal import JSONDocuments
internal import LoadReports

enum Report {
  static let syntax = CommandLineSyntax(
    name: "report", summary: "Shows, merges or compares the reports of load tests.", operands: ["FILE…"],
    options: [
      Option("merge", "merge the files, which are parts of one run (sluice load --part)"),
      Option("compare", "compare two runs, the earlier one first"),
      Option("html", value: "FILE", "file for the report as a web page (default: none)"),
      Option("json", value: "FILE", "file for the report as JSON, or - for standard output (default: none)"),
      Option("csv", value: "FILE", "file for one row per interval as CSV, or - for standard output (default: none)"),
      failIf,
    ],
    topics: [metrics], example: "sluice report part-1.json part-2.json --merge --html report.html")

  static let failIf = Option(
    "fail-if", value: "'C'",
    "exit with 3 if the condition holds: 'ack.p99 > 500ms', 'errors > 0' (repeatable; default: none)", mayRepeat: true)

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    // Comes before any file is read. A mistyped threshold must not be found after an hour of work.
    let thresholds = try thresholds(values)
    try checkOutputs(values)
    var reports: [NamedReport] = []
    for path in values.operands { reports.append((path, try read(path))) }
    switch try subject(of: reports, mode: Mode(values)) {
    case .run(let report):
      return try write(outputs(of: report, values, judgedBy: thresholds)) {
        // The report and the table cannot share standard output.
        if !["json", "csv"].contains(where: { values[$0] == "-" }) { show(report.table) }
        return exitCode(ofReport: report, judgedBy: thresholds)
      }
    case .comparison(let before, let after):
      for option in ["json", "csv"] where values.has(option) {
        throw .usage(
          "--\(option) requires a single report, and there are two runs. Name one report, or the parts of one run.")
      }
      let comparison = ReportComparison(before: before, after: after)
      return try write([(values["html"], { comparison.html })]) {
        show(comparison.table)
        // Of two runs, the later one is judged.
        return exitCode(ofReport: after, judgedBy: thresholds)
      }
    }
  }

  /// Judges a report that was read from files, and prints the judgement.
  private static func exitCode(ofReport report: LoadReport, judgedBy thresholds: [Threshold]) -> ExitCode {
    let verdict = judge(report, by: thresholds)
    guard !thresholds.isEmpty else { return verdict }
    // Thresholds judge the whole run.
    let missing = report.missingParts
    if !missing.isEmpty {
      let numbers = missing.map(String.init).joined(separator: ", ")
      Console.shared.say("failed: the run has parts without a report: \(numbers)")
    }
    let code = exitCode(report, thresholds, verdict)
    return missing.isEmpty || code != .done ? code : .thresholdFailed
  }

  /// Prints a table on standard output.
  static func show(_ table: String) {
    // The table ends its last line itself.
    Console.shared.put(table.hasSuffix("\n") ? String(table.dropLast()) : table)
  }

  // MARK: Thresholds

  /// The metrics for `--fail-if`.
  static let metrics = HelpTopic(
    name: "metrics", title: "Metrics of a load test, for --fail-if 'METRIC OPERATOR VALUE'",
    rows: metricRows,
    notes: [
      "Delays need a statistic: p50 to p99.99, mean, max or count (ack.p99).",
      "Operators: > >= < <= ==. Units: ns, us, ms, s, min; B, kB, KiB, MB, MiB, GB, GiB, TB, TiB; MB/s for goodput.",
      "goodput, lost and resent may also be a percentage of the bytes offered (lost > 1%).",
      "A condition fails if its metric was never measured, except stall, resume and outage.",
    ])

  private static var metricRows: [(label: String, text: String)] {
    var rows = LoadMetric.descriptions
    for error in ErrorClass.allCases { rows.append((label: "errors.\(error.rawValue)", text: error.meaning)) }
    rows.append((label: "errors.http-NNN", text: "requests that were answered with this status"))
    for index in rows.indices { rows[index].text = meaningsWithOptions[rows[index].label] ?? rows[index].text }
    return rows
  }

  /// The meanings of the metrics that depend on an option, which only the command names.
  private static let meaningsWithOptions = [
    "dropped": "requests of --arrival-rate that could not begin: too many were in progress",
    "errors.gave-up": "a stream made no progress for --give-up",
  ]

  static func thresholds(_ values: CommandLineSyntax.Values) throws(CommandError) -> [Threshold] {
    var thresholds: [Threshold] = []
    do throws(ThresholdError) {
      for text in values.all("fail-if") { thresholds.append(try Threshold(text)) }
    } catch {
      throw .usage("--fail-if: \(error.description)")
    }
    return thresholds
  }

  /// Prints the judgement of each threshold on standard error.
  static func judge(_ report: LoadReport, by thresholds: [Threshold]) -> ExitCode {
    let judgements = thresholds.map { $0.judgement(of: report) }
    for (isMet, sentence) in judgements { Console.shared.say("\(isMet ? "met" : "failed"): \(sentence)") }
    return judgements.allSatisfy(\.isMet) ? .done : .thresholdFailed
  }

  // MARK: Exit codes

  /// The exit code of a run that was not stopped.
  ///
  /// - Parameter verdict: the judgement of the thresholds.
  static func exitCode(_ report: LoadReport, _ thresholds: [Threshold], _ verdict: ExitCode) -> ExitCode {
    if let code = failure(report.totals, isJudged: !thresholds.isEmpty) { return code }
    // A user who sets a limit for losses has stated how much may be lost.
    let isLimited = thresholds.contains { $0.metric.name == "lost" }
    return verdict == .done && report.totals.bytes.lost > 0 && !isLimited ? .dataLost : verdict
  }

  /// The exit code of a run in which nothing was acknowledged or every stream failed, or nil for any other run. If
  /// nothing was acknowledged, nothing was measured, and thresholds cannot judge the run.
  private static func failure(_ totals: LoadTotals, isJudged: Bool) -> ExitCode? {
    let failed = totals.streams.failed
    let isUnreached = totals.connects == 0 && totals.bytes.offered > 0
    let cause = totals.errors["http2"] ?? totals.errors.values.max { $0.count < $1.count }
    guard totals.bytes.acknowledged == 0 else {
      if isJudged || failed == 0 || failed < totals.streams.started { return nil }
      Console.shared.say("every stream failed\(cause.map { ": \($0.example)" } ?? "")")
      return .thresholdFailed
    }
    // Streams that had nothing to send have not failed. Those that a cap stopped have measured nothing either.
    guard failed > 0 || isUnreached || totals.bytes.sent > 0 else { return nil }
    Console.shared.say("nothing was acknowledged\(cause.map { ": \($0.example)" } ?? "")")
    let classes = Set(totals.errors.keys)
    if classes.contains("not-permitted") { return .notPermitted }
    if classes.contains("invalid-request") { return .usage }
    if !classes.isDisjoint(with: ["http2", "not-trusted"]) { return .protocolBroken }
    return totals.connects > 0 ? .thresholdFailed : .unavailable
  }

  // MARK: Reports that belong together

  typealias NamedReport = (name: String, report: LoadReport)

  enum Mode {
    /// Decided by the content of the reports.
    case automatic
    case merge
    case compare

    fileprivate init(_ values: CommandLineSyntax.Values) {
      switch (values.has("merge"), values.has("compare")) {
      case (true, _): self = .merge
      case (_, true): self = .compare
      case (false, false): self = .automatic
      }
    }
  }

  /// The subject of the output.
  enum Subject: Equatable {
    case run(LoadReport)
    case comparison(before: LoadReport, after: LoadReport)
  }

  /// Decides from the reports whether they are parts of one run, or two runs. It does not guess.
  static func subject(of reports: [NamedReport], mode: Mode) throws(CommandError) -> Subject {
    switch mode {
    case .compare:
      guard reports.count == 2 else {
        throw .usage("--compare requires two reports, and there are \(reports.count). Name the earlier one first.")
      }
      return .comparison(before: reports[0].report, after: reports[1].report)
    case .merge: return .run(try merged(reports))
    case .automatic:
      if reports.count == 1 { return .run(reports[0].report) }
      let arePartsOfOne = partsOfOneRun(reports)
      if arePartsOfOne == nil, let doubt = doubtfulTimes(reports) {
        throw CommandError(
          .badData,
          "cannot determine how the reports belong together: \(doubt). Use --merge for parts of one run, or --compare for two runs."
        )
      }
      if arePartsOfOne == nil { return .run(try merged(reports)) }
      guard reports.count == 2 else {
        // Not nil, as checked above.
        throw CommandError(
          .badData,
          "cannot combine the reports: \(arePartsOfOne ?? ""). Name two reports to compare, or the parts of one run.")
      }
      let (first, second) = (reports[0], reports[1])
      if first.report.differenceOfRun(from: second.report) == nil, first.report.parts.first?.count ?? 1 > 1 {
        // The same part of the same plan, twice: two runs, or a mistake in the file names.
        throw CommandError(
          .badData, "cannot combine the reports: \(arePartsOfOne ?? ""). Use --compare if they are of two runs.")
      }
      if first.report.isOtherPart(of: second.report), first.report.differsOnlyInSeed(from: second.report) {
        // Without --seed, each part of a run chooses its own.
        throw CommandError(
          .badData,
          "cannot combine the reports: \(arePartsOfOne ?? ""). All parts of a run need the same --seed. Use --compare if they are of two runs."
        )
      }
      return .comparison(before: first.report, after: second.report)
    }
  }

  private static func merged(_ reports: [NamedReport]) throws(CommandError) -> LoadReport {
    do throws(ReportMergeError) {
      return try LoadReport.merge(reports)
    } catch {
      throw CommandError(.badData, error.description)
    }
  }

  /// The reason why they are not parts of one run, or nil if they are.
  private static func partsOfOneRun(_ reports: [NamedReport]) -> String? {
    // A complete run is not a part, even if the runs are alike.
    if let whole = reports.first(where: { $0.report.parts.first?.count ?? 1 == 1 }) {
      return "\(whole.name) is a complete run, not a part of one"
    }
    do throws(ReportMergeError) {
      _ = try LoadReport.merge(reports)
      return nil
    } catch {
      return error.description
    }
  }

  /// Parts of one run execute at the same time. Returns the evidence that these did not.
  private static func doubtfulTimes(_ reports: [NamedReport]) -> String? {
    let started = reports.compactMap { named in
      WallClock(iso8601: named.report.startedAt).map { (name: named.name, seconds: $0.seconds, report: named.report) }
    }.sorted { $0.seconds < $1.seconds }
    for (earlier, later) in zip(started, started.dropFirst()) {
      let end = earlier.seconds + earlier.report.measured / 1_000_000_000
      if later.seconds > end { return "\(later.name) began after \(earlier.name) had ended" }
    }
    return nil
  }

  // MARK: Reading

  private static func read(_ path: String) throws(CommandError) -> LoadReport {
    let bytes = try InputFile.contents(of: path)
    do throws(DocumentError) {
      return try LoadReport(json: bytes, file: path)
    } catch {
      throw CommandError(.badData, error.description)
    }
  }
}
