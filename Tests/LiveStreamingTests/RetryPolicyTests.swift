import EventLoops
import PropertyTesting
import Testing

@testable import LiveStreaming

@Suite("The pause before the next attempt")
struct RetryPolicyTests {
  /// The longest pause that the rule permits.
  private func ceiling(_ outage: Duration, _ policy: RetryPolicy = RetryPolicy()) -> Duration {
    min(max(outage / 4, policy.initialCeiling), policy.maximumCeiling)
  }

  @Test(
    "a pause is at most a quarter of the outage so far, at least half of that, and within its limits",
    arguments: Seed.several(10))
  func bounds(_ seed: Seed) {
    var random = seed.generator
    let policy = RetryPolicy()
    for _ in 0..<2000 {
      let outage = Duration.milliseconds(Int64(random.size(upTo: 200_000)))
      let delay = policy.delay(outage: outage, retryAfter: nil, draw: random.next())
      #expect(delay <= ceiling(outage) && delay * 2 >= ceiling(outage) - .nanoseconds(2), "\(outage): \(delay)")
    }
  }

  @Test("every tenth of the range occurs equally often", arguments: Seed.several(3))
  func distribution(_ seed: Seed) {
    var random = seed.generator
    var tenths = [Int](repeating: 0, count: 10)
    let count = 10_000
    for _ in 0..<count {
      let delay = RetryPolicy().delay(outage: .seconds(3600), retryAfter: nil, draw: random.next())
      tenths[max(0, min(9, Int((delay - .milliseconds(7500)) / .milliseconds(750))))] += 1
    }
    // Six standard deviations of a binomial with p = 1/10: one run in a hundred million fails by chance.
    #expect(tenths.allSatisfy { abs($0 - count / 10) < 180 }, "\(tenths)")
  }

  @Test("Retry-After is respected with a quarter of jitter added, never beyond the ceiling", arguments: Seed.several(3))
  func retryAfter(_ seed: Seed) {
    var random = seed.generator
    var policy = RetryPolicy()
    for _ in 0..<1000 {
      let delay = policy.delay(outage: .zero, retryAfter: .seconds(12), draw: random.next())
      #expect(delay >= .seconds(12) && delay <= .seconds(15))
      let now = policy.delay(outage: .zero, retryAfter: .zero, draw: random.next())
      #expect(now <= .milliseconds(250) && now >= .milliseconds(125))
    }
    policy.maximumCeiling = .seconds(1)
    for asked in [Duration.seconds(3600), .seconds(Int64.max)] {
      for _ in 0..<1000 {
        let delay = policy.delay(outage: .zero, retryAfter: asked, draw: random.next())
        #expect(delay >= .milliseconds(800) && delay <= .seconds(1), "an hour was asked for")
      }
    }
    policy.maximumCeiling = .seconds(10)
    var pauses: [Duration] = []
    for asked in [Duration.seconds(8), .seconds(9), .seconds(10)] {
      for _ in 0..<1000 {
        let delay = policy.delay(outage: .zero, retryAfter: asked, draw: random.next())
        #expect(delay >= asked && delay <= .seconds(10), "\(asked) was asked for")
        if asked == .seconds(8) { pauses.append(delay) }
      }
    }
    // The whole range is used, so clients that were asked to return at once do not do so simultaneously.
    #expect(pauses.min()! < .milliseconds(8100) && pauses.max()! > .milliseconds(9900))
  }

  @Test("no duration causes a trap: zero, negative ones, and ones beyond the clock's range")
  func extremes() {
    var policy = RetryPolicy()
    let durations = [Duration.seconds(Int64.max), .seconds(Int64.min), .zero, .nanoseconds(1)]
    for outage in durations {
      for ceiling in durations {
        for first in durations {
          for asked in durations + [nil] {
            for draw in [UInt64.min, 1 << 63, .max] {
              (policy.initialCeiling, policy.maximumCeiling) = (first, ceiling)
              #expect(policy.delay(outage: outage, retryAfter: asked, draw: draw) >= .zero)
            }
          }
        }
      }
    }
    policy = RetryPolicy()
    policy.maximumCeiling = .zero
    #expect(policy.delay(outage: .seconds(9), retryAfter: .seconds(9), draw: .max) == .zero)
  }

  /// The clients of one server, and their attempts while it is down.
  private struct Herd {
    /// Attempts in each tenth of a second.
    var attempts: [Int] = []
    /// Seconds from the server's return to each client's next attempt.
    var returns: [Double] = []

