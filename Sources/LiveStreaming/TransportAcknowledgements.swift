// When to ask the kernel how far the peer's TCP has acknowledged, for servers that say nothing themselves, and how much
// of what it says to believe.

internal import EventLoops

/// The rhythm of looking, and the retention.
struct TransportAcknowledgements {
  /// How often a stream that is written to asks, in nanoseconds.
  private static let interval: Int64 = 1_000_000_000

  /// Runs while the buffer is under pressure.
  var timer: EventLoop.Timer?
  private let retention: Int
  /// Whether a request that breaks off is to be sent again from its start.
  private let keepsStart: Bool
  private var start: UInt64 = 0
  private var lastCheck = MonotonicInstant(nanoseconds: 0)
  private var cursorAtLastCheck: UInt64 = 0
  private var delay = Duration.milliseconds(1)

  init(retention: Int, keepsStart: Bool) { (self.retention, self.keepsStart) = (retention, keepsStart) }

  /// A request begins at this offset.
  mutating func begin(at offset: UInt64) { (start, cursorAtLastCheck) = (offset, offset) }

  /// Whether to look now that bytes were written; if so, this was the look.
  mutating func isDue(_ writer: StreamWriter, now: MonotonicInstant) -> Bool {
    let cursor = writer.cursor
    // A source that waits for room is let go on as soon as there is some; otherwise there is time.
    let byteStep = UInt64(writer.capacity / (isHalfFull(writer) ? 64 : 8))
    guard now.nanoseconds(since: lastCheck) >= Self.interval || cursor - min(cursor, cursorAtLastCheck) >= byteStep
    else { return false }
    lastCheck = now
    cursorAtLastCheck = cursor
    return true
  }

  /// Up to where bytes may be given up.
  ///
  /// - Parameter newest: one past the newest byte of the stream.
  func releasable(acknowledged: UInt64, newest: UInt64, capacity: Int) -> UInt64 {
    let most = acknowledged - min(acknowledged, UInt64(min(retention, capacity / 2)))
    // From its start on, the request takes no more than half of the buffer.
    let hasRoom = newest - min(newest, start) <= UInt64(capacity / 2)
    return keepsStart && hasRoom ? min(most, start) : most
  }

  /// A source that waits for room would wait for ever if the last bytes were acknowledged with nobody looking: so while
  /// the buffer is more than half full and something is under way, look again after a millisecond, and less and less
  /// often while nothing is acknowledged. nil when there is no need.
  func pressureDelay(_ writer: StreamWriter, acknowledged: UInt64) -> Duration? {
    // What is acknowledged and still kept can fill half of a small buffer: there is nothing to wait for then.
    writer.cursor > acknowledged && isHalfFull(writer) ? delay : nil
  }

  mutating func looked(hasProgress: Bool) {
    delay = hasProgress ? .milliseconds(1) : min(delay * 2, .milliseconds(64))
  }

  private func isHalfFull(_ writer: StreamWriter) -> Bool {
    Int(writer.head - writer.oldest) > writer.capacity / 2
  }
}
