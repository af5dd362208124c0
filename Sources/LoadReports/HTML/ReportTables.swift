// All figures of one report as tables, for readers who need more than the plots show.

extension LoadReport {
  var figureTables: Markup {
    "\(delayTable)\(spreadTable)\(errorTable)\(worstTable)<div class=\"pair\">\(countTable)\(planTable)</div>\(machineTable)"
  }

  private static let fractions: [(name: String, fraction: Double)] = [
    ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1),
  ]

  // MARK: Delays

  private static let measures: [(measure: LoadMeasure, name: String)] = [
    (.acknowledged, "acknowledged"), (.acknowledgedSlow, "acknowledged, slow"), (.accepted, "accepted"),
    (.connect, "connect"), (.interim, "interim"), (.response, "response"), (.rhythm, "rhythm"), (.stall, "stall"),
    (.outage, "outage"), (.resume, "resume"), (.lateness, "lateness"),
  ]

  private var delayTable: Markup {
    let rows = Self.measures.compactMap { row -> Markup? in
      let histogram = histograms[row.measure]
      guard !histogram.isEmpty else { return nil }
      let cells = Self.fractions.map { name, fraction -> Markup in
        let id = "\(row.measure.rawValue).\(name)"
        return "<td class=\"n\">\(Page.duration("figure.\(id)", histogram.quantile(fraction)))</td>"
      }
      return """
        <tr><th scope="row"><strong>\(row.name)</strong><br>\(row.measure.meaning)</th>\
        <td class="n">\(Page.count("figure.\(row.measure.rawValue).count", histogram.count))</td>\
        <td class="n">\(Page.duration("figure.\(row.measure.rawValue).mean", histogram.mean))</td>\(cells)</tr>

        """
    }
    return Self.table(
      id: "delays", title: "Delays",
      about: "Each delay counts from the planned time. It therefore includes the delays that a late generator "
        + "or a slow server causes." + (rhythmSentence.map { " \($0)" } ?? ""),
      head: ["", "count", "mean"] + Self.fractions.map(\.name), rows: rows)
  }

  /// Each stream counts once here, however many messages it had.
  private var spreadTable: Markup {
    func row(_ name: String, _ histogram: LatencyHistogram, _ text: (Int64) -> String) -> Markup {
      guard !histogram.isEmpty else { return .empty }
      let cells = [0, 0.01, 0.5, 0.99, 1].map { fraction -> Markup in
        "<td class=\"n\">\(histogram.quantile(fraction).map(text) ?? "–")</td>"
      }
      return "<tr><th scope=\"row\">\(name)</th>\(cells)</tr>\n"
    }
    let count = max(spread.goodput.count, spread.maximumDelay.count)
    guard count > 0 else { return .empty }
    return Self.table(
      id: "spread", title: "From stream to stream",
      about:
        "Each of \(Figure.text(count: count)) streams counts once, because a mean over all messages would hide a starved stream.",
      head: ["per stream", "minimum", "p1", "p50", "p99", "maximum"],
      rows: [
        row("mean delay from due to acknowledged", spread.meanDelay, Figure.text(nanoseconds:)),
        row("longest delay", spread.maximumDelay, Figure.text(nanoseconds:)),
        row("goodput", spread.goodput) { Figure.text(bytesPerSecond: Double($0)) },
        row("interruptions", spread.interruptions) { Figure.text(count: UInt64($0)) },
      ])
  }

  // MARK: Errors and outages

  private var errorTable: Markup {
    guard !totals.errors.isEmpty else { return .empty }
    let classes = totals.errors.sorted { ($1.value.count, $0.key) < ($0.value.count, $1.key) }
    // A server that causes a new class for each error must not make the page grow without limit.
    let shown = classes.prefix(20)
    var rows = shown.map { name, error -> Markup in
      """
      <tr><th scope="row">\(Self.clipped(name, 80))</th><td class="n">\(Figure.text(count: error.count))</td>\
      <td class="words">\(Self.clipped(error.example, 300))</td></tr>

      """
    }
    if classes.count > shown.count {
      let rest = classes.dropFirst(shown.count).reduce(0) { $0 + $1.value.count }
      rows.append(
        "<tr><th scope=\"row\">\(classes.count - shown.count) more classes</th><td class=\"n\">\(Figure.text(count: rest))</td><td></td></tr>\n"
      )
    }
    return Self.table(
      id: "errors-by-class", title: "Errors by class", about: "", head: ["class", "count", "example"], rows: rows,
      numbers: 1..<2)
  }

  private var worstTable: Markup {
    guard !spread.worst.isEmpty else { return .empty }
    let rows = spread.worst.map { stream -> Markup in
      """
      <tr><th scope="row">\(Figure.text(count: UInt64(max(0, stream.index))))</th><td>\(stream.outcome.rawValue)</td>\
      <td class="n">\(Page.text(stream.maximumDelay))</td><td class="n">\(Page.text(stream.meanDelay))</td>\
      <td class="n">\(Figure.text(bytes: stream.acknowledged))</td><td class="n">\(Figure.text(bytes: stream.offered))</td>\
      <td class="n">\(Figure.text(count: stream.interruptions))</td>\
      <td class="n">\(Figure.text(nanoseconds: stream.startedAt))</td>\
      <td class="n">\(Figure.text(nanoseconds: stream.lasted))</td></tr>

      """
    }
    return Self.table(
      id: "worst", title: "The worst streams",
      about:
        "Failed streams come first, then the streams with the longest delays. If a few streams are much slower than the others, one machine, worker or shard may be the cause.",
      head: [
        "stream", "end", "longest delay", "mean delay", "acknowledged", "offered", "interruptions", "started at",
        "lasted",
      ], rows: rows, numbers: 2..<9)
  }

  // MARK: Counts, plan, machines

  private var countTable: Markup {
    let (streams, messages, bytes) = (totals.streams, totals.messages, totals.bytes)
    let processors = generator.userTime.addingSaturated(generator.systemTime)
    var pairs: [(String, String)] = [
      ("streams started", Figure.text(count: streams.started)), ("… finished", Figure.text(count: streams.finished)),
      ("… failed", Figure.text(count: streams.failed)),
      ("messages due", Figure.text(count: messages.due)), ("… sent", Figure.text(count: messages.sent)),
      ("… acknowledged", Figure.text(count: messages.acknowledged)),
    ]
    if plan.arrivalRate != nil { pairs.append(("… dropped", Figure.text(count: messages.dropped))) }
    pairs += [
      ("bytes offered", Figure.text(bytes: bytes.offered)), ("… sent", Figure.text(bytes: bytes.sent)),
      ("… accepted by TCP", plan.whyNotAccepted ?? Figure.text(bytes: bytes.accepted)),
      ("… acknowledged", Figure.text(bytes: bytes.acknowledged)),
      ("… sent again", Figure.text(bytes: bytes.sentAgain)), ("… lost", Figure.text(bytes: bytes.lost)),
      ("connections", Figure.text(count: totals.connects)),
      ("interim responses", Figure.text(count: totals.interimResponses)),
      ("generator: processor time", Figure.text(nanoseconds: processors)),
      ("generator: maximum memory", Figure.text(bytes: generator.maximumResident)),
      ("generator: busiest loop", Figure.text(share: generator.busiestLoop)),
    ]
    if streams.peakLive > 0 {
      pairs.append(("… memory per stream", Figure.text(bytes: generator.maximumResident / streams.peakLive)))
    }
    if messages.sent > 0 {
      pairs.append(
        ("… processor time per message", Figure.text(nanoseconds: processors / Int64(clamping: messages.sent))))
    }
    return Self.list(id: "counts", title: "Counts", pairs)
  }

  private var planTable: Markup { Self.list(id: "plan", title: "The plan", plan.words) }

  private var machineTable: Markup {
    guard !parts.isEmpty else { return .empty }
    let shown = parts.prefix(32)
    let rows = shown.map { part -> Markup in
      """
      <tr><th scope="row">\(part.index) of \(part.count)</th><td>\(Self.clipped(part.host, 80))</td><td class="n">\(part.cores)</td>\
      <td class="n">\(part.threads)</td><td class="n">\(String(part.seed))</td></tr>

      """
    }
    let more = parts.count > shown.count ? "\(parts.count - shown.count) more machines are in the report’s JSON." : ""
    return Self.table(
      id: "machines", title: "Machines", about: more, head: ["part", "host", "processors", "threads", "seed"],
      rows: rows,
      numbers: 2..<5)
  }

  // MARK: Parts

  /// - Parameter numbers: the numeric columns; by default all but the first.
  static func table(
    id: String, title: String, about: String, head: [String], rows: [Markup], numbers: Range<Int>? = nil
  ) -> Markup {
    let cells = head.enumerated().map { index, name -> Markup in
      (numbers ?? 1..<head.count).contains(index)
        ? "<th scope=\"col\" class=\"n\">\(name)</th>" : "<th scope=\"col\">\(name)</th>"
    }
    let words: Markup = about.isEmpty ? .empty : "<p>\(about)</p>"
    return """
      <section id="\(id)"><h2>\(title)</h2>\(words)<div class="table"><table>
      <thead><tr>\(cells)</tr></thead><tbody>
      \(rows)</tbody></table></div></section>

      """
  }

  private static func list(id: String, title: String, _ pairs: [(String, String)]) -> Markup {
    let rows = pairs.map {
      "<tr><th scope=\"row\">\($0.0)</th><td class=\"n\">\(clipped($0.1, 200))</td></tr>\n" as Markup
    }
    return "<section id=\"\(id)\"><h2>\(title)</h2><table><tbody>\n\(rows)</tbody></table></section>\n"
  }

  /// Limits text from outside to its place.
  private static func clipped(_ text: String, _ length: Int) -> String {
    text.count > length ? text.prefix(length) + "…" : text
  }
}

extension LoadPlan {
  /// The plan in words.
  var words: [(name: String, value: String)] {
    [
      ("streams", Figure.text(count: UInt64(max(0, streams)))),
      ("ramp", Figure.text(nanoseconds: ramp)),
      ("duration", Figure.text(nanoseconds: duration)),
      ("profile", profile),
      ("rate per stream", rate == 0 ? "unlimited" : Figure.text(bytesPerSecond: Double(rate))),
      ("time between messages", chunk == 0 ? "–" : Figure.text(nanoseconds: chunk)),
      ("body", body),
    ]
      + (arrivals.map { [("arrivals", $0), ("requests in progress", "at most \(maximumUnderWay ?? 0)")] } ?? []) + [
        ("resumable uploads", resumable),
        ("HTTP", httpVersion),
        ("streams per connection", Figure.text(count: UInt64(max(1, streamsPerConnection ?? 1)))),
        ("connections cut", dropEvery.map { "every \(Figure.text(nanoseconds: $0)) on average" } ?? "never"),
        ("slow streams", Figure.text(share: slowFraction)),
        ("seed", String(seed)),
      ]
  }
}
