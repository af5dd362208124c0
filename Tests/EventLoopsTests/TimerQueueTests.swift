// The timer queue against a simple equivalent: an array that is sorted again each time.

import PropertyTesting
import Testing

@testable import EventLoops

@Suite("TimerQueue returns timers by deadline")
struct TimerQueueTests {
  @Test("random schedules, cancels and clock steps give the same result as a sorted array", arguments: Seed.several(8))
  func againstSortedArray(seed: Seed) {
    var random = seed.generator
    var queue = TimerQueue()
    var model: [Entry] = []
    var tokens: [(TimerQueue.Token, number: Int)] = []
    var now: Int64 = 0
    var most = 0
    nonisolated(unsafe) var fired: [Int] = []
    for number in 0..<20_000 {
      switch Int.random(in: 0..<10, using: &random) {
      case 0..<5:
        // Few distinct deadlines, so that many are equal.
        let deadline = now + Int64.random(in: -2...20, using: &random)
        let token = queue.schedule(at: MonotonicInstant(nanoseconds: deadline)) { fired.append(number) }
        tokens.append((token, number))
        model.append(Entry(deadline: deadline, number: number))
        // Slots are reused: a queue uses only as much memory as its largest number of simultaneous timers needs.
        most = max(most, model.count)
        if token.slot >= most { Issue.record("slot \(token.slot) for at most \(most) timers") }
      case 5..<7 where !tokens.isEmpty:
        // Any token ever returned, including fired ones whose slot now has another owner.
        let (token, number) = tokens[Int.random(in: 0..<tokens.count, using: &random)]
        let work = queue.cancel(token)
        if (work != nil) != model.contains(where: { $0.number == number }) { Issue.record("cancelling \(number)") }
        model.removeAll { $0.number == number }
      default:
        now += Int64.random(in: 0...3, using: &random)
        fired = []
        while let work = queue.popDue(at: MonotonicInstant(nanoseconds: now)) { work() }
        let due = model.filter { $0.deadline <= now }.sorted()
        model.removeAll { $0.deadline <= now }
        guard fired == due.map(\.number) else {
          Issue.record("at \(number): fired \(fired), due \(due.map(\.number))")
          return
        }
      }
      let next = model.map(\.deadline).min()
      guard queue.count == model.count, queue.nextDeadline?.nanoseconds == next else {
        Issue.record("at \(number): \(queue.count) timers, next \(String(describing: queue.nextDeadline))")
        return
      }
    }
  }

  private struct Entry: Comparable {
    let deadline: Int64
    let number: Int
    /// By deadline. Equal ones are in the order in which they were set.
    static func < (a: Entry, b: Entry) -> Bool { (a.deadline, a.number) < (b.deadline, b.number) }
  }
}
