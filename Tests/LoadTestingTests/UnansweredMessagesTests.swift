import LoadReports
import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("Failed messages before the run's end")
struct UnansweredMessagesTests {
  @Test("as many entries as are allowed have a millisecond each, and one more halves their number")
  func limit() {
    var messages = UnansweredMessages()
    for number in 0..<UnansweredMessages.limit { messages.add(dueAt: Int64(number) * 1_000_000) }
    #expect(messages.entries.count == UnansweredMessages.limit)
    messages.add(dueAt: Int64(UnansweredMessages.limit) * 1_000_000)
    #expect(messages.entries.count == UnansweredMessages.limit / 2 + 1)
    #expect(messages.entries[1] == .init(due: 3_000_000, count: 2))
  }

  @Test(
    "any number of them takes bounded memory, and their ages are never too high and only slightly too low",
    arguments: Seed.several(3), [Int64(1_000), 100_000, 10_000_000])
  func ages(_ seed: Seed, _ scale: Int64) {
    var random = seed.generator
    var (messages, due, dues) = (UnansweredMessages(), Int64(0), [Int64]())
    for _ in 0..<70_000 {
      due += Int64.random(in: 0...scale, using: &random)
      dues.append(due)
    }
    // Each stream adds its own messages, one stream after another.
    let streams = [1, 7, 70_000].randomElement(using: &random) ?? 1
    for stream in 0..<streams {
      for index in stride(from: stream, to: dues.count, by: streams) { messages.add(dueAt: dues[index]) }
    }
    let now = due + 1_000_000_000
    var (ages, exact) = (LatencyHistogram(), LatencyHistogram())
    messages.recordAges(at: now, in: &ages)
    for due in dues { exact.record(now - due) }
    #expect(ages.count == exact.count && messages.entries.count <= UnansweredMessages.limit)
    // A granule of 1 ms at first and later at most a 32,768th of the run, plus the precision of a histogram.
    let granule = max(1_000_000, now / (1 << 15))
    for fraction in [0, 0.01, 0.5, 0.9, 0.99, 1] {
      let (age, truth) = (ages.quantile(fraction) ?? 0, exact.quantile(fraction) ?? 0)
      #expect(age <= truth + truth / 60 && age >= truth - granule - truth / 60, "\(fraction): \(age), \(truth)")
    }
    #expect(ages.sum <= exact.sum && ages.sum >= exact.sum - granule * Int64(exact.count))
  }
}
