// From bytes on the wire back to bytes of the stream: which part of a body has TCP acknowledged?
//
// The kernel counts the connection's bytes; a chunked body (RFC 9112, section 7.1) wraps every piece of the stream in a
// size line and a line end. libcurl makes one chunk of what one read callback returns, so noting the callbacks is
// enough. A body with a Content-Length is on the wire as it is.

/// The chunks of one request that may still be unacknowledged. A value; asks nobody.
struct ChunkLedger {
  /// Whether the body is sent in chunks.
  let isChunked: Bool
  private struct Entry {
    /// Where the chunk's payload begins in the body.
    var bodyStart: UInt64
    var bodyCount: UInt64
    /// Where the chunk's size line begins on the wire, counted from the body's first wire byte.
    var wireStart: UInt64
    /// Wire bytes ahead of the payload. For merged chunks all of their framing, as if it came first, so that the
    /// answer errs towards sending again.
    var framingBefore: UInt64
  }

  /// Beyond this many entries neighbours are merged: a bound on memory (16 KiB) at the price of precision.
  static let maximumEntries = 511

  private var entries: [Entry] = []
  /// Body bytes noted so far.
  private(set) var bodyByteCount: UInt64 = 0
  /// What they make on the wire.
  private(set) var wireByteCount: UInt64 = 0
  private var acknowledged: UInt64 = 0

  init(isChunked: Bool = true) { self.isChunked = isChunked }

  /// Notes a chunk of `count` body bytes, at least one.
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

  /// Notes the last chunk, `0 CRLF CRLF`, which has no payload.
  mutating func appendEnd() { if isChunked { wireByteCount += 5 } }

  /// How many body bytes are acknowledged when `wireCount` bytes of the body's wire form are. Never goes back.
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

  private mutating func mergeNeighbours() {
    var merged: [Entry] = []
    merged.reserveCapacity(Self.maximumEntries)
    for index in stride(from: 0, to: entries.count - 1, by: 2) {
      var entry = entries[index]
      let next = entries[index + 1]
      let payload = entry.bodyCount + next.bodyCount
      // Everything on the wire between the two payloads' starts and ends that is not payload.
      entry.framingBefore = (next.wireStart + next.framingBefore + next.bodyCount) - entry.wireStart - payload
      entry.bodyCount = payload
      merged.append(entry)
    }
    if !entries.count.isMultiple(of: 2), let last = entries.last { merged.append(last) }
    entries = merged
  }
}
