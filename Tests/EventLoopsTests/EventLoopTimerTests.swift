// The event loop's timers, with a real clock.

import PropertyTesting
import Testing

@testable import EventLoops

@Suite("EventLoop and its timers")
struct EventLoopTimerTests {
  @Test("timers fire in the order of their deadlines, and none early", arguments: Seed.several(2))
  func timersInOrder(seed: Seed) throws {
    var random = seed.generator
    let loop = try EventLoop()
    var fired: [Int64] = []
    var early = 0
    let delays = (0..<200).map { _ in Int64.random(in: 0...30_000_000, using: &random) }
    for delay in delays {
      let deadline = MonotonicInstant.now + .nanoseconds(delay)
      loop.schedule(at: deadline) {
        if MonotonicInstant.now < deadline { early += 1 }
        fired.append(deadline.nanoseconds)
        if fired.count == delays.count { loop.stop() }
      }
    }
    loop.run()
    #expect(early == 0)
    #expect(fired.count == delays.count && fired == fired.sorted())
  }

  @Test("the loop sleeps for the minimum number of milliseconds that is not too short", arguments: Seed.several(2))
  func roundedUp(seed: Seed) {
    var random = seed.generator
    let edges: [Int64] = [0, 1, 2, 999_999, 1_000_000, 1_000_001, 2_000_000, .max, .min, -1]
    let some = (0..<1000).map { _ in
      Int64.random(in: -10...(1 << Int64.random(in: 4...62, using: &random)), using: &random)
    }
    for remaining in edges + some {
      let timeout = Int64(EventLoop.timeoutMilliseconds(nanoseconds: remaining))
      let isEnough = timeout * 1_000_000 >= remaining || timeout == Int64(Int32.max)
      let isFewest = timeout == 0 || (timeout - 1) * 1_000_000 < remaining
      #expect(timeout >= 0 && isEnough && isFewest, "\(timeout) ms for \(remaining) ns")
    }
  }

  @Test("timers that are due within a millisecond and a half share a turn")
  func sharedTurns() throws {
    let loop = try EventLoop()
    let start = MonotonicInstant.now + .milliseconds(5)
    var (left, turns, isCounted) = (100, 0, false)
    for number in 0..<100 {
      loop.schedule(at: start + .microseconds(20 * number)) {
        left -= 1
        if left == 0 { loop.stop() }
        guard !isCounted else { return }
        (turns, isCounted) = (turns + 1, true)
        loop.atEndOfTurn { isCounted = false }
      }
    }
    loop.run()
    // Two milliseconds of timers.
    #expect(turns <= 3)
  }

  @Test("timers with equal deadlines fire in the order in which they were set")
  func equalDeadlines() throws {
    let loop = try EventLoop()
    var fired: [Int] = []
    let deadline = MonotonicInstant.now
    for number in 0..<50 { loop.schedule(at: deadline) { fired.append(number) } }
    loop.stop()
    loop.run()
    #expect(fired == Array(0..<50))
  }

  @Test("a delay that exceeds the clock's range does not end at once")
  func endlessDelay() throws {
    let loop = try EventLoop()
    var fired = false
    loop.schedule(after: .seconds(Int64.max)) { fired = true }
    loop.schedule(after: .seconds(1_000_000_000_000)) { fired = true }
    loop.schedule(after: .milliseconds(5)) { loop.stop() }
    loop.run()
    #expect(!fired)
  }

  @Test("a cancelled timer does not fire, even if a handler of the same turn cancels it, itself or an ended one")
  func cancelling() throws {
    let loop = try EventLoop()
    var fired: [String] = []
    let now = MonotonicInstant.now
    var timers: [EventLoop.Timer] = []
    let before = loop.schedule(at: now) { fired.append("cancelled before") }
    loop.cancel(before)
    timers.append(
      loop.schedule(at: now) {
        fired.append("first")
        // Itself, which has fired, and the second one, which is due in this turn.
        loop.cancel(timers[0])
        loop.cancel(timers[1])
      })
    timers.append(loop.schedule(at: now + .nanoseconds(1)) { fired.append("second") })
    loop.schedule(at: now + .nanoseconds(2)) {
      fired.append("third")
      // The first one's slot may have a new owner by now, which must not be affected.
      let new = loop.schedule(after: .zero) {
        fired.append("new")
        loop.stop()
      }
      loop.cancel(timers[0])
      loop.cancel(before)
      #expect(new != timers[0])
    }
    loop.run()
    #expect(fired == ["first", "third", "new"])
  }
}
