import LoadReports
import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("The metrics of a loop")
struct LoopFiguresTests {
  @Test(
    "events determine whether a stream counts as connecting or live, in any order",
    arguments: Seed.several(20))
  func gauges(_ seed: Seed) {
    enum Model { case connecting, live, ended }
    var random = seed.generator
    var figures = LoopFigures()
    var streams: [StreamFigures] = []
    var model: [Model] = []
    var peak = 0
    var ends = 0
    for _ in 0..<500 {
      let index = streams.indices.randomElement(using: &random)
      switch (Int.random(in: 0..<6, using: &random), index) {
      case (0, _), (_, nil):
        streams.append(figures.streamStarted(index: streams.count, now: 0))
        model.append(.connecting)
      case (1, let index?), (2, let index?):
        figures.connected(&streams[index], after: nil)
        if model[index] != .ended { model[index] = .live }
      case (3, let index?):
        if model[index] == .ended { continue }
        figures.interrupted(&streams[index], cause: "reset", now: 0)
        model[index] = .connecting
      case (4, let index?):
        figures.streamEnded(&streams[index], .finished, now: 1)
        if model[index] != .ended { ends += 1 }
        model[index] = .ended
      default:
        let interval = figures.takeInterval()
        #expect(interval.live == UInt64(model.count { $0 == .live }))
        #expect(interval.connecting == UInt64(model.count { $0 == .connecting }))
      }
      peak = max(peak, model.count { $0 == .live })
    }
    #expect(figures.totals.streams.peakLive == UInt64(peak))
    #expect(figures.totals.streams.finished == UInt64(ends))
    #expect(figures.spread.goodput.count == UInt64(ends))
  }

  @Test("a resumption lasts from the first interruption to the next acknowledged byte, and is measured once")
  func resumption() {
    var figures = LoopFigures()
    var stream = figures.streamStarted(index: 0, now: 0)
    figures.acknowledged(bytes: 1, dueAt: 0, now: 10, &stream)
    #expect(figures.histograms[.resume].isEmpty)
    figures.interrupted(&stream, cause: nil, now: 100)
    figures.attempts(&stream, now: 110)
    figures.connected(&stream, after: 5)
    figures.interrupted(&stream, cause: "reset", now: 150)
    figures.attempts(&stream, now: 170)
    figures.attemptFailed(&stream, now: 171)
    figures.attempts(&stream, now: 180)
    figures.connected(&stream, after: 5)
    figures.acknowledged(bytes: 1, dueAt: 90, now: 200, &stream)
    figures.acknowledged(bytes: 1, dueAt: 90, now: 300, &stream)
    // The whole time, and the rest of it without the generator's own pauses.
    #expect(figures.histograms[.outage].count == 1 && figures.histograms[.outage].max == 100)
    #expect(figures.histograms[.resume].count == 1 && figures.histograms[.resume].max == 100 - 10 - 20 - 9)
    #expect(figures.totals.interruptions.onPurpose == 1 && figures.totals.interruptions.unplanned == 1)
    #expect(figures.totals.interruptions.failedAttempts == 1 && figures.totals.connects == 2)
    #expect(figures.totals.outages.outages.isEmpty, "the first one was on purpose")
  }

  @Test("a resumption does not lack the pauses before its outage")
  func earlierPauses() {
    var figures = LoopFigures()
    var stream = figures.streamStarted(index: 0, now: 0)
    // A plain stream recovers with its connection, whose request then fails. No outage begins with that.
    figures.connected(&stream, after: 1)
    figures.recovered(&stream, now: 10)
    figures.attemptFailed(&stream, now: 20)
    figures.attempts(&stream, now: 50)
    figures.attemptFailed(&stream, now: 60)
    figures.interrupted(&stream, cause: "reset", now: 100)
    figures.attempts(&stream, now: 110)
    figures.acknowledged(bytes: 1, dueAt: 90, now: 200, &stream)
    #expect(figures.histograms[.outage].max == 100 && figures.histograms[.resume].max == 90)
  }

  @Test("a hundred streams that lose their connection at the same time are one outage of a hundred interruptions")
  func outage() {
    var figures = LoopFigures()
    var streams = (0..<100).map { figures.streamStarted(index: $0, now: 0) }
    for index in streams.indices {
      figures.interrupted(&streams[index], cause: "connection-lost", now: 1000 + Int64(index))
      for attempt in 1...5 { figures.attemptFailed(&streams[index], now: 1000 + Int64(100 * attempt)) }
    }
    for index in streams.indices where index > 0 {
      figures.acknowledged(bytes: 1, dueAt: 0, now: 2000 + Int64(index), &streams[index])
    }
    // One never returns.
    figures.streamEnded(&streams[0], .failed, now: 5000)
    #expect(figures.totals.interruptions.unplanned == 100 && figures.totals.interruptions.failedAttempts == 500)
    let outages = figures.totals.outages.outages
    #expect(outages.count == 1 && outages[0].start == 1000 && outages[0].end == 5000 && outages[0].streams == 100)
    #expect(outages[0].cause == "connection-lost")
  }

