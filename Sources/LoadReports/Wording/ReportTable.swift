// A report for a terminal, on one screen.

extension LoadReport {
  /// The report with its result first, in at most 40 lines of at most 100 columns. Each line ends with a line feed.
  public var table: String {
    var table = ReportTable()
    table.add(wrapping: ReportVerdict(self).sentence)
    table.add("")
    table.add("\(target), \(startedAt), measured for \(Figure.text(nanoseconds: measured))")
    table.add(plan.sentence)
    if let missingSentence { table.add("NOT ALL OF THE RUN: \(missingSentence)") }
    for reason in generator.bottlenecks.prefix(2) { table.add("THE GENERATOR DID NOT KEEP UP: \(reason)") }
    table.add("")
    addCounts(to: &table)
    table.add("")
    table.add(columns: ["delay, from … to", "count", "p50", "p90", "p99", "p99.9", "max"])
    for measure in LoadMeasure.allCases where measure.isDelay {
      if measure == .accepted, let reason = plan.whyNotAccepted {
        table.add(columns: [measure.words, reason])
      } else {
        table.add(measure, histograms[measure])
      }
    }
    if let sentence = rhythmSentence { table.add(sentence) }
    return table.text
  }

  /// How the server's acknowledgement interval affects the delays; nil if it is negligible.
  var rhythmSentence: String? {
    guard let rhythm = histograms[.rhythm].quantile(0.5), let delay = histograms[.acknowledged].quantile(0.5),
      rhythm > delay / 4
    else { return nil }
    return "The server acknowledges each stream every \(Figure.text(nanoseconds: rhythm)): ack includes up to that."
  }

  private func addCounts(to table: inout ReportTable) {
    func count(_ value: UInt64) -> String { Figure.text(count: value) }
    let (streams, messages, bytes) = (totals.streams, totals.messages, totals.bytes)
    table.add(
      "streams",
      "\(count(streams.started)) started, \(count(streams.finished)) finished, \(count(streams.failed)) failed; "
        + "at most \(count(streams.peakLive)) live")
    table.add(
      "messages",
      "\(count(messages.due)) due, \(count(messages.sent)) sent, \(count(messages.acknowledged)) acknowledged"
        + (messages.dropped > 0 ? ", \(count(messages.dropped)) dropped" : ""))
    let rate = measured > 0 ? Double(bytes.acknowledged) * 1e9 / Double(measured) : 0
    table.add(
      "bytes",
      "\(Figure.text(bytes: bytes.offered)) offered, \(Figure.text(bytes: bytes.acknowledged)) acknowledged "
        + "(\(Figure.text(bytesPerSecond: rate))), \(Figure.text(bytes: bytes.sentAgain)) sent again, "
        + "\(Figure.text(bytes: bytes.lost)) lost")
    table.add(
      "connections",
      "\(count(totals.connects)) opened\(plan.streamsPerConnection.map { " for up to \($0) streams each" } ?? ""); \(count(totals.interruptions.unplanned)) interruptions, and "
        + "\(count(totals.interruptions.onPurpose)) on purpose; \(count(totals.interruptions.failedAttempts)) failed attempts"
    )
    if let outages = outageSentence { table.add("outages", outages) }
    let statuses = totals.responses.sorted { $0.key < $1.key }.map { "\(count($0.value)) with \($0.key)" }
    table.add(
      "responses",
      (statuses.isEmpty ? "none" : statuses.joined(separator: ", "))
        + "; \(count(totals.interimResponses)) interim responses")
    let classes = totals.errors.sorted { ($1.value.count, $0.key) < ($0.value.count, $1.key) }
    if classes.isEmpty { table.add("errors", "none") }
    for (position, (name, error)) in classes.prefix(3).enumerated() {
      let more = position == 2 && classes.count > 3 ? "(\(classes.count - 3) more kinds) " : ""
      table.add(position == 0 ? "errors" : "", "\(more)\(count(error.count)) \(name): \(error.example)")
    }
    let processor = generator.userTime.addingSaturated(generator.systemTime)
    let share = measured > 0 ? Double(processor) / Double(measured) : 0
    table.add(
      "generator",
      "\(Figure.text(nanoseconds: processor)) of CPU (\(Figure.text(share: share)) of one core), "
        + "\(Figure.text(bytes: generator.maximumResident)) of memory at most")
  }
}

extension ReportComparison {
  /// The comparison with its verdict first, in at most 31 lines of at most 100 columns. Each line ends with a line
  /// feed. A is the earlier run.
  public var table: String {
    var table = ReportTable()
    table.add(wrapping: sentence)
    for (name, report) in [("A", before), ("B", after)] {
      table.add("\(name): \(report.startedAt), \(report.target), \(report.plan.sentence)")
      if let missing = report.missingSentence { table.add("NOT ALL OF RUN \(name): \(missing)") }
    }
    if !planDifferences.isEmpty {
      let differences = planDifferences.map { "\($0.name) \($0.ours) and \($0.theirs)" }.joined(separator: "; ")
      table.add("NOT THE SAME PLAN: \(differences)")
    }
    table.add(columns: ["", "A", "B", "B/A", ""])
    for row in rows where row.verdict != .unjudged || row.before != row.after || !["–", "0 B"].contains(row.before) {
      let ratio = row.ratio.map { Figure.digits($0) } ?? ""
      table.add(columns: [row.name, row.before, row.after, ratio, row.verdict.rawValue])
    }
    return table.text
  }
}

