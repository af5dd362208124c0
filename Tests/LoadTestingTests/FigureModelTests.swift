// All events of a loop in any order, compared with a model that counts each of them by itself.

import LoadReports
import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("All figures of a loop")
struct FigureModelTests {
  /// All times are whole milliseconds, for which the ages of failed messages are exact.
  private static let millisecond: Int64 = 1_000_000

  /// A stream, and what it has experienced.
  private struct Stream {
    var figures: StreamFigures
    let index: Int
    let isSlow: Bool
    let startedAt: Int64
    var phase = StreamFigures.Phase.connecting
    var offered: UInt64 = 0
    var sent: UInt64 = 0
    var accepted: UInt64 = 0
    var acknowledged: UInt64 = 0
    var delays: [Int64] = []
    var failedDues: [Int64] = []
    var interruptions: UInt64 = 0
    var outage: (start: Int64, cause: String?)?
    var continuesOutage = false
    var paused: Int64 = 0
    var pausedSince: Int64?
    var acknowledgedAt: Int64?

    var meanDelay: Int64? {
      delays.isEmpty ? nil : Int64(delays.reduce(Int128(0)) { $0 + Int128($1) } / Int128(delays.count))
    }

    mutating func attempts(_ now: Int64) {
      if let since = pausedSince { paused += now - since }
      pausedSince = nil
    }
  }

  private struct Model {
    var totals = LoadTotals()
    var histograms = LoadHistograms()
    var spread = StreamSpread()
    var interval = LoadInterval()
    var failedDues: [Int64] = []
    var streams: [Stream] = []

    func count(_ phase: StreamFigures.Phase) -> UInt64 { UInt64(streams.count { $0.phase == phase }) }

    mutating func enter(_ phase: StreamFigures.Phase, _ index: Int, isLoss: Bool = true) {
      let former = streams[index].phase
      guard former != .ended else { return }
      streams[index].phase = phase
      if former == .live, phase != .live, isLoss {
        interval.fewestAfterLoss = min(interval.fewestAfterLoss ?? .max, count(.live))
      }
      totals.streams.peakLive = max(totals.streams.peakLive, count(.live))
    }

    mutating func delay(_ delay: Int64, _ index: Int) {
      streams[index].delays.append(delay)
      if streams[index].isSlow {
        histograms.record(delay, as: .acknowledgedSlow)
      } else {
        histograms.record(delay, as: .acknowledged)
        interval.acknowledgedDelay.record(delay)
      }
    }

    mutating func ended(_ outage: (start: Int64, cause: String?), _ now: Int64) {
      histograms.record(now - outage.start, as: .outage)
      if let cause = outage.cause { totals.outages.add(LoadOutage(outage.start..<now, cause: cause)) }
    }

    mutating func recovered(_ index: Int, _ now: Int64) {
      streams[index].attempts(now)
      guard let outage = streams[index].outage else { return }
      ended(outage, now)
      histograms.record(now - outage.start - streams[index].paused, as: .resume)
      (streams[index].outage, streams[index].continuesOutage) = (nil, false)
    }

    mutating func failed(_ due: Int64, _ index: Int) {
      failedDues.append(due)
      streams[index].failedDues.append(due)
    }

    mutating func streamEnded(_ index: Int, _ outcome: StreamOutcome, _ now: Int64) {
      guard streams[index].phase != .ended else { return }
      switch outcome {
      case .finished: totals.streams.finished += 1
      case .failed: totals.streams.failed += 1
      case .stopped: break
      }
      if let outage = streams[index].outage { ended(outage, now) }
      (streams[index].outage, streams[index].continuesOutage) = (nil, false)
      enter(.ended, index, isLoss: outcome == .failed)
      streams[index].delays += streams[index].failedDues.map { now - $0 }
      let stream = streams[index]
      var row = StreamRow()
      (row.index, row.startedAt, row.lasted, row.outcome) = (index, stream.startedAt, now - stream.startedAt, outcome)
      (row.meanDelay, row.maximumDelay) = (stream.meanDelay, stream.delays.max())
      (row.offered, row.acknowledged, row.interruptions) = (stream.offered, stream.acknowledged, stream.interruptions)
      spread.record(row)
    }

    /// The interval that ends now.
    mutating func takeInterval() -> LoadInterval {
      var taken = interval
      (taken.live, taken.connecting) = (count(.live), count(.connecting))
      if let fewest = taken.fewestAfterLoss, fewest >= taken.live { taken.fewestAfterLoss = nil }
      interval = LoadInterval()
      return taken
    }
  }

