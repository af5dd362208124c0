// SIGINT, SIGTERM and SIGHUP, received on the main thread. The first requests an orderly end, the second an immediate
// one. SIGQUIT requests an immediate end. A signal within half a second of the first counts as the same signal.

internal import CLinux
internal import EventLoops
internal import Glibc

/// Decides which signals count. timeout(1), service managers and terminals send one signal to a process and to its
/// process group, so it arrives twice within microseconds. Both count as one request.
struct SignalCount {
  /// A signal this soon after the first belongs to it.
  static let sameSignal = Duration.milliseconds(500)

  private var first: MonotonicInstant?
  private var count = 0

  /// The number of signals that count so far, or nil if this one does not count.
  mutating func note(_ number: Int32, at now: MonotonicInstant) -> Int? {
    if number == SIGQUIT {
      count = max(2, count + 1)
    } else if count == 1, let first, now - first < Self.sameSignal {
      return nil
    } else {
      count += 1
    }
    first = first ?? now
    return count
  }
}

/// Blocks the signals in all threads that start later, and delivers them one by one.
struct Signals {
  private let descriptor: Int32

  /// Call it before any thread is started, even by a library. ALSA's plugins for sound servers start one when a device
  /// is opened.
  init() throws(SystemError) {
    signal(SIGPIPE, SIG_IGN)
    var set = Self.set
    pthread_sigmask(SIG_BLOCK, &set, nil)
    descriptor = try retryingInterrupts("signalfd") { signalfd(-1, &set, Int32(SFD_CLOEXEC | SFD_NONBLOCK)) }
  }

  /// Signalled when there is nothing left to wait for.
  private final class Done: Sendable {
    let counter: EventCounter
    init() throws(SystemError) { counter = try EventCounter() }
  }

  private static var set: sigset_t {
    var set = sigset_t()
    sigemptyset(&set)
    sigaddset(&set, SIGINT)
    sigaddset(&set, SIGTERM)
    sigaddset(&set, SIGQUIT)
    // A signal that nohup(1) made the process ignore stays ignored. A blocked signal would not (signal(7)).
    var action = sigaction()
    sigaction(SIGHUP, nil, &action)
    if unsafeBitCast(action.__sigaction_handler.sa_handler, to: Int.self) != unsafeBitCast(SIG_IGN, to: Int.self) {
      sigaddset(&set, SIGHUP)
    }
    return set
  }

  /// What the user may expect after a signal.
  enum Response {
    /// The work is finished first, however long that takes.
    case finishes
    /// The process ends at once.
    case ends
  }

  /// How long a process may need to end at once. A thread may wait for a file system that no longer answers.
  private static let patience = Duration.seconds(10)

  /// Waits for `done`. Calls `onSignal` with 1, 2, … for each signal that counts in the meantime (``SignalCount``). If
  /// the process should end at once and does not, this ends it.
  func wait(for done: borrowing EventCounter, onSignal: (Int) -> Response) {
    let isDone = waitInTime(for: done) { count in
      switch onSignal(count) {
      case .finishes: nil
      case .ends: Self.patience
      }
    }
    if isDone { return }
    Console.shared.say("sluice: a disk or file system does not answer. The process ends without it.")
    Console.shared.flush()
    _exit(ExitCode.interrupted.rawValue)
  }

  /// Waits for `done`. Calls `limit` with 1, 2, … for each signal in the meantime. `limit` returns the remaining time
  /// to wait, or nil for no limit.
  ///
  /// - Returns: whether `done` was signalled in time.
  func waitInTime(for done: borrowing EventCounter, limit: (Int) -> Duration?) -> Bool {
    var signals = SignalCount()
    var deadline: MonotonicInstant?
    var polled = [
      pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0),
      pollfd(fd: done.descriptor, events: Int16(POLLIN), revents: 0),
    ]
    while polled[1].revents == 0 {
      // Rounded up, because a wait that ends too early would be followed by waits of zero length.
      let rest = deadline.map { Int32(clamping: max(0, ($0 - .now).nanoseconds) / 1_000_000 + 1) }
      let ready = poll(&polled, 2, rest ?? -1)
      if ready == 0, let deadline, deadline <= .now { return false }
      guard ready > 0, polled[0].revents != 0 else { continue }
      var information = signalfd_siginfo()
      while read(descriptor, &information, MemoryLayout<signalfd_siginfo>.size) > 0 {
        guard let count = signals.note(Int32(information.ssi_signo), at: .now) else { continue }
        deadline = limit(count).map { .now + $0 }
      }
    }
    return true
  }

  /// From now on, a signal ends the process, as in any program. This is for work at the end that may block, such as
  /// writing a report.
  func release() {
    var set = Self.set
    pthread_sigmask(SIG_UNBLOCK, &set, nil)
  }

  /// Runs `body`, which may hang, for example in a driver. A signal in the meantime ends the process with `code`,
  /// because there is nothing to finish yet. A service that is stopped at its start has not failed: its code is `done`.
  /// SIGQUIT always ends with `interrupted`.
  func endProcess<Result, Failure: Error>(
    with code: ExitCode = .interrupted, during body: () throws(Failure) -> Result
  ) throws(Failure) -> Result {
    let descriptor = descriptor
    guard let over = try? Done(),
      let thread = try? NamedThread(
        "sluice-signals",
        {
          var polled = [
            pollfd(fd: over.counter.descriptor, events: Int16(POLLIN), revents: 0),
            pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0),
          ]
          while poll(&polled, 2, -1) < 0 && errno == EINTR {}
          guard polled[0].revents == 0 else { return }
          var information = signalfd_siginfo()
          _ = read(descriptor, &information, MemoryLayout<signalfd_siginfo>.size)
          _exit((information.ssi_signo == UInt32(SIGQUIT) ? .interrupted : code).rawValue)
        })
    else { return try body() }
    defer {
      over.counter.signal()
      thread.join()
    }
    return try body()
  }
}
