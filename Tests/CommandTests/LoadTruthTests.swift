// Tests that a report of `sluice load` shows the cause of a delay, and that the parts of a run add up to the whole run.

import CommandTesting
import LoadReports
import NetworkTesting
import Testing

@testable import sluice

@Suite("The truth of sluice load", .serialized)
struct LoadTruthTests {
  private let second: Int64 = 1_000_000_000

  /// How many values exceed 0.9 seconds: the messages that became due in the first second of a stop of two seconds.
  private func lateCount(_ histogram: LatencyHistogram) -> UInt64 {
    histogram.count - histogram.count(upTo: 900_000_000)
  }

  @Test(
    "a generator that stopped for two seconds reports it: it omits no message, and each delay counts from the due time"
  )
  func stoppedGenerator() throws {
    let server = try StreamServer()
    let load = try LoadProcess(server.url, ["-n", "4", "-d", "4s"] + LoadProcess.tenASecond)
    try load.firstSecond()
    load.pause(for: .seconds(2))
    let report = try load.report()
    #expect(report.totals.messages.due == 4 * 40 && report.totals.messages.acknowledged == 4 * 40)
    #expect(report.totals.bytes.offered == 4 * 40 * 500)
    let (lateness, delay) = (report.histograms[.lateness], report.histograms[.acknowledged])
    #expect(lateness.count == 4 * 40 && delay.count == 4 * 40)
    #expect(try #require(lateness.max) >= second / 10 * 19)
    #expect(try #require(delay.max) >= second / 10 * 19)
    // Ten per second in each stream. With coordinated omission only the last one or none would remain.
    #expect(lateCount(lateness) >= 40 && lateCount(delay) >= 40)
    #expect(report.generator.bottlenecks.first?.contains("late or more") == true)
    #expect(
      load.output.text.contains {
        $0.hasPrefix("THE GENERATOR DID NOT KEEP UP: 1 %") && $0.hasSuffix("are allowed")
      },
      "the table reports it, and the report fits there: \(load.output.text)")
    #expect(report.totals.errorCount == 0 && report.totals.streams.finished == 4)
  }

  @Test("a server that stopped for two seconds affects the delays, and not the generator's lateness")
  func stoppedServer() throws {
    let directory = try TemporaryDirectory()
    let server = try ServeProcess(directory.path)
    // A lateness of 100 ms is allowed for messages that are a second apart.
    let load = try LoadProcess(server.url, ["-n", "40", "-d", "4s", "--rate", "500", "--chunk", "1s"])
    try load.firstSecond()
    server.pause(for: .seconds(2))
    let report = try load.report()
    let (lateness, delay) = (report.histograms[.lateness], report.histograms[.acknowledged])
    #expect(try #require(delay.max) >= second / 10 * 19)
    #expect(lateCount(delay) >= 30)
    // A loaded machine may delay the generator for a moment; the report then shows this.
    #expect(lateCount(lateness) <= 4)
    #expect(report.generator.isBottleneck == (try #require(lateness.quantile(0.99)) > 100_000_000))
    #expect(report.totals.messages.due == 160 && report.totals.messages.acknowledged == 160)
    #expect(report.totals.errorCount == 0 && report.totals.interruptions.total == 0)
  }

  @Test(
    "the merged parts of a run equal the run: its plan, its messages to the byte, and all its measurements")
  func parts() throws {
    let server = try StreamServer()
    let directory = try TemporaryDirectory()
    let profile = try directory.write(
      "talk.json",
      """
      {"name": "talk", "message": ["1B", "900B"], "chunk": "50ms", "jitter": "20ms", "talk": {"length": "200ms"},
       "silence": {"length": {"exponential": "100ms"}}, "faults": {"slow_fraction": 0.3, "slow_rate": "1MB"}}
      """)
    func load(_ name: String, _ more: [String] = []) throws -> LoadProcess {
      try LoadProcess(
        server.url, ["-n", "7", "-d", "2s", "--seed", "99", "--profile", profile] + more, in: directory, report: name)
    }
    let whole = try load("whole.json").report()
    let running = try [load("1.json", ["--part", "1/2"]), load("2.json", ["--part", "2/2"])]
    let parts = try running.map { try $0.report() }
    let names = ["1.json", "2.json", "merged.json"].map { "\(directory.path)/\($0)" }
    #expect(try sluice(["report", names[0], names[1], "--json", names[2]]).wait() == 0)
    let merged = try LoadReport(json: directory.contents("merged.json"), file: "merged.json")

    #expect(merged.plan == whole.plan && merged.parts.map(\.index) == [1, 2] && merged.missingParts.isEmpty)
    #expect(parts.map(\.totals.streams.started) == [4, 3])
    #expect(merged.totals.streams.started == 7 && merged.totals.streams.finished == 7)
    #expect(merged.totals.messages.due == whole.totals.messages.due)
    #expect(merged.totals.messages.acknowledged == whole.totals.messages.acknowledged)
    #expect(merged.totals.bytes.offered == whole.totals.bytes.offered)
    #expect(merged.totals.bytes.acknowledged == whole.totals.bytes.acknowledged)
    #expect(merged.histograms[.message] == whole.histograms[.message], "the very same messages")
    for measure in LoadMeasure.allCases {
      let counts = parts.map { $0.histograms[measure].count }
      #expect(merged.histograms[measure].count == counts[0] + counts[1], "\(measure)")
      #expect(merged.histograms[measure].max == parts.compactMap { $0.histograms[measure].max }.max(), "\(measure)")
    }
    for measure in [LoadMeasure.acknowledged, .acknowledgedSlow, .lateness] {
      #expect(merged.histograms[measure].count == whole.histograms[measure].count, "\(measure)")
    }
    let seconds = merged.intervals.intervals.reduce(0) { $0 + $1.offered }
    #expect(seconds == merged.totals.bytes.offered, "what the seconds add up to")
  }
}
