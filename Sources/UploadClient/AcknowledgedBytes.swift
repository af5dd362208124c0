// How much of a request's body has the peer's TCP acknowledged? Counted from below: a byte too few is sent again, a byte
// too many would be lost.

internal import Glibc

/// Keeps account of one request's body between libcurl and the kernel's send queue.
struct AcknowledgedBytes {
  private var ledger = ChunkLedger()
  /// Whether the connection carried nothing before this request.
  private var isFreshConnection = false
  /// Whether the body's bytes are on the wire as they are, in chunks: HTTP/1.1 without TLS.
  private var hasPlainFraming = false
  /// The most that libcurl may hold back in buffers of its own where that cannot be known.
  private var heldByLibcurl = 0
  /// Wire bytes of the newest chunk while libcurl has not asked for more: it may hold them still.
  private var newestChunkWireCount: UInt64 = 0
  private var newestChunkBodyCount: UInt64 = 0
  private var acknowledged: UInt64 = 0

  /// Body bytes handed to libcurl so far.
  var bodyByteCount: UInt64 { ledger.bodyByteCount }

  mutating func begin(isFreshConnection: Bool, hasPlainFraming: Bool, heldByLibcurl: Int) {
    self.isFreshConnection = isFreshConnection
    self.hasPlainFraming = hasPlainFraming
    self.heldByLibcurl = heldByLibcurl
  }

  /// libcurl asked for bytes, so it has passed on all that it had, and got `count`.
  mutating func handedOver(_ count: Int) {
    let before = ledger.wireByteCount
    if count > 0 { ledger.append(count) }
    newestChunkWireCount = ledger.wireByteCount - before
    newestChunkBodyCount = UInt64(count)
  }

  mutating func bodyEnded() {
    newestChunkWireCount = 0
    newestChunkBodyCount = 0
    ledger.appendEnd()
  }

  /// Brings the count up to date from the socket and returns it.
  ///
  /// - Parameter requestSize: bytes of the request's head as sent (`CURLINFO_REQUEST_SIZE`).
  mutating func update(socket: Int32, requestSize: Int) -> UInt64 {
    var unacknowledged: Int32 = 0
    // SIOCOUTQ, tcp(7): bytes written to the socket that the peer has not acknowledged. Still told after a reset.
    guard ioctl(socket, UInt(TIOCOUTQ), &unacknowledged) == 0 else { return acknowledged }
    let queued = UInt64(max(0, unacknowledged))
    if hasPlainFraming {
      let onWire = ledger.wireByteCount - newestChunkWireCount
      var wireCount = onWire > queued ? onWire - queued : 0
      if isFreshConnection, let total = Self.acknowledgedByPeer(on: socket), total > UInt64(requestSize) {
        wireCount = max(wireCount, min(total - UInt64(requestSize), ledger.wireByteCount))
      }
      acknowledged = max(acknowledged, ledger.acknowledge(wireCount: wireCount))
    } else {
      // TLS and HTTP/2 add bytes of their own, which only makes this bound lower.
      let withheld = queued + max(UInt64(heldByLibcurl), newestChunkBodyCount)
      acknowledged = max(acknowledged, bodyByteCount > withheld ? bodyByteCount - withheld : 0)
    }
    return acknowledged
  }

  /// All bytes that the peer acknowledged on this connection: `tcpi_bytes_acked`, without the SYN that it counts.
  private static func acknowledgedByPeer(on socket: Int32) -> UInt64? {
    // The kernel's struct tcp_info (linux/tcp.h) is longer than glibc's; the field's place in it is fixed for all time.
    let offset = 120
    return withUnsafeTemporaryAllocation(byteCount: offset + 8, alignment: 8) { bytes -> UInt64? in
      var length = socklen_t(bytes.count)
      guard getsockopt(socket, Int32(IPPROTO_TCP), TCP_INFO, bytes.baseAddress, &length) == 0, Int(length) == bytes.count
      else { return nil }
      let count = bytes.load(fromByteOffset: offset, as: UInt64.self)
      return count > 0 ? count - 1 : nil
    }
  }
}
