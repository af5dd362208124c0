// When the connected broker is left because it does not run JetStream.

internal import EventLoops

/// How long the connected broker has answered that it does not run JetStream.
///
/// libnats reconnects to any broker of the list. A broker without JetStream would never be of use, so another one is
/// tried. A cluster without a leader looks the same for a short time, so that is not done at once.
struct JetStreamAbsence {
  private static let patience = Duration.seconds(5)

  /// Whether the list has more than one broker.
  let hasAlternative: Bool
  /// The first such answer since JetStream answered, or since the connection was established.
  private var start: MonotonicInstant?

  init(hasAlternative: Bool) { self.hasAlternative = hasAlternative }

  /// The broker answers that it does not run JetStream.
  ///
  /// - Returns: whether another broker should be tried now.
  mutating func isTooLong(at now: MonotonicInstant) -> Bool {
    guard let begun = start else {
      start = now
      return false
    }
    guard hasAlternative, now >= begun + Self.patience else { return false }
    start = nil
    return true
  }

  /// JetStream has answered, or another connection is established.
  mutating func end() { start = nil }
}
