// When the line "streaming to URL" is printed. A source may produce its first byte long after the server has accepted
// the stream.

internal import LiveStreaming

/// Reports the beginning of a stream once: with the server's upload resource, or with the first byte of its content.
struct StreamBeginning {
  private var hasBegun = false
  /// Whether the line of the next ``LiveStreamEvent/streaming(offset:)`` was already printed.
  private var isReported = false

  /// The event whose line is printed for `event`. Nil if its line was already printed.
  mutating func shown(_ event: LiveStreamEvent) -> LiveStreamEvent? {
    switch event {
    case .upload(.created) where !hasBegun:
      (hasBegun, isReported) = (true, true)
      return .streaming(offset: 0)
    case .streaming(let offset):
      hasBegun = true
      defer { isReported = false }
      return isReported && offset == 0 ? nil : event
    case .outage, .attemptFailed:
      // The line after it reports that the stream is connected again.
      isReported = false
      return event
    default: return event
    }
  }
}
