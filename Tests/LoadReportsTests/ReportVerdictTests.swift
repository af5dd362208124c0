// The sentence above a report states what happened, and how serious it is.

import Testing

@testable import LoadReports

@Suite("The sentence above a report")
struct ReportVerdictTests {
  private func report(_ change: (inout LoadReport) -> Void = { _ in }) -> LoadReport {
    var report = LoadReport()
    report.plan.streams = 15_000
    report.plan.ramp = 10_000_000_000
    report.plan.duration = 70_000_000_000
    report.measured = 70_000_000_000
    report.totals.streams.peakLive = 15_000
    report.totals.messages.acknowledged = 100
    report.totals.bytes.offered = 1_000_000
    report.totals.bytes.acknowledged = 1_000_000
    report.histograms[.acknowledged].record(31_000_000, count: 100)
    change(&report)
    return report
  }

  @Test("the verdict on a perfect server is one sentence")
  func good() {
    let verdict = ReportVerdict(report())
    #expect(
      verdict.sentence
        == "15 000 live streams held for 60.0 s; p99 from due to acknowledged 31.0 ms; no error; the generator kept up."
    )
    #expect(verdict.level == .good)
  }

  @Test("noticeable response times and stalls are reported, and shorter ones are not")
  func slow() {
    let slow = ReportVerdict(
      report {
        $0.histograms[.response].record(500_000_000, count: 10)
        $0.histograms[.stall].record(2_000_000_000, count: 1)
      })
    #expect(slow.sentence.contains("; responses take 500 ms (p50); no space for messages for up to 2.00 s; "))
    let quick = ReportVerdict(
      report {
        $0.histograms[.response].record(49_000_000, count: 10)
        $0.histograms[.stall].record(49_000_000, count: 1)
      })
    #expect(!quick.sentence.contains("responses") && !quick.sentence.contains("space"))
  }

  @Test("failures are reported with their number, the most frequent error first")
  func trouble() {
    let verdict = ReportVerdict(
      report {
        $0.totals.countError("reset", example: "")
        for _ in 0..<3 { $0.totals.countError("http-503", example: "") }
        $0.totals.streams.failed = 1
        $0.totals.interruptions.unplanned = 2
        $0.totals.interruptions.onPurpose = 7
        $0.totals.bytes.lost = 1500
        $0.totals.bytes.acknowledged = 900_000
      })
    for part in [
      "1 stream failed", "4 errors (3 http-503, 1 reset)", "2 interruptions not on purpose", "1.50 kB lost",
      "only 90.0 % of the offered bytes",
    ] {
      #expect(verdict.sentence.contains(part), "\(verdict.sentence)")
    }
    #expect(verdict.level == .bad)
    for change: (inout LoadReport) -> Void in [{ $0.totals.streams.failed = 1 }, { $0.totals.bytes.lost = 1 }] {
      #expect(ReportVerdict(report(change)).level == .bad, "one is enough")
    }
    let one = ReportVerdict(report { $0.totals.countError("reset", example: "") })
    #expect(one.sentence.contains("1 error (reset)") && one.level == .warn)
  }

  @Test("streams that were never all live, and a run that ended early, are not described as held")
  func unfinished() {
    let fewer = ReportVerdict(report { $0.totals.streams.peakLive = 14_999 })
    #expect(fewer.sentence.hasPrefix("at most 14 999 of 15 000 planned streams live at one time; "))
    #expect(fewer.level == .warn)
    let stopped = ReportVerdict(report { $0.measured = 23_000_000_000 })
    #expect(stopped.sentence.contains("held for 13.0 s, ended after 23.0 s of 70.0 s; ") && stopped.level == .warn)
  }

  /// A run of 70 s. `live` returns how many streams are live at the end of a second, and how few after a loss in it.
  private func seconds(_ live: (Int) -> (UInt64, UInt64?)) -> LoadReport {
    report {
      for second in 0..<70 {
        var interval = LoadInterval()
        (interval.live, interval.fewestAfterLoss) = live(second)
        $0.intervals.append(second: interval)
      }
    }
  }

  @Test("streams that were lost for a while, even within a second, are not described as held")
  func losses() {
    let held = seconds { $0 < 9 ? (100, 7) : (15_000, nil) }
    #expect(ReportVerdict(held).sentence.hasPrefix("15 000 live streams held for 60.0 s; "), "the ramp does not count")
    let fewer = seconds { $0 == 30 ? (14_500, nil) : (15_000, nil) }
    #expect(ReportVerdict(fewer).sentence.hasPrefix("14 500 to 15 000 live streams; p99 "))
    let returned = seconds { $0 == 30 ? (15_000, 0) : (15_000, nil) }
    #expect(ReportVerdict(returned).sentence.hasPrefix("0 to 15 000 live streams; p99 "))
    var ended = seconds { _ in (15_000, nil) }
    ended.totals.streams.fewestLiveAtEnd = 0
    #expect(ReportVerdict(ended).sentence.hasPrefix("15 000 live streams held for 60.0 s; "), "a complete last second")
    for (measured, ramp) in [(69_900_000_000, 10_000_000_000), (900_000_000, 0)] as [(Int64, Int64)] {
      (ended.measured, ended.plan.duration, ended.plan.ramp) = (measured, measured, ramp)
      #expect(ReportVerdict(ended).sentence.hasPrefix("0 to 15 000 live streams; p99 "), "\(measured)")
    }
    ended.plan.ramp = 500_000_000
    #expect(ReportVerdict(ended).sentence.hasPrefix("15 000 live streams held for 400 ms; "), "the ramp does not count")
  }

  @Test("arrivals are reported with the time at their full rate, which is after the ramp")
  func arrivals() {
    func sentence(_ change: (inout LoadReport) -> Void) -> String {
      ReportVerdict(
        report {
          $0.plan.arrivalRate = 500
          change(&$0)
        }
      ).sentence
    }
    let ramp = sentence { _ in }
    #expect(ramp.hasPrefix("500 arrivals per second for 60.0 s; "), "\(ramp)")
    let constant = sentence { $0.plan.ramp = 0 }
    #expect(constant.hasPrefix("500 arrivals per second for 70.0 s; "), "\(constant)")
    let rising = sentence { $0.plan.ramp = 70_000_000_000 }
    #expect(rising.hasPrefix("up to 500 arrivals per second; "), "\(rising)")
    let stages = sentence {
      $0.plan.ramp = 0
      $0.plan.stages = [.init(duration: 70_000_000_000, streams: 900)]
    }
    #expect(stages.hasPrefix("up to 900 arrivals per second in 1 stage for 70.0 s; "), "\(stages)")
  }

  @Test("no ramp of a file is too long for the arithmetic")
  func longestRamp() {
    let longest = report { $0.plan.ramp = .max }
    #expect(longest.fewestLive == nil)
    #expect(ReportVerdict(longest).sentence.hasPrefix("15 000 live streams held for 0 ns; "))
  }

  @Test("intentional cuts alone are not a failure; a generator that was too slow is one, and so is silence")
  func generator() {
    #expect(ReportVerdict(report { $0.totals.interruptions.onPurpose = 9 }).level == .good)
    let late = ReportVerdict(report { $0.generator.bottlenecks = ["it was late"] })
    #expect(late.level == .bad && late.sentence.hasSuffix("the generator did not keep up."))
    // The delays of unacknowledged messages are ages, and not answers.
    let silent = ReportVerdict(
      report {
        $0.totals.messages.acknowledged = 0
        $0.totals.bytes.acknowledged = 0
      })
    #expect(silent.level == .bad && silent.sentence.contains("; nothing was acknowledged; "))
    #expect(!silent.sentence.contains("p99"))
    let part = ReportVerdict(report { $0.totals.messages.acknowledged = 0 })
    #expect(part.level == .bad && part.sentence.contains("; no whole message was acknowledged; "))
    #expect(ReportVerdict(LoadReport()).level == .bad, "an empty report is not a success")
    var onlySlow = report()
    onlySlow.histograms = LoadHistograms()
    #expect(ReportVerdict(onlySlow).sentence.contains("; 100 messages acknowledged; no error; "))
    onlySlow.histograms[.acknowledgedSlow].record(31_000_000, count: 100)
    let slow = ReportVerdict(onlySlow)
    #expect(slow.level == .good)
    #expect(
      slow.sentence.contains("; p99 from due to acknowledged 31.0 ms of streams that are slow on purpose; no error; "))
  }
}
