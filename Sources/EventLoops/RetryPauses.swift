// How long to wait before the next attempt at something that fails. Pure.

/// The pauses between attempts: each is twice as long as the one before, up to the longest.
package struct RetryPauses: Equatable, Sendable {
  /// The shortest pause and the longest.
  private let limits: ClosedRange<Duration>
  private var upcoming: Duration

  package init(_ limits: ClosedRange<Duration>) {
    self.limits = limits
    upcoming = limits.lowerBound
  }

  package var shortest: Duration { limits.lowerBound }

  /// Whether no attempt has failed since the beginning, or since the last success.
  package var isFirst: Bool { upcoming == limits.lowerBound }

  /// The pause before the next attempt.
  ///
  /// - Parameter grows: false for an attempt that costs little. It follows after the shortest pause, and the others do
  ///   not grow with it.
  package mutating func next(grows: Bool = true) -> Duration {
    guard grows else { return shortest }
    defer { upcoming = min(upcoming * 2, limits.upperBound) }
    return upcoming
  }

  /// An attempt has succeeded.
  package mutating func reset() { upcoming = limits.lowerBound }
}
