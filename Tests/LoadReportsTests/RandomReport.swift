// Reports of simulated runs, made through the same calls as real ones.

import PropertyTesting

@testable import LoadReports
@testable import LoadTesting

/// A run whose loops receive random events.
struct RandomRun {
  var loops: [LoopFigures]
  /// For each second and each loop.
  private var intervals: [[LoadInterval]] = []

  /// - Parameters:
  ///   - streams: the numbers of its streams, which are distributed to the loops in turn.
  init(loops loopCount: Int, streams: StrideTo<Int>, seconds: Int, using random: inout SplitMix64) {
    loops = (0..<loopCount).map { _ in LoopFigures() }
    var alive: [(loop: Int, figures: StreamFigures)] = []
    for (position, index) in streams.enumerated() {
      let loop = position % loopCount
      alive.append((loop, loops[loop].streamStarted(index: index, isSlow: random.chance(20), now: 0)))
    }
    for second in 0..<seconds {
      for position in alive.indices {
        for _ in 0..<Int.random(in: 0...5, using: &random) {
          let now = Int64(second) * 1_000_000_000 + Int64.random(in: 0..<1_000_000_000, using: &random)
          Self.event(&loops[alive[position].loop], &alive[position].figures, now, &random)
        }
      }
      intervals.append(
        loops.indices.map { loop in
          var interval = loops[loop].takeInterval()
          interval.processorTime = Int64.random(in: 0...1_000_000_000, using: &random)
          return interval
        })
    }
    for (loop, var figures) in alive {
      let outcome = StreamOutcome.allCases.randomElement(using: &random) ?? .finished
      loops[loop].streamEnded(&figures, outcome, now: Int64(seconds) * 1_000_000_000)
    }
  }

  private static func event(
    _ loop: inout LoopFigures, _ stream: inout StreamFigures, _ now: Int64, _ random: inout SplitMix64
  ) {
    let bytes = random.size(upTo: 100_000)
    let dueAt = now - Int64(random.size(upTo: 2_000_000_000))
    switch Int.random(in: 0..<16, using: &random) {
    case 0: loop.connected(&stream, after: Int64(random.size(upTo: 50_000_000)))
    case 1: loop.interim(after: Int64(random.size(upTo: 50_000_000)))
    case 2: loop.interimResponse()
    case 3: loop.interrupted(&stream, cause: random.chance(50) ? nil : "reset", now: now)
    case 4: loop.error(random.chance(50) ? "reset" : "http-503", example: "the server said \u{0}\"no\" \(bytes)")
    case 5: loop.stalled(for: Int64(bytes))
    case 6: loop.sentAgain(bytes: UInt64(bytes))
    case 7: loop.lost(bytes: UInt64(bytes))
    case 8: loop.accepted(bytes: bytes, dueAt: dueAt, now: now, &stream)
    case 9: loop.response(random.chance(50) ? 200 : 503, after: random.chance(20) ? nil : Int64(bytes))
    case 10: loop.attemptFailed(&stream, now: now)
    case 11: loop.attempts(&stream, now: now)
    case 12: loop.recovered(&stream, now: now)
    case 13: loop.neverAcknowledged(dueAt: dueAt, now: now, &stream)
    default:
      loop.acknowledgement(&stream, now: now)
      loop.due(bytes: bytes, &stream)
      loop.reached(dueAt: dueAt, now: now)
      loop.sent(bytes: bytes, &stream)
      loop.acknowledged(bytes: bytes, dueAt: dueAt, now: now, &stream)
    }
  }

  /// The report of some of its loops, as part `index` of `count`.
  func report(part index: Int = 1, of count: Int = 1, loops chosen: [Int], streams: Int) -> LoadReport {
    var report = LoadReport()
    report.sluiceVersion = "1.2.3"
    report.target = "http://localhost:8080/streams"
    report.startedAt = "2026-01-31T12:00:00Z"
    report.measured = Int64(intervals.count) * 1_000_000_000
    report.plan.streams = streams
    report.plan.ramp = 1_000_000_000
    report.plan.duration = report.measured
    report.plan.profile = "mic"
    report.plan.rate = 96000
    report.plan.chunk = 100_000_000
    report.plan.body = "pattern"
    report.plan.resumable = "always"
    report.plan.httpVersion = "1.1"
    report.plan.dropEvery = 30_000_000_000
    report.plan.slowFraction = 0.2
    report.plan.seed = .max
    var part = LoadPart()
    part.index = index
    part.count = count
    part.seed = .max
    part.host = "machine-\(index)"
    part.cores = 2
    part.threads = chosen.count
    report.parts = [part]
    report.generator.userTime = 1_500_000_000
    report.generator.systemTime = 500_000_000
    report.generator.maximumResident = 30_000_000
    report.generator.busiestLoop = 0.123
    report.generator.bottlenecks = index == 2 ? ["it was late"] : []
    for loop in chosen { report.add(loops[loop]) }
    for second in intervals {
      var interval = LoadInterval()
      for loop in chosen { interval.merge(second[loop]) }
      report.intervals.append(second: interval)
    }
    return report
  }
}
