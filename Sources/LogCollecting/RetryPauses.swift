// When a stream that waits is tried again. Pure.

/// The pauses before the attempts of a stream that waits.
struct RetryPauses {
  private static let shortest = Duration.seconds(2)
  private static let longest = Duration.seconds(120)
  private var growing = Self.shortest

  /// The pause before the next attempt.
  ///
  /// - Parameter grows: whether it doubles with each attempt, because an attempt costs more than a look at the cause.
  mutating func next(grows: Bool) -> Duration {
    guard grows else { return Self.shortest }
    defer { growing = min(growing * 2, Self.longest) }
    return growing
  }
}
