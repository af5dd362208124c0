// Decides at which offset a stream continues after each request, and whether it continues.

internal import EventLoops
internal import ResumableUploads

/// The rules of a live stream to a plain server. Takes events, and returns actions. It uses no I/O, no clock and no
/// random numbers of its own.
///
/// A stream is a sequence of requests, each with a start offset. The next offset is the one that the peer's TCP has
/// acknowledged, the one that the server reported, or that of the oldest byte in the buffer, depending on the
/// situation.
struct PlainStreamStateMachine {
  enum State: Equatable {
    case idle
    /// A request that began at this offset is in progress.
    case streaming(from: UInt64)
    case waiting
    case ended
  }

  enum Action: Equatable {
    case none
    /// Open a bound pair, set the writer's cursor to the offset, and start a request. The gap is reported first, if
    /// there is one.
    case open(at: UInt64, attempt: Int, gap: Gap?)
    /// Report the outage, and call ``PlainStreamStateMachine/retryIsDue(_:)`` after its delay.
    case wait(FailedAttempt)
    /// Nothing has failed. Call ``PlainStreamStateMachine/retryIsDue(_:)`` after this delay.
    case pause(Duration)
    case end(LiveStreamError?)
  }

  private(set) var state = State.idle
  /// The stream offset up to which the peer has acknowledged. It decreases only if the server itself reports fewer
  /// bytes, or refuses the request that contained the bytes.
  private(set) var acknowledged: UInt64 = 0
  /// The newest bytes that were discarded here before the peer had them, without those that the server has lost.
  private var discarded: Range<UInt64> = 0..<0
  /// See ``StreamStateMachine/releasable``.
  var releasable: UInt64 {
    acknowledged == discarded.upperBound ? min(acknowledged, discarded.lowerBound) : acknowledged
  }
  /// The offset after the last byte ever passed to the network.
  private(set) var sent: UInt64 = 0
  private(set) var attempts = 0
  private(set) var outages: OutageCount
  private(set) var resent: UInt64 = 0
  private(set) var clock: RetryClock
  /// The state of ``clock`` at the start of the current request. Bytes of a request that is refused later do not count
  /// as progress, even if TCP acknowledged them.
  private var clockAtOpen: RetryClock
  /// The furthest byte that TCP ever acknowledged, unless the server has reported fewer bytes since then.
  private var furthest: UInt64 = 0
  private var serverWentBack = false
  /// Whether the server has reported its offset. If so, it knows at which offset a request continues.
  private var serverToldOffset = false
  /// Whether the current request has a connection.
  private var isConnected = false
  /// Whether a request replaces the stored bytes of the one before.
  private let replaces: Bool
  /// Whether the bytes can be read only once. Otherwise, each attempt sends the whole content.
  private let isLive: Bool
  /// The number of the stream's current URL. If requests replace the stored bytes, later bytes of the stream must not
  /// replace earlier ones that the server may have.
  private(set) var part = 1
  /// The offset after the last byte that requests of this part have sent, without refused requests.
  private var partSent: UInt64 = 0
  /// The number of bytes of the ended request that were reported as unconfirmed.
  private var reportedUnconfirmed: UInt64 = 0
  /// The number of unconfirmed bytes of the previous part, until it is reported.
  private var unreportedUnconfirmed: UInt64?
  /// See ``StreamStateMachine/unconfirmedAtEnd``.
  private(set) var unconfirmedAtEnd: UInt64 = 0
  /// The start offset of the newest request.
  private var requestStart: UInt64 = 0
  /// The time of the first acknowledgement in the current request.
  private var firstAcknowledgement: MonotonicInstant?
  /// The number of consecutive attempts in which everything was sent and no response arrived in time.
  private var unanswered = 0

  /// Whether the server has acknowledged data, and so accepts this stream. TCP acknowledges bytes that the server has
  /// not read. Only time shows that the server accepts them, because a refusal comes at once.
  private(set) var hasAcknowledged = false
  private static let timeToRefuse = Duration.seconds(5)
  /// The maximum number of attempts to send whole content whose response is lost each time.
  private static let maximumUnanswered = 3

