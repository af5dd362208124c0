// Since when nothing goes forward, when the next attempt is due, and when to give up.

package import EventLoops

/// Follows the outages of one stream or download. Reads no clock of its own.
package struct RetryClock: Equatable {
  /// A failed attempt.
  package struct Failure {
    var cause: Dropout.Cause
    /// What the server asked for.
    var retryAfter: Duration?
    /// The error to end with if the server refuses the stream for too long; nil for what is no refusal.
    var refusal: LiveStreamError?
    /// Whether the server has acknowledged data before.
    var hasAcknowledged = false

    package init(
      cause: Dropout.Cause, retryAfter: Duration? = nil, refusal: LiveStreamError? = nil, hasAcknowledged: Bool = false
    ) {
      (self.cause, self.retryAfter) = (cause, retryAfter)
      (self.refusal, self.hasAcknowledged) = (refusal, hasAcknowledged)
    }
  }

  /// Fewer failures in a row than this are no reason to give up, however long they took.
  private static let leastAttempts = 3
  /// A connection that stood for so long with nothing to do was fine.
  private static let steady = Duration.seconds(10)

  private let policy: RetryPolicy
  /// When the first attempt of this outage failed; nil while all is well.
  private var outageStart: MonotonicInstant?
  /// Since when the time to give up counts.
  private var patienceStart = MonotonicInstant(nanoseconds: 0)
  private var attempts = 0
  private var refusedSince: MonotonicInstant?
  private var refusals = 0
  /// When the attempt under way began.
  private var attemptStart = MonotonicInstant(nanoseconds: 0)
  private var hasConnected = false

  package init(policy: RetryPolicy) { self.policy = policy }

  /// Whether nothing has failed since the last progress.
  var isUntroubled: Bool { outageStart == nil }

  /// Something went forward: the next failure is a first one again.
  package mutating func noteProgress() {
    (outageStart, refusedSince) = (nil, nil)
    (attempts, refusals) = (0, 0)
  }

  /// A connection stands. The first ends the time that ``RetryPolicy/waitsForConnectivity`` leaves out.
  package mutating func noteConnected() {
    guard !hasConnected else { return }
    hasConnected = true
    if policy.waitsForConnectivity { noteProgress() }
  }

  /// The connection stood, and there was nothing that could have gone forward: the time to give up begins anew.
  mutating func noteIdle(now: MonotonicInstant) {
    if now - attemptStart >= Self.steady { return noteProgress() }
    (patienceStart, attempts) = (now, 0)
    (refusedSince, refusals) = (nil, 0)
  }

  /// An attempt has failed.
  ///
  /// - Parameters:
  ///   - soon: the delay where this is the first failure; nil for what the policy says of it.
  ///   - draw: see ``RetryPolicy/delay(outage:retryAfter:draw:)``.
  /// - Returns: after what delay to try again.
  /// - Throws: the refusal, or ``LiveStreamError`` of kind ``LiveStreamError/Kind/unreachable``, when that has lasted
  ///   for too long.
  package mutating func failed(
    _ failure: Failure, soon: Duration? = nil, now: MonotonicInstant, draw: UInt64
  ) throws(LiveStreamError) -> Duration {
    // The connection works.
    if failure.cause == .overtaken { return .zero }
    let isFirst = outageStart == nil
    if isFirst { (outageStart, patienceStart) = (now, now) }
    attempts += 1
    try judge(failure, now: now)
    var delay = policy.delay(outage: now - (outageStart ?? now), retryAfter: failure.retryAfter, draw: draw)
    if isFirst, let soon { delay = min(soon, policy.maximumCeiling) }
    if let limit = policy.giveUpAfter, hasConnected || !policy.waitsForConnectivity {
      let left = limit - (now - patienceStart)
      if left <= .zero, attempts >= Self.leastAttempts {
        throw LiveStreamError(
          .unreachable,
          "gave up: nothing was acknowledged for \(Self.text(limit)); the last attempt ended with: \(failure.cause)")
      }
      // One more attempt when the time is over, and not after it.
      if left > .zero { delay = min(delay, left) }
    }
    attemptStart = now + delay
    return delay
  }

  private mutating func judge(_ failure: Failure, now: MonotonicInstant) throws(LiveStreamError) {
    guard let refusal = failure.refusal else {
      (refusedSince, refusals) = (nil, 0)
      return
    }
    let since = refusedSince ?? now
    refusedSince = since
    refusals += 1
    let limit = policy.refusalLimit(hasAcknowledged: failure.hasAcknowledged)
    if now - since >= limit, limit == .zero || refusals >= Self.leastAttempts { throw refusal }
  }

  private static func text(_ limit: Duration) -> String {
    limit < .seconds(1) ? "\(limit.nanoseconds / 1_000_000) ms" : "\(limit.nanoseconds / 1_000_000_000) s"
  }
}
