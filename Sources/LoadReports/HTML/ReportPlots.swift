// The pictures of one report, each with a sentence that explains how to read it.

struct ReportPlots {
  private let report: LoadReport
  private let timeline: ReportTimeline
  private let rampEnd: Double

  init(_ report: LoadReport) {
    self.report = report
    timeline = ReportTimeline(report)
    rampEnd = min(Double(report.plan.ramp) / 1e9, timeline.end)
  }

  var figures: [Markup] { [streams, delay, histogram, lateness, trouble] }

  private func plot(_ panels: [TimePlot.Panel], namesRamp: Bool = false) -> (PlotFrame) -> PlotDrawing {
    TimePlot(
      moments: timeline.moments, end: timeline.end, panels: panels, rampEnd: rampEnd,
      outages: report.totals.outages.outages, namesRamp: namesRamp
    ).drawing
  }

  /// The legend of the bands, if there are any.
  private var bands: [PlotFigure.LegendEntry] {
    report.totals.outages.outages.isEmpty ? [] : [.init(style: "outage", label: "outage")]
  }

  private var streams: Markup {
    let planned = UInt64(max(0, report.plan.streams))
    let rate = max(ReportTimeline.highest([timeline.offered, timeline.acknowledged]), 1)
    let share = report.goodputShare.map { Figure.text(share: $0) } ?? "nothing"
    return PlotFigure(
      id: "plot-streams", title: "Streams and goodput",
      reading: """
        The upper plot shows the number of live streams. In the lower plot, the thin line (acknowledged bytes) should lie within the \
        wide line (bytes that were due). Below the wide line, the server was behind. Above it, the server caught up.
        """,
      description: """
        At most \(Figure.text(count: report.totals.streams.peakLive)) of \(Figure.text(count: planned)) planned streams were live. \
        \(share) of the offered bytes were acknowledged, \(Figure.text(bytesPerSecond: report.goodput)) over the run.
        """,
      legend: [
        .init(style: "live", label: "live streams"), .init(style: "offered", label: "offered"),
        .init(style: "kept", label: "acknowledged by the server"),
      ] + bands,
      drawing: plot(
        [
          .init(
            name: "live streams", quantity: .count,
            axis: .linear(to: max(Double(planned), ReportTimeline.highest([timeline.live])), .count),
            series: [TimeSeries(name: "live streams", style: "live", kind: .area, values: timeline.live)],
            limits: [("planned: \(Figure.text(count: planned))", Double(planned))], height: 120),
          .init(
            name: "bytes per second of all streams", quantity: .byteRate, axis: .linear(to: rate, .byteRate),
            series: [
              TimeSeries(name: "offered", style: "offered", values: timeline.offered),
              TimeSeries(name: "acknowledged", style: "kept", values: timeline.acknowledged),
            ]),
        ], namesRamp: true)
    ).markup
  }

  /// The percentiles in the plot, the highest first, so that the others are drawn over it.
  private static let percentiles: [(name: String, style: String, fraction: Double)] = [
    ("max", "p100", 1), ("p99", "p99", 0.99), ("p90", "p90", 0.9), ("p50", "p50", 0.5),
  ]

  private var delay: Markup {
    let series = Self.percentiles.map {
      TimeSeries(name: $0.name, style: $0.style, values: timeline.delay($0.fraction))
    }
    let all = report.histograms[.acknowledged]
    let curves = series.map(\.values)
    return PlotFigure(
      id: "plot-delay", title: "Delay from due to acknowledged, over time",
      reading: """
        The time from when a message was due until the server acknowledged it, per second. Half of the messages waited \
        less than p50, and 99 of 100 less than p99. If the lines are level, the server keeps up. If they rise, it does not. \
        The scale is logarithmic.
        """,
      description: Self.words(all, of: "delays"),
      legend: Self.percentiles.reversed().map { .init(style: $0.style, label: $0.name) } + bands,
      drawing: plot([
        .init(
          name: "delay (logarithmic)", quantity: .duration,
          axis: .logarithmic(
            from: ReportTimeline.lowestAboveZero(curves) ?? 1e6, to: max(ReportTimeline.highest(curves), 2e6), .duration
          ),
          series: series, height: 220)
      ])
    ).markup
  }

  private var histogram: Markup {
    let all = report.histograms[.acknowledged]
    return PlotFigure(
      id: "plot-histogram", title: "Delay from due to acknowledged, whole run",
      reading: """
        Each bar is the share of all \(Figure.text(count: all.count)) messages that had this delay. Each bar is at least one line high, so \
        that one slow message among millions is visible. Your users would notice the bars far to the right of the others.
        """,
      description: Self.words(all, of: "delays"), legend: [],
      drawing: HistogramPlot(runs: [
        .init(name: "", style: "a", bins: HistogramPlot.bins(of: all), marks: Self.marks(all))
      ]).drawing
    ).markup
  }

