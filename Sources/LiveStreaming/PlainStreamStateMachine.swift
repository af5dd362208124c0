// Where a stream goes on after each request, and whether it does.

internal import EventLoops

/// The rules of a live stream over a plain server. Takes events, returns what to do; no I/O, no clock and no dice of its own.
///
/// A stream is a row of requests, each starting at a stream offset. The offset of the next is what the peer's TCP has
/// acknowledged, or what the server said that it has, or the oldest byte that is still kept, whichever of these is due.
struct PlainStreamStateMachine {
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
    /// Tell the dropout, and call ``PlainStreamStateMachine/retryIsDue(oldest:head:headroom:)`` after its delay.
    case wait(Dropout)
    case end(LiveStreamError?)
  }

  private(set) var state = State.idle
  /// Stream offset up to which the peer has acknowledged. Goes back only when the server itself says that it has less, or
  /// refuses the request that the bytes were in.
  private(set) var acknowledged: UInt64 = 0
  /// One past the highest byte ever handed to the network.
  private(set) var sent: UInt64 = 0
  private(set) var attempts = 0
  private(set) var dropouts = 0
  private(set) var gaps = 0
  private(set) var lost: UInt64 = 0
  private(set) var resent: UInt64 = 0
  private var clock: RetryClock
  /// What ``clock`` was when the current request began: what TCP acknowledged of a request that is refused in the end was no
  /// progress.
  private var clockAtOpen: RetryClock
  private var serverWentBack = false
  /// Whether the current request's connection stands.
  private var isConnected = false

  init(policy: RetryPolicy) {
    clock = RetryClock(policy: policy)
    clockAtOpen = clock
  }

  mutating func start(now: MonotonicInstant) -> Action {
    clock.noteIdle(now: now)
    return open(at: 0, gap: nil)
  }

  /// The current request's connection stands.
  mutating func connected() { isConnected = true }

  /// The writer has handed over bytes up to `cursor`.
  mutating func wrote(upTo cursor: UInt64) { sent = max(sent, cursor) }

  /// The current request's first `count` body bytes are acknowledged.
  mutating func acknowledged(bodyCount count: UInt64, now: MonotonicInstant) {
    guard case .streaming(let start) = state, start + count > acknowledged else { return }
    acknowledged = start + count
    clock.noteProgress(now: now)
  }

  /// The current request is over.
  ///
  /// - Parameters:
  ///   - oldest: offset of the oldest byte that is still kept.
  ///   - draw: 64 random bits, for ``RetryPolicy/delay(failures:retryAfter:draw:)``.
  mutating func requestEnded(_ verdict: Verdict, oldest: UInt64, now: MonotonicInstant, draw: UInt64) -> Action {
    guard case .streaming(let start) = state else { return .none }
    switch verdict {
    case .complete:
      acknowledged = sent
      return end(nil)
    case .permanent(let error):
      return end(error)
    case .transient(let cause, let retryAfter, let serverOffset):
      dropouts += 1
      let unconfirmed = settle(cause, serverOffset: serverOffset, start: start, oldest: oldest)
      noteOutage(cause, start: start, now: now)
      do throws(LiveStreamError) {
        let delay = try clock.failed(cause, retryAfter: retryAfter, now: now, draw: draw)
        state = .waiting
        return .wait(
          Dropout(cause: cause, acknowledged: acknowledged, unconfirmed: unconfirmed, retryDelay: delay))
      } catch {
        return end(error)
      }
    }
  }

  /// Decides up to where the peer has the stream, now that the request has broken off. Returns how many bytes of a refused
  /// request can no longer be sent again.
  private mutating func settle(
    _ cause: Dropout.Cause, serverOffset: UInt64?, start: UInt64, oldest: UInt64
  ) -> UInt64 {
    if let serverOffset, serverOffset <= sent {
      // It has read from TCP what it could not keep (a full disk), or has kept what TCP's word had not reached us for:
      // believe it, not TCP.
      serverWentBack = serverOffset < acknowledged
      acknowledged = serverOffset
    } else if case .response = cause {
      // It has read what it then refused. What of that is still kept here is sent once more: a server that knows
      // Stream-Offset sees that it has it already, and for one that does not, the refused request never was.
      acknowledged = max(start, min(oldest, acknowledged))
      return acknowledged - start
    }
    return 0
  }

  /// Decides since when nothing goes forward any more.
  private mutating func noteOutage(_ cause: Dropout.Cause, start: UInt64, now: MonotonicInstant) {
    var isRefusal = false
    if case .response = cause { isRefusal = true }
    if isRefusal, acknowledged <= start, !clockAtOpen.isUntroubled { clock = clockAtOpen }
    // A connection that stood and had nothing left to acknowledge was fine until now, however long its source was silent.
    if isConnected, acknowledged == sent, !isRefusal || clock.isUntroubled { clock.noteIdle(now: now) }
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
    let gap = Gap(
      offset: acknowledged, length: offset - acknowledged, cause: serverWentBack ? .serverLost : .bufferFull)
    gaps += 1
    lost += gap.length
    return open(at: offset, gap: gap)
  }

  /// The stream ends here, for a reason that no request has.
  mutating func stop(_ error: LiveStreamError) -> Action { state == .ended ? .none : end(error) }

  private mutating func open(at offset: UInt64, gap: Gap?) -> Action {
    attempts += 1
    serverWentBack = false
    isConnected = false
    clockAtOpen = clock
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
