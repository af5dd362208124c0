// Since when nothing goes forward, and when the next attempt is due.

internal import EventLoops

/// Counts the failures in a row of one stream and knows when to give up. Reads no clock of its own.
struct RetryClock: Equatable {
  private let policy: RetryPolicy
  private var failuresInARow = 0
  private var lastProgress = MonotonicInstant(nanoseconds: 0)
  private var hasComeBackSoon = false

  init(policy: RetryPolicy) { self.policy = policy }

  /// Whether nothing has failed since something went forward.
  var isUntroubled: Bool { failuresInARow == 0 && !hasComeBackSoon }

  /// Something went forward: the next failure is a first one again.
  mutating func noteProgress(now: MonotonicInstant) {
    noteIdle(now: now)
    (failuresInARow, hasComeBackSoon) = (0, false)
  }

  /// Until now there was nothing that could have gone forward.
  mutating func noteIdle(now: MonotonicInstant) { lastProgress = now }

  /// An attempt has failed.
  ///
  /// - Parameters:
  ///   - retryAfter: what the server asked for.
  ///   - soon: the delay where this is the first failure; nil for what the policy says of it.
  ///   - draw: see ``RetryPolicy/delay(failures:retryAfter:draw:)``.
  /// - Returns: after what delay to try again.
  /// - Throws: ``LiveStreamError`` of kind ``LiveStreamError/Kind/unreachable`` when nothing has gone forward for too long.
  mutating func failed(
    _ cause: Dropout.Cause, retryAfter: Duration?, soon: Duration? = nil, now: MonotonicInstant,
    draw: UInt64
  ) throws(LiveStreamError) -> Duration {
    let delay: Duration
    if cause == .overtaken {
      // The connection works.
      delay = .zero
    } else if let soon, isUntroubled {
      hasComeBackSoon = true
      delay = soon
    } else {
      failuresInARow += 1
      delay = policy.delay(failures: failuresInARow, retryAfter: retryAfter, draw: draw)
    }
    if let limit = policy.giveUpAfter, now + delay - lastProgress > limit {
      throw LiveStreamError(
        .unreachable,
        "gave up: nothing was acknowledged for \(Int(limit.seconds)) s; the last attempt ended with: \(cause)")
    }
    return delay
  }
}