  @Test("streams that replace each other in the same place during an outage are one outage")
  func replaced() {
    var figures = LoopFigures()
    var first = figures.streamStarted(index: 0, now: 0)
    figures.interrupted(&first, cause: "connection-lost", now: 100)
    first.countedCause = "connection-lost"
    figures.attemptFailed(&first, now: 150)
    let outage = first.takeOutage(now: 200)
    figures.streamEnded(&first, .failed, now: 200)
    #expect(figures.histograms[.outage].isEmpty && figures.totals.outages.outages.isEmpty)
    var second = figures.streamStarted(index: 0, continuing: outage, now: 300)
    #expect(second.continuesOutage && second.countedCause == "connection-lost")
    figures.attempts(&second, now: 300)
    figures.attemptFailed(&second, now: 310)
    figures.attempts(&second, now: 400)
    figures.acknowledged(bytes: 1, dueAt: 300, now: 420, &second)
    #expect(!second.continuesOutage && second.countedCause == nil, "the next interruption is another one")
    figures.streamEnded(&second, .finished, now: 500)
    let outages = figures.totals.outages.outages
    #expect(outages.count == 1 && outages[0].start == 100 && outages[0].end == 420 && outages[0].streams == 1)
    #expect(figures.histograms[.outage].count == 1 && figures.histograms[.outage].max == 320)
    // Without the pauses from 100 to 300 and from 310 to 400.
    #expect(figures.histograms[.resume].count == 1 && figures.histograms[.resume].max == 30)
    #expect(figures.totals.interruptions.unplanned == 1)
  }

  @Test("a message without an acknowledgement counts with its age, and not as acknowledged")
  func neverAcknowledged() {
    var figures = LoopFigures()
    var stream = figures.streamStarted(index: 0, now: 0)
    figures.due(bytes: 7, &stream)
    figures.due(bytes: 7, &stream)
    figures.acknowledged(bytes: 7, dueAt: 0, now: 10, &stream)
    figures.neverAcknowledged(dueAt: 100, now: 5100, &stream)
    #expect(figures.histograms[.acknowledged].count == 2 && figures.histograms[.acknowledged].max == 5000)
    #expect(figures.totals.messages.acknowledged == 1 && figures.totals.bytes.acknowledged == 7)
  }

  @Test("the mean delay of a stream is exact, however long its messages wait", arguments: Seed.several(5))
  func meanDelay(_ seed: Seed) {
    var random = seed.generator
    var figures = LoopFigures()
    var stream = figures.streamStarted(index: 0, now: 0)
    var delays: [Int64] = []
    for _ in 0..<100 {
      let dueAt = Int64.random(in: 0..<Int64.max, using: &random)
      if random.chance(50) {
        figures.failed(dueAt: dueAt, &stream)
      } else {
        figures.neverAcknowledged(dueAt: dueAt, now: .max, &stream)
      }
      delays.append(Int64.max - dueAt)
    }
    figures.streamEnded(&stream, .failed, now: .max)
    #expect(stream.meanDelay == Int64(delays.reduce(Int128(0)) { $0 + Int128($1) } / 100), "\(seed)")
    #expect(stream.maximumDelay == delays.max(), "\(seed)")
  }

  @Test("slow streams' delays are separate, in the totals and in the intervals")
  func slow() {
    var figures = LoopFigures()
    var slow = figures.streamStarted(index: 0, isSlow: true, now: 0)
    var usual = figures.streamStarted(index: 1, now: 0)
    figures.acknowledged(bytes: 3, dueAt: 0, now: 5000, &slow)
    figures.acknowledged(bytes: 4, dueAt: 0, now: 50, &usual)
    #expect(figures.histograms[.acknowledged].max == 50 && figures.histograms[.acknowledgedSlow].min == 5000)
    let interval = figures.takeInterval()
    #expect(interval.acknowledgedDelay.max == 50 && interval.acknowledged == 7)
  }

