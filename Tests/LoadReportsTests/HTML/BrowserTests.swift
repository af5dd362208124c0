// The page in a real browser: its numbers are the report's, its layout is correct, and it runs no code.

import NetworkTesting
import Testing

@testable import LoadReports

@Suite("The page in a browser", .serialized)
struct BrowserTests {
  /// Writes layout data into the document's title. The page's own policy would prevent this script, so the policy is
  /// removed first.
  private static let probe = """
    <script>addEventListener('load',()=>{const found=[];
    if(document.documentElement.scrollWidth>innerWidth)found.push('wider than the window');
    for(const p of document.querySelectorAll('.plot'))if(p.scrollWidth>p.clientWidth||!p.clientHeight)found.push('a plot does not fit');
    for(const svg of document.querySelectorAll('.plot svg')){const v=svg.viewBox.baseVal;const boxes=[];
    for(const t of svg.querySelectorAll('text')){const b=t.getBBox();
    if(b.x<0||b.y<0||b.x+b.width>v.width||b.y+b.height>v.height)found.push('outside: '+t.textContent);
    for(const [o,n] of boxes)if(b.x<o.x+o.width&&o.x<b.x+b.width&&b.y+3<o.y+o.height&&o.y+3<b.y+b.height)
    found.push('upon each other: '+n+' and '+t.textContent);
    boxes.push([b,t.textContent])}}
    for(const d of document.querySelectorAll('data'))if(!d.getClientRects().length)found.push('not shown: '+d.id);
    document.title='found: '+found.join('; ')+'. paper '+getComputedStyle(document.body).backgroundColor})</script>
    """

  private func probed(_ html: String) -> String {
    html.replacing(PageStyle.policy.text, with: Self.probe)
  }

  /// The value and the text of a figure in a document.
  private func figure(_ id: String, in document: String) -> (value: String, text: String)? {
    guard let start = document.firstRange(of: "<data id=\"\(id)\" value=\"") else { return nil }
    let rest = document[start.upperBound...]
    guard let quote = rest.firstRange(of: "\">"), let end = rest.firstRange(of: "</data>") else { return nil }
    return (String(rest[..<quote.lowerBound]), String(rest[quote.upperBound..<end.lowerBound]))
  }

  @Test("its numbers are the report's, and the browser reports no error or policy violation")
  func numbers() throws {
    let report = SampleRun(trouble: 20..<25).report
    let answer = try Browser().document(report.html)
    #expect(answer.complaints.isEmpty, "\(answer.complaints)")
    let document = answer.document
    let delay = report.histograms[.acknowledged]
    for (name, fraction) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1)] {
      let wanted = try #require(delay.quantile(fraction))
      let shown = try #require(figure("figure.acknowledged.\(name)", in: document))
      #expect(shown.value == "\(wanted)" && shown.text == Figure.text(nanoseconds: wanted))
    }
    #expect(figure("ack.p99", in: document)?.value == "\(try #require(delay.quantile(0.99)))")
    #expect(figure("streams.peak", in: document)?.text == Figure.text(count: report.totals.streams.peakLive))
    #expect(figure("errors", in: document)?.value == "\(report.totals.errorCount)" && report.totals.errorCount > 0)
    #expect(figure("interruptions", in: document)?.value == "\(report.totals.interruptions.total)")
    #expect(figure("goodput", in: document)?.value == "\(Int(report.goodput.rounded()))")
    #expect(
      document.contains(ReportVerdict(report).sentence) && document.matches(of: /<svg class="wide" viewBox/).count == 5)
    #expect(document.contains("<script type=\"application/json\" id=\"report\">{\n  \"sluice_load_report\": 1,"))
  }

  @Test("hostile text creates no element and runs no code")
  func hostile() throws {
    var run = SampleRun(seconds: 12, trouble: 6..<9)
    (run.target, run.host, run.error) = (MarkupTests.hostile, MarkupTests.hostile, MarkupTests.hostile)
    let browser = try Browser()
    let answer = try browser.document(run.report.html)
    #expect(answer.complaints.isEmpty, "\(answer.complaints)")
    #expect(answer.document.matches(of: /<script/).count == 1 && !answer.document.contains("<img"))
    // A control: the code would run in a page that escapes nothing.
    let careless = try browser.document("<!doctype html>\(PageStyle.policy.text)<p>\(MarkupTests.hostile)</p>")
    #expect(!careless.complaints.isEmpty && careless.document.contains("<img"))
  }

  @Test(
    "no label leaves its plot or overlaps another, on a small and a large screen, in light and dark mode",
    arguments: [(1280, false), (390, true), (360, false)])
  func layout(_ width: Int, _ isDark: Bool) throws {
    let browser = try Browser()
    var late = SampleRun(seconds: 12, trouble: 0..<12)
    late.isLate = true
    for report in [SampleRun(trouble: 20..<25).report, late.report, SampleRun(streams: 3, seconds: 2).report] {
      let pages = [report.html, ReportComparison(before: report, after: SampleRun(seconds: 20).report).html]
      for html in pages {
        // 0 is the dark one in Chromium's settings, 1 light.
        let more = ["--window-size=\(width),900", "--blink-settings=preferredColorScheme=\(isDark ? 0 : 1)"]
        let document = try browser.document(probed(html), more: more).document
        let title = document.firstMatch(of: /<title>(found: [^<]*)</).map { String($0.1) } ?? "no title"
        #expect(title == "found: . paper " + (isDark ? "rgb(16, 19, 23)" : "rgb(246, 247, 249)"))
      }
    }
  }

  @Test("its picture is not blank")
  func screenshot() throws {
    let browser = try Browser()
    let blank = try Picture(png: browser.screenshot("<!doctype html><title>blank</title>", width: 1080, height: 1600))
    let page = try Picture(png: browser.screenshot(SampleRun(trouble: 20..<25).report.html, width: 1080, height: 1600))
    #expect(page.width == 1080 && page.height == 1600)
    #expect(page.size > 20 * blank.size && page.size > 50_000, "\(page.size) and \(blank.size) bytes")
  }
}
