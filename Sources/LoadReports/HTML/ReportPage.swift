// The page of a load test: the result in words first, followed by figures and plots.
//
// One file without network access, scripts or pictures. It can be mailed, stored with a build, and printed. Programs
// find the numbers in it as well.

extension LoadReport {
  /// The report as one self-contained HTML page, in UTF-8.
  ///
  /// It also contains the report's JSON, in `<script type="application/json" id="report">`, with fewer intervals and
  /// without their histograms. All foreign text (the target, error messages, host names) is escaped. Any thread.
  public var html: String { html(judgedBy: []) }

  /// The same page, with the judgement of each threshold below the verdict.
  public func html(judgedBy thresholds: [Threshold]) -> String {
    let plots = ReportPlots(self)
    let body: Markup = """
      <header><h1>Load test of \(target)</h1>
      <p class="about">\(about)</p></header>
      \(verdict(judgedBy: thresholds))\(tiles)
      \(plots.figures)\(figureTables)
      """
    return Page.text(title: "Load test of \(target)", body: body, json: ("report", pageJSON), footer: footer)
  }

  /// When, where and with what it was measured.
  private var about: String {
    let hosts = Set(parts.map(\.host)).sorted()
    var words = ["\(startedAt)", "measured for \(Figure.text(nanoseconds: measured))"]
    switch hosts.count {
    case 0: break
    case 1...3: words.append("from \(hosts.joined(separator: ", "))")
    default: words.append("from \(hosts.count) machines")
    }
    if parts.count > 1 { words.append("\(parts.count) parts merged") }
    if let partsSentence { words.append(partsSentence) }
    return words.joined(separator: " · ")
  }

  private var footer: Markup {
    "<footer><p>Written by sluice \(sluiceVersion). Move the pointer over a plot to read its values. The seed of the run is \(String(plan.seed)).</p></footer>"
  }

  /// The generator's own shortcomings come first, because with them the rest does not describe the server.
  func verdict(judgedBy thresholds: [Threshold]) -> Markup {
    let verdict = ReportVerdict(self)
    var markup = Markup.empty
    if generator.isBottleneck {
      let reasons = generator.bottlenecks.map { "<li>\($0)</li>" as Markup }
      markup += """
        <div class="verdict bad" id="bottleneck" role="alert"><p><strong>The generator was the bottleneck.</strong> \
        Delays and goodput below are its own, at least in part, and not the server’s.</p><ul>\(reasons)</ul>\
        <p>Run it again with fewer streams, more threads, or in parts on several machines.</p></div>

        """
    }
    let judgements = thresholds.map { $0.judgement(of: self) }
    let level = judgements.allSatisfy(\.isMet) ? verdict.level : .bad
    let list = judgements.map { judgement -> Markup in
      "<li>\(judgement.isMet ? "met" : "failed"): \(judgement.sentence)</li>"
    }
    let items: Markup = list.isEmpty ? "" : "<ul id=\"thresholds\">\(list)</ul>"
    markup += "<div class=\"verdict \(level.rawValue)\" id=\"verdict\"><p>\(verdict.sentence)</p>\(items)</div>\n"
    return markup
  }

  // MARK: Tiles

  private var tiles: Markup {
    let delay = histograms[.acknowledged]
    func value(_ name: String, _ nanoseconds: Int64?) -> Markup { Page.duration("ack.\(name)", nanoseconds) }
    let rate = Page.data("goodput", String(Int64(saturating: goodput)), Figure.text(bytesPerSecond: goodput))
    let share = goodputShare.map { "\(Figure.text(share: $0)) of the offered bytes" } ?? "no bytes were offered"
    let delayNote = "due to acknowledged; max \(Page.text(delay.max))"
    let latenessNote = "p99 of the generator’s own delay"
    return """
      <dl class="tiles">
      <div><dt>live streams</dt><dd>\(Page.count("streams.peak", totals.streams.peakLive))\
      <small>of \(Figure.text(count: UInt64(max(0, plan.streams)))) planned, \(Figure.text(count: totals.streams.failed)) failed</small></dd></div>
      <div><dt>delay, p99</dt><dd>\(value("p99", delay.quantile(0.99)))<small>\(delayNote)</small></dd></div>
      <div><dt>goodput</dt><dd>\(rate)<small>\(share)</small></dd></div>
      <div><dt>errors</dt><dd>\(Page.count("errors", totals.errorCount))\
      <small>\(Figure.text(bytes: totals.bytes.lost)) lost</small></dd></div>
      <div><dt>interruptions</dt><dd>\(Page.count("interruptions", totals.interruptions.total))\
      <small>\(Figure.text(count: totals.interruptions.onPurpose)) on purpose, \(Figure.text(bytes: totals.bytes.sentAgain)) sent again</small></dd></div>
      <div><dt>lateness</dt><dd>\(Page.duration("lateness.p99", histograms[.lateness].quantile(0.99)))<small>\(latenessNote)</small></dd></div>
      </dl>

      """
  }
}

/// The common parts of every page.
enum Page {
  /// - Parameter json: the element's id, and its content for programs.
  static func text(title: String, body: Markup, json: (id: String, text: String), footer: Markup) -> String {
    let page: Markup = """
      <!doctype html>
      <html lang="en">
      <head>
      <meta charset="utf-8">
      <meta name="viewport" content="width=device-width,initial-scale=1">
      \(PageStyle.policy)
      <title>\(title)</title>
      \(PageStyle.sheet)
      </head>
      <body>
      <main>
      \(body)\(footer)
      </main>
      <script type="application/json" id="\(json.id)">\(Markup.script(json: json.text))</script>
      </body>
      </html>

      """
    return page.text
  }

  /// A figure as human-readable text, and as a value for programs.
  static func data(_ id: String, _ value: String, _ text: String) -> Markup {
    "<data id=\"\(id)\" value=\"\(value)\">\(text)</data>"
  }

  static func count(_ id: String, _ count: UInt64) -> Markup { data(id, String(count), Figure.text(count: count)) }

  /// In nanoseconds. A dash if nothing was measured.
  static func duration(_ id: String, _ nanoseconds: Int64?) -> Markup {
    guard let nanoseconds else { return "–" }
    return data(id, String(nanoseconds), Figure.text(nanoseconds: nanoseconds))
  }

  static func text(_ nanoseconds: Int64?) -> String { nanoseconds.map(Figure.text(nanoseconds:)) ?? "–" }
}