extension LoadPlan {
  /// Why the acceptance of messages by this machine's TCP was not measured, in words; nil if it was.
  var whyNotAccepted: String? {
    requestPerMessage
      ? "not measured for requests per message" : httpVersion == "2" ? "not measured over HTTP/2" : nil
  }

  /// The planned requests per second, in words; nil if each stream has its own schedule.
  var arrivals: String? {
    guard let arrivalRate else { return nil }
    guard let most = stages.map({ Double($0.streams) }).max() else {
      return "\(Figure.digits(arrivalRate)) arrivals per second"
    }
    return "up to \(Figure.digits(max(most, arrivalRate))) arrivals per second"
  }

  /// The plan in one sentence.
  var sentence: String {
    let rate =
      arrivalRate != nil
      ? "\(arrivals ?? "")" : rate == 0 ? "as fast as they are taken" : "\(Figure.text(bytes: rate))/s each"
    let ramp =
      stages.isEmpty
      ? ramp == 0 ? "no ramp" : "ramp \(Figure.text(nanoseconds: ramp))"
      : "\(stages.count) stage\(stages.count == 1 ? "" : "s")"
    var text =
      "\(Figure.text(count: UInt64(max(0, streams)))) stream\(streams == 1 ? "" : "s") of \(profile), \(rate), "
    text +=
      (arrivalRate == nil ? "every \(Figure.text(nanoseconds: chunk)), " : "") + "\(ramp), HTTP/\(httpVersion), "
      + (requestPerMessage ? "one request per message" : "resumable: \(resumable)")
    if let dropEvery { text += ", cut every \(Figure.text(nanoseconds: dropEvery))" }
    if slowFraction > 0 { text += ", \(Figure.text(share: slowFraction)) slow" }
    return text
  }
}

/// Lines and columns.
private struct ReportTable {
  private static let width = 100
  private static let nameWidth = 30
  private static let columnWidth = 11

  private(set) var text = ""

  mutating func add(_ line: String) {
    // A report's texts come from servers and files, and must not control the terminal.
    let plain = line.unicodeScalars.map { Self.isPrintable($0) ? Character($0) : "?" }
    let isLong = plain.count > Self.width
    text += String(isLong ? Array(plain.prefix(Self.width - 1)) + ["…"] : plain) + "\n"
  }

  /// Adds a sentence, wrapped to several lines if necessary.
  mutating func add(wrapping sentence: String) {
    var line = ""
    for word in sentence.split(separator: " ") {
      if !line.isEmpty, line.unicodeScalars.count + 1 + word.unicodeScalars.count > Self.width {
        add(line)
        line = ""
      }
      line += (line.isEmpty ? "" : " ") + word
    }
    add(line)
  }

  mutating func add(_ name: String, _ words: String) { add(Self.padded(name, to: 13, atEnd: true) + words) }

  /// Aligns the first one to the left, and all others to the right.
  mutating func add(columns: [String]) {
    guard let name = columns.first else { return }
    let others = columns.dropFirst().map { Self.padded($0, to: Self.columnWidth, atEnd: false) }
    var line = Self.padded(name, to: Self.nameWidth, atEnd: true) + others.joined()
    while line.last == " " { line.removeLast() }
    add(line)
  }

  mutating func add(_ measure: LoadMeasure, _ histogram: LatencyHistogram) {
    guard !histogram.isEmpty else { return }
    let quantiles = [0.5, 0.9, 0.99, 0.999, 1].map { fraction in
      histogram.quantile(fraction).map { Figure.text(nanoseconds: $0) } ?? ""
    }
    add(columns: [measure.words, Figure.text(count: histogram.count)] + quantiles)
  }

  private static func padded(_ text: String, to width: Int, atEnd: Bool) -> String {
    let padding = String(repeating: " ", count: max(0, width - text.unicodeScalars.count))
    return atEnd ? text + padding : padding + text
  }

  private static func isPrintable(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.properties.generalCategory {
    // Control characters, format characters (which can change the direction of a line), line separators, and characters
    // without a width of their own.
    case .control, .format, .surrogate, .privateUse, .unassigned, .lineSeparator, .paragraphSeparator, .nonspacingMark,
      .enclosingMark:
      false
    default: true
    }
  }
}

extension LoadMeasure {
  /// The beginning and the end of the measured time.
  fileprivate var words: String {
    switch self {
    case .connect: "connect: start to connected"
    case .interim: "interim: request to 100, 104"
    case .accepted: "accepted: due to TCP's"
    case .acknowledged: "ack: due to 104, 2xx"
    case .acknowledgedSlow: "slow.ack: of slow streams"
    case .lateness: "lateness: due to handed over"
    case .stall: "stall: due to space"
    case .resume: "resume: outage, no pauses"
    case .outage: "outage: cut to next ack"
    case .response: "response: end to response"
    case .rhythm: "rhythm: ack to next ack"
    case .message: "message"
    }
  }
}
