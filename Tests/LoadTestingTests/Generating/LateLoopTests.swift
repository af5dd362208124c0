// A loop of a load test that is blocked while streams should begin, until after the run's end.

import EventLoops
import LiveStreaming
import LoadReports
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient

@testable import LoadTesting

@Suite("A late loop")
struct LateLoopTests {
  @Test("no stream of the ramp is omitted, and no message, when the loop handles them after the run's end")
  func overslept() throws {
    let server = try StreamServer()
    var configuration = LoadConfiguration(request: UploadRequest(url: server.url))
    configuration.streams = 5
    configuration.ramp = .milliseconds(300)
    configuration.duration = .milliseconds(400)
    configuration.resumable = .always
    configuration.profile.chunk = 20_000_000
    let plan = LoadRunPlan(
      configuration, bytes: try BodyBytes(.pattern, seed: 0), localAddresses: [], clock: RunClock(origin: .now)
    ) { _ in }
    let isIdle = try EventCounter()
    let loop = try LoadLoop(plan, report: { _ in }, idle: { isIdle.signal() })
    loop.eventLoop.execute {
      loop.begin(Array(0..<5))
      // In a timer's work, so that the loop learns of the run's end before it handles the timers that are due since
      // then.
      loop.eventLoop.schedule(after: .zero) {
        while plan.clock.now <= plan.duration {}
        loop.eventLoop.execute { loop.quiet() }
      }
    }
    #expect(waitUntilReadable(isIdle.descriptor))
    loop.session.close()
    var planned = 0
    for stream in 0..<5 {
      var schedule = StreamSchedule(configuration.profile, seed: 0, stream: stream)
      while let message = schedule.next(), plan.ramp.start(of: stream) + message.due < plan.duration { planned += 1 }
    }
    #expect(loop.figures.totals.streams.started == 5 && loop.figures.totals.streams.finished == 5)
    #expect(loop.figures.totals.messages.due == planned && loop.figures.totals.messages.acknowledged == planned)
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

  @Test("an outage that lasts until the end of the run is counted once, however often the run is stopped")
  func stoppedTwice() throws {
    var configuration = LoadConfiguration(request: UploadRequest(url: "http://127.0.0.1:9/"))
    configuration.duration = .seconds(3600)
    let plan = LoadRunPlan(
      configuration, bytes: try BodyBytes(.pattern, seed: 0), localAddresses: [], clock: RunClock(origin: .now)
    ) { _ in }
    let isIdle = try EventCounter()
    let isStopped = try EventCounter()
    let loop = try LoadLoop(plan, report: { _ in }, idle: { isIdle.signal() })
    loop.eventLoop.execute {
      let outage = StreamOutage(start: 0, cause: "connection-lost", countedCause: nil, pausedFor: 0, pauseStartedAt: 0)
      loop.ended(FailedStream(), LoadPlace(index: 0), thinkTime: 0, .failed, outage)
      // After the loop has prepared the next stream in this place, which waits.
      loop.eventLoop.atEndOfTurn {
        loop.stop(isDue: false)
        loop.stop(isDue: true)
        isStopped.signal()
      }
    }
    #expect(waitUntilReadable(isIdle.descriptor) && waitUntilReadable(isStopped.descriptor))
    loop.session.close()
    #expect(loop.figures.histograms[.outage].count == 1)
  }
}
