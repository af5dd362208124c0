// The event loop and other threads: submitted work, the end, and the cost of an idle loop.

import EventLoops
import Glibc
import PropertyTesting
import Synchronization
import Testing

@Suite("EventLoop and other threads")
struct EventLoopThreadTests {
  @Test("work from many threads runs on the loop's thread, in the order of each thread, without a loss")
  func execute() throws {
    let loop = try EventLoop()
    let each = 5000
    let seen = Recorder(threads: 4)
    let hand: @Sendable (Int) -> Void = { thread in
      for number in 0..<each {
        loop.execute {
          if !loop.isOnThread { Issue.record("work ran on another thread") }
          if seen.add(number, of: thread) == 4 * each { loop.stop() }
        }
      }
    }
    try concurrently({ loop.run() }, { hand(0) }, { hand(1) }, { hand(2) }, { hand(3) })
    for thread in 0..<4 { #expect(seen.order(of: thread) == Array(0..<each)) }
  }

  @Test("no wake-up is lost: each of 20,000 rounds waits for the reply of a sleeping loop")
  func pingPong() throws {
    let loop = try EventLoop()
    let answer = try EventCounter()
    let descriptor = answer.descriptor
    let runner = try NamedThread("loop") { loop.run() }
    for round in 0..<20_000 {
      loop.execute { signal(descriptor) }
      guard waitUntilReadable(descriptor) else {
        Issue.record("no answer in round \(round)")
        break
      }
      takeSignals(descriptor)
    }
    loop.stop()
    runner.join()
    withExtendedLifetime(answer) {}
  }

  @Test("stop ends the run after earlier work, even if it precedes the run")
  func stopping() throws {
    let loop = try EventLoop()
    let done = Atomic<Int>(0)
    for _ in 0..<10 { loop.execute { done.add(1, ordering: .relaxed) } }
    loop.stop()
    loop.run()
    #expect(done.load(ordering: .relaxed) == 10)
  }

  @Test("a thread is the loop's only during its run")
  func whoseThread() throws {
    let loop = try EventLoop()
    let before = loop.isOnThread
    let during = Atomic<Bool>(false)
    loop.execute { during.store(loop.isOnThread, ordering: .relaxed) }
    loop.stop()
    loop.run()
    #expect(!before && during.load(ordering: .relaxed) && !loop.isOnThread)
  }

  @Test("deferred work runs after the handler of its turn, even if it was deferred before the run")
  func endOfTurn() throws {
    let loop = try EventLoop()
    var order: [String] = []
    loop.atEndOfTurn {
      order.append("before the run")
      loop.schedule(after: .zero) {
        loop.atEndOfTurn {
          order.append("end")
          loop.atEndOfTurn {
            order.append("end of the end")
            loop.stop()
          }
        }
        order.append("handler")
      }
    }
    // Ends the test if the first of them never runs.
    let limit = loop.schedule(after: .seconds(2)) {
      order.append("too late")
      loop.stop()
    }
    loop.run()
    loop.cancel(limit)
    #expect(order == ["before the run", "handler", "end", "end of the end"])
  }

  @Test("an idle loop causes no cost: it sleeps until an event")
  func idle() throws {
    let loop = try EventLoop()
    let other = try EventCounter()
    let before = Lock(ThreadUsage())
    let after = Lock(ThreadUsage())
    try loop.register(other.descriptor, .readable) { _ in }
    // The event that ends the idle time, late enough to reveal polling of any kind.
    loop.schedule(after: .milliseconds(300)) {
      after.withLock { $0 = .now }
      loop.stop()
    }
    let runner = try NamedThread("idle loop") {
      before.withLock { $0 = .now }
      loop.run()
    }
    runner.join()
    let (begun, ended) = (before.withLock { $0 }, after.withLock { $0 })
    // One sleep, or a second one if epoll wakes slightly before the deadline.
    let usage = ended - begun
    #expect(usage.voluntarySwitches <= 2, "\(usage.voluntarySwitches) times asleep in 300 ms")
    #expect(usage.cpuMicroseconds < 20_000)
    loop.deregister(other.descriptor)
    withExtendedLifetime(other) {}
  }
}

/// Increments the eventfd that a test waits for.
private func signal(_ descriptor: Int32) {
  var one: UInt64 = 1
  write(descriptor, &one, 8)
}

/// The work that ran, by its submitting thread.
private final class Recorder: Sendable {
  private let lists: Lock<[[Int]]>

  init(threads: Int) { lists = Lock(Array(repeating: [], count: threads)) }

  /// Returns the total number for all threads.
  func add(_ number: Int, of thread: Int) -> Int {
    lists.withLock {
      $0[thread].append(number)
      return $0.reduce(0) { $0 + $1.count }
    }
  }

  func order(of thread: Int) -> [Int] { lists.withLock { $0[thread] } }
}
