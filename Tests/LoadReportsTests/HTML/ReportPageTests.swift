// The page as text: complete, self-contained and small, without foreign markup.

import Testing

@testable import LoadReports

@Suite("The page of a report")
struct ReportPageTests {
  @Test("it requires no external resource: it has no address but the target's, and no code")
  func selfContained() {
    let html = SampleRun(trouble: 20..<25).report.html
    #expect(html.hasPrefix("<!doctype html>\n<html lang=\"en\">") && html.hasSuffix("</html>\n"))
    for forbidden in ["src=", "href=", "url(", "@import", "onclick", "onload", "<link", "<iframe", "<img"] {
      #expect(!html.contains(forbidden), "\(forbidden)")
    }
    #expect(html.matches(of: /https?:/).allSatisfy { html[$0.range.lowerBound...].hasPrefix("http://127.0.0.1:8080/") })
    #expect(html.matches(of: /<script/).count == 1 && html.contains("default-src 'none'"))
  }

  @Test("a run of ten minutes with many failures takes at most 250 kB")
  func size() {
    let html = SampleRun(streams: 1000, seconds: 600, trouble: 200..<320).report.html
    #expect(html.utf8.count <= 250_000, "\(html.utf8.count)")
    let long = SampleRun(streams: 5, seconds: 3600).report
    #expect(long.intervals.intervals.count == 1800)
    #expect(ReportTimeline(long).moments.count == 450, "no longer curve for a longer run")
  }

  @Test("each threshold is below the verdict, and a failed one makes the verdict bad")
  func thresholds() throws {
    let report = SampleRun(seconds: 12).report
    #expect(report.html.contains("class=\"verdict good\"") && !report.html.contains("id=\"thresholds\""))
    let (met, failed) = (try Threshold("ack.p99 > 1h"), try Threshold("ack.p99 > 1ns"))
    let good = report.html(judgedBy: [met])
    #expect(good.contains("class=\"verdict good\"") && good.contains("<li>met: ack.p99 is "))
    let bad = report.html(judgedBy: [met, failed])
    #expect(bad.contains("class=\"verdict bad\"") && bad.contains("<li>met: ack.p99 is "))
    #expect(bad.contains("<li>failed: ack.p99 is ") && bad.contains(", but must be at most 1 ns</li>"))
  }

  @Test("text from other parties stays text in every position")
  func hostile() {
    var run = SampleRun(seconds: 12, trouble: 6..<9)
    run.target = "http://x/" + MarkupTests.hostile
    run.host = MarkupTests.hostile
    run.error = MarkupTests.hostile
    var report = run.report
    report.startedAt = MarkupTests.hostile
    report.sluiceVersion = MarkupTests.hostile
    report.plan.profile = MarkupTests.hostile
    report.plan.body = MarkupTests.hostile
    report.plan.httpVersion = MarkupTests.hostile
    report.totals.countError(MarkupTests.hostile, example: MarkupTests.hostile)
    report.generator.bottlenecks = [MarkupTests.hostile]
    for html in [report.html, ReportComparison(before: report, after: report).html] {
      #expect(html.matches(of: /<script/).count == 1 && html.matches(of: /<\/script/).count == 1)
      #expect(!html.contains("<img") && !html.contains("\u{202E}"))
    }
  }

  @Test("the page of an incomplete distributed run lists its parts")
  func parts() throws {
    var report = SampleRun(seconds: 12).report
    #expect(!report.html.contains(" only"))
    var part = try #require(report.parts.first)
    (part.index, part.count) = (2, 3)
    report.parts = [part]
    #expect(report.html.contains("part 2 of 3 only"))
    var other = part
    other.index = 3
    report.parts = [part, other]
    #expect(report.html.contains("2 of 3 parts only"))
    other.index = 1
    report.parts.append(other)
    #expect(!report.html.contains(" only"))
  }

  @Test("a generator that was the bottleneck is reported first")
  func bottleneck() throws {
    var run = SampleRun(seconds: 12)
    run.isLate = true
    let html = run.report.html
    let banner = try #require(html.firstRange(of: "id=\"bottleneck\""))
    let verdict = try #require(html.firstRange(of: "id=\"verdict\""))
    #expect(banner.lowerBound < verdict.lowerBound && html.contains("1 % of the messages were"))
    #expect(!SampleRun(seconds: 12).report.html.contains("id=\"bottleneck\""))
  }

  @Test("the page of an empty report states this")
  func empty() {
    let html = LoadReport().html
    #expect(html.contains("nothing was acknowledged") && html.contains("nothing was measured"))
    #expect(html.contains("There were none."))
  }

  @Test("no goodput of a file is too large for the page")
  func largestGoodput() {
    var report = LoadReport()
    report.measured = 1
    report.totals.bytes.acknowledged = .max
    #expect(report.html.contains("<data id=\"goodput\" value=\"9223372036854775807\">"))
  }

  @Test("each plot has a title, a description for screen readers, and a sentence that explains it")
  func accessible() {
    let html = SampleRun(seconds: 12, trouble: 6..<9).report.html
    let figures = html.split(separator: "<figure id=\"").dropFirst()
    #expect(figures.count == 5)
    for figure in figures {
      let id = figure.prefix { $0 != "\"" }
      #expect(figure.contains("<title id=\"\(id)-t\">") && figure.contains("role=\"img\""))
      #expect(figure.firstMatch(of: /<desc id="[^"]*">[^<]{20,}<\/desc>/) != nil, "\(id)")
      #expect(figure.firstMatch(of: /<p>[^<]{60,}<\/p>/) != nil, "\(id)")
    }
  }

  @Test("a second without acknowledgement is a gap in the curves, and an incomplete last second has no rate")
  func gaps() {
    var report = SampleRun(seconds: 12, trouble: 0..<0).report
    var silent = IntervalSeries()
    for (index, interval) in report.intervals.intervals.enumerated() {
      silent.append(second: index == 6 ? LoadInterval() : interval)
    }
    report.intervals = silent
    report.measured = 11_200_000_000
    let timeline = ReportTimeline(report)
    #expect(timeline.delay(0.99).map { $0 == nil } == (0..<12).map { $0 == 6 })
    #expect(timeline.acknowledged.last == .some(nil) && timeline.live.last != .some(nil))
    #expect(timeline.end == 11.2 && abs(timeline.moments[11] - 11.1) < 1e-9)
  }
}
