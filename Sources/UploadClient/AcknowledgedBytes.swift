// How much of a request's body has the peer's TCP acknowledged? Counted from below: a byte too few is sent again, a
// byte too many would be lost.

internal import Glibc

/// Keeps account of one request's body between libcurl and the kernel's send queue.
struct AcknowledgedBytes {
  private var ledger = ChunkLedger()
  /// How many bytes the connection carried before the body's first one, this request's head included; nil where that
  /// cannot be known. Only with it does the kernel's count of all acknowledged bytes tell where in the body the peer
  /// is.
  private var bodyStart: UInt64?
  /// The most that libcurl may hold back in buffers of its own where that cannot be known.
  private var heldByLibcurl: UInt64 = 0
  /// The ledger's wire bytes of the newest piece while libcurl has not asked for more: it may hold them still.
  private var newestPiece: UInt64 = 0
  private var acknowledged: UInt64 = 0

  /// Body bytes handed to libcurl so far.
  var bodyByteCount: UInt64 { ledger.bodyByteCount }

  /// The request's head is on its way, nothing of the body yet.
  ///
  /// - Parameters:
  ///   - isChunked: whether the body has no `Content-Length`.
  ///   - hasPlainFraming: whether the URL and the HTTP version promise the body as it is; a proxy may still wrap it in
  ///     TLS.
  ///   - countsChunks: whether to count to the byte. Otherwise the framing of chunks that are under way is taken for
  ///     body: a lower bound, like what TLS and HTTP/2 add, that costs no memory.
  ///   - bytesBefore: what ``bytesWritten(on:)`` says, if the connection is known to add nothing of its own to what it
  ///     carries.
  mutating func begin(
    isChunked: Bool, hasPlainFraming: Bool, countsChunks: Bool, heldByLibcurl: Int, bytesBefore: UInt64?
  ) {
    let isExact = hasPlainFraming && (countsChunks || !isChunked)
    ledger = ChunkLedger(isChunked: isChunked && isExact)
    bodyStart = isExact ? bytesBefore : nil
    // A chunk is passed on as a whole. What is not chunked may stay in a buffer that is filled up before it is sent.
    self.heldByLibcurl = hasPlainFraming && isChunked ? 0 : UInt64(heldByLibcurl)
  }

  /// libcurl asked for bytes and got `count`. Of a chunked body it has passed on all that it had before.
  mutating func handedOver(_ count: Int) {
    let before = ledger.wireByteCount
    if count > 0 { ledger.append(count) }
    newestPiece = ledger.wireByteCount - before
  }

  /// libcurl asked, and was told that there is no more: of a chunked body it has passed on all but the last line.
  mutating func bodyEnded() {
    newestPiece = 0
    ledger.appendEnd()
  }

  /// Brings the count up to date from the socket and returns it.
  mutating func update(socket: Int32) -> UInt64 {
    guard let queued = Self.queuedByteCount(on: socket) else { return acknowledged }
    let withheld = queued + max(heldByLibcurl, newestPiece)
    var wireCount = ledger.wireByteCount > withheld ? ledger.wireByteCount - withheld : 0
    if let bodyStart, let total = Self.acknowledgedByPeer(on: socket), total > bodyStart {
      wireCount = max(wireCount, min(total - bodyStart, ledger.wireByteCount))
    }
    acknowledged = max(acknowledged, ledger.acknowledge(wireCount: wireCount))
    return acknowledged
  }

  /// What the kernel has of a TCP connection; nil for other sockets.
  static func kernel(of socket: Int32) -> StallWatch.Kernel? {
    guard let queued = queuedByteCount(on: socket) else { return nil }
    return StallWatch.Kernel(queued: queued, acknowledged: acknowledgedByPeer(on: socket) ?? 0)
  }

  /// SIOCOUTQ, tcp(7): bytes written to the socket that the peer has not acknowledged. Still told after a reset.
  private static func queuedByteCount(on socket: Int32) -> UInt64? {
    var count: Int32 = 0
    return ioctl(socket, UInt(TIOCOUTQ), &count) == 0 ? UInt64(max(0, count)) : nil
  }

  /// All bytes ever written to a TCP socket; nil for other sockets.
  static func bytesWritten(on socket: Int32) -> UInt64? {
    // An acknowledgement between the two calls would be counted twice or not at all: so the first is asked again.
    for _ in 0..<10 {
      guard let before = acknowledgedByPeer(on: socket), let queued = queuedByteCount(on: socket) else { return nil }
      if acknowledgedByPeer(on: socket) == before { return before + queued }
    }
    return nil
  }

  /// All bytes that the peer acknowledged on this connection: `tcpi_bytes_acked`, without the SYN that it counts.
  private static func acknowledgedByPeer(on socket: Int32) -> UInt64? {
    // The kernel's struct tcp_info (linux/tcp.h) is longer than glibc's; the field's place in it is fixed for all time.
    let offset = 120
    return withUnsafeTemporaryAllocation(byteCount: offset + 8, alignment: 8) { bytes -> UInt64? in
      var length = socklen_t(bytes.count)
      guard getsockopt(socket, Int32(IPPROTO_TCP), TCP_INFO, bytes.baseAddress, &length) == 0,
        Int(length) == bytes.count
      else { return nil }
      let count = bytes.load(fromByteOffset: offset, as: UInt64.self)
      return count > 0 ? count - 1 : nil
    }
  }
}
