// Where a stream's bytes come from.

public import EventLoops
public import StreamBuffers

/// Something that produces bytes without end.
///
/// A source writes into the producer it is given, on a thread of its own or on the stream's loop, and never waits for
/// the network. When it is stopped, or can give no more, it finishes the producer.
public protocol StreamSource: AnyObject, Sendable {
  /// Begins. Called once, on the stream's loop.
  ///
  /// - Throws: ``LiveStreamError`` of kind `source` when it cannot begin.
  func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) throws(LiveStreamError)

  /// What the stream begins with, and what a part of it has to begin with in order to be read by itself; empty where
  /// that is nothing.
  var header: [UInt8] { get }

  /// How many bytes a frame has, such as one sample of each channel. A source writes only whole frames after
  /// ``header``. If a part of the stream is stored by itself, it begins with a whole frame.
  var frameLength: Int { get }

  /// Ends after what is at hand: finishes the producer, soon. Called on the stream's loop, perhaps more than once.
  func stop()
}

extension StreamSource {
  /// No header.
  public var header: [UInt8] { [] }
  /// A byte.
  public var frameLength: Int { 1 }
}

/// What a source may use of the stream that it feeds.
public struct SourceContext: Sendable {
  /// The stream's loop, for sources that live by timers or descriptors.
  public let loop: EventLoop
  /// What to do when the buffer is full: the source decides how, it alone knows what waiting costs.
  public let overflow: OverflowPolicy
  /// Tells an event; any thread.
  public let report: @Sendable (SourceEvent) -> Void
  /// Tells why the source ends before it was stopped; any thread. The stream still sends what is buffered.
  public let fail: @Sendable (LiveStreamError) -> Void
}

/// What happens when the circular buffer is full.
public enum OverflowPolicy: String, CaseIterable, Sendable {
  /// The oldest bytes make room. What is lost is counted and told; on the server the same length is left empty.
  case dropOldest = "drop-oldest"
  /// The stream ends with an error, after what is buffered was sent.
  case stop
  /// The source waits: for pipes and files, which can.
  case wait
}
