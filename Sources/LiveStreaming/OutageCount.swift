// One outage is one dropout, however many attempts it takes.

/// Counts the outages of one stream: periods in which requests end and nothing goes forward.
struct OutageCount {
  private(set) var count = 0
  /// While there is an outage: the stream offset that the server had acknowledged by then.
  private var start: UInt64?

  /// A request has ended before its stream.
  ///
  /// - Returns: whether that belongs to an outage that is counted already.
  mutating func failed(acknowledged: UInt64) -> Bool {
    let isRepeated = start.map { acknowledged <= $0 } ?? false
    if !isRepeated { count += 1 }
    // Less than before if the server has lost some of it.
    start = acknowledged
    return isRepeated
  }

  /// Bytes up to this stream offset are lost: no progress, though it looks like one.
  mutating func skipped(to offset: UInt64) { start = start.map { max($0, offset) } }

  /// The server works, and there was nothing to acknowledge.
  mutating func worked() { start = nil }
}