  @Test("each event changes exactly its own figures, in any order", arguments: Seed.several(12))
  func model(_ seed: Seed) {
    var random = seed.generator
    var figures = LoopFigures()
    var model = Model()
    var now: Int64 = 3 * Self.millisecond
    /// The outage of a stream that has failed.
    var left: (given: StreamOutage, expected: (start: Int64, cause: String?))?

    func bytes() -> Int { Int.random(in: 1...5000, using: &random) }
    /// Rarely, the clock of a due message is ahead.
    func dueTime(mayBeAhead: Bool = true) -> Int64 {
      if mayBeAhead, random.chance(5) { return now + Self.millisecond }
      return max(0, now - Int64.random(in: 0...500, using: &random) * Self.millisecond)
    }

    func begin() {
      let (index, isSlow) = (model.streams.count, random.chance(20))
      let continued = left
      left = nil
      let started = figures.streamStarted(index: index, isSlow: isSlow, continuing: continued?.given, now: now)
      var stream = Stream(figures: started, index: index, isSlow: isSlow, startedAt: now)
      if let continued {
        (stream.outage, stream.continuesOutage) = (continued.expected, true)
        (stream.paused, stream.pausedSince) = (continued.given.pausedFor, continued.given.pauseStartedAt)
      }
      model.streams.append(stream)
      model.totals.streams.started += 1
    }

    func end(_ index: Int) {
      let outcome = [StreamOutcome.finished, .failed, .stopped].randomElement(using: &random) ?? .failed
      if outcome == .failed, model.streams[index].phase != .ended {
        // Its successor may continue its outage.
        let expected = model.streams[index].outage
        let given = model.streams[index].figures.takeOutage(now: now)
        #expect(given?.start == expected?.start && given?.cause == expected?.cause)
        if let given, let expected {
          #expect(given.pauseStartedAt == model.streams[index].pausedSince ?? now)
          #expect(given.pausedFor == model.streams[index].paused)
          (model.streams[index].outage, model.streams[index].continuesOutage) = (nil, false)
          if let left {
            figures.ended(left.given, now: now)
            model.ended(left.expected, now)
          }
          left = (given, expected)
        }
      }
      figures.streamEnded(&model.streams[index].figures, outcome, now: now)
      model.streamEnded(index, outcome, now)
    }

    func takeInterval() {
      let (given, expected) = (figures.takeInterval(), model.takeInterval())
      #expect(given == expected, "\(seed)")
    }

    func event(_ index: Int) {
      let (number, count) = (Int.random(in: 0..<20, using: &random), bytes())
      // A stream that has ended has no other events.
      if model.streams[index].phase == .ended, number > 1 { return }
      switch number {
      case 0:
        let delay = random.chance(50) ? Int64.random(in: 0...1_000_000, using: &random) : nil
        figures.connected(&model.streams[index].figures, after: delay)
        if let delay {
          model.totals.connects += 1
          model.histograms.record(delay, as: .connect)
        }
        model.enter(.live, index)
      case 1: if random.chance(30) { end(index) }
      case 2, 3:
        let causes: [String?] = [nil, "reset", "refused"]
        let cause = causes[Int.random(in: 0..<3, using: &random)]
        figures.interrupted(&model.streams[index].figures, cause: cause, now: now)
        if cause == nil { model.totals.interruptions.onPurpose += 1 } else { model.totals.interruptions.unplanned += 1 }
        model.interval.interruptions += 1
        model.streams[index].interruptions += 1
        if model.streams[index].outage == nil {
          model.streams[index].outage = (now, cause)
          (model.streams[index].paused, model.streams[index].pausedSince) = (0, now)
        }
        model.streams[index].pausedSince = model.streams[index].pausedSince ?? now
        model.enter(.connecting, index)
      case 4:
        figures.attemptFailed(&model.streams[index].figures, now: now)
        model.totals.interruptions.failedAttempts += 1
        model.streams[index].pausedSince = model.streams[index].pausedSince ?? now
        model.enter(.connecting, index)
      case 5:
        figures.attempts(&model.streams[index].figures, now: now)
        model.streams[index].attempts(now)
      case 6:
        figures.due(bytes: count, &model.streams[index].figures)
        model.totals.messages.due += 1
        model.totals.bytes.offered += UInt64(count)
        model.streams[index].offered += UInt64(count)
        model.interval.offered += UInt64(count)
        model.histograms.record(Int64(count), as: .message)
      case 7:
        let due = dueTime()
        figures.reached(dueAt: due, now: now)
        model.interval.lateness.record(now - due)
        model.histograms.record(now - due, as: .lateness)
      case 8:
        figures.sent(bytes: count, &model.streams[index].figures)
        model.totals.messages.sent += 1
        model.totals.bytes.sent += UInt64(count)
        model.streams[index].sent += UInt64(count)
        model.interval.sent += UInt64(count)
      case 9:
        let due = dueTime()
        figures.accepted(bytes: count, dueAt: due, now: now, &model.streams[index].figures)
        model.totals.bytes.accepted += UInt64(count)
        model.streams[index].accepted += UInt64(count)
        if !model.streams[index].isSlow { model.histograms.record(now - due, as: .accepted) }
      case 10, 11:
        figures.acknowledgement(&model.streams[index].figures, now: now)
        if let last = model.streams[index].acknowledgedAt, model.streams[index].outage == nil {
          model.histograms.record(now - last, as: .rhythm)
        }
        model.streams[index].acknowledgedAt = now
        let due = dueTime()
        figures.acknowledged(bytes: count, dueAt: due, now: now, &model.streams[index].figures)
        model.totals.messages.acknowledged += 1
        model.totals.bytes.acknowledged += UInt64(count)
        model.streams[index].acknowledged += UInt64(count)
        model.interval.acknowledged += UInt64(count)
        model.delay(max(0, now - due), index)
        model.recovered(index, now)
      case 12:
        figures.acknowledgedPart(bytes: UInt64(count), &model.streams[index].figures)
        model.totals.bytes.acknowledged += UInt64(count)
        model.streams[index].acknowledged += UInt64(count)
        model.interval.acknowledged += UInt64(count)
      case 13:
        let due = dueTime()
        figures.neverAcknowledged(dueAt: due, now: now, &model.streams[index].figures)
        model.delay(max(0, now - due), index)
      case 14:
        let due = dueTime(mayBeAhead: false)
        figures.failed(dueAt: due, &model.streams[index].figures)
        model.failed(due, index)
      case 15:
        let due = dueTime(mayBeAhead: false)
        figures.dropped(bytes: count, dueAt: due, &model.streams[index].figures)
        model.totals.messages.dropped += 1
        model.totals.bytes.lost += UInt64(count)
        model.failed(due, index)
      case 16:
        let name = random.chance(50) ? "reset" : "refused"
        figures.error(name, example: "number \(count)")
        model.totals.countError(name, example: "number \(count)")
        model.interval.errors += 1
      case 17:
        let (status, delay) = (random.chance(50) ? 200 : 503, random.chance(50) ? Int64(count) : nil)
        figures.response(status, after: delay)
        model.totals.responses[status, default: 0] += 1
        if let delay { model.histograms.record(delay, as: .response) }
      case 18:
        figures.interim(after: Int64(count))
        figures.interimResponse()
        figures.interimResponse()
        model.histograms.record(Int64(count), as: .interim)
        model.totals.interimResponses += 2
      default:
        figures.stalled(for: Int64(count))
        figures.sentAgain(bytes: UInt64(count))
        figures.lost(bytes: 3)
        model.histograms.record(Int64(count), as: .stall)
        model.totals.bytes.sentAgain += UInt64(count)
        model.totals.bytes.lost += 3
      }
    }

    for _ in 0..<1500 {
      now += Int64.random(in: 0...40, using: &random) * Self.millisecond
      if model.streams.isEmpty || random.chance(4) { begin() }
      if let index = model.streams.indices.randomElement(using: &random) { event(index) }
      if random.chance(5) { takeInterval() }
    }
    for stream in model.streams {
      let given = stream.figures
      #expect(given.phase == stream.phase && given.isSlow == stream.isSlow && given.index == stream.index)
      #expect(given.offered == stream.offered && given.sent == stream.sent && given.accepted == stream.accepted)
      #expect(given.acknowledged == stream.acknowledged && UInt64(given.interruptions) == stream.interruptions)
      #expect(given.isInterrupted == (stream.outage != nil) && given.continuesOutage == stream.continuesOutage)
      #expect(given.meanDelay == stream.meanDelay && given.maximumDelay == stream.delays.max(), "\(seed)")
    }
    figures.runEnded()
    model.totals.streams.fewestLiveAtEnd = min(model.count(.live), model.interval.fewestAfterLoss ?? .max)
    for index in model.streams.indices { end(index) }
    #expect(figures.histograms == model.histograms, "\(seed)")
    // Messages that have failed age until the end of the run.
    now += 10 * Self.millisecond
    figures.ended(now: now)
    for due in model.failedDues {
      model.histograms.record(now - due, as: .acknowledged)
      model.interval.acknowledgedDelay.record(now - due)
    }
    takeInterval()
    var report = LoadReport()
    report.add(figures)
    #expect(report.totals == model.totals, "\(seed)")
    #expect(report.histograms == model.histograms, "\(seed)")
    #expect(report.spread == model.spread, "\(seed)")
  }

  @Test("a stream that ends before the start of the run has no ages, and its failed messages count once")
  func beforeTheStart() {
    var figures = LoopFigures()
    var stream = figures.streamStarted(index: 0, now: -100)
    figures.streamEnded(&stream, .stopped, now: -5)
    #expect(stream.meanDelay == nil && stream.maximumDelay == nil)
    var failed = figures.streamStarted(index: 1, now: 0)
    figures.failed(dueAt: 10, &failed)
    figures.streamEnded(&failed, .failed, now: 40)
    figures.streamEnded(&failed, .failed, now: 90)
    #expect(failed.meanDelay == 30 && failed.maximumDelay == 30 && figures.totals.streams.failed == 1)
  }
}