  /// - Parameters:
  ///   - acknowledged: the bytes of the stream that an earlier process has delivered.
  ///   - clock: the clock of a stream that has begun. Nil for a new one.
  ///   - outages: its outages.
  init(
    policy: RetryPolicy, replaces: Bool = false, isLive: Bool = true, acknowledged: UInt64 = 0,
    clock: RetryClock? = nil, outages: OutageCount? = nil
  ) {
    (self.acknowledged, sent, furthest, partSent) = (acknowledged, acknowledged, acknowledged, acknowledged)
    self.clock = clock ?? RetryClock(policy: policy)
    clockAtOpen = self.clock
    self.outages = outages ?? OutageCount()
    self.replaces = replaces
    self.isLive = isLive
  }

  /// Outages so far.
  var outageCount: Int { outages.count }

  mutating func start(_ supply: Supply) -> Action {
    // Bytes that another process has delivered may no longer be available here.
    acknowledged = min(acknowledged, supply.head)
    guard acknowledged > 0 else { return open(at: 0, gap: nil) }
    state = .waiting
    return retryIsDue(supply)
  }

  /// The current request has a connection.
  mutating func connected() {
    isConnected = true
    clock.noteConnected()
    clockAtOpen.noteConnected()
  }

  /// The writer has passed bytes up to `cursor`.
  mutating func wrote(upTo cursor: UInt64) { sent = max(sent, cursor) }

  /// The current request's first `count` body bytes are acknowledged.
  mutating func acknowledged(bodyCount count: UInt64, now: MonotonicInstant) {
    noteAcceptance(now: now)
    guard case .streaming(let start) = state, start + count > acknowledged else { return }
    acknowledged = start + count
    // Bytes that a request repeats do not count as progress.
    if acknowledged > furthest {
      furthest = acknowledged
      clock.noteProgress()
    }
    firstAcknowledgement = firstAcknowledgement ?? now
  }

  /// Whether the server has acknowledged bytes of the current request, and has then had time to refuse it.
  private func hadTimeToRefuse(now: MonotonicInstant) -> Bool {
    firstAcknowledgement.map { now - $0 >= Self.timeToRefuse } ?? false
  }

  /// Whether the server has acknowledged data by now, and so accepts this stream.
  func hasAcknowledged(by now: MonotonicInstant) -> Bool { hasAcknowledged || hadTimeToRefuse(now: now) }

  /// The server had time to refuse, even if the source is silent since the first acknowledgement.
  private mutating func noteAcceptance(now: MonotonicInstant) {
    if hadTimeToRefuse(now: now) { hasAcknowledged = true }
  }

