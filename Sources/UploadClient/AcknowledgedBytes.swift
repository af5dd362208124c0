// Counts the bytes of a request's body that the peer's TCP has acknowledged. The count is a lower bound: a byte too few
// is sent again, and a byte too many would be lost.

internal import Glibc

/// Accounts for one request's body between libcurl and the kernel's send queue.
struct AcknowledgedBytes {
  private var ledger = ChunkLedger()
  /// The number of bytes that the connection carried before the body's first one, including this request's head. Nil if
  /// it is unknown. Only with it does the kernel's count of all acknowledged bytes determine the peer's position in the
  /// body.
  private var bodyStart: UInt64?
  /// The most bytes that libcurl may retain in its own buffers when the start is unknown.
  private var heldByLibcurl: UInt64 = 0
  /// The ledger's wire bytes of the newest piece until libcurl asks for more. libcurl may still retain them.
  private var newestPiece: UInt64 = 0
  private var acknowledged: UInt64 = 0

  /// The number of body bytes passed to libcurl so far.
  var bodyByteCount: UInt64 { ledger.bodyByteCount }

  /// Begins a request. Its head is on its way, and none of the body yet.
  ///
  /// - Parameters:
  ///   - isChunked: whether the body has no `Content-Length`.
  ///   - hasPlainFraming: whether the URL and the HTTP version send the body as it is. A proxy may still wrap it in
  ///     TLS.
  ///   - countsChunks: whether to count exactly. Otherwise the framing of chunks in flight counts as body. This is a
  ///     lower bound that costs no memory, like the additions of TLS and HTTP/2.
  ///   - bytesBefore: the result of ``bytesWritten(on:)``, if the connection is known to add no bytes of its own.
  mutating func begin(
    isChunked: Bool, hasPlainFraming: Bool, countsChunks: Bool, heldByLibcurl: Int, bytesBefore: UInt64?
  ) {
    let isExact = hasPlainFraming && (countsChunks || !isChunked)
    ledger = ChunkLedger(isChunked: isChunked && isExact)
    bodyStart = isExact ? bytesBefore : nil
    // libcurl passes a chunk on as a whole. Other content may stay in a buffer that is filled before it is sent.
    self.heldByLibcurl = hasPlainFraming && isChunked ? 0 : UInt64(heldByLibcurl)
  }

  /// libcurl asked for bytes and got `count`. It has passed on all earlier bytes of a chunked body.
  mutating func handedOver(_ count: Int) {
    let before = ledger.wireByteCount
    if count > 0 { ledger.append(count) }
    newestPiece = ledger.wireByteCount - before
  }

  /// libcurl asked, and the body has ended. libcurl has passed on all of it, but perhaps not the last chunk (`0`). So
  /// that chunk does not count.
  mutating func bodyEnded() { newestPiece = 0 }

  /// Updates the count from the socket, and returns it.
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

  /// The kernel's counts for a TCP connection. Nil for other sockets.
  static func kernel(of socket: Int32) -> StallWatch.Kernel? {
    guard let queued = queuedByteCount(on: socket) else { return nil }
    return StallWatch.Kernel(queued: queued, acknowledged: acknowledgedByPeer(on: socket) ?? 0)
  }

  /// SIOCOUTQ, tcp(7): the number of bytes written to the socket that the peer has not acknowledged. It is available
  /// even after a reset.
  private static func queuedByteCount(on socket: Int32) -> UInt64? {
    var count: Int32 = 0
    return ioctl(socket, UInt(TIOCOUTQ), &count) == 0 ? UInt64(max(0, count)) : nil
  }

  /// The number of bytes ever written to a TCP socket. Nil for other sockets.
  static func bytesWritten(on socket: Int32) -> UInt64? {
    // An acknowledgement between the two calls would count twice or not at all, so the first call is repeated.
    for _ in 0..<10 {
      guard let before = acknowledgedByPeer(on: socket), let queued = queuedByteCount(on: socket) else { return nil }
      if acknowledgedByPeer(on: socket) == before { return before + queued }
    }
    return nil
  }

  /// The number of bytes that the peer acknowledged on this connection: `tcpi_bytes_acked` without the SYN.
  private static func acknowledgedByPeer(on socket: Int32) -> UInt64? {
    // The kernel's struct tcp_info (linux/tcp.h) is longer than glibc's. The field's offset in it never changes.
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
