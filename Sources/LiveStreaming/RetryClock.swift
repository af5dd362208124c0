// The start of the period without progress, the time of the next attempt, and the time to give up.

package import EventLoops

/// Follows the outages of one stream or download. It reads no clock itself.
package struct RetryClock: Equatable {
  /// A failed attempt.
  package struct Failure {
    var cause: FailedAttempt.Cause
    /// The delay that the server requested.
    var retryAfter: Duration?
    /// The final error if the server refuses the stream for too long. Nil if the failure is not a refusal.
    var refusal: LiveStreamError?
    /// Whether the server has acknowledged data before.
    var hasAcknowledged = false
    /// The stream offset at which the request began.
    var start: UInt64 = 0

    package init(
      cause: FailedAttempt.Cause, retryAfter: Duration? = nil, refusal: LiveStreamError? = nil,
      hasAcknowledged: Bool = false, start: UInt64 = 0
    ) {
      (self.cause, self.retryAfter) = (cause, retryAfter)
      (self.refusal, self.hasAcknowledged, self.start) = (refusal, hasAcknowledged, start)
    }
  }

  /// Fewer consecutive failures than this do not make the stream give up, regardless of their duration.
  private static let leastAttempts = 3
  private static let renewalDelay = Duration.milliseconds(25)
  /// A connection that was idle for this long was fine.
  private static let steady = Duration.seconds(10)

  private let policy: RetryPolicy
  /// The time of the first failed attempt of this outage. Nil without an outage.
  private var outageStart: MonotonicInstant?
  /// The start of the time that counts for giving up.
  private var patienceStart = MonotonicInstant(nanoseconds: 0)
  private var attempts = 0
  private var refusedSince: MonotonicInstant?
  private var refusals = 0
  /// Whether a refused bearer token has been renewed since the last progress.
  private var hasRenewedToken = false
  /// Whether it follows a download.
  private let isDownload: Bool
  /// The start of the current attempt.
  private var attemptStart = MonotonicInstant(nanoseconds: 0)
  private var hasConnected = false
  /// The start of the last request that its source overtook.
  private var overtakenStart: UInt64?

  /// - Parameter isDownload: whether progress means received bytes, and not acknowledged ones.
  package init(policy: RetryPolicy, isDownload: Bool = false) {
    (self.policy, self.isDownload) = (policy, isDownload)
  }

  /// Whether nothing has failed since the last progress.
  var isUntroubled: Bool { outageStart == nil }

  /// Notes progress. The next failure is the first of a new outage.
  package mutating func noteProgress() {
    (outageStart, refusedSince) = (nil, nil)
    (attempts, refusals) = (0, 0)
    hasRenewedToken = false
  }

  /// Notes progress that is too little to end an outage. The time to give up starts again, and the delays grow further.
  mutating func noteSlowProgress(now: MonotonicInstant) {
    (patienceStart, attempts) = (now, 0)
    (refusedSince, refusals) = (nil, 0)
    hasRenewedToken = false
  }

  /// Notes a connection. The first one ends the time that ``RetryPolicy/waitsForConnectivity`` excludes.
  package mutating func noteConnected() {
    guard !hasConnected else { return }
    hasConnected = true
    if policy.waitsForConnectivity { noteProgress() }
  }

  /// Whether the current attempt began so long ago that its connection, even an idle one, was fine.
  func hasLasted(now: MonotonicInstant) -> Bool { now - attemptStart >= Self.steady }

  /// Notes that the server refused a bearer token which has been renewed since. This is not a failure.
  ///
  /// - Returns: the delay before the next attempt. Nil if another token was renewed since the last progress: the server
  ///   refuses new tokens too, so this is a failure.
  mutating func renewedToken(now: MonotonicInstant) -> Duration? {
    guard !hasRenewedToken else { return nil }
    hasRenewedToken = true
    let delay = min(Self.renewalDelay, policy.maximumCeiling)
    attemptStart = now + delay
    return delay
  }

  /// Notes a failed attempt.
  ///
  /// - Parameters:
  ///   - soon: the delay after the first failure. Nil means the delay of the policy.
  ///   - draw: see ``RetryPolicy/delay(outage:retryAfter:draw:)``.
  /// - Returns: the delay before the next attempt.
  /// - Throws: the refusal, or ``LiveStreamError`` of kind ``LiveStreamError/Kind/unreachable``, if it has lasted for
  ///   too long.
  package mutating func failed(
    _ failure: Failure, soon: Duration? = nil, now: MonotonicInstant, draw: UInt64
  ) throws(LiveStreamError) -> Duration {
    if failure.cause == .overtaken {
      defer { overtakenStart = failure.start }
      // The connection works, and the next request begins after the missing bytes. One that begins at the same offset
      // may end in the same way.
      guard failure.start == overtakenStart else { return .zero }
    }
    let isFirst = outageStart == nil
    if isFirst { (outageStart, patienceStart) = (now, now) }
    attempts += 1
    try judge(failure, now: now)
    var delay = policy.delay(outage: now - (outageStart ?? now), retryAfter: failure.retryAfter, draw: draw)
    if isFirst, let soon { delay = min(soon, policy.maximumCeiling) }
    if let limit = policy.giveUpAfter, hasConnected || !policy.waitsForConnectivity {
      let left = limit - (now - patienceStart)
      if left <= .zero, attempts >= Self.leastAttempts {
        var error = LiveStreamError(
          .unreachable,
          "gave up: nothing was \(isDownload ? "received" : "acknowledged") for \(Self.text(limit)); the last attempt ended with: \(failure.cause)"
        )
        if case .machine(let refusal) = failure.cause { error.machineError = refusal }
        throw error
      }
      // One more attempt is made when the time is over, and none after that.
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
