// One thread, one epoll instance: the only place in Sluice where a thread waits for the network, a timer or another
// thread.

internal import CLinux
internal import Glibc
internal import Synchronization

/// An epoll loop with timers and work from other threads; epoll(7).
///
/// One thread calls ``run()`` and owns everything registered with the loop. Only ``execute(_:)`` and ``stop()`` may be
/// called from other threads. Nothing is polled: with no timer due and no descriptor ready the thread sleeps.
public final class EventLoop: @unchecked Sendable {
  /// What to watch a descriptor for.
  public struct Interest: OptionSet, Sendable {
    /// The bits of epoll_ctl(2).
    public let rawValue: UInt32
    /// Takes the bits of epoll_ctl(2).
    public init(rawValue: UInt32) { self.rawValue = rawValue }
    /// Tell when it can be read: `EPOLLIN`.
    public static let readable = Interest(rawValue: EPOLLIN.rawValue)
    /// Tell when it can be written: `EPOLLOUT`.
    public static let writable = Interest(rawValue: EPOLLOUT.rawValue)
    /// Tell when the peer will send no more: `EPOLLRDHUP`.
    public static let peerClosing = Interest(rawValue: EPOLLRDHUP.rawValue)
    /// Tell each change once instead of for as long as it lasts; for eventfds that nobody wants to read.
    public static let edgeTriggered = Interest(rawValue: EPOLLET.rawValue)
  }

  /// What a descriptor was found to be.
  public struct Readiness: OptionSet, Sendable {
    /// The bits of epoll_wait(2).
    public let rawValue: UInt32
    /// Takes the bits of epoll_wait(2).
    public init(rawValue: UInt32) { self.rawValue = rawValue }
    /// It can be read: `EPOLLIN`.
    public static let readable = Readiness(rawValue: EPOLLIN.rawValue)
    /// It can be written: `EPOLLOUT`.
    public static let writable = Readiness(rawValue: EPOLLOUT.rawValue)
    /// The peer sends no more; told only if it was asked for.
    public static let peerClosing = Readiness(rawValue: EPOLLRDHUP.rawValue)
    /// It has failed: `EPOLLERR`. Always reported.
    public static let error = Readiness(rawValue: EPOLLERR.rawValue)
    /// Both directions are closed: `EPOLLHUP`. Always reported.
    public static let hangUp = Readiness(rawValue: EPOLLHUP.rawValue)
  }

  /// A scheduled piece of work, to ``EventLoop/cancel(_:)`` it. Using one that has fired does nothing.
  public struct Timer: Equatable { let token: TimerQueue.Token }

  private struct Registration {
    /// Tells an event of this registration from one for an earlier owner of the same descriptor number.
    var generation: UInt32 = 0
    var handler: ((Readiness) -> Void)?
  }

  private let epoll: Int32
  private let wakeUp: EventCounter
  /// Work from other threads; nil once the run is over.
  private let pending = Lock<[@Sendable () -> Void]?>([])
  private let wakeUpSent = Atomic<Bool>(false)
  private let stopped = Atomic<Bool>(false)
  private let thread = Atomic<UInt>(0)

  // Owned by the loop's thread.
  private var registrations: [Registration] = []
  private var timers = TimerQueue()
  private var endOfTurn: [() -> Void] = []
  /// Work that waits until what is ready has been served, with the number of turns after which that is so for certain.
  private var afterReady: [(turns: Int, work: () -> Void)] = []
  /// What ``runEndOfTurn()`` is busy with; kept for its capacity.
  private var endOfTurnRunning: [() -> Void] = []
  private let ready: UnsafeMutableBufferPointer<epoll_event>

  /// - Throws: ``SystemError`` when the process has no descriptor left for epoll or its wake-up.
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

  /// Serves events on the calling thread until ``stop()``.
  public func run() {
    thread.store(UInt(pthread_self()), ordering: .relaxed)
    // The number of a thread that has ended is given to another one.
    defer { thread.store(0, ordering: .relaxed) }
    // Put off before the run: it must not wait for the first event.
    runEndOfTurn()
    while !stopped.load(ordering: .acquiring) {
      serveOnce()
    }
    // What goes with that may put something off in its turn.
    repeat {
      letGo()
      runEndOfTurn()
    } while timers.count > 0 || !afterReady.isEmpty || registrations.contains { $0.handler != nil }
  }

