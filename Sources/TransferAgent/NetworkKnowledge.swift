// What the agent assumes about the network while no watch reports it: a state machine without clock or bus.

internal import EventLoops

/// Receives the reports of watches of the network, and their ends. Returns the conditions that hold from then on, and
/// the pause before the next watch.
struct NetworkKnowledge: Equatable, Sendable {
  /// What the agent does because it does not know the conditions.
  enum Substitute: Equatable, Sendable {
    /// Transfers that depend on them wait.
    case waiting
    /// No network counts as metered.
    case unmetered
  }

  /// How long the last conditions stay after the bus or NetworkManager has disappeared. Usually they are restarted, and
  /// the connections stay meanwhile.
  static let restartLimit = Duration.seconds(60)

  /// The last conditions that NetworkManager has reported; nil if it has not been reached, or the bus has been missing
  /// for too long.
  private(set) var last: NetworkConditions?
  /// When the watch ended that had reported them; nil until then.
  private var endTime: MonotonicInstant?
  /// The pauses before the agent watches the network again after a watch has ended.
  private var pauses = RetryPauses(.seconds(1)...(.seconds(300)))
  private var substitute: Substitute?
  /// The last one that was returned to be reported.
  private var reported: Substitute?
  /// Whether the silence after the last answer was returned to be reported.
  private var isSilenceReported = false

  /// A watch reports the conditions.
  mutating func note(_ conditions: NetworkConditions) {
    (last, endTime) = (conditions, nil)
    pauses.reset()
    (substitute, reported, isSilenceReported) = (nil, nil, false)
  }

  /// A watch has ended.
  ///
  /// - Parameter isBusMissing: whether it found no bus. Otherwise the network may be the same as before.
  /// - Returns: the conditions from now on, nil if they do not change; the pause before the next watch; and what the
  ///   agent does without knowing the conditions, if that is to be reported. It is reported when it changes, and not
  ///   for each watch.
  mutating func endWatch(
    isBusMissing: Bool, now: MonotonicInstant
  ) -> (conditions: NetworkConditions?, pause: Duration, substitute: Substitute?) {
    let end = endTime ?? now
    endTime = end
    let rest = Self.restartLimit - (now - end)
    if isBusMissing, rest <= .zero { last = nil }
    // The next watch decides whether the bus has returned in time.
    let pause = pauses.next()
    let next = last != nil && rest > .zero ? min(pause, rest) : pause
    if last == nil { substitute = isBusMissing ? .unmetered : substitute ?? .waiting }
    return (isBusMissing ? last ?? NetworkConditions() : nil, next, takeNews())
  }

  /// NetworkManager does not answer, and the watch continues.
  ///
  /// - Returns: what the agent does without knowing the conditions, if that is to be reported.
  mutating func noteSilence() -> Substitute? {
    if last == nil { substitute = substitute ?? .waiting }
    return takeNews()
  }

  /// NetworkManager does not answer any more, and the watch continues.
  ///
  /// - Returns: its last answer, which holds until it answers again, if that is to be reported. Nil without an answer.
  mutating func noteSilenceAfterAnswer() -> NetworkConditions? {
    guard let last, !isSilenceReported else { return nil }
    isSilenceReported = true
    return last
  }

  private mutating func takeNews() -> Substitute? {
    defer { reported = substitute }
    return substitute == reported ? nil : substitute
  }

  /// No transfer depends on the network any more. The next watch is the first of a series.
  mutating func forget() {
    pauses.reset()
    substitute = nil
  }
}
