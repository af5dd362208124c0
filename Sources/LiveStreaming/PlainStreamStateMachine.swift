// Where a stream goes on after each request, and whether it does.

internal import EventLoops
internal import ResumableUploads

/// The rules of a live stream over a plain server. Takes events, returns what to do; no I/O, no clock and no dice of
/// its own.
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
    /// Tell the dropout, and call ``PlainStreamStateMachine/retryIsDue(_:)`` after its delay.
    case wait(Dropout)
    case end(LiveStreamError?)
  }

  private(set) var state = State.idle
  /// Stream offset up to which the peer has acknowledged. Goes back only when the server itself says that it has less,
  /// or refuses the request that the bytes were in.
  private(set) var acknowledged: UInt64 = 0
  /// One past the highest byte ever handed to the network.
  private(set) var sent: UInt64 = 0
  private(set) var attempts = 0
  private var outages = OutageCount()
  private(set) var resent: UInt64 = 0
  private var clock: RetryClock
  /// What ``clock`` was when the current request began: what TCP acknowledged of a request that is refused in the end
  /// was no progress.
  private var clockAtOpen: RetryClock
  /// The furthest byte that TCP was ever seen to have acknowledged, unless the server has said since that it has less.
  private var furthest: UInt64 = 0
  private var serverWentBack = false
  /// Whether the server has said up to where it has the stream: then it knows where a request continues it.
  private var serverToldOffset = false
  /// Whether the current request's connection stands.
  private var isConnected = false
  /// Whether a request replaces what the one before it has stored.
  private let replaces: Bool
  /// Whether the stream comes once; otherwise it is sent whole each time.
  private let isLive: Bool
  /// Counts the URLs of the stream. Where requests replace what is stored, later bytes of the stream must not replace
  /// earlier ones that the server may have.
  private(set) var part = 1
  /// One past the highest byte that requests of this part have brought, without those that the server refused.
  private var partSent: UInt64 = 0
  /// How many bytes of the request that has ended were reported as unconfirmed.
  private var reportedUnconfirmed: UInt64 = 0
  /// How many bytes of the part before are unconfirmed, until that is reported.
  private var unreportedUnconfirmed: UInt64?
  /// See ``StreamStateMachine/unconfirmedAtEnd``.
  private(set) var unconfirmedAtEnd: UInt64 = 0
  /// Where the newest request began.
  private var requestStart: UInt64 = 0
  /// When the first bytes of the current request were acknowledged.
  private var firstAcknowledgement: MonotonicInstant?
  /// How often in a row everything was sent, and no answer came in time.
  private var unanswered = 0

  /// Whether the server has acknowledged data, and so lets this stream in. TCP acknowledges what a server has not
  /// looked at: only time shows that the server takes it, for a refusal comes at once.
  private(set) var hasAcknowledged = false
  private static let timeToRefuse = Duration.seconds(5)
  /// A whole stream is not sent more often than this if each time its answer is lost.
  private static let maximumUnanswered = 3

  /// - Parameter acknowledged: what an earlier process has delivered of the stream.
  init(policy: RetryPolicy, replaces: Bool = false, isLive: Bool = true, acknowledged: UInt64 = 0) {
    (self.acknowledged, sent, furthest, partSent) = (acknowledged, acknowledged, acknowledged, acknowledged)
    clock = RetryClock(policy: policy)
    clockAtOpen = clock
    self.replaces = replaces
    self.isLive = isLive
  }

  /// Outages so far.
  var dropouts: Int { outages.count }

  mutating func start(_ supply: Supply) -> Action {
    // What another process has delivered may not be here any more.
    acknowledged = min(acknowledged, supply.head)
    guard acknowledged > 0 else { return open(at: 0, gap: nil) }
    state = .waiting
    return retryIsDue(supply)
  }

  /// The current request's connection stands.
  mutating func connected() {
    isConnected = true
    clock.noteConnected()
    clockAtOpen.noteConnected()
  }

  /// The writer has handed over bytes up to `cursor`.
  mutating func wrote(upTo cursor: UInt64) { sent = max(sent, cursor) }

  /// The current request's first `count` body bytes are acknowledged.
  mutating func acknowledged(bodyCount count: UInt64, now: MonotonicInstant) {
    guard case .streaming(let start) = state, start + count > acknowledged else { return }
    acknowledged = start + count
    // What a request brings once more is none.
    if acknowledged > furthest {
      furthest = acknowledged
      clock.noteProgress()
    }
    if let first = firstAcknowledgement {
      if now - first >= Self.timeToRefuse { hasAcknowledged = true }
    } else {
      firstAcknowledgement = now
    }
  }

  /// The current request is over.
  ///
  /// - Parameters:
  ///   - sentUpTo: stream offset up to which its body was handed over.
  ///   - draw: 64 random bits, for ``RetryPolicy/delay(outage:retryAfter:draw:)``.
  mutating func requestEnded(
    _ verdict: Verdict, _ supply: Supply, sentUpTo: UInt64, now: MonotonicInstant, draw: UInt64
  ) -> Action {
    guard case .streaming(let start) = state else { return .none }
    var failure = RetryClock.Failure(cause: .overtaken, hasAcknowledged: hasAcknowledged)
    var serverOffset: UInt64?
    switch verdict {
    case .complete:
      acknowledged = sent
      return end(nil)
    case .permanent(let error, let cause, let offset):
      return end(error, cause, serverOffset: offset, start: start, oldest: supply.oldest)
    case .transient(let cause, let retryAfter, let offset):
      (failure.cause, failure.retryAfter, serverOffset) = (cause, retryAfter, offset)
    case .refusal(let error, let cause, let retryAfter):
      (failure.cause, failure.retryAfter, failure.refusal) = (cause, retryAfter, error)
    case .unexpected(let error, let cause, let retryAfter, let offset):
      // What comes after the whole stream is its server's verdict.
      guard hasAcknowledged, !(supply.isFinished && sentUpTo == supply.head) else {
        return end(error, cause, serverOffset: offset, start: start, oldest: supply.oldest)
      }
      (failure.cause, failure.retryAfter, serverOffset) = (cause, retryAfter, offset)
    }
    let unconfirmed = settle(failure.cause, serverOffset: serverOffset, start: start, oldest: supply.oldest)
    reportedUnconfirmed = unconfirmed
    // For its server, a refused request never was.
    if case .response = failure.cause {} else { partSent = max(partSent, sentUpTo) }
    // The answer to a whole stream is due: that is not idleness.
    let isAnswerDue = supply.isFinished && sentUpTo == supply.head
    noteOutage(failure.cause, start: start, isAnswerDue: isAnswerDue, now: now)
    noteUnanswered(failure.cause, supply, sentUpTo: sentUpTo)
    if let error = answerIsLost(supply, sentUpTo: sentUpTo) { return end(error) }
    let isRepeated = outages.failed(acknowledged: acknowledged)
    do throws(LiveStreamError) {
      let delay = try clock.failed(failure, now: now, draw: draw)
      state = .waiting
      return .wait(
        Dropout(
          cause: failure.cause, acknowledged: acknowledged, unconfirmed: unconfirmed, retryDelay: delay,
          isRepeated: isRepeated))
    } catch {
      unconfirmedAtEnd = unconfirmed
      return end(error)
    }
  }

  /// The answer to a request ends the stream: what that request has brought is not acknowledged, whatever TCP says.
  private mutating func end(
    _ error: LiveStreamError, _ cause: Dropout.Cause?, serverOffset: UInt64?, start: UInt64, oldest: UInt64
  ) -> Action {
    if let cause { unconfirmedAtEnd = settle(cause, serverOffset: serverOffset, start: start, oldest: oldest) }
    return end(error)
  }

  private mutating func noteUnanswered(_ cause: Dropout.Cause, _ supply: Supply, sentUpTo: UInt64) {
    if case .timedOut = cause, supply.isFinished, sentUpTo == supply.head {
      unanswered += 1
    } else {
      unanswered = 0
    }
  }

  /// Everything was sent, its answer is lost, and sending it once more is of no use, or does harm.
  private func answerIsLost(_ supply: Supply, sentUpTo: UInt64) -> LiveStreamError? {
    guard supply.isFinished, sentUpTo == supply.head else { return nil }
    if !isLive, unanswered >= Self.maximumUnanswered {
      return LiveStreamError(
        .unreachable, "the server took the whole file \(unanswered) times and never answered: look whether it has it")
    }
    if replaces, sent == supply.head, supply.oldest > requestStart {
      return LiveStreamError(
        .unreachable,
        "everything was sent, and the server's answer is lost: look whether it has the stream. "
          + "Another PUT would replace it with its end")
    }
    return nil
  }

  /// Everything before a pause of the source is delivered, and the stream goes on behind it in another request.
  mutating func passedPause(at offset: UInt64, now: MonotonicInstant) {
    guard case .streaming = state else { return }
    acknowledged = offset
    partSent = max(partSent, offset)
    clock.noteProgress()
    state = .waiting
  }

  /// Decides up to where the peer has the stream, now that the request has broken off. Returns how many bytes of a
  /// refused request can no longer be sent again.
  private mutating func settle(
    _ cause: Dropout.Cause, serverOffset: UInt64?, start: UInt64, oldest: UInt64
  ) -> UInt64 {
    // A later part is a stream of its own for its server.
    if let serverOffset, serverOffset <= sent, part == 1 {
      // It has read from TCP what it could not keep (a full disk), or has kept what TCP's word had not reached us for:
      // believe it, not TCP.
      serverToldOffset = true
      serverWentBack = serverOffset < acknowledged
      acknowledged = serverOffset
      furthest = min(furthest, serverOffset)
    } else if case .response = cause {
      // It has read what it then refused. What of that is still kept here is sent once more: a server that knows
      // Stream-Offset sees that it has it already, and for one that does not, the refused request never was.
      acknowledged = max(start, min(oldest, acknowledged))
      furthest = min(furthest, acknowledged)
      return acknowledged - start
    }
    return 0
  }

  /// Decides since when nothing goes forward any more.
  private mutating func noteOutage(
    _ cause: Dropout.Cause, start: UInt64, isAnswerDue: Bool, now: MonotonicInstant
  ) {
    var isRefusal = false
    if case .response = cause { isRefusal = true }
    if isRefusal, acknowledged <= start { clock = clockAtOpen }
    // A connection that stood and had nothing left to acknowledge was fine until now, however long its source was
    // silent.
    if isConnected, acknowledged == sent, !isRefusal, !isAnswerDue {
      clock.noteIdle(now: now)
      outages.worked()
    }
  }

  /// The delay is over.
  mutating func retryIsDue(_ supply: Supply) -> Action {
    guard state == .waiting else { return .none }
    // What a broken request has brought is replaced by the next one: that has to bring it once more, as long as it can.
    if replaces, !serverToldOffset {
      if supply.oldest <= requestStart { return open(at: requestStart, gap: nil) }
      beginPart(oldest: supply.oldest)
    }
    guard acknowledged < supply.oldest else { return open(at: acknowledged, gap: nil) }
    let offset = min(supply.restart, supply.head)
    // Nothing is lost in a pause.
    if let pause = supply.pause, pause.lowerBound <= acknowledged, offset == pause.upperBound {
      return open(at: offset, gap: nil)
    }
    outages.skipped(to: offset)
    let gap = Gap(
      offset: acknowledged, length: offset - acknowledged, cause: serverWentBack ? .serverLost : .bufferFull)
    return open(at: offset, gap: gap)
  }

  /// The buffer no longer has the beginning of what the server may have. That stays as it is, and the stream continues
  /// at another URL, from the oldest byte in the buffer.
  private mutating func beginPart(oldest: UInt64) {
    guard partSent > requestStart else { return }
    let unconfirmed = min(max(acknowledged, requestStart), oldest) - requestStart
    unreportedUnconfirmed = unconfirmed - min(unconfirmed, reportedUnconfirmed)
    (part, partSent) = (part &+ 1, 0)
    acknowledged = min(acknowledged, oldest)
  }

  /// How many bytes of the part before the server has not confirmed; once for each part.
  mutating func takeUnconfirmed() -> UInt64? {
    defer { unreportedUnconfirmed = nil }
    return unreportedUnconfirmed
  }

  /// The stream ends here, for a reason that no request has.
  mutating func stop(_ error: LiveStreamError) -> Action { state == .ended ? .none : end(error) }

  private mutating func open(at offset: UInt64, gap: Gap?) -> Action {
    attempts += 1
    (serverWentBack, serverToldOffset) = (false, false)
    isConnected = false
    firstAcknowledgement = nil
    (requestStart, reportedUnconfirmed) = (offset, 0)
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
