// Where a stream goes on after each request, and whether it does.

internal import EventLoops

/// The rules of a live stream over a plain server. Takes events, returns what to do; no I/O, no clock of its own.
///
/// A stream is a row of requests, each starting at a stream offset. The offset of the next is what the peer's TCP has
/// acknowledged, or what the server said that it has, or the oldest byte that is still kept, whichever of these is due.
struct LiveStreamStateMachine {
  enum State: Equatable {
    case idle
    /// A request is under way that began at this offset.
    case streaming(from: UInt64)
    case waiting
    case ended
  }

  enum Action: Equatable {
    case none
    /// Open a bound pair, put the writer's cursor at the offset, start a request. The gap comes first, if there is one.
    case open(at: UInt64, attempt: Int, gap: Gap?)
    /// Tell the dropout, and call ``LiveStreamStateMachine/retryIsDue(oldest:)`` after its delay.
    case wait(Dropout)
    case end(LiveStreamError?)
  }

  private(set) var state = State.idle
  /// Stream offset up to which the peer has acknowledged. Goes back only when the server itself says that it has less.
  private(set) var acknowledged: UInt64 = 0
  /// One past the highest byte ever handed to the network.
  private(set) var sent: UInt64 = 0
  private(set) var attempts = 0
  private(set) var dropouts = 0
  private(set) var gaps = 0
  private(set) var lost: UInt64 = 0
  private(set) var resent: UInt64 = 0
  private var failuresInARow = 0
  private var lastProgress = MonotonicInstant(nanoseconds: 0)
  private var serverWentBack = false
  private let policy: RetryPolicy

  init(policy: RetryPolicy) { self.policy = policy }

  mutating func start(now: MonotonicInstant) -> Action {
    lastProgress = now
    return open(at: 0, gap: nil)
  }

  /// The writer has handed over bytes up to `cursor`.
  mutating func wrote(upTo cursor: UInt64) { sent = max(sent, cursor) }

  /// The current request's first `count` body bytes are acknowledged.
  mutating func acknowledged(bodyCount count: UInt64, now: MonotonicInstant) {
    guard case .streaming(let start) = state, start + count > acknowledged else { return }
    acknowledged = start + count
    lastProgress = now
    // The connection works: the next dropout is a first one again.
    failuresInARow = 0
  }

  /// The current request is over.
  mutating func requestEnded(
    _ verdict: Verdict, now: MonotonicInstant, using generator: inout some RandomNumberGenerator
  ) -> Action {
    guard case .streaming = state else { return .none }
    switch verdict {
    case .complete:
      acknowledged = sent
      return end(nil)
    case .permanent(let error):
      return end(error)
    case .transient(let cause, let retryAfter, let serverOffset):
      dropouts += 1
      if let serverOffset, serverOffset < acknowledged {
        // It has read from TCP what it could not keep (a full disk): believe it, not TCP.
        acknowledged = serverOffset
        serverWentBack = true
      }
      failuresInARow += 1
      let delay = cause == .overtaken
        ? .zero : policy.delay(failures: failuresInARow, retryAfter: retryAfter, using: &generator)
      if let limit = policy.giveUpAfter, now + delay - lastProgress > limit {
        return end(.init(.unreachable, "gave up: nothing was acknowledged for \(Int(limit.seconds)) s; the last attempt ended with: \(cause)"))
      }
      state = .waiting
      return .wait(Dropout(cause: cause, acknowledged: acknowledged, retryDelay: delay))
    }
  }

  /// The delay is over.
  ///
  /// - Parameters:
  ///   - oldest: offset of the oldest byte that is still kept.
  ///   - head: offset one past the newest byte.
  ///   - headroom: how far behind `oldest` to begin when bytes were let go, so that the next write does not take the
  ///     very bytes that are about to be sent.
  mutating func retryIsDue(oldest: UInt64, head: UInt64, headroom: UInt64) -> Action {
    guard state == .waiting else { return .none }
    guard acknowledged < oldest else { return open(at: acknowledged, gap: nil) }
    let offset = min(oldest + headroom, head)
    let gap = Gap(offset: acknowledged, length: offset - acknowledged, cause: serverWentBack ? .serverLost : .bufferFull)
    gaps += 1
    lost += gap.length
    return open(at: offset, gap: gap)
  }

  /// The stream ends here, for a reason that no request has.
  mutating func stop(_ error: LiveStreamError) -> Action { state == .ended ? .none : end(error) }

  private mutating func open(at offset: UInt64, gap: Gap?) -> Action {
    attempts += 1
    serverWentBack = false
    acknowledged = offset
    if sent > offset { resent += sent - offset }
    sent = max(sent, offset)
    state = .streaming(from: offset)
    return .open(at: offset, attempt: attempts, gap: gap)
  }

  private mutating func end(_ error: LiveStreamError?) -> Action {
    state = .ended
    return .end(error)
  }
}
