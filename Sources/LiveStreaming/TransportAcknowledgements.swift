// Decides when to ask the kernel how many bytes the peer's TCP has acknowledged, for servers that report nothing
// themselves, and how many of these bytes to trust.

internal import EventLoops

/// The intervals of the queries, and the retention.
struct TransportAcknowledgements {
  /// The interval of the queries for a stream with new bytes, in nanoseconds.
  private static let interval: Int64 = 1_000_000_000

  /// Runs while the buffer is more than half full.
  var timer: EventLoop.Timer?
  private let retention: Int
  /// Whether an interrupted request is sent again from its start.
  private let keepsStart: Bool
  private(set) var start: UInt64 = 0
  /// The smallest offset at which a request has begun. Nil before the first request.
  private var leastStart: UInt64?
  private var lastCheck = MonotonicInstant(nanoseconds: 0)
  private var cursorAtLastCheck: UInt64 = 0
  private var delay = Duration.milliseconds(1)

  init(retention: Int, keepsStart: Bool) { (self.retention, self.keepsStart) = (retention, keepsStart) }

  /// A request begins at this offset.
  mutating func begin(at offset: UInt64) {
    (start, cursorAtLastCheck) = (offset, offset)
    leastStart = min(leastStart ?? offset, offset)
  }

  /// Whether to query now, after bytes were written. If so, this counts as the query.
  mutating func isDue(_ writer: StreamWriter, now: MonotonicInstant) -> Bool {
    let cursor = writer.cursor
    // A source that waits for room continues as soon as there is some. Otherwise there is no hurry.
    let byteStep = UInt64(writer.capacity / (isHalfFull(writer) ? 64 : 8))
    guard now.nanoseconds(since: lastCheck) >= Self.interval || cursor - min(cursor, cursorAtLastCheck) >= byteStep
    else { return false }
    lastCheck = now
    cursorAtLastCheck = cursor
    return true
  }

  /// The offset before which bytes may be released.
  ///
  /// - Parameter newest: the offset after the newest byte of the stream.
  func releasable(acknowledged: UInt64, newest: UInt64, capacity: Int) -> UInt64 {
    let most = acknowledged - min(acknowledged, UInt64(min(retention, capacity / 2)))
    // From its start on, the request uses at most half of the buffer.
    let hasRoom = newest - min(newest, start) <= UInt64(capacity / 2)
    return keepsStart && hasRoom ? min(most, start) : most
  }

  /// The offset at which another process continues. Bytes that this process has sent are not known to be at the server
  /// before they are releasable, whatever the number of requests since then.
  ///
  /// - Parameters:
  ///   - oldest: the offset of the oldest byte that can still be sent.
  ///   - newest: the offset after the newest byte of the stream.
  func resumable(acknowledged: UInt64, oldest: UInt64, newest: UInt64, capacity: Int) -> UInt64 {
    // The bytes before were delivered by another process, or are reported as lost.
    guard let leastStart else { return acknowledged }
    let releasable = releasable(acknowledged: acknowledged, newest: newest, capacity: capacity)
    return min(acknowledged, max(releasable, oldest, leastStart))
  }

  /// A source that waits for room would wait forever if the last bytes were acknowledged without a query. So while the
  /// buffer is more than half full and bytes are in flight, query again after a millisecond, and less often while
  /// nothing is acknowledged. Nil if no query is needed.
  func pressureDelay(_ writer: StreamWriter, acknowledged: UInt64) -> Duration? {
    // Acknowledged bytes that are still kept can fill half of a small buffer. Then there is nothing to wait for.
    writer.cursor > acknowledged && isHalfFull(writer) ? delay : nil
  }

  mutating func looked(hasProgress: Bool) {
    delay = hasProgress ? .milliseconds(1) : min(delay * 2, .milliseconds(64))
  }

  private func isHalfFull(_ writer: StreamWriter) -> Bool { writer.extent.count > writer.capacity / 2 }
}
