import EventLoops
import FoundationEssentials
import LoadReports
import LoadTesting
import PropertyTesting
import Testing

@testable import sluice

@Suite("The progress of a load test")
struct LoadViewTests {
  private func snapshot() -> LoadSnapshot {
    var snapshot = LoadSnapshot(
      elapsed: .seconds(83), planned: .seconds(600), plannedStreams: 10_000, chunk: 1_000_000_000)
    snapshot.second.live = 10_000
    snapshot.second.offered = 10_000_000
    snapshot.second.acknowledged = 9_980_000
    snapshot.second.acknowledgedDelay.record(3_000_000, count: 98)
    snapshot.second.acknowledgedDelay.record(31_000_000, count: 2)
    snapshot.second.lateness.record(400_000)
    snapshot.processors = 0.87
    return snapshot
  }

  @Test("it shows the progress of the run, the last second, and their meaning")
  func lines() {
    let lines = LoadView.lines(snapshot(), width: 80)
    #expect(lines.first == "01:23 of 10:00 ▕\(String(repeating: "█", count: 5))\(String(repeating: " ", count: 35))▏")
    #expect(
      lines.dropFirst() == [
        "streams    10 000 live of 10 000", "goodput    9.98 MB/s of 10.0 MB/s offered   99.8 %",
        "delay      p50 3.00 ms   p99 31.0 ms   max 31.0 ms", "trouble    errors 0   interruptions 0",
        "generator  lateness p99 400 µs   processor 87 %", "→ the server keeps up with the load",
      ])
  }

  @Test("before the first measurement, it shows no invented figures")
  func empty() {
    let lines = LoadView.lines(
      LoadSnapshot(elapsed: .zero, planned: .zero, plannedStreams: 50, chunk: 0), width: 80)
    #expect(lines.contains("delay      p50 –   p99 –   max –") && lines.first == "00:00 of 00:00")
    #expect(lines.last == "→ not all streams are live")
  }

  @Test("the last line names the cause: the generator before the server")
  func judgement() {
    func judged(_ change: (inout LoadSnapshot) -> Void) -> String {
      var changed = snapshot()
      change(&changed)
      return LoadView.judgement(changed)
    }
    // The limit is a tenth of the second between two messages.
    #expect(judged { $0.second.lateness.record(99_000_000) } == "the server keeps up with the load")
    #expect(judged { $0.second.lateness.record(110_000_000) }.hasPrefix("the generator is late"))
    #expect(
      judged {
        $0.second.acknowledged = 0
        $0.second.lateness.record(110_000_000)
      }.hasPrefix("the generator is"))
    #expect(judged { $0.second.acknowledged = 9_000_000 } == "the server is slower than the offered load")
    #expect(judged { $0.second.acknowledged = 0 } == "the server acknowledges nothing")
    #expect(judged { $0.second.errors = 1 }.hasPrefix("errors"))
    #expect(judged { $0.second.live = 9_400 } == "not all streams are live")
    #expect(judged { $0.second.live = 9_600 } == "the server keeps up with the load", "some are being connected again")
    #expect(judged { $0.elapsed = .seconds(600) }.hasPrefix("ended"))
  }

  @Test("no line ever reaches the last column, and the number of lines is constant", arguments: Seed.several(10))
  func width(_ seed: Seed) {
    var random = seed.generator
    func number() -> UInt64 { random.next() >> UInt64.random(in: 1...63, using: &random) }
    for width in 0..<150 {
      var snapshot = snapshot()
      snapshot.elapsed = .seconds(Int64.random(in: 0...10_000_000, using: &random))
      (snapshot.second.live, snapshot.second.connecting) = (number(), number())
      (snapshot.second.offered, snapshot.second.acknowledged) = (number(), number())
      snapshot.second.acknowledgedDelay.record(Int64(number()))
      snapshot.totals.countError("reset", example: "")
      (snapshot.totals.bytes.lost, snapshot.totals.streams.failed) = (number(), number())
      snapshot.totals.interruptions.onPurpose = number()
      let lines = LoadView.lines(snapshot, width: width)
      #expect(lines.count == 7 && lines.allSatisfy { $0.count < max(1, width) && !$0.contains { $0.isNewline } })
    }
  }

  private struct Parsed: Decodable {
    var event: String
    var elapsed: Double
    var live: Int
    var delay: Int64?
    var lateness: Int64?
    var judgement: String

    enum CodingKeys: String, CodingKey {
      case event, live, judgement
      case elapsed = "elapsed_seconds"
      case delay = "acknowledged_p99_ns"
      case lateness = "lateness_p99_ns"
    }
  }

  @Test("the JSON line for programs has the same figures")
  func json() throws {
    let line = LoadView.jsonLine(snapshot(), time: WallClock.now.iso8601)
    let parsed = try JSONDecoder().decode(Parsed.self, from: Data(line.utf8))
    #expect(parsed.event == "progress" && parsed.elapsed == 83 && parsed.live == 10_000)
    #expect(parsed.delay == snapshot().second.acknowledgedDelay.quantile(0.99))
    #expect(parsed.lateness == 400_000 && parsed.judgement == "the server keeps up with the load")
  }
}
