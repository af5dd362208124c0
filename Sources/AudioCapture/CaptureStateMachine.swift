// Decides what to do when the device stops delivering. It is the capture thread's logic, without a device, a clock or a
// thread.
//
//               failed(EPIPE)                 failed(ESTRPIPE)
//   running ───────────────► restart    running ──────────────► suspended: resume, prepare, again after a while
//      ▲                        │ fails                              │ too many times
//      │ recovered              ▼                                    ▼
//      └──────────────────── away: close, reopen after 100 ms, 200 ms … 2 s, for as long as it takes

internal import Glibc

/// Decides how to restart a capture device. Each method takes an event and returns the next action.
struct CaptureStateMachine: Equatable {
  enum State: Equatable {
    /// Frames arrive.
    case running
    /// Overrun: the device was stopped and is being restarted.
    case restarting
    /// The system or the driver has suspended the device. This number of attempts to resume it has failed.
    case suspended(attempts: Int)
    /// The device is gone, or only reopening helps. This number of attempts to reopen it has failed.
    case away(attempts: Int)
    case ended
  }

  enum Action: Equatable {
    /// Wait for the device.
    case wait
    /// snd_pcm_prepare and snd_pcm_start, now.
    case restart
    /// After this delay: snd_pcm_resume, then restart.
    case resume(after: Duration)
    /// Close the device. After this delay, open it again with the same parameters and start it.
    case reopen(after: Duration)
    /// Finish the stream.
    case end
  }

  private(set) var state: State = .running
  /// Restarts since the last frame. Without a limit, a device that overruns before it delivers anything would be
  /// restarted forever.
  private var fruitlessRestarts = 0

  static let fruitlessRestartsAllowed = 3
  /// About ten seconds.
  static let resumeAttempts = 24

  /// An ALSA call on the running device failed with this errno (`EPIPE`, not `-EPIPE`).
  mutating func failed(_ code: Int32) -> Action {
    guard state != .ended else { return .end }
    switch code {
    case EAGAIN, EINTR:
      // A wake-up without a frame is not a failure.
      return .wait
    case EPIPE, EBADFD:
      // EBADFD: the PCM was set up but not running, for example after another program that shares it has resumed it.
      guard fruitlessRestarts < Self.fruitlessRestartsAllowed else { return leave() }
      fruitlessRestarts += 1
      state = .restarting
      return .restart
    case ESTRPIPE:
      state = .suspended(attempts: 0)
      return .resume(after: .zero)
    default:
      // ENODEV, ENXIO, EIO, ECONNREFUSED, ETIMEDOUT (no frames for far too long), and any other error. Reopening is the
      // most general remedy.
      return leave()
    }
  }

  /// The last restart, resume or reopening worked, and the device runs.
  mutating func recovered() -> Action {
    guard state != .ended else { return .end }
    state = .running
    return .wait
  }

  /// The last restart, resume or reopening failed with this errno.
  mutating func retryFailed(_ code: Int32) -> Action {
    switch state {
    case .ended:
      return .end
    case .running, .restarting:
      // Restarting a device that is still suspended fails like this.
      return code == ESTRPIPE || code == EAGAIN ? failed(ESTRPIPE) : leave()
    case .suspended(let attempts):
      guard attempts < Self.resumeAttempts, [ESTRPIPE, EAGAIN, EBUSY, EPIPE, EBADFD].contains(code) else {
        return leave()
      }
      state = .suspended(attempts: attempts + 1)
      return .resume(after: Self.backoff(from: 20, times: attempts, limit: 500))
    case .away(let attempts):
      state = .away(attempts: attempts + 1)
      return .reopen(after: Self.backoff(from: 100, times: attempts + 1, limit: 2000))
    }
  }

  /// Frames were read.
  mutating func progressed() { fruitlessRestarts = 0 }

  /// The capture is over, because it was stopped or has enough frames.
  mutating func end() -> Action {
    state = .ended
    return .end
  }

  private mutating func leave() -> Action {
    fruitlessRestarts = 0
    state = .away(attempts: 0)
    return .reopen(after: Self.backoff(from: 100, times: 0, limit: 2000))
  }

  private static func backoff(from milliseconds: Int, times: Int, limit: Int) -> Duration {
    .milliseconds(min(limit, milliseconds << min(times, 10)))
  }
}