  /// The current request has ended.
  ///
  /// - Parameters:
  ///   - sentUpTo: the stream offset up to which its body was passed to the network.
  ///   - draw: 64 random bits for ``RetryPolicy/delay(outage:retryAfter:draw:)``.
  mutating func requestEnded(
    _ verdict: Verdict, _ supply: Supply, sentUpTo: UInt64, now: MonotonicInstant, draw: UInt64
  ) -> Action {
    guard case .streaming(let start) = state else { return .none }
    noteAcceptance(now: now)
    var failure = RetryClock.Failure(cause: .overtaken, hasAcknowledged: hasAcknowledged, start: start)
    var serverOffset: UInt64?
    switch verdict {
    case .complete:
      acknowledged = sent
      return end(nil)
    case .permanent(let error, let cause, let offset):
      return end(error, cause, serverOffset: offset, start: start, oldest: supply.oldest)
    case .transient(let cause, let retryAfter, let offset):
      (failure.cause, failure.retryAfter, serverOffset) = (cause, retryAfter, offset)
    case .refusal(let error, let cause, let retryAfter, let offset):
      (failure.cause, failure.retryAfter, failure.refusal, serverOffset) = (cause, retryAfter, error, offset)
    case .unexpected(let error, let cause, let retryAfter, let offset):
      // A response after the whole stream is the server's verdict.
      guard hasAcknowledged, !(supply.isFinished && sentUpTo == supply.head) else {
        return end(error, cause, serverOffset: offset, start: start, oldest: supply.oldest)
      }
      (failure.cause, failure.retryAfter, serverOffset) = (cause, retryAfter, offset)
    }
    let unconfirmed = settle(failure.cause, serverOffset: serverOffset, start: start, oldest: supply.oldest)
    reportedUnconfirmed = unconfirmed
    // For the server, a refused request did not happen. One that it accepted before its end may have stored its bytes.
    if !failure.cause.isRefusal { partSent = max(partSent, sentUpTo) }
    // The response to a whole stream is due, so the connection is not idle.
    let isAnswerDue = supply.isFinished && sentUpTo == supply.head
    noteOutage(failure.cause, start: start, isAnswerDue: isAnswerDue, now: now)
    noteUnanswered(failure.cause, supply, sentUpTo: sentUpTo)
    if let error = answerIsLost(supply, sentUpTo: sentUpTo) { return end(error) }
    let isRepeated = outages.failed(acknowledged: acknowledged)
    do throws(LiveStreamError) {
      let delay = try clock.failed(failure, now: now, draw: draw)
      state = .waiting
      return .wait(
        FailedAttempt(
          cause: failure.cause, acknowledged: acknowledged, unconfirmed: unconfirmed, retryDelay: delay,
          isRepeated: isRepeated))
    } catch {
      unconfirmedAtEnd = unconfirmed
      return end(error)
    }
  }

  /// The server refused the current request because of a bearer token that has been renewed since. For the server, that
  /// request did not happen, unless it reports its offset. The refusal counts like any other if a token was renewed
  /// since the last progress, or if bytes of the request can no longer be sent again.
  mutating func tokenRenewed(
    _ verdict: Verdict, _ supply: Supply, sentUpTo: UInt64, now: MonotonicInstant, draw: UInt64
  ) -> Action {
    guard case .streaming(let start) = state else { return .none }
    noteAcceptance(now: now)
    // Then it had accepted the former token.
    let hasWorked = hadTimeToRefuse(now: now)
    if case .refusal(_, let cause, _, let serverOffset) = verdict,
      usable(serverOffset).map({ $0 >= supply.oldest }) ?? (min(supply.oldest, acknowledged) <= start),
      answerIsLost(supply, sentUpTo: sentUpTo) == nil
    {
      _ = settle(cause, serverOffset: serverOffset, start: start, oldest: supply.oldest)
      noteOutage(cause, start: start, isAnswerDue: false, now: now)
      if hasWorked { clock.noteProgress() }
      if let delay = clock.renewedToken(now: now) {
        unanswered = 0
        state = .waiting
        return .pause(delay)
      }
    }
    return requestEnded(verdict, supply, sentUpTo: sentUpTo, now: now, draw: draw)
  }

  /// The response to a request ends the stream. The bytes of that request are not acknowledged, even if TCP
  /// acknowledged them.
  private mutating func end(
    _ error: LiveStreamError, _ cause: FailedAttempt.Cause?, serverOffset: UInt64?, start: UInt64, oldest: UInt64
  ) -> Action {
    if let cause { unconfirmedAtEnd = settle(cause, serverOffset: serverOffset, start: start, oldest: oldest) }
    return end(error)
  }

  private mutating func noteUnanswered(_ cause: FailedAttempt.Cause, _ supply: Supply, sentUpTo: UInt64) {
    if case .timedOut = cause, supply.isFinished, sentUpTo == supply.head {
      unanswered += 1
    } else {
      unanswered = 0
    }
  }

