import PropertyTesting
import Testing

@testable import LoadReports
@testable import LoadTesting

@Suite("A report as a table")
struct ReportTableTests {
  private func lines(_ table: String) -> [Substring] {
    table.split(separator: "\n", omittingEmptySubsequences: false).dropLast()
  }

  /// A run with every kind of event, and with long and hostile texts.
  private func worst() -> LoadReport {
    var random = Seed(7).generator
    let run = RandomRun(loops: 2, streams: stride(from: 0, to: 300, by: 1), seconds: 5, using: &random)
    var report = run.report(part: 2, of: 9, loops: [0, 1], streams: 300)
    report.target = "http://\(String(repeating: "x", count: 300))/\u{1B}[2J\u{202E}"
    for kind in 0..<20 {
      report.totals.countError("kind-\(kind)\u{7}", example: String(repeating: "e\u{301}", count: 99))
    }
    report.generator.bottlenecks = [String](repeating: String(repeating: "late ", count: 50), count: 10)
    return report
  }

  @Test("for any events, it fits a screen, and no text controls the terminal")
  func size() {
    let report = worst()
    for table in [report.table, ReportComparison(before: report, after: LoadReport()).table, LoadReport().table] {
      #expect(lines(table).count <= 40, "\(table)")
      #expect(lines(table).allSatisfy { $0.unicodeScalars.count <= 100 })
      #expect(table.unicodeScalars.allSatisfy { $0 == "\n" || ($0.value >= 0x20 && $0.value != 0x7F) })
      #expect(!table.unicodeScalars.contains("\u{202E}") && !table.unicodeScalars.contains("\u{301}"))
      #expect(table.hasSuffix("\n"))
    }
  }

  @Test("a run is displayed in its order")
  func words() {
    var loop = LoopFigures()
    var stream = loop.streamStarted(index: 0, now: 0)
    loop.connected(&stream, after: 1_234_567)
    for delay in 1...1000 {
      loop.due(bytes: 9600, &stream)
      loop.reached(dueAt: 0, now: 50_000)
      loop.sent(bytes: 9600, &stream)
      loop.acknowledged(bytes: 9600, dueAt: 0, now: Int64(delay) * 100_000, &stream)
    }
    loop.error("reset", example: "connection reset by peer")
    loop.streamEnded(&stream, .finished, now: 100_000_000_000)
    var report = LoadReport()
    report.target = "http://localhost:8080/"
    report.startedAt = "2026-01-31T12:00:00Z"
    report.measured = 100_000_000_000
    report.plan.streams = 1
    report.plan.profile = "mic"
    report.plan.rate = 96000
    report.plan.chunk = 100_000_000
    report.plan.resumable = "always"
    report.plan.httpVersion = "1.1"
    report.generator.userTime = 1_200_000_000
    report.generator.systemTime = 300_000_000
    report.generator.maximumResident = 9_000_000
    report.add(loop)
    #expect(
      report.table == """
        1 live stream held for 100 s; p99 from due to acknowledged 99.1 ms; 1 error (reset); the generator
        kept up.

        http://localhost:8080/, 2026-01-31T12:00:00Z, measured for 100 s
        1 stream of mic, 96.0 kB/s each, every 100 ms, no ramp, HTTP/1.1, resumable: always

        streams      1 started, 1 finished, 0 failed; at most 1 live
        messages     1000 due, 1000 sent, 1000 acknowledged
        bytes        9.60 MB offered, 9.60 MB acknowledged (96.0 kB/s), 0 B sent again, 0 B lost
        connections  1 opened; 0 interruptions, and 0 on purpose; 0 failed attempts
        responses    none; 0 interim responses
        errors       1 reset: connection reset by peer
        generator    1.50 s of CPU (1.50 % of one core), 9.00 MB of memory at most

        delay, from … to                    count        p50        p90        p99      p99.9        max
        connect: start to connected             1    1.23 ms    1.23 ms    1.23 ms    1.23 ms    1.23 ms
        ack: due to 104, 2xx                 1000    50.1 ms    89.7 ms    99.1 ms     100 ms     100 ms
        lateness: due to handed over         1000    50.0 µs    50.0 µs    50.0 µs    50.0 µs    50.0 µs

        """, "\(report.table)")
  }

  @Test("the table and the page state the server's rhythm if it affects the delays, and omit a negligible one")
  func rhythm() {
    let sentence = "The server acknowledges each stream every 250 ms: ack includes up to that."
    var report = LoadReport()
    report.histograms[.acknowledged].record(150_000_000, count: 10)
    report.histograms[.rhythm].record(250_000_000, count: 10)
    #expect(lines(report.table).last == sentence[...])
    #expect(report.html.contains(" \(sentence)</p>"))
    report.histograms[.rhythm] = LatencyHistogram()
    report.histograms[.rhythm].record(30_000_000, count: 10)
    let start = sentence.prefix(29)
    #expect(!report.table.contains(start) && !report.html.contains(start))
  }

  @Test(
    "figures have three significant digits, and a unit",
    arguments: [
      (0, "0 ns"), (999, "999 ns"), (1000, "1.00 µs"), (9_994, "9.99 µs"), (9_996, "10.0 µs"), (99_960, "100 µs"),
      (999_499, "999 µs"), (999_600, "1.00 ms"), (612_000_000, "612 ms"), (1_250_000_000, "1.25 s"),
      (3_600_000_000_000, "3600 s"),
    ])
  func figures(_ nanoseconds: Int64, _ text: String) { #expect(Figure.text(nanoseconds: nanoseconds) == text) }

  @Test("counts are grouped, shares are percentages, bytes are decimal")
  func otherFigures() {
    #expect(Figure.text(count: 9999) == "9999" && Figure.text(count: 15000) == "15 000")
    #expect(Figure.text(count: 1_234_567) == "1 234 567")
    #expect(Figure.text(share: 0.9951) == "99.5 %" && Figure.text(share: 0.04) == "4.00 %")
    #expect(Figure.text(bytes: 999) == "999 B" && Figure.text(bytes: 1_210_000) == "1.21 MB")
    #expect(Figure.text(bytesPerSecond: -1) == "0 B/s" && Figure.text(bytesPerSecond: 32000) == "32.0 kB/s")
  }
}
