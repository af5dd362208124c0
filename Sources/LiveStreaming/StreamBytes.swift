// The bytes that the writer drains: a circular buffer of captured bytes, or a source that can repeat its bytes.

internal import StreamBuffers

/// The bytes of a stream in production, by stream offset. On the network loop's thread only.
protocol StreamBytes: AnyObject {
  /// The number of bytes that an outage may leave unsent before the oldest are lost.
  var capacity: Int { get }
  /// The stream offset of the oldest readable byte.
  var oldest: UInt64 { get }
  /// The offset after the newest byte that can be read without passing a pause.
  var head: UInt64 { get }
  /// Whether ``head`` is final. Read this first, and ``head`` afterwards.
  var isFinished: Bool { get }
  /// The last passed pause: stream offsets without bytes. ``oldest`` is its end, or after it.
  var pause: Range<UInt64>? { get }
  /// The total length of all passed pauses.
  var pausedByteCount: UInt64 { get }
  /// The offset after the newest byte, regardless of pauses.
  var newest: UInt64 { get }
  /// The first offset at or after `offset` at which a part of the stream may begin.
  func aligned(_ offset: UInt64) -> UInt64
  /// The number of available bytes from `offset` on.
  func byteCount(from offset: UInt64) -> UInt64
  /// Stream offsets whose bytes are lost although later ones are kept, in order, as far as is known. Those that were
  /// released since may be among them.
  var holes: [Range<UInt64>] { get }
  /// Whether the stream pauses at `offset`. The bytes before it belong in a separate request.
  func pauses(at offset: UInt64) -> Bool
  /// Calls `body` with up to `maximum` contiguous bytes from `offset` on, and returns its result.
  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> CircularBuffer.Consumer.ReadResult<Int>
  /// Whether the byte at `offset` is missing although it was not released, and others follow it.
  func isMissing(at offset: UInt64) -> Bool
  /// Whether the bytes at `offset`, which a read did not find, are being loaded. The data handler is called when they
  /// are available.
  func isLoading(at offset: UInt64) -> Bool
  /// Requests one call of the data handler once there are bytes beyond `offset`, or the stream has ended. Returns false
  /// if that is already so.
  func requestWakeUp(beyond offset: UInt64) -> Bool
  /// Releases all bytes before `offset`.
  func release(upTo offset: UInt64)
}

extension StreamBytes {
  var pause: Range<UInt64>? { nil }
  var pausedByteCount: UInt64 { 0 }
  var newest: UInt64 { head }
  var holes: [Range<UInt64>] { [] }
  /// From ``oldest`` to ``head``. The oldest is read first, because the producer may discard bytes in between.
  var extent: Range<UInt64> {
    let oldest = oldest
    return oldest..<head
  }
  func aligned(_ offset: UInt64) -> UInt64 { offset }
  func byteCount(from offset: UInt64) -> UInt64 { head - min(head, offset) }
  func pauses(at offset: UInt64) -> Bool { false }
  func isLoading(at offset: UInt64) -> Bool { false }
  func isMissing(at offset: UInt64) -> Bool { false }
}
