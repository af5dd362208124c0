// The event loop's descriptors on one thread: how a handler may affect itself and others in the same turn.

import EventLoops
import Glibc
import Testing

@Suite("EventLoop and its descriptors")
struct EventLoopTests {
  @Test("a pending event is not delivered after its descriptor was deregistered")
  func deregisteredInTheSameTurn() throws {
    let loop = try EventLoop()
    let pipes = [try Pipe(), try Pipe()]
    var delivered = 0
    for (mine, other) in [(pipes[0], pipes[1]), (pipes[1], pipes[0])] {
      try loop.register(mine.reading, .readable) { _ in
        // Whichever is called first deregisters the other and itself.
        delivered += 1
        loop.deregister(other.reading)
        loop.deregister(mine.reading)
        loop.stop()
      }
    }
    for pipe in pipes { pipe.send() }
    loop.run()
    #expect(delivered == 1)
  }

  @Test(
    "work after the ready events runs after all of them, over several turns, and before any later event"
  )
  func afterReady() throws {
    let loop = try EventLoop()
    let late = try Pipe()
    let signal = try Pipe()
    signal.send()
    // The loop computes its turns from the highest number. With these descriptors, it has none to spare.
    let perTurn = 256
    var ready: [Int32] = []
    defer { for descriptor in ready { close(descriptor) } }
    var highest = 0
    while ready.count < 600 || (highest + 1) % perTurn != perTurn - 1 {
      let descriptor = dup(signal.reading)
      try #require(descriptor >= 0)
      ready.append(descriptor)
      highest = max(highest, Int(descriptor))
    }
    var served: Set<Int32> = []
    var calls = 0
    var callsBefore = 0
    var order: [String] = []
    for descriptor in ready {
      try loop.register(descriptor, .readable) { _ in
        // Ready until it is read.
        calls += 1
        if !served.insert(descriptor).inserted { return }
        if served.count == ready.count { order.append("all") }
        guard served.count == 1 else { return }
        loop.afterReady {
          order.append("after")
          callsBefore = calls
          late.send()
          // It runs after the events that the line above causes.
          loop.afterReady {
            order.append("last")
            loop.stop()
          }
        }
      }
    }
    try loop.register(late.reading, .readable) { _ in
      if !order.contains("late") { order.append("late") }
    }
    loop.run()
    #expect(order == ["all", "after", "late", "last"])
    // The turn in which the work was deferred, and the turns that all descriptors need.
    #expect(callsBefore <= perTurn * (2 + (highest + 1) / perTurn))
  }

  @Test("work after the ready events runs at once if no event is ready")
  func afterNothing() throws {
    let loop = try EventLoop()
    var left = 300
    func again() {
      left -= 1
      if left == 0 { loop.stop() } else { loop.afterReady(again) }
    }
    let before = ThreadUsage.now
    loop.afterReady(again)
    loop.run()
    // A few if other threads use the core, but one per round if it waited.
    #expect(ThreadUsage.now.voluntarySwitches - before.voluntarySwitches < 100)
  }

  @Test("a deregistered descriptor can be registered again, and causes no cost meanwhile")
  func registeredAgain() throws {
    let loop = try EventLoop()
    let pipe = try Pipe()
    pipe.send()
    var delivered = 0
    for _ in 0..<3 {
      try loop.register(pipe.reading, .readable) { _ in Issue.record("a handler that was deregistered was called") }
      loop.deregister(pipe.reading)
    }
    var usage = ThreadUsage()
    loop.schedule(after: .milliseconds(100)) {
      // Always readable, so a loop that still watched it would never sleep.
      usage = ThreadUsage.now - usage
      do {
        try loop.register(pipe.reading, .readable) { _ in
          delivered += 1
          loop.stop()
        }
      } catch {
        Issue.record(error)
        loop.stop()
      }
    }
    usage = .now
    loop.run()
    #expect(delivered == 1 && usage.cpuMicroseconds < 50_000)
  }

