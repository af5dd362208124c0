import EventLoops
import PropertyTesting
import Testing

@testable import LiveStreaming

@Suite("When a stream tries again, and when it gives up")
struct RetryClockTests {
  private static func policy(giveUpAfter limit: Duration? = nil) -> RetryPolicy {
    var policy = RetryPolicy()
    policy.giveUpAfter = limit
    return policy
  }

  private let second = MonotonicInstant(nanoseconds: 1_000_000_000)

  /// The largest of many delays, with the jitter drawn anew each time: close to the ceiling, and never above it.
  private func ceiling(_ clock: RetryClock, _ random: inout SplitMix64) throws -> Duration {
    var largest = Duration.zero
    for _ in 0..<200 {
      var copy = clock
      largest = max(largest, try copy.failed(.response(503), retryAfter: nil, now: second, draw: random.next()))
    }
    return largest
  }

  @Test("ceilings double with each failure, begin anew after progress, and not because there was nothing to do")
  func ceilings() throws {
    var random = SplitMix64(state: 1)
    var clock = RetryClock(policy: Self.policy())
    for doublings in 0..<4 {
      let largest = try ceiling(clock, &random)
      #expect(largest <= .milliseconds(500 << doublings) && largest > .milliseconds(250 << doublings))
      _ = try clock.failed(.response(503), retryAfter: nil, now: second, draw: random.next())
      clock.noteIdle(now: second)
    }
    #expect(!clock.isUntroubled)
    clock.noteProgress(now: second)
    #expect(clock.isUntroubled)
    #expect(try ceiling(clock, &random) <= .milliseconds(500))
  }

  @Test("the first failure may be tried again soon; that comes once, and does not raise the ceiling")
  func soon() throws {
    var random = SplitMix64(state: 1)
    var clock = RetryClock(policy: Self.policy())
    let soon = Duration.milliseconds(25)
    #expect(try clock.failed(.other("cut"), retryAfter: nil, soon: soon, now: second, draw: random.next()) == soon)
    #expect(!clock.isUntroubled)
    let largest = try ceiling(clock, &random)
    #expect(largest <= .milliseconds(500) && largest > .milliseconds(250))
    clock.noteProgress(now: second)
    #expect(try clock.failed(.other("cut"), retryAfter: nil, soon: soon, now: second, draw: random.next()) == soon)
  }

  @Test("a source that has overtaken its connection goes on at once, and nothing counts as failed")
  func overtaken() throws {
    var random = SplitMix64(state: 1)
    var clock = RetryClock(policy: Self.policy())
    for _ in 0..<10 {
      let delay = try clock.failed(
        .overtaken, retryAfter: nil, soon: .milliseconds(25), now: second, draw: random.next())
      #expect(delay == .zero && clock.isUntroubled)
    }
  }

  @Test("it gives up once nothing has gone forward for as long as was allowed, with the delay ahead, and says why")
  func givesUp() throws {
    var random = SplitMix64(state: 1)
    let limit = Duration.seconds(60)
    for isIdle in [false, true] {
      var clock = RetryClock(policy: Self.policy(giveUpAfter: limit))
      if isIdle { clock.noteIdle(now: second) } else { clock.noteProgress(now: second) }
      #expect(try clock.failed(.overtaken, retryAfter: nil, now: second + limit, draw: random.next()) == .zero)
      let error = #expect(throws: LiveStreamError.self) {
        let now = second + (limit - .seconds(1))
        return try clock.failed(.response(503), retryAfter: .seconds(2), now: now, draw: random.next())
      }
      #expect(error?.kind == .unreachable)
      #expect(error.map { "\($0)".contains("60 s") && "\($0)".contains("503") } == true)
    }
  }
}
