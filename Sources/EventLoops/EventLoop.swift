// One thread with one epoll instance. Only here does a thread of Sluice wait for the network, a timer or another
// thread.

internal import CLinux
internal import Glibc
internal import Synchronization

/// An epoll loop with timers and with work from other threads; epoll(7).
///
/// One thread calls ``run()`` and owns everything that is registered with the loop. Other threads may call only
/// ``execute(_:)``, ``stop()`` and ``isOnThread``. Nothing is polled: while no timer is due and no descriptor is ready,
/// the thread sleeps.
public final class EventLoop: @unchecked Sendable {
  /// The events for which a descriptor is watched.
  public struct Interest: OptionSet, Sendable {
    /// The bits of epoll_ctl(2).
    public let rawValue: UInt32
    /// Creates a set from the bits of epoll_ctl(2).
    public init(rawValue: UInt32) { self.rawValue = rawValue }
    /// The descriptor can be read: `EPOLLIN`.
    public static let readable = Interest(rawValue: EPOLLIN.rawValue)
    /// The descriptor can be written: `EPOLLOUT`.
    public static let writable = Interest(rawValue: EPOLLOUT.rawValue)
    /// The peer will send nothing more: `EPOLLRDHUP`.
    public static let peerClosing = Interest(rawValue: EPOLLRDHUP.rawValue)
    /// Report each change once instead of as long as it lasts. Use it for eventfds that are not read.
    public static let edgeTriggered = Interest(rawValue: EPOLLET.rawValue)
  }

  /// The events of a descriptor.
  public struct Readiness: OptionSet, Sendable {
    /// The bits of epoll_wait(2).
    public let rawValue: UInt32
    /// Creates a set from the bits of epoll_wait(2).
    public init(rawValue: UInt32) { self.rawValue = rawValue }
    /// The descriptor can be read: `EPOLLIN`.
    public static let readable = Readiness(rawValue: EPOLLIN.rawValue)
    /// The descriptor can be written: `EPOLLOUT`.
    public static let writable = Readiness(rawValue: EPOLLOUT.rawValue)
    /// The peer will send nothing more. Reported only if it is watched.
    public static let peerClosing = Readiness(rawValue: EPOLLRDHUP.rawValue)
    /// The descriptor has failed: `EPOLLERR`. Always reported.
    public static let error = Readiness(rawValue: EPOLLERR.rawValue)
    /// Both directions are closed: `EPOLLHUP`. Always reported.
    public static let hangUp = Readiness(rawValue: EPOLLHUP.rawValue)
  }

  /// A scheduled closure, for ``EventLoop/cancel(_:)``. Cancelling a timer that has fired has no effect.
  public struct Timer: Equatable { let token: TimerQueue.Token }

  private struct Registration {
    /// Distinguishes events of this registration from those of an earlier owner of the same descriptor number.
    var generation: UInt32 = 0
    var handler: ((Readiness) -> Void)?
  }

  private let epoll: Int32
  private let wakeUp: EventCounter
  /// Work from other threads. Nil when the run is over.
  private let pending = Lock<[@Sendable () -> Void]?>([])
  private let wakeUpSent = Atomic<Bool>(false)
  private let stopped = Atomic<Bool>(false)
  private let thread = Atomic<UInt>(0)

  // Owned by the loop's thread.
  private var registrations: [Registration] = []
  private var timers = TimerQueue()
  private var endOfTurn: [() -> Void] = []
  /// Work that waits until all ready descriptors are served, and the number of turns after which this is certain.
  private var afterReady: [(turns: Int, work: () -> Void)] = []
  /// The list that ``runEndOfTurn()`` processes. It is kept for its capacity.
  private var endOfTurnRunning: [() -> Void] = []
  private let ready: UnsafeMutableBufferPointer<epoll_event>
  /// The time for which the last turn with due timers was planned.
  private var timerTurn = MonotonicInstant(nanoseconds: 0)
  /// Whether the kernel waits with a resolution of nanoseconds, since Linux 5.11.
  private var waitsForNanoseconds = true

  /// Creates a loop. It does nothing until a thread calls ``run()``.
  ///
  /// - Throws: ``SystemError`` when the process has no descriptor left for epoll or the wake-up.
  public init() throws(SystemError) {
    wakeUp = try EventCounter()
    epoll = try retryingInterrupts("epoll_create1") { epoll_create1(Int32(EPOLL_CLOEXEC)) }
    ready = .allocate(capacity: 256)
    try register(wakeUp.descriptor, [.readable, .edgeTriggered]) { _ in }
  }

  deinit {
    close(epoll)
    ready.deallocate()
  }

  /// Processes events on the calling thread until ``stop()``.
  public func run() {
    thread.store(UInt(pthread_self()), ordering: .relaxed)
    // The number of an ended thread is reused.
    defer { thread.store(0, ordering: .relaxed) }
    // Work that was deferred before the run must not wait for the first event.
    runEndOfTurn()
    while !stopped.load(ordering: .acquiring) {
      serveOnce()
    }
    // Releasing it may defer more work.
    repeat {
      letGo()
      runEndOfTurn()
    } while timers.count > 0 || !afterReady.isEmpty || registrations.contains { $0.handler != nil }
  }

