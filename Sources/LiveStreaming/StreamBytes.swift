// What the writer drains: a circular buffer that keeps what was captured, or a source that can give the same bytes
// again.

internal import StreamBuffers

/// The bytes of a stream that is being produced, by stream offset. On the network loop's thread only.
protocol StreamBytes: AnyObject {
  /// How many bytes an outage may leave unsent before the oldest are lost.
  var capacity: Int { get }
  /// Stream offset of the oldest byte that can still be read.
  var oldest: UInt64 { get }
  /// One past the newest byte that can be read without passing a pause.
  var head: UInt64 { get }
  /// Whether ``head`` is final. Look here first and at ``head`` afterwards.
  var isFinished: Bool { get }
  /// The pause that was passed last: stream offsets that no byte has. ``oldest`` is its end, or behind it.
  var pause: Range<UInt64>? { get }
  /// The lengths of all pauses that were passed.
  var pausedByteCount: UInt64 { get }
  /// One past the newest byte, pauses or not.
  var newest: UInt64 { get }
  /// The first offset from `offset` on at which a part of the stream may begin.
  func aligned(_ offset: UInt64) -> UInt64
  /// How many bytes are kept from `offset` on.
  func byteCount(from offset: UInt64) -> UInt64
  /// Whether the stream pauses at `offset`: the bytes before it belong into a request of their own.
  func pauses(at offset: UInt64) -> Bool
  /// Hands `body` up to `maximum` contiguous bytes from `offset` on, and returns what it returned.
  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> CircularBuffer.Consumer.ReadResult<Int>
  /// Whether the byte at `offset` is missing although it was not given up, and others follow it.
  func isMissing(at offset: UInt64) -> Bool
  /// Whether the bytes at `offset`, which a read did not find, are being loaded: the data handler is called when they
  /// are there.
  func isLoading(at offset: UInt64) -> Bool
  /// Asks for one call of the data handler once there is something beyond `offset`, or the stream has ended; false when
  /// that is so already.
  func requestWakeUp(beyond offset: UInt64) -> Bool
  /// Gives up all bytes before `offset`.
  func release(upTo offset: UInt64)
}

extension StreamBytes {
  var pause: Range<UInt64>? { nil }
  var pausedByteCount: UInt64 { 0 }
  var newest: UInt64 { head }
  func aligned(_ offset: UInt64) -> UInt64 { offset }
  func byteCount(from offset: UInt64) -> UInt64 { head - min(head, offset) }
  func pauses(at offset: UInt64) -> Bool { false }
  func isLoading(at offset: UInt64) -> Bool { false }
  func isMissing(at offset: UInt64) -> Bool { false }
}
