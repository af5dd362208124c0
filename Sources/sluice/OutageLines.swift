// The lines of an outage: the failure, the server's reason, and the time of the next attempt. An outage of days prints
// one line per minute, and each reason only once.

internal import EventLoops
internal import LiveStreaming

/// Decides which attempts of an outage print a line, and adds the reason and the next attempt to it.
struct OutageLines {
  /// This many attempts print a line each. Later ones print one line per ``interval``.
  private static let firstAttempts = 5
  private static let interval = Duration.seconds(60)

  /// Whether the user has limited the outage with `--give-up`.
  let isLimited: Bool

  private var attempts = 0
  private var lastLine: MonotonicInstant?
  private var reason: String?
  private var isHintGiven = false

  init(isLimited: Bool) { self.isLimited = isLimited }

  /// The line for a failed attempt, or nil for none.
  ///
  /// - Parameters:
  ///   - reason: the reason that the server gave, in one line.
  ///   - isNew: whether an outage begins with this attempt.
  mutating func line(
    _ words: String, reason: String?, retryDelay: Duration, isNew: Bool, now: MonotonicInstant
  ) -> String? {
    if isNew { (attempts, lastLine, self.reason) = (0, nil, nil) }
    attempts += 1
    let isNewReason = reason != nil && reason != self.reason
    if attempts > Self.firstAttempts, !isNewReason, let lastLine, now - lastLine < Self.interval { return nil }
    lastLine = now
    var line = words
    if isNewReason, let reason {
      self.reason = reason
      line += ": \"\(reason)\""
    }
    line += "; next attempt in \(Units.text(retryDelay))"
    if attempts == Self.firstAttempts, !isLimited, !isHintGiven {
      isHintGiven = true
      line += ". From now on, at most one line per minute. To limit an outage, use --give-up T"
    }
    return line
  }
}
