import PropertyTesting
import Testing

@testable import LoadReports

@Suite("The parts of a run")
struct ReportMergeTests {
  private func named(_ reports: [LoadReport]) -> [(name: String, report: LoadReport)] {
    reports.enumerated().map { ("part\($0 + 1).json", $1) }
  }

  @Test("merged parts equal the whole, in any order and grouping", arguments: Seed.several(10))
  func whole(_ seed: Seed) throws {
    var random = seed.generator
    let streams = 30
    let run = RandomRun(
      loops: 3, streams: stride(from: 0, to: streams, by: 1), seconds: Int.random(in: 1...10, using: &random),
      using: &random)
    var parts = (1...3).map { run.report(part: $0, of: 3, loops: [$0 - 1], streams: streams) }
    var whole = run.report(loops: [0, 1, 2], streams: streams)
    whole.parts = parts.flatMap(\.parts)
    for index in whole.parts.indices { whole.parts[index].measured = whole.measured }
    whole.generator = GeneratorFigures()
    for part in parts {
      whole.generator.userTime += part.generator.userTime
      whole.generator.systemTime += part.generator.systemTime
      whole.generator.maximumResident += part.generator.maximumResident
    }
    whole.generator.busiestLoop = 0.123
    whole.generator.bottlenecks = ["part 2 on machine-2: it was late"]
    parts.shuffle(using: &random)
    #expect(try LoadReport.merge(named(parts)) == whole)
    let some = try LoadReport.merge(named(Array(parts[..<2])))
    #expect(some.missingParts == parts[2].parts.map(\.index))
    // Written and read in between, like a command that collects them.
    let read = try LoadReport(json: Array(some.json.utf8), file: "some.json")
    #expect(try LoadReport.merge([("some.json", read), ("rest.json", parts[2])]) == whole)
    #expect(whole.missingParts.isEmpty)
  }

  @Test("a merged report names the parts that ended early, in any order and grouping")
  func early() throws {
    let planned: Int64 = 10_000_000_000
    func verdict(_ measured: [Int64]) throws -> ReportVerdict {
      let parts = measured.enumerated().map { position, measured in
        var report = SampleRun(streams: 1, seconds: 10, part: (index: position + 1, count: 3)).report
        report.measured = measured
        return report
      }
      let (some, rest) = (try LoadReport.merge(named(Array(parts[1...]))), parts[0])
      let read = try LoadReport(json: Array(some.json.utf8), file: "some.json")
      #expect(try LoadReport.merge([("some.json", read), ("rest.json", rest)]) == LoadReport.merge(named(parts)))
      return ReportVerdict(try LoadReport.merge(named(parts)))
    }
    let complete = try verdict([planned, planned, planned])
    #expect(!complete.sentence.contains("ended") && complete.level == .good, "\(complete.sentence)")
    let one = try verdict([planned, 3_000_000_000, planned])
    #expect(one.sentence.contains(", part 2 ended after 3.00 s of 10.0 s; ") && one.level == .warn, "\(one.sentence)")
    let two = try verdict([4_000_000_000, 3_000_000_000, planned])
    #expect(two.sentence.contains(", 2 parts ended early: part 2 ended after 3.00 s of 10.0 s; "), "\(two.sentence)")
    let all = try verdict([4_000_000_000, 3_000_000_000, 4_000_000_000])
    #expect(all.sentence.contains(", ended after 4.00 s of 10.0 s; ") && all.level == .warn, "\(all.sentence)")
  }

  @Test("reports of different runs, or of the same part, are refused with the reason")
  func refused() throws {
    var random = Seed(1).generator
    let run = RandomRun(loops: 2, streams: stride(from: 0, to: 4, by: 1), seconds: 1, using: &random)
    let first = run.report(part: 1, of: 2, loops: [0], streams: 4)
    var second = run.report(part: 2, of: 2, loops: [1], streams: 4)
    func refusal(_ reports: [LoadReport]) -> String? {
      do throws(ReportMergeError) { _ = try LoadReport.merge(named(reports)) } catch { return error.description }
      return nil
    }
    #expect(refusal([]) == "there is no report to merge")
    #expect(refusal([first, second]) == nil)
    #expect(
      refusal([first, first])
        == "part1.json and part2.json are both part 1, so its streams would count twice")
    second.plan.rate = 1_000_000
    #expect(
      refusal([first, second])
        == "part1.json and part2.json are not parts of one run: the rate is 96kB/s in one and 1MB/s in the other")
    second.plan.rate = first.plan.rate
    second.parts[0].count = 3
    #expect(
      refusal([first, second])
        == "part1.json and part2.json are not parts of one run: the number of parts is 2 in one and 3 in the other")
  }

  @Test("intervals become longer instead of more, and no count is lost", arguments: Seed.several(3))
  func coarser(_ seed: Seed) throws {
    var random = seed.generator
    let seconds = Int.random(in: 1...10_000, using: &random)
    var (whole, first, second) = (IntervalSeries(), IntervalSeries(), IntervalSeries())
    var sums: [UInt64] = []
    let secondsOfFirst = Int.random(in: 0...seconds, using: &random)
    for index in 0..<seconds {
      var (one, other) = (LoadInterval(), LoadInterval())
      one.acknowledged = UInt64.random(in: 0...1000, using: &random)
      one.acknowledgedDelay.record(Int64(one.acknowledged))
      other.acknowledged = UInt64.random(in: 0...1000, using: &random)
      if index < secondsOfFirst {
        first.append(second: one)
        other.acknowledged += 1
      }
      second.append(second: other)
      if index < secondsOfFirst { other.merge(one) }
      whole.append(second: other)
      sums.append(other.acknowledged)
    }
    let perInterval = Int(whole.length / 1_000_000_000)
    #expect(whole.intervals.count <= IntervalSeries.maximumCount)
    #expect(seconds <= IntervalSeries.maximumCount ? perInterval == 1 : whole.intervals.count > 900)
    #expect(whole.seconds == seconds)
    #expect(
      whole.intervals.map(\.acknowledged)
        == stride(from: 0, to: seconds, by: perInterval).map { sums[$0..<min(seconds, $0 + perInterval)].reduce(0, +) })
    first.merge(second)
    #expect(first == whole)
  }
}
