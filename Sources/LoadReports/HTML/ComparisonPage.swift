// Two runs on one page, with their differences in the plan, in the figures, and in the plots.

extension ReportComparison {
  /// The comparison as one self-contained HTML page, in UTF-8, like ``LoadReport/html``. A is the earlier run, and B is
  /// the later one.
  ///
  /// It contains the JSON of both reports, as a list in `<script type="application/json" id="reports">`. Any thread.
  public var html: String { ComparisonPage(self).html }
}

struct ComparisonPage {
  private let comparison: ReportComparison
  private let first: LoadReport
  private let second: LoadReport
  private let timelines: [ReportTimeline]

  init(_ comparison: ReportComparison) {
    self.comparison = comparison
    (first, second) = (comparison.before, comparison.after)
    timelines = [ReportTimeline(first), ReportTimeline(second)]
  }

  var html: String {
    let body: Markup = """
      <header><h1>Two load tests compared</h1>
      <p class="about">A: \(Self.about(first))<br>B: \(Self.about(second))</p></header>
      \(verdict)\(run("A", first, comparison.acknowledgedDelays?.before))\
      \(run("B", second, comparison.acknowledgedDelays?.after))
      \(figureTable)\(planTable)\(streams)\(delay)\(histogram)
      """
    return Page.text(
      title: "Two load tests compared", body: body,
      json: ("reports", "[\(first.pageJSON),\(second.pageJSON)]"),
      footer: "<footer><p>Written by sluice. Move the pointer over a plot to read its values.</p></footer>")
  }

  private static func about(_ report: LoadReport) -> String {
    "\(report.target), \(report.startedAt), measured for \(Figure.text(nanoseconds: report.measured))"
      + (report.partsSentence.map { ", \($0)" } ?? "")
  }

  private var verdict: Markup {
    let level: ReportVerdict.Level =
      switch comparison.verdict {
      case .better, .same: .good
      case .worse: .bad
      case .unjudged: .warn
      }
    return "<div class=\"verdict \(level.rawValue)\" id=\"verdict\"><p>\(comparison.sentence)</p></div>\n"
  }

  private func run(_ name: String, _ report: LoadReport, _ delay: String?) -> Markup {
    let verdict = ReportVerdict(report, acknowledgedDelay: delay)
    return "<p class=\"about\" id=\"verdict-\(name)\"><strong>\(name)</strong>: \(verdict.sentence)</p>\n"
  }

  // MARK: Tables

  private var figureTable: Markup {
    let rows = comparison.rows.filter { $0.before != $0.after || $0.verdict != .unjudged }.map { row -> Markup in
      let ratio = row.ratio.map { Figure.digits($0) } ?? "–"
      return """
        <tr><th scope="row">\(row.name)</th><td class="n">\(row.before)</td><td class="n">\(row.after)</td>\
        <td class="n"><data id="ratio.\(row.name)" value="\(row.ratio.map { "\($0)" } ?? "")">\(ratio)</data></td>\
        <td class="\(row.verdict.rawValue)">\(row.verdict.rawValue)</td></tr>

        """
    }
    return LoadReport.table(
      id: "figures", title: "The figures",
      about: """
        B/A is the later run’s figure divided by the earlier one’s. A difference is called better or worse when it is more than \
        2 %, more than the generator’s own lateness, and more than chance explains; a single value, like a maximum, is not judged.
        """,
      head: ["", "A", "B", "B/A", ""], rows: rows, numbers: 1..<4)
  }

  /// The plans, with differences marked, because with different plans, different figures prove nothing.
  private var planTable: Markup {
    let rows = zip(first.plan.words, second.plan.words).map { a, b -> Markup in
      let mark: Markup = a.value == b.value || a.name == "seed" ? .empty : " class=\"worse\""
      return "<tr><th scope=\"row\">\(a.name)</th><td\(mark)>\(a.value)</td><td\(mark)>\(b.value)</td></tr>\n"
    }
    let about =
      comparison.planDifferences.isEmpty
      ? "Both runs have the same plan."
      : "The runs have different plans, which alone can explain different figures."
    return LoadReport.table(
      id: "plans", title: "The plans", about: about, head: ["", "A", "B"], rows: rows, numbers: 3..<3)
  }

  // MARK: Plots

  private var end: Double { timelines.map(\.end).max() ?? 0 }

