import PropertyTesting
import Testing

@testable import LiveStreaming

@Suite("How long to wait before the next attempt")
struct RetryPolicyTests {
  @Test("delays lie between nothing and a ceiling that doubles up to its own", arguments: Seed.several(10))
  func bounds(_ seed: Seed) {
    var random = seed.generator
    let policy = RetryPolicy()
    for failures in [Int.min, -1, 0] + Array(1...200) + [Int.max] {
      let doublings = min(max(failures, 1) - 1, 5)
      let ceiling = min(.milliseconds(500 << doublings), Duration.seconds(15))
      let delay = policy.delay(failures: failures, retryAfter: nil, draw: random.next())
      #expect(delay >= .zero && delay <= ceiling)
    }
  }

  @Test("the jitter is full: every tenth of the range gets its share", arguments: Seed.several(3))
  func distribution(_ seed: Seed) {
    var random = seed.generator
    var tenths = [Int](repeating: 0, count: 10)
    let count = 10_000
    for _ in 0..<count {
      let delay = RetryPolicy().delay(failures: 6, retryAfter: nil, draw: random.next())
      tenths[min(9, Int(delay / .milliseconds(1500)))] += 1
    }
    // Six standard deviations of a binomial with p = 1/10: one run in a hundred million is off by chance.
    #expect(tenths.allSatisfy { abs($0 - count / 10) < 180 }, "\(tenths)")
  }

  @Test(
    "Retry-After is waited for in full, with the jitter on top, and not beyond what is believed",
    arguments: Seed.several(3))
  func retryAfter(_ seed: Seed) {
    var random = seed.generator
    for _ in 0..<1000 {
      let delay = RetryPolicy().delay(failures: 1, retryAfter: .seconds(20), draw: random.next())
      #expect(delay >= .seconds(20) && delay <= .milliseconds(20_500))
      let long = RetryPolicy().delay(failures: 1, retryAfter: .seconds(Int64.max), draw: random.next())
      #expect(long >= .seconds(3600) && long <= .milliseconds(3_600_500))
    }
  }

  @Test("a ceiling of nothing means no delay; one too large to double is no trap")
  func extremes() {
    var random = SplitMix64(state: 1)
    var policy = RetryPolicy()
    policy.maximumCeiling = .zero
    #expect(policy.delay(failures: 9, retryAfter: nil, draw: random.next()) == .zero)
    policy.initialCeiling = .seconds(Int64.max)
    policy.maximumCeiling = .seconds(1)
    #expect(policy.delay(failures: 60, retryAfter: nil, draw: random.next()) <= .seconds(1))
  }
}