  @Test("a reused descriptor number in the same turn receives no event of its former owner")
  func descriptorUsedAgain() throws {
    let loop = try EventLoop()
    let pipes = [try Pipe(), try Pipe()]
    let quiet = try Pipe()
    var first = 0
    var stray = 0
    for (mine, other) in [(pipes[0], pipes[1]), (pipes[1], pipes[0])] {
      try loop.register(mine.reading, .readable) { _ in
        first += 1
        loop.deregister(mine.reading)
        loop.deregister(other.reading)
        // The other's number now belongs to a pipe without data.
        dup2(quiet.reading, other.reading)
        do {
          try loop.register(other.reading, .readable) { _ in stray += 1 }
        } catch {
          Issue.record(error)
        }
        // A separate turn, because a stray event would be delivered before it.
        loop.schedule(after: .milliseconds(1)) { loop.stop() }
      }
    }
    for pipe in pipes { pipe.send() }
    loop.run()
    #expect(first == 1)
    #expect(stray == 0)
  }

  @Test("a second registration of a descriptor is refused, and the first one stays")
  func registeredTwice() throws {
    let loop = try EventLoop()
    let pipe = try Pipe()
    var delivered = 0
    try loop.register(pipe.reading, .readable) { _ in
      delivered += 1
      loop.deregister(pipe.reading)
      loop.stop()
    }
    #expect(throws: SystemError(operation: "epoll_ctl", code: EEXIST)) {
      try loop.register(pipe.reading, .readable) { _ in Issue.record("the second handler was called") }
    }
    pipe.send()
    // Ends the test if the first handler is never called.
    let limit = loop.schedule(after: .seconds(2)) { loop.stop() }
    loop.run()
    loop.cancel(limit)
    #expect(delivered == 1)
  }

  @Test("a descriptor that cannot be watched is an error, not a crash")
  func refused() throws {
    let loop = try EventLoop()
    let directory = open("/", O_RDONLY | O_CLOEXEC)
    defer { close(directory) }
    let pipe = try Pipe()
    #expect(throws: SystemError(operation: "epoll_ctl", code: EPERM)) {
      try loop.register(directory, .readable) { _ in }
    }
    #expect(throws: SystemError(operation: "epoll_ctl", code: ENOENT)) { try loop.modify(pipe.reading, .readable) }
    #expect(throws: SystemError(operation: "epoll_ctl", code: EBADF)) { try loop.register(-1, .readable) { _ in } }
    #expect(throws: SystemError(operation: "epoll_ctl", code: EBADF)) { try loop.modify(1 << 20, .readable) }
    // It is not watched, so nothing happens.
    loop.deregister(pipe.reading)
    loop.deregister(1 << 20)
    loop.deregister(-1)
  }

  @Test("readiness is reported exactly: writable, hung up")
  func readiness() throws {
    let loop = try EventLoop()
    let pipe = try Pipe()
    var seen: [EventLoop.Readiness] = []
    try loop.register(pipe.writing, .writable) { found in
      seen.append(found)
      loop.deregister(pipe.writing)
      pipe.closeWriting()
    }
    try loop.register(pipe.reading, .readable) { found in
      seen.append(found)
      loop.deregister(pipe.reading)
      loop.stop()
    }
    loop.run()
    #expect(seen == [.writable, .hangUp])
  }

  @Test("a level-triggered handler is called while there is data, and modify changes the events")
  func levelTriggered() throws {
    let loop = try EventLoop()
    let pipe = try Pipe()
    pipe.send()
    var calls = 0
    try loop.register(pipe.reading, .readable) { _ in
      calls += 1
      guard calls == 3 else { return }
      do { try loop.modify(pipe.reading, []) } catch { Issue.record(error) }
      // If it were still watched, it would be called again before this.
      loop.schedule(after: .milliseconds(2)) { loop.stop() }
    }
    loop.run()
    loop.deregister(pipe.reading)
    #expect(calls == 3)
  }
}