  /// Pending work never runs after the end. Much of it refers to objects that refer to this loop, so it is released to
  /// break the cycle.
  private func letGo() {
    let timers = timers.cancelAll()
    let handlers = registrations.map(\.handler)
    let afterReady = afterReady
    self.afterReady = []
    for index in registrations.indices { registrations[index].handler = nil }
    let work = pending.withLock { work in
      let late = work
      work = nil
      return late
    }
    // Released only here, because the deinit of an object that it owned may call the loop.
    withExtendedLifetime((timers, handlers, afterReady, work)) {}
  }

  /// Ends ``run()`` after the work that was already submitted. Later work is dropped. Any thread.
  public func stop() {
    // Unowned, because the loop keeps this work until it runs. If it never ran, the loop would keep itself forever.
    execute { [unowned self] in stopped.store(true, ordering: .releasing) }
  }

  /// Runs `work` on the loop's thread, in the order of the calls. Any thread. It never waits for the loop.
  public func execute(_ work: @escaping @Sendable () -> Void) {
    pending.withLock { $0?.append(work) }
    if !wakeUpSent.exchange(true, ordering: .sequentiallyConsistent) { wakeUp.signal() }
  }

  /// Whether the caller is on the thread that runs this loop. Any thread.
  public var isOnThread: Bool { thread.load(ordering: .relaxed) == UInt(pthread_self()) }

  /// Whether the caller is on that thread, or no thread runs this loop. Any thread.
  package var isOnThreadOrIdle: Bool {
    let running = thread.load(ordering: .relaxed)
    return running == 0 || running == UInt(pthread_self())
  }

  // MARK: The loop's thread only

  /// Watches `descriptor`, and calls `handler` with its events. Errors and hang-ups are always reported.
  ///
  /// - Throws: ``SystemError``, for example `EPERM` for a regular file, or `EEXIST` if it is already registered.
  ///   Nothing changes in that case.
  public func register(
    _ descriptor: Int32, _ interest: Interest, handler: @escaping (Readiness) -> Void
  ) throws(SystemError) {
    let generation = generation(of: descriptor) &+ 1
    let index = Int(descriptor)
    // The kernel first. If it refuses, an existing registration must not change.
    do throws(SystemError) {
      try control(EPOLL_CTL_ADD, descriptor, interest, generation)
    } catch {
      // An earlier EPOLL_CTL_DEL failed, because the kernel had no memory (epoll_ctl(2)).
      guard error.code == EEXIST, registrations.indices.contains(index), registrations[index].handler == nil else {
        throw error
      }
      try control(EPOLL_CTL_MOD, descriptor, interest, generation)
    }
    while registrations.count <= index { registrations.append(Registration()) }
    registrations[index].generation = generation
    replaceHandler(at: index, with: handler)
  }

  /// Changes the watched events of a registered descriptor.
  ///
  /// - Throws: ``SystemError`` with `ENOENT` when it is not registered.
  public func modify(_ descriptor: Int32, _ interest: Interest) throws(SystemError) {
    try control(EPOLL_CTL_MOD, descriptor, interest, generation(of: descriptor))
  }

  /// Stops watching. Pending events are not delivered. Call it before you close the descriptor. It has no effect if the
  /// descriptor is not registered.
  public func deregister(_ descriptor: Int32) {
    guard registrations.indices.contains(Int(descriptor)) else { return }
    // A descriptor for which this fails is not watched, or its events have no handler.
    _ = try? retryingInterrupts("epoll_ctl") { epoll_ctl(epoll, EPOLL_CTL_DEL, descriptor, nil) }
    replaceHandler(at: Int(descriptor), with: nil)
  }

  private func replaceHandler(at index: Int, with handler: ((Readiness) -> Void)?) {
    let former = registrations[index].handler
    registrations[index].handler = handler
    // Released only here, because the deinit of an object that it owned may call the loop.
    withExtendedLifetime(former) {}
  }

  /// Runs `work` once, at the earliest after `delay`. The resolution is a millisecond: timers that are due within one
  /// may run together with the last of them.
  @discardableResult
  public func schedule(after delay: Duration, _ work: @escaping () -> Void) -> Timer {
    schedule(at: .now + delay, work)
  }

  /// Runs `work` once, at the earliest at `deadline`. Timers with the same deadline run in the order in which they were
  /// set.
  @discardableResult
  public func schedule(at deadline: MonotonicInstant, _ work: @escaping () -> Void) -> Timer {
    Timer(token: timers.schedule(at: deadline, work))
  }

  /// Cancels a timer. It has no effect on a timer that has fired or was cancelled.
  public func cancel(_ timer: Timer) {
    let work = timers.cancel(timer.token)
    // Released only here, after the queue, because the deinit of an object that it owned may call the loop.
    withExtendedLifetime(work) {}
  }