    /// - Parameters:
    ///   - outage: how long the server is down, in seconds. Each client notices it at once.
    ///   - slowness: the longest time that an attempt takes to fail, in milliseconds.
    init(of count: Int, outage: Double, slowness: Int, _ random: inout SplitMix64) {
      for _ in 0..<count {
        var clock = RetryClock(policy: RetryPolicy())
        var now = MonotonicInstant(nanoseconds: 1)
        let start = now
        var isFirst = true
        while true {
          let soon: Duration? = isFirst ? .milliseconds(25) : nil
          isFirst = false
          guard
            let delay = try? clock.failed(
              .init(cause: .unreachable("refused")), soon: soon, now: now, draw: random.next())
          else { break }
          now = now + delay
          let seconds = (now - start).seconds
          let tenth = Int(seconds * 10)
          while attempts.count <= tenth { attempts.append(0) }
          attempts[tenth] += 1
          if seconds >= outage {
            returns.append(seconds - outage)
            break
          }
          now = now + .milliseconds(Int64(random.size(upTo: slowness)))
        }
      }
      returns.sort()
    }

    /// The maximum number of attempts in any second from `start` on.
    func rate(from start: Int) -> Int {
      attempts.indices.dropFirst(start * 10).map { attempts[$0..<min(attempts.count, $0 + 10)].reduce(0, +) }.max() ?? 0
    }
  }

  /// docs/resumable-uploads.md states these figures.
  @Test(
    "10,000 clients of a server that was away for a minute make at most 1,500 attempts per second",
    arguments: Seed.several(3))
  func herd(_ seed: Seed) {
    var random = seed.generator
    let herd = Herd(of: 10_000, outage: 60, slowness: 5, &random)
    #expect(herd.returns.count == 10_000)
    #expect(herd.rate(from: 55) <= 1500, "\(herd.rate(from: 55)) when the server returns")
    #expect(herd.returns.last ?? 99 <= 15)
  }

  @Test(
    "after an outage of 1 to 5 s the next attempt comes within 0.5 s (median), and 1.3 s (99th percentile)",
    arguments: Seed.several(3))
  func recovery(_ seed: Seed) {
    var random = seed.generator
    var returns: [Double] = []
    for _ in 0..<5000 {
      let outage = 1 + Double(random.next() >> 11) / Double(1 << 53) * 4
      returns += Herd(of: 1, outage: outage, slowness: 5, &random).returns
    }
    returns.sort()
    #expect(returns[returns.count / 2] <= 0.5 && returns[returns.count * 99 / 100] <= 1.3)
  }

  @Test("the draw selects exactly one delay of the range, from its first nanosecond to its last")
  func exactRange() {
    let cases: [(outage: Int64, asked: Int64?, least: Int64, most: Int64)] = [
      // In milliseconds.
      (0, nil, 125, 250), (1000, nil, 125, 250), (1600, nil, 200, 400), (4000, nil, 500, 1000),
      (60_000, nil, 7500, 15_000), (3_600_000, nil, 7500, 15_000), (0, 0, 125, 250), (0, 8000, 8000, 10_000),
      (40_000, 8000, 8000, 10_000), (60_000, 8000, 8000, 15_000), (0, 14_000, 14_000, 15_000),
      (0, 15_000, 15_000, 15_000), (0, 15_001, 12_000, 15_000), (0, -1, 125, 250),
    ]
    for (outage, asked, least, most) in cases {
      for (draw, delay) in [(.min, least), (.max, most)] as [(UInt64, Int64)] {
        let found = RetryPolicy().delay(
          outage: .milliseconds(outage), retryAfter: asked.map { .milliseconds($0) }, draw: draw)
        #expect(found == .milliseconds(delay), "\(outage) ms, \(asked ?? -1) ms")
      }
    }
    let middle = RetryPolicy().delay(outage: .zero, retryAfter: nil, draw: 1 << 63)
    #expect(middle >= .microseconds(187_500) && middle <= .nanoseconds(187_500_001))
  }

  @Test("refusals are retried for ten minutes after an acknowledgement, and before it only for a requested time")
  func refusals() {
    var policy = RetryPolicy()
    #expect(!policy.retriesRefusals)
    #expect(policy.refusalLimit(hasAcknowledged: true) == .seconds(600))
    #expect(policy.refusalLimit(hasAcknowledged: false) == .zero)
    for limit in [Duration.zero, .nanoseconds(1), .seconds(3600)] {
      policy.giveUpOnRefusalAfter = limit
      #expect(policy.retriesRefusals == (limit > .zero))
      for hasAcknowledged in [false, true] { #expect(policy.refusalLimit(hasAcknowledged: hasAcknowledged) == limit) }
    }
  }
}
