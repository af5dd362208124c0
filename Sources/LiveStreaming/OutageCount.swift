// Several failed attempts without progress between them are one outage.

/// Counts the outages of one stream or download. An outage is a period in which requests fail without progress.
package struct OutageCount {
  package private(set) var count = 0
  /// Set during an outage: the offset that was acknowledged, or downloaded, at its start.
  private var start: UInt64?

  package init() {}

  /// Notes that a request has ended before its stream or download.
  ///
  /// - Returns: whether it belongs to an outage that was already counted.
  package mutating func failed(acknowledged: UInt64) -> Bool {
    let isRepeated = start.map { acknowledged <= $0 } ?? false
    if !isRepeated { count += 1 }
    // Less than before if the server has lost some bytes.
    start = acknowledged
    return isRepeated
  }

  /// Bytes up to this stream offset are lost, or are too few to end an outage. This is not progress.
  mutating func skipped(to offset: UInt64) { start = start.map { max($0, offset) } }

  /// The server works: there was nothing to acknowledge, or a download that started over receives bytes.
  package mutating func worked() { start = nil }
}
