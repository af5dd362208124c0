// The thread that captures: made, and given its priority.

internal import EventLoops
internal import Glibc

enum CaptureThread {
  /// Above everything ordinary, below the kernel's interrupt threads (50), which bring us the frames.
  private static let priority: Int32 = 20

  /// What is carried over to the new thread: a closure cannot capture what is not copyable.
  /// Touched by one thread only, the new one, after it was handed over.
  private final class Freight: @unchecked Sendable {
    var loop: CaptureLoop?
    init(_ loop: consuming CaptureLoop) { self.loop = consume loop }
  }

  /// Runs `loop` on a new thread, on which no signal is delivered.
  static func start(_ loop: consuming CaptureLoop, realTime: Bool) throws(SystemError) -> NamedThread {
    let freight = Freight(loop)
    return try NamedThread("sluice-capture") {
      let granted = realTime ? raisePriority() : .notRequested
      if var loop = freight.loop.take() { loop.run(realTime: granted) }
    }
  }

  /// SCHED_FIFO for the calling thread, where RLIMIT_RTPRIO or CAP_SYS_NICE permit it.
  private static func raisePriority() -> CaptureEvent.RealTime {
    var parameters = sched_param()
    parameters.sched_priority = priority
    // SCHED_RESET_ON_FORK (Linux, sched(7)): a program that a plugin starts, as PulseAudio's does, must not inherit it.
    let resetOnFork: Int32 = 0x4000_0000
    let code = pthread_setschedparam(pthread_self(), SCHED_FIFO | resetOnFork, &parameters)
    return code == 0 ? .granted(priority: priority) : .refused(code: code)
  }
}
