// Ownership around an event loop, and what an object may do when it is released.

import EventLoops
import Glibc
import Testing

@Suite("EventLoop releases its objects")
struct EventLoopOwnershipTests {
  /// Uses the loop in its deinit, like a connection that closes its descriptor and cancels its time limit.
  private final class Owner {
    private let loop: EventLoop
    private let timer: EventLoop.Timer
    private let pipe: Pipe

    init(_ loop: EventLoop) throws {
      self.loop = loop
      timer = loop.schedule(after: .seconds(60)) {}
      pipe = try Pipe()
      try loop.register(pipe.reading, .readable) { _ in }
    }

    deinit {
      loop.cancel(timer)
      loop.deregister(pipe.reading)
      loop.atEndOfTurn {}
    }

    func stay() {}
  }

  @Test("an object that only a cancelled timer owned may use the loop in its deinit")
  func ownedByTimer() throws {
    let loop = try EventLoop()
    weak var left: Owner?
    let timer: EventLoop.Timer
    do {
      let owner = try Owner(loop)
      left = owner
      timer = loop.schedule(after: .seconds(60)) { owner.stay() }
    }
    #expect(left != nil)
    loop.cancel(timer)
    #expect(left == nil)
  }

  @Test("an object that only a deregistered handler owned may use the loop in its deinit")
  func ownedByHandler() throws {
    let loop = try EventLoop()
    let pipe = try Pipe()
    weak var left: Owner?
    do {
      let owner = try Owner(loop)
      left = owner
      try loop.register(pipe.reading, .readable) { _ in owner.stay() }
    }
    #expect(left != nil)
    loop.deregister(pipe.reading)
    #expect(left == nil)
  }

  @Test("an object that only work at the end of a turn owned may use the loop in its deinit")
  func ownedByEndOfTurn() throws {
    let loop = try EventLoop()
    weak var left: Owner?
    do {
      let owner = try Owner(loop)
      left = owner
      loop.execute { [loop] in loop.schedule(after: .zero) { loop.stop() } }
      loop.atEndOfTurn { owner.stay() }
    }
    loop.run()
    #expect(left == nil)
  }

  @Test("a loop with a superfluous stop is released")
  func stoppedTwice() throws {
    weak var left: EventLoop?
    do {
      let loop = try EventLoop()
      left = loop
      loop.stop()
      loop.run()
      loop.stop()
    }
    #expect(left == nil)
  }

  @Test("a loop that has ended keeps no pending work, and is released with it")
  func ended() throws {
    weak var leftLoop: EventLoop?
    weak var left: Owner?
    let pipe = try Pipe()
    do {
      let loop = try EventLoop()
      leftLoop = loop
      // Each of these owns the loop, and the loop owns each of these.
      let owner = try Owner(loop)
      left = owner
      loop.schedule(after: .seconds(3600)) { owner.stay() }
      try loop.register(pipe.reading, .readable) { _ in owner.stay() }
      let late = Unchecked { owner.stay() }
      // The deinit defers further work at the end.
      do {
        let last = AtDeinit { [unowned loop] in
          loop.atEndOfTurn { loop.schedule(after: .seconds(3600)) { owner.stay() } }
        }
        loop.schedule(after: .seconds(3600)) { _ = last }
      }
      loop.execute {
        loop.stop()
        // Submitted by the last work that still runs.
        loop.execute { loop.execute { loop.execute { late.work() } } }
      }
      loop.run()
      loop.execute { late.work() }
    }
    #expect(left == nil)
    #expect(leftLoop == nil)
  }

  enum Later: CaseIterable { case timer, descriptor, afterReady, endOfTurn, otherThread }

  /// Defers `work` to a later time, or to never.
  private func put(_ later: Later, off work: Unchecked, _ loop: EventLoop, _ pipe: Pipe) {
    switch later {
    case .timer: loop.schedule(after: .seconds(3600)) { work.work() }
    case .descriptor:
      do { try loop.register(pipe.reading, .readable) { _ in work.work() } } catch { Issue.record(error) }
    case .afterReady: loop.afterReady { work.work() }
    case .endOfTurn: loop.atEndOfTurn { work.work() }
    case .otherThread: loop.execute { work.work() }
    }
  }

  @Test(
    "work that is deferred when a loop ends, and the work that its release defers, is released with the loop",
    arguments: Later.allCases, Later.allCases)
  func puttingOff(_ first: Later, _ second: Later) throws {
    weak var left: EventLoop?
    let pipes = [try Pipe(), try Pipe()]
    do {
      let loop = try EventLoop()
      left = loop
      var last: AtDeinit? = AtDeinit { [unowned loop] in
        put(second, off: Unchecked { [loop] in withExtendedLifetime(loop) {} }, loop, pipes[1])
      }
      let lastTurn = Unchecked {
        loop.stop()
        // Its only owner is released with the loop.
        let only = last
        last = nil
        put(first, off: Unchecked { withExtendedLifetime((loop, only)) {} }, loop, pipes[0])
      }
      loop.execute { lastTurn.work() }
      loop.run()
    }
    #expect(left == nil)
  }

  @Test("the deinit of a loop closes its descriptors")
  func descriptors() async {
    // A process of its own, because other tests have some, too.
    await #expect(processExitsWith: .success) {
      let before = EventLoopOwnershipTests.kernelObjects()
      for _ in 0..<100 {
        let loop = try EventLoop()
        loop.stop()
        loop.run()
      }
      // The runtime may have made one meanwhile.
      exit(EventLoopOwnershipTests.kernelObjects() - before < 10 ? EXIT_SUCCESS : EXIT_FAILURE)
    }
  }

  /// The larger of the process's numbers of epoll instances and eventfds.
  private static func kernelObjects() -> Int {
    guard let directory = opendir("/proc/self/fd") else { return 0 }
    defer { closedir(directory) }
    var counts: [String: Int] = [:]
    while let entry = readdir(directory) {
      let name = withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
      }
      var target = [UInt8](repeating: 0, count: 64)
      let length = readlink("/proc/self/fd/\(name)", &target, target.count)
      let kind = String(decoding: target.prefix(max(0, length)), as: UTF8.self)
      if kind.hasPrefix("anon_inode:") { counts[kind, default: 0] += 1 }
    }
    return counts.values.max() ?? 0
  }

  private final class AtDeinit {
    private let work: () -> Void
    init(_ work: @escaping () -> Void) { self.work = work }
    deinit { work() }
  }

  /// Values for the loop's thread, which is the test's own.
  private struct Unchecked: @unchecked Sendable {
    let work: () -> Void
    init(_ work: @escaping () -> Void) { self.work = work }
  }
}
