// Values that only one loop's thread uses.

import EventLoops
import Testing

@Suite("LoopOwned")
struct LoopOwnedTests {
  private final class Count {
    var value = 0
    var areOnThread = true
  }

  @Test("work from another thread changes the value on the loop's thread, in order")
  func work() throws {
    let loop = try EventLoop()
    let count = LoopOwned(Count(), on: loop)
    let thread = try NamedThread("other") {
      for number in 0..<1000 {
        count.execute {
          if $0.value == number { $0.value += 1 }
          if !loop.isOnThread { $0.areOnThread = false }
        }
      }
      loop.stop()
    }
    loop.run()
    thread.join()
    #expect(count.value.value == 1000 && count.value.areOnThread)
  }

  @Test("the value may be used on the loop's thread, and on any thread while the loop does not run")
  func whoMayUse() throws {
    let loop = try EventLoop()
    let seen = Lock<[Bool]>([])
    #expect(loop.isOnThreadOrIdle)
    let isRunning = EndSignal()
    loop.execute {
      seen.withLock { $0.append(loop.isOnThreadOrIdle) }
      isRunning.signal()
    }
    let thread = try NamedThread("loop") { loop.run() }
    isRunning.wait()
    seen.withLock { $0.append(loop.isOnThreadOrIdle) }
    loop.stop()
    thread.join()
    let found = seen.withLock { $0 }
    #expect(found == [true, false] && loop.isOnThreadOrIdle)
  }
}