  @Test("an interval has the fewest streams that were live after a loss, even if all returned before its end")
  func fewestLive() {
    var figures = LoopFigures()
    var streams = (0..<5).map { figures.streamStarted(index: $0, now: 0) }
    for index in streams.indices { figures.connected(&streams[index], after: nil) }
    let first = figures.takeInterval()
    #expect(first.live == 5 && first.fewestLive == 5, "the start of streams is not a loss")
    for index in 0..<3 { figures.interrupted(&streams[index], cause: "reset", now: 1) }
    for index in 0..<3 { figures.connected(&streams[index], after: 1) }
    var second = figures.takeInterval()
    #expect(second.live == 5 && second.fewestLive == 2)
    let third = figures.takeInterval()
    #expect(third.fewestLive == 5)
    second.merge(first)
    #expect(second.live == 10 && second.fewestLive == 7, "of two loops")
    figures.streamEnded(&streams[0], .finished, now: 2)
    let fourth = figures.takeInterval()
    #expect(fourth.live == 4 && fourth.fewestAfterLoss == nil, "a stream that ends as planned is not lost")
    figures.streamEnded(&streams[1], .failed, now: 3)
    let fifth = figures.takeInterval()
    #expect(fifth.live == 3 && fifth.fewestLive == 3)
    #expect(fifth.fewestAfterLoss == nil, "it is stated only if some have returned")
    figures.interrupted(&streams[2], cause: "reset", now: 4)
    figures.connected(&streams[2], after: 1)
    figures.runEnded()
    for index in 2..<5 { figures.streamEnded(&streams[index], .finished, now: 5) }
    #expect(figures.totals.streams.fewestLiveAtEnd == 2, "ends as planned are not losses")
    // A loop without streams has none to lose.
    var totals = LoadTotals()
    var empty = LoopFigures()
    empty.runEnded()
    for loop in [figures, empty, figures] { totals.merge(loop.totals) }
    #expect(totals.streams.fewestLiveAtEnd == 4)
    totals.merge(LoopFigures().totals)
    #expect(totals.streams.fewestLiveAtEnd == 4)
  }

  @Test("an interval has its own events, and the next one begins empty")
  func intervals() {
    var figures = LoopFigures()
    var stream = figures.streamStarted(index: 0, now: 0)
    figures.due(bytes: 10, &stream)
    figures.reached(dueAt: 0, now: 7)
    figures.sent(bytes: 10, &stream)
    figures.error("reset", example: "first")
    figures.error("reset", example: "second")
    let first = figures.takeInterval()
    #expect(first.offered == 10 && first.sent == 10 && first.errors == 2 && first.lateness.max == 7)
    let second = figures.takeInterval()
    #expect(second.offered == 0 && second.errors == 0 && second.lateness.isEmpty && second.connecting == 1)
    #expect(figures.totals.errors["reset"]?.count == 2 && figures.totals.errors["reset"]?.example == "first")
  }

  @Test("the ten worst streams are the failed ones, and then those with the largest delay", arguments: Seed.several(10))
  func worst(_ seed: Seed) {
    var random = seed.generator
    var parts = [LoopFigures(), LoopFigures(), LoopFigures()]
    var rows: [(failed: Bool, delay: Int64, index: Int)] = []
    for index in 0..<100 {
      let part = Int.random(in: 0..<3, using: &random)
      var stream = parts[part].streamStarted(index: index, now: 0)
      let delay = Int64(random.size(upTo: 100))
      let failed = random.chance(5)
      parts[part].due(bytes: 1, &stream)
      parts[part].acknowledged(bytes: 1, dueAt: 0, now: delay, &stream)
      parts[part].streamEnded(&stream, failed ? .failed : .finished, now: 1000)
      rows.append((failed, delay, index))
    }
    rows.sort { ($0.failed ? 1 : 0, $0.delay, -$0.index) > ($1.failed ? 1 : 0, $1.delay, -$1.index) }
    parts.shuffle(using: &random)
    var spread = StreamSpread()
    for part in parts { spread.merge(part.spread) }
    #expect(spread.worst.map(\.index) == rows.prefix(10).map(\.index))
    #expect(spread.maximumDelay.count == 100)
  }

  @Test("a generator was the bottleneck if it was late or had no time, and the report has the amount")
  func verdict() {
    func late(_ nanoseconds: Int64) -> LatencyHistogram {
      var histogram = LatencyHistogram()
      histogram.record(0, count: 98)
      histogram.record(nanoseconds, count: 2)
      return histogram
    }
    func bottlenecks(_ late: LatencyHistogram, _ chunk: Int64, _ busy: Double) -> [String] {
      GeneratorVerdict.bottlenecks(lateness: late, chunk: chunk, busiestLoop: busy)
    }
    #expect(bottlenecks(late(9_900_000), 1_000_000, 0.9) == [])
    #expect(bottlenecks(late(99_000_000), 1_000_000_000, 0) == [])
    #expect(bottlenecks(LatencyHistogram(), 0, 0) == [])
    #expect(
      bottlenecks(late(20_000_000), 100_000_000, 0.95) == [
        "1 % of the messages were 20.0 ms late or more; 10.0 ms are allowed",
        "a network loop was busy for 95.0 % of the time; 90.0 % are allowed",
      ])
    #expect(bottlenecks(late(120_000_000), 1_000_000_000, 0).count == 1)
  }

  @Test("the figures of a stream take less than 200 bytes")
  func size() { #expect(MemoryLayout<StreamFigures>.stride < 200) }
}
