// One loop of a load test by itself: its seconds, its end, its outages and its limits.

import EventLoops
import Glibc
import LiveStreaming
import LoadReports
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient

@testable import LoadTesting

@Suite("A loop of a load test")
struct LoadLoopTests {
  /// A loop, and what it reports.
  private final class Bed: Sendable {
    let loop: LoadLoop
    /// Each second, and the processor time of the loop's thread when it is reported.
    let seconds: EventLog<(second: LoopSecond, time: Int64)>
    let idles: EventLog<Bool>
    let ends: EventLog<LoadEndReason>

    init(origin: MonotonicInstant = .now, _ change: (inout LoadConfiguration) -> Void = { _ in }) throws {
      var configuration = LoadConfiguration(request: UploadRequest(url: "http://127.0.0.1:9/"))
      configuration.duration = .seconds(3600)
      change(&configuration)
      let (seconds, idles, ends) = (
        try EventLog<(second: LoopSecond, time: Int64)>(), try EventLog<Bool>(), try EventLog<LoadEndReason>()
      )
      (self.seconds, self.idles, self.ends) = (seconds, idles, ends)
      let plan = LoadRunPlan(
        configuration, bytes: try BodyBytes(.zeros, seed: 0), localAddresses: [], clock: RunClock(origin: origin)
      ) { ends.append($0) }
      loop = try LoadLoop(
        plan, report: { seconds.append((second: $0, time: threadTime().nanoseconds)) }, idle: { idles.append(true) })
    }

    deinit { loop.session.close() }

    /// Runs work on the loop's thread, and waits for its end.
    @discardableResult
    func run<Value: Sendable>(_ work: @escaping @Sendable (LoadLoop) -> Value) throws -> Value {
      let results = try EventLog<Value>()
      loop.eventLoop.execute { [loop] in results.append(work(loop)) }
      return try results.first("the end of the work") { _ in true }
    }
  }

  /// A stream that has failed.
  private final class FailedStream: PacedStream {
    let isAcknowledged = false
    func begin() {}
    func quiet() {}
    func stop(isDue: Bool) {}
    func finish() {}
    func finishUnacknowledged() {}
  }

  @Test("an outage continues in the next stream of its place, unless it began on purpose or none follows soon")
  func outages() throws {
    let hour = Duration.seconds(3600)
    for (thinkTime, cause, duration, isQuiet, ended) in [
      (0, "reset", hour, false, 0), (1_000_000_000, "reset", hour, false, 0), (1_000_000_001, "reset", hour, false, 1),
      (0, nil, hour, false, 1), (0, "reset", .nanoseconds(1), false, 1), (0, "reset", hour, true, 1),
    ] as [(Int64, String?, Duration, Bool, UInt64)] {
      let bed = try Bed { $0.duration = duration }
      try bed.run { loop in
        if isQuiet { loop.stop(isDue: false) }
        let outage = StreamOutage(start: 0, cause: cause, countedCause: nil, pausedFor: 0, pauseStartedAt: 0)
        loop.ended(FailedStream(), LoadPlace(index: 0), thinkTime: thinkTime, .failed, outage)
      }
      // The next turn.
      let outages = try bed.run { $0.figures.histograms[.outage].count }
      #expect(outages == ended, "\(thinkTime) \(cause ?? "on purpose") \(duration) \(isQuiet)")
    }
  }

  @Test("requests begin up to the maximum, and again when others have ended")
  func requests() throws {
    let bed = try Bed {
      $0.sendsRequestPerMessage = true
      $0.arrivals = .init(rate: 1)
      $0.arrivals?.maximumUnderWay = 2
    }
    let answers = try bed.run { loop in
      var answers = [loop.mayBeginRequest(), loop.mayBeginRequest(), loop.mayBeginRequest(), loop.mayBeginRequest()]
      loop.requestEnded()
      answers += [loop.mayBeginRequest(), loop.mayBeginRequest()]
      return answers
    }
    #expect(answers == [true, true, false, false, true, false])
  }

  @Test("a server without HTTP/2 ends the run, unless bytes were acknowledged before")
  func http2() throws {
    let bed = try Bed()
    try bed.run { loop in
      loop.http2NotSupported("the first reason")
      var stream = loop.figures.streamStarted(index: 0, now: 0)
      loop.figures.acknowledged(bytes: 1, dueAt: 0, now: 1, &stream)
      loop.http2NotSupported("the second reason")
    }
    #expect(bed.ends.all == [.failed("the first reason")])
  }

  @Test("a loop without streams is idle at the end of the run, and says so once", arguments: [true, false])
  func idle(stops: Bool) throws {
    let bed = try Bed()
    try bed.run { loop in
      loop.begin([])
      if stops { loop.stop(isDue: true) } else { loop.quiet() }
    }
    try bed.idles.first("it is idle") { _ in true }
    try bed.run { loop in
      loop.stop(isDue: false)
      loop.stop(isDue: true)
    }
    #expect(bed.idles.all.count == 1)
    #expect(bed.seconds.all.last?.second.totals.streams.fewestLiveAtEnd == 0)
  }

  @Test("a stream that waits for its start at the end of the run does not begin")
  func waiting() throws {
    let bed = try Bed { ($0.streams, $0.ramp) = (2, .milliseconds(60)) }
    try bed.run { loop in
      loop.begin([1])
      loop.stop(isDue: false)
    }
    try bed.idles.first("it is idle") { _ in true }
    let later = try EventLog<UInt64>()
    // After the last moment at which it would have begun.
    bed.loop.eventLoop.execute { [loop = bed.loop] in
      loop.eventLoop.schedule(at: loop.plan.clock.instant(loop.plan.ramp.start(of: 1) + 50_000_000)) {
        later.append(loop.figures.totals.streams.started)
      }
    }
    #expect(try later.first("its time") { _ in true } == 0)
  }

  @Test("each second has the processor time of the loop's thread since the one before")
  func processorTime() throws {
    let bed = try Bed(origin: .now + .milliseconds(-950))
    let begin = try bed.run { loop in
      let begin = threadTime().nanoseconds
      loop.begin([])
      while loop.plan.clock.now < 1_000_000_000 || threadTime().nanoseconds < begin + 20_000_000 {}
      return begin
    }
    try bed.seconds.first("the first second") { $0.second.number == 1 }
    try bed.run { loop in
      let begin = threadTime().nanoseconds
      while threadTime().nanoseconds < begin + 20_000_000 {}
      loop.stop(isDue: false)
    }
    let seconds = bed.seconds.all
    #expect(seconds.map(\.second.number) == Array(1...Int64(seconds.count)) && seconds.count >= 2)
    var sum: Int64 = 0
    for (second, time) in seconds {
      sum += second.interval.processorTime
      #expect(second.interval.processorTime >= 0 && sum <= time - begin)
    }
    #expect(sum >= 35_000_000)
  }

  @Test("a loop that was blocked reports each second that it has missed")
  func missed() throws {
    let bed = try Bed(origin: .now + .milliseconds(-3500))
    try bed.run { $0.begin([]) }
    let atOnce = bed.seconds.all.count
    #expect(atOnce >= 3)
    try bed.run { $0.stop(isDue: false) }
    let numbers = bed.seconds.all.map(\.second.number)
    #expect(numbers == Array(1...Int64(numbers.count)) && numbers.count > atOnce)
  }
}
