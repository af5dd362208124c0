import FoundationEssentials
import Testing

@testable import LoadReports
@testable import LoadTesting

@Suite("A threshold")
struct ThresholdTests {
  /// A run of 10 s with 100 messages of 1 kB, acknowledged after 1 to 100 ms, and some errors.
  private static let report: LoadReport = {
    var loop = LoopFigures()
    var stream = loop.streamStarted(index: 0, now: 0)
    for delay in 1...100 {
      loop.due(bytes: 1000, &stream)
      loop.acknowledged(bytes: 1000, dueAt: 0, now: Int64(delay) * 1_000_000, &stream)
    }
    loop.due(bytes: 25_000, &stream)
    loop.error("timed-out", example: "no response")
    loop.error("timed-out", example: "no response")
    loop.error("http-503", example: "503")
    loop.interrupted(&stream, cause: nil, now: 5)
    loop.interrupted(&stream, cause: "timed-out", now: 6)
    loop.lost(bytes: 25_000)
    loop.streamEnded(&stream, .failed, now: 10_000_000_000)
    var report = LoadReport()
    report.measured = 10_000_000_000
    report.add(loop)
    return report
  }()

  @Test(
    "the message of a failed one has the value and the limit",
    arguments: [
      ("ack.p99 > 50ms", "ack.p99 is 99.1 ms, but must be at most 50 ms"),
      ("ack.max>=100ms", "ack.max is 100 ms, but must be below 100 ms"),
      ("ack.max > 99999us", "ack.max is 100 ms, but must be at most 99999 us"),
      ("ack.mean > 0.05s", "ack.mean is 50.5 ms, but must be at most 50 ms"),
      ("ack.count < 101", "ack.count is 100, but must be at least 101"),
      ("errors > 0", "errors is 3, but must be 0"),
      ("errors.timed-out>=2", "errors.timed-out is 2, but must be below 2"),
      ("errors.refused == 0", "errors.refused is 0, but must not be 0"),
      ("streams.failed > 0", "streams.failed is 1, but must be 0"),
      ("interruptions > 0", "interruptions is 1, but must be 0"),
      ("lost > 24kB", "lost is 25.0 kB, but must be at most 24 kB"),
      ("lost > 10%", "lost is 20 % of the offered bytes, but must be at most 10 % of the offered bytes"),
      ("resent <= 1%", "resent is 0 % of the offered bytes, but must be above 1 % of the offered bytes"),
      ("resent <= 0", "resent is 0 B, but must be above 0 B"),
      ("goodput < 95%", "goodput is 80 % of the offered bytes, but must be at least 95 % of the offered bytes"),
      (
        "goodput < 80.0000001%",
        "goodput is 80 % of the offered bytes, but must be at least 80.0000001 % of the offered bytes"
      ),
      ("goodput < 1MB/s", "goodput is 10.0 kB/s, but must be at least 1 MB/s"),
      ("goodput < 1 MB", "goodput is 10.0 kB/s, but must be at least 1 MB/s"),
      // Nothing was measured, which is not a success.
      ("slow.ack.p50 > 1s", "slow.ack.p50 was not measured, but must be at most 1 s"),
      ("connect.p99.9 > 1s", "connect.p99.9 was not measured, but must be at most 1 s"),
    ])
  func failed(_ text: String, _ sentence: String) throws {
    #expect(try Threshold(text).failure(in: Self.report) == sentence)
  }

  @Test(
    "one that holds has no message",
    arguments: [
      "ack.p99 > 100ms", "ack.max > 100ms", "ack.max < 100ms", "ack.max == 99ms", "ack.p50 >= 52ms", "errors > 3",
      "errors.refused > 0", "errors.http-503 > 1", "interruptions >= 2", "lost > 25kB", "resent > 0",
      "lost > 1TB", "lost > 1TiB", "lost > 20%", "resent > 1%",
      "goodput < 80%", "goodput < 10kB", "stall.p99 > 1ms", "resume.max > 1s", "slow.ack.count > 0",
    ])
  func kept(_ text: String) throws {
    #expect(try Threshold(text).failure(in: Self.report) == nil)
  }

