// The result of a run in one sentence. It is read first, and often the only text that is read.

/// The sentence above a report.
struct ReportVerdict: Equatable, Sendable {
  enum Level: String, Sendable {
    /// The server did everything that was required, and the run measured the server.
    case good
    /// It did, but there were problems.
    case warn
    /// Something failed or was lost, or the figures are the generator's own.
    case bad
  }

  let level: Level
  let sentence: String

  /// - Parameter acknowledgedDelay: the 99th percentile as in the table beside the sentence; by default, that of the
  ///   whole run.
  init(_ report: LoadReport, acknowledgedDelay: String? = nil) {
    var parts = [Self.streams(report)]
    let delay = report.histograms[.acknowledged]
    let totals = report.totals
    // The delays of messages that were never acknowledged are ages, and do not describe the server.
    if totals.messages.acknowledged > 0, let p99 = delay.quantile(0.99) {
      parts.append("p99 from due to acknowledged \(acknowledgedDelay ?? Figure.text(nanoseconds: p99))")
    } else if totals.messages.acknowledged > 0 {
      // No stream but those that are slow on purpose had a message to acknowledge.
      let slow = report.histograms[.acknowledgedSlow].quantile(0.99)
      parts.append(
        slow.map {
          "p99 from due to acknowledged \(Figure.text(nanoseconds: $0)) of streams that are slow on purpose"
        } ?? Self.counted(totals.messages.acknowledged, "message") + " acknowledged")
    } else {
      parts.append(totals.bytes.acknowledged > 0 ? "no whole message was acknowledged" : "nothing was acknowledged")
    }
    if totals.messages.dropped > 0 {
      let most = report.plan.maximumUnderWay.map { ": \($0) may be under way" } ?? ""
      parts.append(Self.counted(totals.messages.dropped, "request") + " dropped" + most)
    }
    // A user of the server would notice this delay. Lower ones come from the network.
    if let response = report.histograms[.response].quantile(0.5), response >= Self.noticeable {
      parts.append("responses take \(Figure.text(nanoseconds: response)) (p50)")
    }
    if let stall = report.histograms[.stall].max, stall >= Self.noticeable {
      parts.append("no space for messages for up to \(Figure.text(nanoseconds: stall))")
    }
    if totals.streams.failed > 0 { parts.append(Self.counted(totals.streams.failed, "stream") + " failed") }
    parts.append(Self.errors(totals))
    if totals.interruptions.unplanned > 0 {
      parts.append(Self.counted(totals.interruptions.unplanned, "interruption") + " not on purpose")
    }
    if let outages = report.outageSentence { parts.append(outages) }
    if totals.bytes.lost > 0 { parts.append("\(Figure.text(bytes: totals.bytes.lost)) lost") }
    if let share = report.goodputShare, share < 0.99 {
      parts.append("the server acknowledged only \(Figure.text(share: share)) of the offered bytes")
    }
    parts.append(report.generator.isBottleneck ? "the generator did not keep up" : "the generator kept up")
    sentence = parts.joined(separator: "; ") + "."

    if report.generator.isBottleneck || totals.messages.acknowledged == 0 || totals.streams.failed > 0
      || totals.bytes.lost > 0
    {
      level = .bad
    } else if totals.errorCount > 0 || totals.interruptions.unplanned > 0 || report.goodputShare ?? 1 < 0.99
      || report.plan.arrivalRate == nil && !report.reachedItsStreams || report.endedEarly
    {
      level = .warn
    } else {
      level = .good
    }
  }

  private static let noticeable: Int64 = 50_000_000

  private static func streams(_ report: LoadReport) -> String {
    let planned = report.plan.streams
    let stages = "in \(counted(UInt64(report.plan.stages.count), "stage"))"
    let held = max(0, report.measured - report.plan.ramp)
    var text: String
    if let arrivals = report.plan.arrivals {
      if !report.plan.stages.isEmpty {
        text = "\(arrivals) \(stages) for \(Figure.text(nanoseconds: report.measured))"
      } else {
        text = held > 0 ? "\(arrivals) for \(Figure.text(nanoseconds: held))" : "up to \(arrivals)"
      }
    } else if report.reachedItsStreams, !report.plan.stages.isEmpty {
      text = "up to \(counted(UInt64(planned), "live stream")) \(stages)"
    } else if report.reachedItsStreams, let fewest = report.fewestLive, fewest < UInt64(max(0, planned)) {
      text = "\(Figure.text(count: fewest)) to \(counted(UInt64(planned), "live stream"))"
    } else if report.reachedItsStreams {
      text = counted(UInt64(planned), "live stream") + " held for \(Figure.text(nanoseconds: held))"
    } else {
      let peak = Figure.text(count: report.totals.streams.peakLive)
      text = "at most \(peak) of \(counted(UInt64(planned), "planned stream")) live at one time"
    }
    let duration = Figure.text(nanoseconds: report.plan.duration)
    let early = report.partsEndedEarly
    if report.isEarly(report.measured) {
      text += ", ended after \(Figure.text(nanoseconds: report.measured)) of \(duration)"
    } else if let first = early.first {
      let several = early.count > 1 ? "\(early.count) parts ended early: " : ""
      text += ", \(several)part \(first.index) ended after \(Figure.text(nanoseconds: first.measured)) of \(duration)"
    }
    return text
  }

