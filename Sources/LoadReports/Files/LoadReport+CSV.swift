// The intervals of a run for spreadsheets and scripts.

extension LoadReport {
  /// One row per interval, after a row of names, as in RFC 4180, with line feeds.
  ///
  /// All values are whole numbers, except the times of the start and the length, which are in seconds. A delay that was
  /// not measured in an interval is empty. `outage_ns` is the time within the interval in which at least one stream was
  /// in an outage. Any thread.
  public var csv: String {
    var text = Self.columns.map(\.name).joined(separator: ",") + "\n"
    for (index, interval) in intervals.intervals.enumerated() {
      let start = intervals.start(of: index)
      let row = CSVRow(interval: interval, start: start, length: max(0, min(intervals.length, measured - start)))
      text += Self.columns.map { $0.value(row, self) }.joined(separator: ",") + "\n"
    }
    return text
  }

  private struct CSVRow {
    let interval: LoadInterval
    let start: Int64
    /// The last interval ends with the run.
    let length: Int64
  }

  private static let columns: [(name: String, value: @Sendable (CSVRow, LoadReport) -> String)] = [
    ("start_s", { row, _ in seconds(row.start) }),
    ("length_s", { row, _ in seconds(row.length) }),
    ("live", { row, _ in "\(row.interval.live)" }),
    ("connecting", { row, _ in "\(row.interval.connecting)" }),
    ("offered_bytes", { row, _ in "\(row.interval.offered)" }),
    ("sent_bytes", { row, _ in "\(row.interval.sent)" }),
    ("acknowledged_bytes", { row, _ in "\(row.interval.acknowledged)" }),
    ("ack_p50_ns", { row, _ in delay(row.interval.acknowledgedDelay, 0.5) }),
    ("ack_p90_ns", { row, _ in delay(row.interval.acknowledgedDelay, 0.9) }),
    ("ack_p99_ns", { row, _ in delay(row.interval.acknowledgedDelay, 0.99) }),
    ("ack_max_ns", { row, _ in delay(row.interval.acknowledgedDelay, 1) }),
    ("lateness_p99_ns", { row, _ in delay(row.interval.lateness, 0.99) }),
    ("interruptions", { row, _ in "\(row.interval.interruptions)" }),
    ("errors", { row, _ in "\(row.interval.errors)" }),
    ("generator_cpu_ns", { row, _ in "\(row.interval.processorTime)" }),
    ("outage_ns", { row, report in "\(report.totals.outages.length(from: row.start, for: row.length))" }),
  ]

  private static func delay(_ histogram: LatencyHistogram, _ fraction: Double) -> String {
    histogram.quantile(fraction).map(String.init) ?? ""
  }

  /// With as many decimals as necessary, and no exponent.
  private static func seconds(_ nanoseconds: Int64) -> String {
    let (whole, rest) = nanoseconds.quotientAndRemainder(dividingBy: 1_000_000_000)
    guard rest != 0 else { return "\(whole)" }
    var fraction = String(String(1_000_000_000 + rest).dropFirst())
    while fraction.last == "0" { fraction.removeLast() }
    return "\(whole).\(fraction)"
  }
}

extension OutageLedger {
  /// How much of a time belongs to outages, in nanoseconds.
  func length(from start: Int64, for length: Int64) -> Int64 {
    let end = start.addingSaturated(length)
    return outages.reduce(0) { sum, outage in
      sum.addingSaturated(max(0, min(end, outage.end) - max(start, outage.start)))
    }
  }
}