  /// A curve for each run over the moments of both, without values for moments that a run did not measure.
  private func series(
    _ name: String, _ styles: [String], _ curve: (ReportTimeline) -> [Double?]
  ) -> (moments: [Double], series: [TimeSeries]) {
    let moments = Set(timelines.flatMap(\.moments)).sorted()
    let series = zip(timelines, zip(["A", "B"], styles)).map { timeline, run -> TimeSeries in
      TimeSeries(
        name: "\(run.0), \(name)", style: run.1, values: Self.values(timeline, curve(timeline), at: moments))
    }
    return (moments, series)
  }

  /// The values at other moments: between two of its own, the earlier one's.
  static func values(_ timeline: ReportTimeline, _ values: [Double?], at moments: [Double]) -> [Double?] {
    var position = -1
    return moments.map { moment in
      while position + 1 < timeline.moments.count, timeline.moments[position + 1] <= moment { position += 1 }
      return position >= 0 && moment <= timeline.end ? values[position] : nil
    }
  }

  private func plot(_ moments: [Double], _ panels: [TimePlot.Panel]) -> (PlotFrame) -> PlotDrawing {
    TimePlot(moments: moments, end: end, panels: panels).drawing
  }

  private static let legend: [PlotFigure.LegendEntry] = [.init(style: "a", label: "A"), .init(style: "b", label: "B")]

  private var streams: Markup {
    let live = series("live streams", ["a", "b"], \.live)
    let rate = series("acknowledged", ["a", "b"], \.acknowledged)
    func highest(_ series: [TimeSeries]) -> Double { ReportTimeline.highest(series.map(\.values)) }
    return PlotFigure(
      id: "plot-streams", title: "Streams and goodput",
      reading: "Live streams at the top and acknowledged bytes at the bottom, for both runs from their start.",
      description: """
        Goodput of A \(Figure.text(bytesPerSecond: first.goodput)), of B \(Figure.text(bytesPerSecond: second.goodput)); at most \
        \(Figure.text(count: first.totals.streams.peakLive)) and \(Figure.text(count: second.totals.streams.peakLive)) live streams.
        """,
      legend: Self.legend,
      drawing: plot(
        live.moments,
        [
          .init(
            name: "live streams", quantity: .count, axis: .linear(to: highest(live.series), .count),
            series: live.series, height: 110),
          .init(
            name: "acknowledged bytes per second", quantity: .byteRate,
            axis: .linear(to: max(1, highest(rate.series)), .byteRate), series: rate.series, height: 150),
        ])
    ).markup
  }

  private var delay: Markup {
    let panels = [("p50", 0.5), ("p99", 0.99)].map { name, fraction -> TimePlot.Panel in
      let curves = series(name, ["a", "b"]) { $0.delay(fraction) }.series
      let values = curves.map(\.values)
      return TimePlot.Panel(
        name: "\(name) (logarithmic)", quantity: .duration,
        axis: .logarithmic(
          from: ReportTimeline.lowestAboveZero(values) ?? 1e6, to: max(ReportTimeline.highest(values), 2e6), .duration),
        series: curves, height: 140)
    }
    return PlotFigure(
      id: "plot-delay", title: "Delay from due to acknowledged, over time",
      reading: """
        Half of the messages of each second waited less than p50, and 99 of 100 less than p99. The run with the lower line is better. \
        The scale is logarithmic.
        """,
      description: "A: \(words(first)) B: \(words(second))", legend: Self.legend,
      drawing: plot(series("", ["a", "b"], \.live).moments, panels)
    ).markup
  }

  private func words(_ report: LoadReport) -> String {
    ReportPlots.words(report.histograms[.acknowledged], of: "delays")
  }

  private var histogram: Markup {
    func run(_ name: String, _ style: String, _ report: LoadReport) -> HistogramPlot.Run {
      let delays = report.histograms[.acknowledged]
      let marks = [("p50", 0.5), ("p99", 0.99)].compactMap { mark, fraction in
        delays.quantile(fraction).map { HistogramPlot.Mark(name: "\(name) \(mark)", value: Double($0)) }
      }
      return .init(name: name, style: style, bins: HistogramPlot.bins(of: delays), marks: marks)
    }
    return PlotFigure(
      id: "plot-histogram", title: "Delay from due to acknowledged, whole run",
      reading: "The share of each run’s messages per delay. The run with the outline further to the left is better.",
      description: "A: \(words(first)) B: \(words(second))", legend: Self.legend,
      drawing: HistogramPlot(runs: [run("A", "a", first), run("B", "b", second)]).drawing
    ).markup
  }
}
