import EventLoops
import PropertyTesting
import Testing

@testable import LiveStreaming

@Suite("Retries and giving up")
struct RetryClockTests {
  private static func policy(_ limit: Duration? = nil, onRefusal refusalLimit: Duration? = nil) -> RetryPolicy {
    var policy = RetryPolicy()
    policy.giveUpAfter = limit
    policy.giveUpOnRefusalAfter = refusalLimit
    return policy
  }

  private static let away = RetryClock.Failure(cause: .response(503))
  private static func refused(hasAcknowledged: Bool) -> RetryClock.Failure {
    .init(
      cause: .response(401), refusal: LiveStreamError(.notPermitted, "no"), hasAcknowledged: hasAcknowledged)
  }
  private static func at(_ seconds: Double) -> MonotonicInstant { .init(nanoseconds: Int64(seconds * 1e9)) }

  @Test("pauses grow with the outage, and reset after progress")
  func pauses() throws {
    var clock = RetryClock(policy: Self.policy())
    #expect(try clock.failed(Self.away, now: Self.at(1), draw: .max) == .milliseconds(250))
    #expect(try clock.failed(Self.away, now: Self.at(5), draw: .max) == .seconds(1))
    #expect(try clock.failed(Self.away, now: Self.at(9), draw: .max) == .seconds(2))
    #expect(!clock.isUntroubled)
    clock.noteProgress()
    #expect(clock.isUntroubled)
    #expect(try clock.failed(Self.away, now: Self.at(9), draw: .max) == .milliseconds(250))
  }

  @Test("after progress, three failed attempts are required again to give up, each time")
  func threeAttempts() throws {
    for failure in [Self.away, Self.refused(hasAcknowledged: true)] {
      var clock = RetryClock(policy: Self.policy(.seconds(10), onRefusal: .seconds(10)))
      var now = 0.0
      func fail(_ clock: inout RetryClock) throws {
        now += 100
        _ = try clock.failed(failure, now: Self.at(now), draw: .max)
      }
      for _ in 0..<6 {
        try fail(&clock)
        try fail(&clock)
        clock.noteProgress()
      }
      try fail(&clock)
      try fail(&clock)
      #expect(throws: LiveStreamError.self) { try fail(&clock) }
    }
  }

  @Test("while the first connection is awaited, the give-up time begins with it")
  func connectivity() throws {
    var policy = Self.policy(.seconds(10))
    policy.waitsForConnectivity = true
    var clock = RetryClock(policy: policy)
    var now = 0.0
    func fail(_ clock: inout RetryClock) throws {
      now += 100
      _ = try clock.failed(Self.away, now: Self.at(now), draw: .max)
    }
    for _ in 0..<10 { try fail(&clock) }
    clock.noteConnected()
    for _ in 0..<2 { try fail(&clock) }
    clock.noteConnected()
    #expect(throws: LiveStreamError.self) { try fail(&clock) }
  }

  @Test("an attempt has lasted from ten seconds after its start on, which follows the pause")
  func steady() throws {
    var clock = RetryClock(policy: Self.policy())
    #expect(try clock.failed(Self.away, now: Self.at(1), draw: .max) == .milliseconds(250))
    #expect(!clock.hasLasted(now: Self.at(11)))
    #expect(clock.hasLasted(now: Self.at(11.25)))
  }

  @Test("the first failure may be retried soon, once")
  func soon() throws {
    var clock = RetryClock(policy: Self.policy())
    let soon = Duration.milliseconds(25)
    for _ in 0..<2 {
      #expect(try clock.failed(Self.away, soon: soon, now: Self.at(1), draw: .max) == soon)
      #expect(!clock.isUntroubled)
      #expect(try clock.failed(Self.away, soon: soon, now: Self.at(1), draw: .max) == .milliseconds(250))
      clock.noteProgress()
    }
  }

  @Test("a source that overtook its connection continues at once, and nothing counts as failed")
  func overtaken() throws {
    var clock = RetryClock(policy: Self.policy(.zero))
    for start: UInt64 in 0..<10 {
      let delay = try clock.failed(.init(cause: .overtaken, start: start), now: Self.at(1), draw: .max)
      #expect(delay == .zero && clock.isUntroubled)
    }
  }

  @Test("a request that is overtaken where the one before was overtaken counts as failed")
  func overtakenAgain() throws {
    var clock = RetryClock(policy: Self.policy())
    let failure = RetryClock.Failure(cause: .overtaken, start: 7)
    #expect(try clock.failed(failure, now: Self.at(1), draw: .max) == .zero)
    for (time, delay) in [(1, .milliseconds(250)), (5, .seconds(1)), (61, .seconds(15))] as [(Double, Duration)] {
      #expect(try clock.failed(failure, now: Self.at(time), draw: .max) == delay && !clock.isUntroubled)
    }
    clock.noteProgress()
    #expect(try clock.failed(.init(cause: .overtaken, start: 8), now: Self.at(62), draw: .max) == .zero)
  }