  /// Runs `work` at the end of this turn, when no handler is on the stack. Unlike ``execute(_:)``, it needs no system
  /// call.
  public func atEndOfTurn(_ work: @escaping () -> Void) {
    endOfTurn.append(work)
  }

  /// Runs `work` when every descriptor that is ready now has been served. Events that this causes come later.
  public func afterReady(_ work: @escaping () -> Void) {
    // The kernel returns ready descriptors in turn, as many at a time as fit.
    afterReady.append((turns: registrations.count / ready.count + 1, work))
  }

  // MARK: One turn

  private func serveOnce() {
    let turn = nextTimerTurn
    // Work that is added from here on waits for the next turn.
    let waiting = afterReady
    if !waiting.isEmpty { afterReady = [] }
    let count = wait(until: turn, isPoll: !waiting.isEmpty)
    // EINTR is the only possible error with a valid instance. This turn then serves no descriptor.
    for index in 0..<max(0, Int(count)) {
      let event = ready[index]
      let descriptor = Int(UInt32(truncatingIfNeeded: event.data.u64))
      let generation = UInt32(truncatingIfNeeded: event.data.u64 >> 32)
      guard registrations[descriptor].generation == generation else { continue }
      // An earlier handler of this turn may have deregistered it.
      registrations[descriptor].handler?(Readiness(rawValue: event.events))
    }
    for (turns, work) in waiting {
      if count < 0 {
        afterReady.append((turns, work))
      } else if count < ready.count || turns <= 1 {
        work()
      } else {
        afterReady.append((turns - 1, work))
      }
    }
    if wakeUpSent.load(ordering: .relaxed) { runPending() }
    if timers.count > 0 {
      let now = MonotonicInstant.now
      if let turn, turn <= now { timerTurn = turn }
      while let work = timers.popDue(at: now) { work() }
    }
    runEndOfTurn()
  }

  private func runEndOfTurn() {
    // Work that this work adds still belongs to this turn.
    while !endOfTurn.isEmpty {
      // Swapped first, because running or releasing a closure may add new work to the list.
      swap(&endOfTurn, &endOfTurnRunning)
      for work in endOfTurnRunning { work() }
      endOfTurnRunning.removeAll(keepingCapacity: true)
    }
  }

  /// How long after a turn of timers the next one may begin.
  private static let timerInterval: Int64 = 1_500_000

  /// Timers that are due within this interval share a turn, because a wake-up costs more than the work of most timers.
  /// One that is alone is served at its time. With a timer per millisecond, there are as many turns as with
  /// epoll_wait(2), which counts whole milliseconds, and timers are no later than there.
  private var nextTimerTurn: MonotonicInstant? {
    timers.nextDeadline.map { max($0, timerTurn.advanced(byNanoseconds: Self.timerInterval)) }
  }

  /// The number of ready descriptors, or -1 with `errno`.
  private func wait(until turn: MonotonicInstant?, isPoll: Bool) -> Int32 {
    let remaining = isPoll ? 0 : turn?.nanoseconds(since: .now)
    if let remaining, remaining > 0, waitsForNanoseconds {
      var limit = timespec(tv_sec: Int(remaining / 1_000_000_000), tv_nsec: Int(remaining % 1_000_000_000))
      let count = epoll_pwait2(epoll, ready.baseAddress, Int32(ready.count), &limit, nil)
      if count >= 0 || errno == EINTR { return count }
      // An older kernel, or a filter of system calls that does not know this one.
      waitsForNanoseconds = false
    }
    let timeout = remaining.map(Self.timeoutMilliseconds) ?? -1
    return epoll_wait(epoll, ready.baseAddress, Int32(ready.count), timeout)
  }

  /// Rounds up, so that a timer is never early and the loop does not spin through the last fraction of a millisecond.
  static func timeoutMilliseconds(nanoseconds remaining: Int64) -> Int32 {
    remaining <= 0 ? 0 : Int32(min((remaining - 1) / 1_000_000 + 1, Int64(Int32.max)))
  }

  private func runPending() {
    // Cleared before the list is taken, so that later work sends its own wake-up.
    wakeUpSent.store(false, ordering: .sequentiallyConsistent)
    let work = pending.withLock { list in
      let taken = list
      list?.removeAll(keepingCapacity: false)
      return taken
    }
    for item in work ?? [] { item() }
  }

  /// 0 for a descriptor that was never registered.
  private func generation(of descriptor: Int32) -> UInt32 {
    registrations.indices.contains(Int(descriptor)) ? registrations[Int(descriptor)].generation : 0
  }

  private func control(
    _ operation: Int32, _ descriptor: Int32, _ interest: Interest, _ generation: UInt32
  ) throws(SystemError) {
    var event = epoll_event()
    event.events = interest.rawValue
    event.data.u64 = UInt64(generation) << 32 | UInt64(UInt32(bitPattern: descriptor))
    try retryingInterrupts("epoll_ctl") { epoll_ctl(epoll, operation, descriptor, &event) }
  }
}
