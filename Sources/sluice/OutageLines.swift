// The lines of an outage: what failed, why as the server says it, and when the next attempt follows. An outage of days
// gets a line per minute, and each reason is printed once.

internal import EventLoops
internal import LiveStreaming

/// Decides which attempts of an outage get a line, and what the line adds to the attempt.
struct OutageLines {
  /// So many attempts get a line each. Later ones get one per ``interval``.
  private static let firstAttempts = 5
  private static let interval = Duration.seconds(60)

  /// Whether the user has limited the outage with `--give-up`.
  let isLimited: Bool

  private var attempts = 0
  private var lastLine: MonotonicInstant?
  private var reason: String?
  private var isHintGiven = false

  init(isLimited: Bool) { self.isLimited = isLimited }

  /// What to say of a failed attempt; nil for nothing.
  ///
  /// - Parameters:
  ///   - reason: the words of the server, in one line.
  ///   - isNew: whether an outage begins with it.
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
      line += ", and so on, with a line per minute. --give-up T ends this"
    }
    return line
  }
}