  @Test("it gives up when the time is over, at the third attempt at the earliest, with the reason")
  func givesUp() throws {
    for limit in [0.0, 0.1, 5, 60] {
      for spacing in [0.0, 1, 30, 100] {
        var clock = RetryClock(policy: Self.policy(.milliseconds(Int64(limit * 1000))))
        var (now, attempts) = (1.0, 0)
        var error: LiveStreamError?
        while error == nil, attempts < 10_000 {
          attempts += 1
          do throws(LiveStreamError) {
            let delay = try clock.failed(Self.away, now: Self.at(now), draw: .max)
            now += delay.seconds + spacing
          } catch let end {
            error = end
          }
        }
        #expect(error?.kind == .unreachable && attempts >= 3, "after \(attempts) attempts")
        #expect(now - 1 >= limit, "\(now - 1) s of \(limit)")
        // The attempt at its end, the two required before, and their durations.
        #expect(now - 1 <= limit + 3 * (spacing + 0.25) + 0.01, "\(now - 1) s of \(limit), \(spacing) apart")
        #expect(error.map { "\($0)".contains(limit == 0.1 ? "100 ms" : limit == 60 ? "60 s" : "503") } == true)
      }
    }
  }

  @Test("the interruption of a request that lasted longer than the limit is not a reason to give up")
  func firstCut() throws {
    var clock = RetryClock(policy: Self.policy(.seconds(20)))
    clock.noteProgress()
    #expect(try clock.failed(Self.away, now: Self.at(3600), draw: .max) == .milliseconds(250))
    #expect(try clock.failed(Self.away, now: Self.at(3601), draw: .max) > .zero)
    #expect(try clock.failed(Self.away, now: Self.at(3602), draw: .max) > .zero)
  }

  @Test("progress restarts the time")
  func begunAnew() throws {
    var clock = RetryClock(policy: Self.policy(.seconds(5)))
    for round in 0..<100 {
      _ = try clock.failed(Self.away, now: Self.at(Double(round) * 4), draw: .max)
      _ = try clock.failed(Self.away, now: Self.at(Double(round) * 4 + 3), draw: .max)
      clock.noteProgress()
    }
  }

  @Test("little progress restarts the time to give up, and the pauses grow further")
  func slowProgress() throws {
    var clock = RetryClock(policy: Self.policy())
    for (time, delay) in [(1, .milliseconds(250)), (5, .seconds(1)), (61, .seconds(15))] as [(Double, Duration)] {
      #expect(try clock.failed(Self.away, now: Self.at(time), draw: .max) == delay)
      clock.noteSlowProgress(now: Self.at(time))
      #expect(!clock.isUntroubled)
    }
    clock.noteProgress()
    #expect(try clock.failed(Self.away, now: Self.at(62), draw: .max) == .milliseconds(250))
    for failure in [Self.away, Self.refused(hasAcknowledged: true)] {
      clock = RetryClock(policy: Self.policy(.seconds(5), onRefusal: .seconds(5)))
      for round in 0..<100 {
        _ = try clock.failed(failure, now: Self.at(Double(round) * 4), draw: .max)
        _ = try clock.failed(failure, now: Self.at(Double(round) * 4 + 3), draw: .max)
        clock.noteSlowProgress(now: Self.at(Double(round) * 4 + 3))
      }
    }
  }

  // MARK: Refusals