  private static func errors(_ totals: LoadTotals) -> String {
    guard totals.errorCount > 0 else { return "no error" }
    // The most frequent first, and equals by name, so that the sentence is always the same.
    let classes = totals.errors.sorted { ($1.value.count, $0.key) < ($0.value.count, $1.key) }
    let named = classes.prefix(3).map { name, error in
      (classes.count == 1 ? "" : Figure.text(count: error.count) + " ") + name.prefix(40)
    }
    let more = classes.count > 3 ? ", …" : ""
    return counted(totals.errorCount, "error") + " (" + named.joined(separator: ", ") + more + ")"
  }

  static func counted(_ count: UInt64, _ noun: String) -> String {
    "\(Figure.text(count: count)) \(noun)\(count == 1 ? "" : "s")"
  }
}

extension LoadReport {
  /// Each outage with its start and length. If there are many, the longest. Nil without any.
  var outageSentence: String? {
    func words(_ outage: LoadOutage) -> String {
      let end = outage.end >= measured ? ", to the end" : ""
      return "at \(Figure.text(nanoseconds: outage.start)) for \(Figure.text(nanoseconds: outage.length))\(end) "
        + "(\(ReportVerdict.counted(outage.streams, "interruption")): \(outage.cause.prefix(40)))"
    }
    let outages = totals.outages.outages
    guard let longest = totals.outages.longest else { return nil }
    return outages.count <= 2
      ? "outage " + outages.map(words).joined(separator: ", ")
      : "\(outages.count) outages, the longest \(words(longest))"
  }

  /// The fewest live streams after the ramp, also in an incomplete last second: the sum of the fewest of each loop and
  /// part.
  var fewestLive: UInt64? {
    let first = Int(plan.ramp.addingSaturated(intervals.length - 1) / max(1, intervals.length))
    let whole = min(Int(measured / max(1, intervals.length)), intervals.intervals.count)
    // The row of that second has the streams after their ends.
    let last =
      first <= whole && !measured.isMultiple(of: max(1, intervals.length)) ? totals.streams.fewestLiveAtEnd : nil
    let fewest = first < whole ? intervals.intervals[first..<whole].map(\.fewestLive).min() : nil
    return [fewest, last].compactMap { $0 }.min()
  }

  /// Whether all planned streams were live at once.
  var reachedItsStreams: Bool { totals.streams.peakLive >= UInt64(max(0, plan.streams)) }

  /// Whether it, or one of its parts, was ended by a signal or a cap.
  var endedEarly: Bool { isEarly(measured) || !partsEndedEarly.isEmpty }

  /// Whether a run of this duration ended early: more than a twentieth of the planned time is missing.
  func isEarly(_ measured: Int64) -> Bool { Double(measured) < Double(plan.duration) * 0.95 }

  /// The merged parts that ended early, the shortest first.
  var partsEndedEarly: [(index: Int, measured: Int64)] {
    var early: [(index: Int, measured: Int64)] = []
    for part in parts {
      if let measured = part.measured, isEarly(measured) { early.append((part.index, measured)) }
    }
    return early.sorted { ($0.measured, $0.index) < ($1.measured, $1.index) }
  }

  /// The share of the offered bytes that the server acknowledged; nil if nothing was offered.
  var goodputShare: Double? {
    totals.bytes.offered > 0 ? Double(totals.bytes.acknowledged) / Double(totals.bytes.offered) : nil
  }

  /// Acknowledged bytes per second, over the whole run.
  var goodput: Double { measured > 0 ? Double(totals.bytes.acknowledged) * 1e9 / Double(measured) : 0 }
}