  @Test(
    "the error for an invalid one has the reason and the nearest metric",
    arguments: [
      ("", "has none of > >= < <= ==: write METRIC > VALUE, for example ack.p99 > 500ms"),
      ("errors", "has none of > >= < <= ==: write METRIC > VALUE, for example ack.p99 > 500ms"),
      ("errors = 0", "has none of > >= < <= ==: write METRIC > VALUE, for example ack.p99 > 500ms"),
      ("akc.p99 > 1s", #""akc.p99" is an unknown metric. The nearest is "ack.p99""#),
      ("ack.99 > 1s", #""ack.99" is an unknown metric. The nearest is "ack.p99""#),
      ("ack > 1s", #""ack" is an unknown metric. The nearest is "ack.p50""#),
      ("ack.p49 > 1s", #""ack.p49" is an unknown metric. The nearest is "ack.p99""#),
      ("ack.p100 > 1s", #""ack.p100" is an unknown metric. The nearest is "ack.p50""#),
      ("stream.failed > 0", #""stream.failed" is an unknown metric. The nearest is "streams.failed""#),
      ("errors.refuesd > 0", #""errors.refuesd" is an unknown metric. The nearest is "errors.refused""#),
      ("errors.http-99 > 0", #""errors.http-99" is an unknown metric. The nearest is "errors.http2""#),
      ("errors. > 0", #""errors." is an unknown metric. The nearest is "errors""#),
      ("ack.p99 > 500", #""500" is an invalid value of ack.p99: write a time like 500ms (ns, us, ms, s, min)"#),
      ("ack.p99 > ", #""" is an invalid value of ack.p99: write a time like 500ms (ns, us, ms, s, min)"#),
      ("ack.p99 > -1ms", #""-1ms" is an invalid value of ack.p99: write a time like 500ms (ns, us, ms, s, min)"#),
      ("errors > 1.5", #""1.5" is an invalid value of errors: write a whole number like 0"#),
      ("errors > > 1", #""> 1" is an invalid value of errors: write a whole number like 0"#),
      (
        "lost > 10",
        #""10" is an invalid value of lost: write a size like 64kB (B, kB, KiB, MB, MiB, GB, GiB, TB, TiB), or a share of the offered bytes such as 1%"#
      ),
      ("errors > 1%", #""1%" is an invalid value of errors: write a whole number like 0"#),
      (
        "goodput < 95",
        #""95" is an invalid value of goodput: write bytes per second such as 1MB/s, or a share of the offered bytes such as 95%"#
      ),
    ])
  func mistakes(_ text: String, _ problem: String) {
    let error = #expect(throws: ThresholdError.self) { try Threshold(text) }
    #expect(error?.description == "the threshold \"\(text)\": \(problem)")
  }

  @Test("every example of the documentation is valid, and every metric and operator is among them")
  func documentation() throws {
    let root = #filePath.split(separator: "/").dropLast(3).joined(separator: "/")
    let page = try String(contentsOfFile: "/\(root)/docs/load-reports.md", encoding: .utf8)
    let block = try #require(page.split(separator: "```thresholds\n").last?.prefix { $0 != "`" })
    let examples = block.split(separator: "\n").map(String.init)
    let names = try examples.map { try Threshold($0).metric.name }
    func kind(_ name: String) -> String {
      if name.hasPrefix("errors.") { return "errors.CLASS" }
      return LoadMetric.delays.first { name.hasPrefix($0.name + ".") }?.name ?? name
    }
    #expect(Set(names.map(kind)) == Set(LoadMetric.names.map(kind) + ["status.503"]))
  }

  @Test(
    "a run that offered or measured nothing fails every threshold of its goodput, and every percentage",
    arguments: [
      "goodput < 95%", "goodput > 200%", "goodput <= 0%", "goodput < 1MB/s", "ack.p99 > 500ms", "ack.mean > 1s",
      "lost > 1%", "resent > 1%",
    ])
  func nothingMeasured(_ text: String) throws {
    #expect(try Threshold(text).failure(in: LoadReport())?.contains("was not measured") == true)
  }

  @Test("a share that is rounded has the digits that show its difference from the limit")
  func nearlyAll() throws {
    var report = LoadReport()
    (report.totals.bytes.offered, report.totals.bytes.acknowledged) = (10_000_000, 9_999_999)
    #expect(
      try Threshold("goodput < 100%").failure(in: report)
        == "goodput is 99.99999 % of the offered bytes, but must be at least 100 % of the offered bytes")
  }

  @Test(
    "a limit in large units is exact",
    arguments: [
      ("lost > 2TB", 2_000_000_000_000), ("lost > 2TiB", 2_199_023_255_552), ("lost > 2GB", 2_000_000_000),
      ("lost > 2GiB", 2_147_483_648),
    ] as [(String, UInt64)])
  func largeUnits(_ text: String, _ limit: UInt64) throws {
    var report = LoadReport()
    report.totals.bytes.lost = limit
    #expect(try Threshold(text).failure(in: report) == nil)
    report.totals.bytes.lost = limit + 1
    #expect(try Threshold(text).failure(in: report) != nil)
  }

  @Test("a profile has the same units")
  func unitsOfProfiles() throws {
    for (rate, expected) in [("0.0001TB", 100_000_000), ("0.0001220703125TiB", 134_217_728)] as [(String, UInt64)] {
      #expect(try LoadProfile(json: Array("{\"rate\": \"\(rate)\"}".utf8), file: "a.json").rate == expected, "\(rate)")
    }
  }

  @Test("every listed metric exists under its name")
  func names() throws {
    for name in LoadMetric.names { #expect(try #require(LoadMetric(name)).name == name) }
  }
}
