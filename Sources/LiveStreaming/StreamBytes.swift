// What the writer drains: a circular buffer that keeps what was captured, or a source that can give the same bytes again.

internal import StreamBuffers

/// The bytes of a stream that is being produced, by stream offset. On the network loop's thread only.
protocol StreamBytes: AnyObject {
  /// How many bytes an outage may leave unsent before the oldest are lost.
  var capacity: Int { get }
  /// Stream offset of the oldest byte that can still be read.
  var oldest: UInt64 { get }
  /// One past the newest byte.
  var head: UInt64 { get }
  /// Whether ``head`` is final. Look here first and at ``head`` afterwards.
  var isFinished: Bool { get }
  /// Hands `body` up to `maximum` contiguous bytes from `offset` on, and returns what it returned.
  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> CircularBuffer.Consumer.ReadResult<Int>
  /// Asks for one call of the data handler once there is something beyond `offset`, or the stream has ended; false when
  /// that is so already.
  func requestWakeUp(beyond offset: UInt64) -> Bool
  /// Gives up all bytes before `offset`.
  func release(upTo offset: UInt64)
}

/// The consumer's end of a circular buffer.
final class BufferedBytes: StreamBytes {
  private var consumer: CircularBuffer.Consumer

  init(_ consumer: consuming CircularBuffer.Consumer) { self.consumer = consumer }

  /// Readable when what ``requestWakeUp(beyond:)`` waits for is there.
  var descriptor: Int32 { consumer.dataDescriptor }

  var capacity: Int { consumer.capacity }
  var oldest: UInt64 { consumer.released }
  var head: UInt64 { consumer.head }
  var isFinished: Bool { consumer.isFinished }
  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> CircularBuffer.Consumer.ReadResult<Int> {
    consumer.read(at: offset, maximum: maximum, body)
  }
  func requestWakeUp(beyond offset: UInt64) -> Bool { consumer.requestWakeUp(beyond: offset) }
  func release(upTo offset: UInt64) { consumer.release(upTo: offset) }
}