  static func marks(_ histogram: LatencyHistogram) -> [HistogramPlot.Mark] {
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1)].compactMap { name, fraction in
      histogram.quantile(fraction).map { HistogramPlot.Mark(name: name, value: Double($0)) }
    }
  }

  private var lateness: Markup {
    let curves = [timeline.lateness(1), timeline.lateness(0.99)]
    let allowed = Double(GeneratorVerdict.allowedLateness(chunk: report.plan.chunk))
    let generator = report.generator
    let busy = max(ReportTimeline.highest([timeline.processors]), 0.01)
    return PlotFigure(
      id: "plot-lateness", title: "The generator itself",
      reading: """
        The lateness of the generator for messages that were due. The server does not cause it. While p99 stays below the dashed \
        line, the other figures describe the server. The lower plot shows its processor time: 100 % is one processor.
        """,
      description: """
        \(Self.words(report.histograms[.lateness], of: "latenesses")) \
        \(generator.isBottleneck ? "The generator did not keep up." : "The generator kept up.")
        """,
      legend: [
        .init(style: "p99", label: "lateness, p99"), .init(style: "p100", label: "lateness, max"),
        .init(style: "cpu", label: "processor time"),
      ] + bands,
      drawing: plot([
        .init(
          name: "lateness (logarithmic)", quantity: .duration,
          axis: .logarithmic(
            from: min(ReportTimeline.lowestAboveZero(curves) ?? 1e6, allowed / 2),
            to: max(ReportTimeline.highest(curves), allowed * 2), .duration),
          series: [
            TimeSeries(name: "lateness, max", style: "p100", values: curves[0]),
            TimeSeries(name: "lateness, p99", style: "p99", values: curves[1]),
          ],
          limits: [("allowed for p99: \(Figure.text(nanoseconds: Int64(allowed)))", allowed)], height: 140),
        .init(
          name: "processor time", quantity: .share, axis: .linear(to: busy, .share),
          series: [TimeSeries(name: "processor time", style: "cpu", values: timeline.processors)], height: 80),
      ])
    ).markup
  }

  private var trouble: Markup {
    let totals = report.totals
    guard totals.errorCount > 0 || totals.interruptions.total > 0 else {
      return "<section id=\"plot-errors\"><h2>Errors and interruptions</h2><p>There were none.</p></section>\n"
    }
    let highest = zip(timeline.errors, timeline.interruptions).map { ($0 ?? 0) + ($1 ?? 0) }.max() ?? 0
    return PlotFigure(
      id: "plot-errors", title: "Errors and interruptions",
      reading: """
        The number of errors and interruptions per second, with interruptions stacked on errors. An interruption is a lost \
        connection whose stream resumes. The table below lists the errors by class.
        """,
      description: """
        \(Figure.text(count: totals.errorCount)) errors; \(Figure.text(count: totals.interruptions.total)) interruptions, of which \
        \(Figure.text(count: totals.interruptions.onPurpose)) were on purpose.
        """,
      legend: [.init(style: "error", label: "errors"), .init(style: "cut", label: "interruptions")] + bands,
      drawing: plot([
        .init(
          name: "in each interval", quantity: .count, axis: .linear(to: highest, .count),
          series: [
            TimeSeries(name: "errors", style: "error", kind: .bars, values: timeline.errors),
            TimeSeries(name: "interruptions", style: "cut", kind: .bars, values: timeline.interruptions),
          ], height: 110)
      ])
    ).markup
  }

  /// Describes a histogram for those who cannot see it.
  static func words(_ histogram: LatencyHistogram, of what: String) -> String {
    guard let least = histogram.min, let most = histogram.max else { return "No \(what) were measured." }
    let marks = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)].map { name, fraction in
      "\(name) \(Page.text(histogram.quantile(fraction)))"
    }
    return "\(Figure.text(count: histogram.count)) \(what) from \(Figure.text(nanoseconds: least)) to "
      + "\(Figure.text(nanoseconds: most)); \(marks.joined(separator: ", "))."
  }
}

extension GeneratorVerdict {
  /// The permitted 99th percentile of the lateness for a stream with a message every `chunk` nanoseconds.
  package static func allowedLateness(chunk: Int64) -> Int64 { max(allowedLateness, Int64(Double(chunk) * chunkShare)) }
}
