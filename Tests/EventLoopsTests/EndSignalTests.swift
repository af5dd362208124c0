// An end signal that threads wait for, and texts of the wall clock.

import EventLoops
import Testing

@Suite("An end that threads wait for")
struct EndSignalTests {
  @Test("all waiting threads return after the end, including late ones, and none before")
  func waiters() throws {
    let (end, mayEnd) = (EndSignal(), EndSignal())
    let order = Lock<[String]>([])
    let threads = try (0..<8).map { _ in
      try NamedThread("waiter") {
        end.wait()
        order.withLock { $0.append("waited") }
      }
    }
    let signaller = try NamedThread("signaller") {
      mayEnd.wait()
      order.withLock { $0.append("signals") }
      end.signal()
    }
    mayEnd.signal()
    end.wait()
    for thread in threads { thread.join() }
    signaller.join()
    end.wait()
    end.signal()
    end.wait()
    let found = order.withLock { $0 }
    #expect(found.first == "signals" && found.count == 9)
  }

  @Test("a thread that begins to wait at the moment of the signal returns")
  func race() throws {
    let rounds = 3_000
    let there = (0..<rounds).map { _ in EndSignal() }
    let back = (0..<rounds).map { _ in EndSignal() }
    let other = try NamedThread("other") {
      for round in 0..<rounds {
        there[round].wait()
        back[round].signal()
      }
    }
    for round in 0..<rounds {
      there[round].signal()
      back[round].wait()
    }
    other.join()
  }

  @Test("a date is written in its format, up to the maximum of 4,095 bytes")
  func format() {
    let clock = WallClock(seconds: 951_782_399)
    #expect(clock.formatted("%Y-%m-%d_%H%M%S") == "2000-02-28_235959")
    #expect(clock.formatted("") == "" && clock.formatted("é%%") == "é%")
    for count in [1, 100, 4_095] {
      let text = String(repeating: "x", count: count)
      #expect(clock.formatted(text) == text)
    }
    #expect(clock.formatted(String(repeating: "x", count: 4_096)) == "")
  }
}
