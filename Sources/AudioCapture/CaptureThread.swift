// Creates the capture thread and sets its priority.

internal import EventLoops
internal import Glibc

enum CaptureThread {
  /// Above all ordinary threads, and below the kernel's interrupt threads (50), which deliver the frames.
  private static let priority: Int32 = 20

  /// Carries the loop to the new thread, because a closure cannot capture a noncopyable value. After that, only the new
  /// thread uses it.
  private final class Freight: @unchecked Sendable {
    var loop: CaptureLoop?
    init(_ loop: consuming CaptureLoop) { self.loop = consume loop }
  }

  /// Runs `loop` on a new thread that receives no signals.
  ///
  /// - Parameter shared: receives the end of the thread.
  static func start(
    _ loop: consuming CaptureLoop, _ shared: CaptureShared, realTime: Bool
  ) throws(SystemError) -> NamedThread {
    let freight = Freight(loop)
    return try NamedThread("sluice-capture") {
      let granted = realTime ? raisePriority() : .notRequested
      if var loop = freight.loop.take() { loop.run(realTime: granted) }
      shared.ended.signal()
    }
  }

  /// SCHED_FIFO for the calling thread, if RLIMIT_RTPRIO or CAP_SYS_NICE permits it.
  private static func raisePriority() -> CaptureEvent.RealTime {
    var parameters = sched_param()
    parameters.sched_priority = priority
    // SCHED_RESET_ON_FORK (Linux, sched(7)): programs that a plugin starts, such as PulseAudio's, must not inherit it.
    let resetOnFork: Int32 = 0x4000_0000
    let code = pthread_setschedparam(pthread_self(), SCHED_FIFO | resetOnFork, &parameters)
    return code == 0 ? .granted(priority: priority) : .refused(code: code)
  }
}