  /// Everything was sent, its response is lost, and another attempt would not help or would do harm.
  private func answerIsLost(_ supply: Supply, sentUpTo: UInt64) -> LiveStreamError? {
    guard supply.isFinished, sentUpTo == supply.head else { return nil }
    if !isLive, unanswered >= Self.maximumUnanswered {
      return LiveStreamError(
        .unreachable,
        "the server received the whole file \(unanswered) times and never answered. Check whether it has stored the file"
      )
    }
    if replaces, sent == supply.head, supply.oldest > requestStart {
      return LiveStreamError(
        .unreachable,
        "everything was sent, and the server's answer was lost. Check whether it has stored the stream. "
          + "Another PUT would replace the stream with its last part")
    }
    return nil
  }

  /// All bytes before a pause of the source are delivered, and the stream continues after it in another request.
  mutating func passedPause(at offset: UInt64, now: MonotonicInstant) {
    guard case .streaming = state else { return }
    acknowledged = offset
    partSent = max(partSent, offset)
    clock.noteProgress()
    state = .waiting
  }

  /// Decides up to which offset the peer has the stream after an interrupted request. Returns the number of bytes of a
  /// refused request that can no longer be sent again.
  private mutating func settle(
    _ cause: FailedAttempt.Cause, serverOffset: UInt64?, start: UInt64, oldest: UInt64
  ) -> UInt64 {
    if let serverOffset = usable(serverOffset) {
      // The server read bytes from TCP that it could not store (a full disk), or stored bytes whose TCP acknowledgement
      // did not arrive. Its report takes precedence over TCP.
      serverToldOffset = true
      serverWentBack = serverOffset < releasable
      acknowledged = serverOffset
      furthest = min(furthest, serverOffset)
    } else if case .response = cause {
      // The server read bytes that it then refused. Those that are still in the buffer are sent again. A server that
      // supports Stream-Offset detects that it already has them. For any other server, the refused request did not
      // happen.
      acknowledged = max(start, min(oldest, acknowledged))
      furthest = min(furthest, acknowledged)
      return acknowledged - start
    }
    return 0
  }

  /// The server's offset. A later part is a separate stream for its server.
  private func usable(_ serverOffset: UInt64?) -> UInt64? {
    serverOffset.flatMap { $0 <= sent && part == 1 ? $0 : nil }
  }

  /// Decides when the current period without progress began.
  private mutating func noteOutage(
    _ cause: FailedAttempt.Cause, start: UInt64, isAnswerDue: Bool, now: MonotonicInstant
  ) {
    var isRefusal = false
    if case .response = cause { isRefusal = true }
    if isRefusal, acknowledged <= start { clock = clockAtOpen }
    // A connection that lasted, and had nothing left to acknowledge, was fine until now, even if its source was silent
    // for long. One that ended soon is a failed attempt, because TCP accepts connections for a server that is broken.
    if isConnected, acknowledged == sent, !isRefusal, !isAnswerDue, clock.hasLasted(now: now) {
      clock.noteProgress()
      outages.worked()
    }
  }

  /// The delay is over.
  mutating func retryIsDue(_ supply: Supply) -> Action {
    guard state == .waiting else { return .none }
    // The next request replaces the bytes of an interrupted one. So it must send them again while they are available.
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
    if !serverWentBack { discarded = releasable..<offset }
    return open(at: offset, gap: gap)
  }

  /// The buffer no longer has the beginning of the bytes that the server may have stored. The stored bytes stay
  /// unchanged, and the stream continues at another URL, from the oldest byte in the buffer.
  private mutating func beginPart(oldest: UInt64) {
    guard partSent > requestStart else { return }
    let unconfirmed = min(max(acknowledged, requestStart), oldest) - requestStart
    unreportedUnconfirmed = unconfirmed - min(unconfirmed, reportedUnconfirmed)
    (part, partSent) = (part &+ 1, 0)
    acknowledged = min(acknowledged, oldest)
  }

  /// The number of bytes of the previous part that the server has not confirmed. Returned once for each part.
  mutating func takeUnconfirmed() -> UInt64? {
    defer { unreportedUnconfirmed = nil }
    return unreportedUnconfirmed
  }

  /// The stream ends here for a reason outside of any request.
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