  @Test("a refusal ends a stream at once before the first acknowledgement, and ten minutes after it began otherwise")
  func refusals() throws {
    var clock = RetryClock(policy: Self.policy())
    #expect(throws: LiveStreamError(.notPermitted, "no")) {
      try clock.failed(Self.refused(hasAcknowledged: false), now: Self.at(1), draw: .max)
    }
    clock = RetryClock(policy: Self.policy())
    var now = 1.0
    while now < 600.9 {
      let delay = try clock.failed(Self.refused(hasAcknowledged: true), now: Self.at(now), draw: .max)
      now += delay.seconds
    }
    #expect(throws: LiveStreamError(.notPermitted, "no")) {
      try clock.failed(Self.refused(hasAcknowledged: true), now: Self.at(602), draw: .max)
    }
  }

  @Test(
    "a requested limit applies before and after, and three refusals are the minimum", arguments: [true, false])
  func refusalLimit(_ hasAcknowledged: Bool) throws {
    let refused = Self.refused(hasAcknowledged: hasAcknowledged)
    var clock = RetryClock(policy: Self.policy(onRefusal: .seconds(30)))
    _ = try clock.failed(refused, now: Self.at(1), draw: .max)
    // A suspended process resumes.
    _ = try clock.failed(refused, now: Self.at(100), draw: .max)
    #expect(throws: LiveStreamError.self) { try clock.failed(refused, now: Self.at(101), draw: .max) }
    clock = RetryClock(policy: Self.policy(onRefusal: .zero))
    #expect(throws: LiveStreamError.self) { try clock.failed(refused, now: Self.at(1), draw: .max) }
  }

  @Test("other outages and progress restart the time of refusals", arguments: [true, false])
  func refusalsInterrupted(_ byProgress: Bool) throws {
    var clock = RetryClock(policy: Self.policy(onRefusal: .seconds(10)))
    for round in 0..<20 {
      let start = Double(round) * 9
      for offset in [0.0, 4, 8] {
        _ = try clock.failed(Self.refused(hasAcknowledged: true), now: Self.at(start + offset), draw: .max)
      }
      if byProgress {
        clock.noteProgress()
      } else {
        _ = try clock.failed(Self.away, now: Self.at(start + 8), draw: .max)
      }
    }
  }

  @Test("the time to give up is over at its last nanosecond, and the attempt before it is made at that moment")
  func lastAttempt() throws {
    for isTooEarly in [false, true] {
      var clock = RetryClock(policy: Self.policy(.seconds(10)))
      #expect(try clock.failed(Self.away, now: Self.at(1), draw: .max) == .milliseconds(250))
      #expect(try clock.failed(Self.away, now: Self.at(10.5), draw: .max) == .milliseconds(500), "all that is left")
      let end = Self.at(11)
      if isTooEarly {
        #expect(try clock.failed(Self.away, now: end.advanced(byNanoseconds: -1), draw: .max) == .nanoseconds(1))
      } else {
        #expect(throws: LiveStreamError.self) { try clock.failed(Self.away, now: end, draw: .max) }
      }
    }
  }

  @Test("with no time at all, three attempts are made, at the usual distance")
  func noTime() throws {
    var clock = RetryClock(policy: Self.policy(.zero))
    for _ in 0..<2 { #expect(try clock.failed(Self.away, now: Self.at(1), draw: .max) == .milliseconds(250)) }
    #expect(throws: LiveStreamError.self) { try clock.failed(Self.away, now: Self.at(1), draw: .max) }
  }

  @Test("the limit for refusals is over at its last nanosecond")
  func lastRefusal() throws {
    let refused = Self.refused(hasAcknowledged: true)
    for isTooEarly in [false, true] {
      var clock = RetryClock(policy: Self.policy(onRefusal: .seconds(10)))
      for time in [1.0, 2, 3] { _ = try clock.failed(refused, now: Self.at(time), draw: .max) }
      if isTooEarly {
        _ = try clock.failed(refused, now: Self.at(11).advanced(byNanoseconds: -1), draw: .max)
      } else {
        #expect(throws: LiveStreamError.self) { try clock.failed(refused, now: Self.at(11), draw: .max) }
      }
    }
  }

  @Test(
    "the error names what was missing, for how long, and how the last attempt ended",
    arguments: [(1000, "1 s"), (999, "999 ms"), (61_500, "61 s")] as [(Int64, String)])
  func words(milliseconds: Int64, limit: String) {
    for isDownload in [false, true] {
      var clock = RetryClock(policy: Self.policy(.milliseconds(milliseconds)), isDownload: isDownload)
      var found: LiveStreamError?
      for time in [1.0, 100, 200] {
        do throws(LiveStreamError) {
          _ = try clock.failed(Self.away, now: Self.at(time), draw: .max)
        } catch {
          found = error
        }
      }
      let missing = isDownload ? "received" : "acknowledged"
      #expect(
        found?.description
          == "gave up: nothing was \(missing) for \(limit); the last attempt ended with: the server answered 503")
    }
  }

  @Test("a soon retry is no later than the longest delay")
  func soonAtMost() throws {
    var policy = Self.policy()
    policy.maximumCeiling = .milliseconds(10)
    var clock = RetryClock(policy: policy)
    #expect(try clock.failed(Self.away, soon: .milliseconds(25), now: Self.at(1), draw: 0) == .milliseconds(10))
  }

  @Test("one token may be renewed until the next progress, and its attempt begins after a short delay")
  func renewedToken() throws {
    var clock = RetryClock(policy: Self.policy())
    let progress: [(inout RetryClock) -> Void] = [
      { $0.noteProgress() }, { $0.noteSlowProgress(now: Self.at(1)) }, { $0.noteProgress() },
    ]
    for note in progress {
      var delay = clock.renewedToken(now: Self.at(1))
      #expect(delay == .milliseconds(25) && clock.isUntroubled)
      #expect(!clock.hasLasted(now: Self.at(11.02)) && clock.hasLasted(now: Self.at(11.03)))
      delay = clock.renewedToken(now: Self.at(1))
      #expect(delay == nil)
      note(&clock)
    }
    var policy = Self.policy()
    policy.maximumCeiling = .milliseconds(10)
    clock = RetryClock(policy: policy)
    let delay = clock.renewedToken(now: Self.at(1))
    #expect(delay == .milliseconds(10))
  }
}
