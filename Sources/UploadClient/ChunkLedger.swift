// Maps bytes on the wire to bytes of the stream, to find the part of a body that TCP has acknowledged.
//
// The kernel counts the connection's bytes. A chunked body (RFC 9112, section 7.1) wraps every piece of the stream in a
// size line and a line end. libcurl makes one chunk of each result of the read callback, so recording the callbacks is
// sufficient. A body with a Content-Length is sent unchanged.

/// The chunks of one request that may still be unacknowledged. A value without I/O.
struct ChunkLedger {
  /// Whether the body is sent in chunks.
  let isChunked: Bool
  private struct Entry {
    /// The start of the chunk's payload in the body.
    var bodyStart: UInt64
    var bodyCount: UInt64
    /// The start of the chunk's size line on the wire, counted from the body's first wire byte.
    var wireStart: UInt64
    /// The number of wire bytes before the payload. For merged chunks, it includes all of their framing, so that errors
    /// cause bytes to be sent again.
    var framingBefore: UInt64
  }

  /// Beyond this number of entries, neighbours are merged. This bounds the memory (16 KiB) at the cost of precision.
  static let maximumEntries = 511

  private var entries: [Entry] = []
  /// The number of body bytes recorded so far.
  private(set) var bodyByteCount: UInt64 = 0
  /// The number of their bytes on the wire.
  private(set) var wireByteCount: UInt64 = 0
  private var acknowledged: UInt64 = 0

  init(isChunked: Bool = true) { self.isChunked = isChunked }

  /// Records a chunk of `count` body bytes, at least one.
  mutating func append(_ count: Int) {
    guard isChunked else {
      bodyByteCount += UInt64(count)
      wireByteCount = bodyByteCount
      return
    }
    // Hexadecimal digits and a line end.
    let sizeLine = UInt64((Int.bitWidth - count.leadingZeroBitCount + 3) / 4 + 2)
    entries.append(
      Entry(bodyStart: bodyByteCount, bodyCount: UInt64(count), wireStart: wireByteCount, framingBefore: sizeLine))
    bodyByteCount += UInt64(count)
    wireByteCount += sizeLine + UInt64(count) + 2
    if entries.count > Self.maximumEntries { mergeNeighbours() }
  }

  /// The number of acknowledged body bytes when `wireCount` bytes of the body's wire form are acknowledged. It never
  /// decreases.
  mutating func acknowledge(wireCount: UInt64) -> UInt64 {
    guard isChunked else {
      acknowledged = max(acknowledged, min(wireCount, bodyByteCount))
      return acknowledged
    }
    var done = 0
    for entry in entries where entry.wireStart + entry.framingBefore < wireCount {
      let payload = min(wireCount - entry.wireStart - entry.framingBefore, entry.bodyCount)
      acknowledged = max(acknowledged, entry.bodyStart + payload)
      guard payload == entry.bodyCount else { break }
      done += 1
    }
    entries.removeFirst(done)
    return acknowledged
  }

  /// Their number is even, one more than ``maximumEntries``.
  private mutating func mergeNeighbours() {
    var merged: [Entry] = []
    merged.reserveCapacity(Self.maximumEntries)
    for index in stride(from: 0, to: entries.count - 1, by: 2) {
      var entry = entries[index]
      let next = entries[index + 1]
      let payload = entry.bodyCount + next.bodyCount
      // All bytes on the wire between the two payloads' starts and ends that are not payload.
      entry.framingBefore = (next.wireStart + next.framingBefore + next.bodyCount) - entry.wireStart - payload
      entry.bodyCount = payload
      merged.append(entry)
    }
    entries = merged
  }
}