  /// What was to happen later never will, and much of it refers to what refers to this loop: neither would ever go.
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
    // Released only here: what it alone owned may come back to the loop from its deinit.
    withExtendedLifetime((timers, handlers, afterReady, work)) {}
  }

  /// Ends ``run()`` after the work already handed in; work that comes later is dropped. Any thread.
  public func stop() {
    // Unowned: the loop itself keeps this work until it runs it, and if it never runs would keep itself for ever.
    execute { [unowned self] in stopped.store(true, ordering: .releasing) }
  }

  /// Runs `work` on the loop's thread, in the order of the calls. Any thread, never blocks on the loop.
  public func execute(_ work: @escaping @Sendable () -> Void) {
    pending.withLock { $0?.append(work) }
    if !wakeUpSent.exchange(true, ordering: .sequentiallyConsistent) { wakeUp.signal() }
  }

  /// Whether the caller is on the thread that runs this loop. Any thread.
  public var isOnThread: Bool { thread.load(ordering: .relaxed) == UInt(pthread_self()) }

  // MARK: The loop's thread only

  /// Watches `descriptor` and calls `handler` with what it is found to be. Errors and hang-ups are always told.
  ///
  /// - Throws: ``SystemError``, e.g. `EPERM` for a regular file, `EEXIST` when it is registered already; nothing
  ///   changes.
  public func register(
    _ descriptor: Int32, _ interest: Interest, handler: @escaping (Readiness) -> Void
  ) throws(SystemError) {
    let generation = generation(of: descriptor) &+ 1
    let index = Int(descriptor)
    // First the kernel: what it refuses must not touch a registration that there is.
    do throws(SystemError) {
      try control(EPOLL_CTL_ADD, descriptor, interest, generation)
    } catch {
      // An earlier EPOLL_CTL_DEL has failed: the kernel had no memory (epoll_ctl(2)).
      guard error.code == EEXIST, registrations.indices.contains(index), registrations[index].handler == nil else {
        throw error
      }
      try control(EPOLL_CTL_MOD, descriptor, interest, generation)
    }
    while registrations.count <= index { registrations.append(Registration()) }
    registrations[index].generation = generation
    replaceHandler(at: index, with: handler)
  }

  /// Changes what a registered descriptor is watched for.
  ///
  /// - Throws: ``SystemError``, `ENOENT` when it is not registered.
  public func modify(_ descriptor: Int32, _ interest: Interest) throws(SystemError) {
    try control(EPOLL_CTL_MOD, descriptor, interest, generation(of: descriptor))
  }

  /// Stops watching. Events of it that are already at hand are not delivered. Call it before closing the descriptor.
  /// One that is not registered is left alone.
  public func deregister(_ descriptor: Int32) {
    guard registrations.indices.contains(Int(descriptor)) else { return }
    // What fails otherwise is not watched, or delivers events that nobody handles.
    _ = try? retryingInterrupts("epoll_ctl") { epoll_ctl(epoll, EPOLL_CTL_DEL, descriptor, nil) }
    replaceHandler(at: Int(descriptor), with: nil)
  }

  private func replaceHandler(at index: Int, with handler: ((Readiness) -> Void)?) {
    let former = registrations[index].handler
    registrations[index].handler = handler
    // Released only here: what it alone owned may come back to the loop from its deinit.
    withExtendedLifetime(former) {}
  }

  /// Runs `work` once, not before `delay` has passed; resolution a millisecond, rounded up.
  @discardableResult
  public func schedule(after delay: Duration, _ work: @escaping () -> Void) -> Timer {
    schedule(at: .now + delay, work)
  }

  /// Runs `work` once, not before `deadline`; of two timers with the same deadline the one set first.
  @discardableResult
  public func schedule(at deadline: MonotonicInstant, _ work: @escaping () -> Void) -> Timer {
    Timer(token: timers.schedule(at: deadline, work))
  }

  /// Forgets a timer. One that has fired or was cancelled before is left alone.
  public func cancel(_ timer: Timer) {
    let work = timers.cancel(timer.token)
    // Released only here, after the queue: what it alone owned may come back to the loop from its deinit.
    withExtendedLifetime(work) {}
  }

  /// Runs `work` at the end of this turn, when no handler is on the stack any more. No system call, unlike
  /// ``execute(_:)``.
  public func atEndOfTurn(_ work: @escaping () -> Void) {
    endOfTurn.append(work)
  }

  /// Runs `work` when every descriptor that is ready by now has been served. What that makes ready comes later.
  public func afterReady(_ work: @escaping () -> Void) {
    // The kernel hands out what is ready in turn: as many at a time as there is room for.
    afterReady.append((turns: registrations.count / ready.count + 1, work))
  }

  // MARK: One turn

  private func serveOnce() {
    let timeout = timeoutMilliseconds()
    // What is added from here on waits for the next turn.
    let waiting = afterReady
    if !waiting.isEmpty { afterReady = [] }
    let count = epoll_wait(epoll, ready.baseAddress, Int32(ready.count), timeout)
    // EINTR is the only error possible with a valid instance: this turn serves no descriptor.
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
      while let work = timers.popDue(at: now) { work() }
    }
    runEndOfTurn()
  }

  private func runEndOfTurn() {
    // What this work adds in its turn still belongs to this turn.
    while !endOfTurn.isEmpty {
      // Out of the way first: to run a closure, and to let it go, may put new work on the list.
      swap(&endOfTurn, &endOfTurnRunning)
      for work in endOfTurnRunning { work() }
      endOfTurnRunning.removeAll(keepingCapacity: true)
    }
  }

  private func timeoutMilliseconds() -> Int32 {
    if !afterReady.isEmpty { return 0 }
    guard let deadline = timers.nextDeadline else { return -1 }
    return Self.timeoutMilliseconds(nanoseconds: deadline.nanoseconds(since: .now))
  }

  /// Rounds up: a timer is never early, and the loop does not spin through the last fraction of a millisecond.
  static func timeoutMilliseconds(nanoseconds remaining: Int64) -> Int32 {
    remaining <= 0 ? 0 : Int32(min((remaining - 1) / 1_000_000 + 1, Int64(Int32.max)))
  }

  private func runPending() {
    // Cleared before the list is taken: work that arrives from here on sends a wake-up of its own.
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
