// The sources of a stream's bytes.

public import EventLoops
public import StreamBuffers

/// A source that produces bytes without end.
///
/// A source writes into its producer, on a separate thread or on the stream's loop, and never waits for the network.
/// When it is stopped, or has no more bytes, it finishes the producer.
public protocol StreamSource: AnyObject, Sendable {
  /// Starts the source. Called once, on the stream's loop.
  ///
  /// - Throws: ``LiveStreamError`` of kind `source` when the source cannot start.
  func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) throws(LiveStreamError)

  /// The bytes with which the stream begins, and with which a part of it must begin in order to be readable on its own.
  /// Empty for none.
  var header: [UInt8] { get }

  /// The number of bytes in a frame, such as one sample of each channel. A source writes only whole frames after
  /// ``header``. If a part of the stream is stored separately, it begins with a whole frame.
  var frameLength: Int { get }

  /// The number of bytes per second, if it is constant while the source produces bytes. Nil otherwise.
  var bytesPerSecond: Int? { get }

  /// Ends the source after the available bytes. The source finishes the producer soon. Called on the stream's loop,
  /// perhaps more than once.
  func stop()

  /// Reports a failure that the source has noticed and not reported yet. Called on the stream's loop after the producer
  /// is finished, before the stream decides whether that is a proper end, perhaps more than once.
  func reportFailure()
}

extension StreamSource {
  /// No header.
  public var header: [UInt8] { [] }
  /// One byte.
  public var frameLength: Int { 1 }
  /// No constant rate.
  public var bytesPerSecond: Int? { nil }
  /// Does nothing, for a source that reports a failure before it finishes the producer.
  public func reportFailure() {}
}

/// The parts of a stream that its source may use.
public struct SourceContext: Sendable {
  /// The stream's loop, for sources that use timers or descriptors.
  public let loop: EventLoop
  /// The policy for a full buffer. The source applies it, because only the source can judge the cost of waiting.
  public let overflow: OverflowPolicy
  /// Reports an event. Any thread.
  public let report: @Sendable (SourceEvent) -> Void
  /// Reports why the source ends before it was stopped. Any thread, before the source finishes its producer, or in
  /// ``StreamSource/reportFailure()``. The stream still sends the buffered bytes, and leaves an upload resource
  /// incomplete.
  public let fail: @Sendable (LiveStreamError) -> Void
}

/// The behaviour when the circular buffer is full.
public enum OverflowPolicy: String, CaseIterable, Sendable {
  /// The oldest bytes are discarded. Losses are counted and reported. On the server, the same length is left empty.
  case dropOldest = "drop-oldest"
  /// The stream ends with an error after the buffered bytes are sent.
  case stop
  /// The source waits. This is for sources that can wait, such as pipes and files.
  case wait
}
