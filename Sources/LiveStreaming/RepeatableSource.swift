// Sources whose bytes need no buffer. A generator or a file returns the same bytes for the same offset each time.

public import EventLoops
internal import StreamBuffers

/// A source that produces a stream by a rule. Any byte can be produced again, for as long as the stream lasts.
///
/// The source uses its stream's loop. All calls come from there, and must not block. A stream of such a source needs no
/// circular buffer, and no descriptor besides its connection's. Otherwise it is streamed like any other.
public protocol RepeatableSource: AnyObject, Sendable {
  /// Starts the source. Called once.
  ///
  /// - Parameters:
  ///   - loop: the stream's loop, on whose thread all calls come.
  ///   - arrived: call it whenever ``head`` or ``isFinished`` has changed.
  func start(on loop: EventLoop, arrived: @escaping () -> Void)
  /// Ends the source at its current offset. ``isFinished`` is true from now on. May be called more than once.
  func stop()
  /// The stream offset after the newest byte.
  var head: UInt64 { get }
  /// Whether ``head`` is final.
  var isFinished: Bool { get }
  /// Calls `body` with at least one and up to `maximum` contiguous bytes from `offset` on, and returns its result.
  ///
  /// - Parameters:
  ///   - offset: below ``head``.
  ///   - maximum: the most bytes that `body` can use.
  ///   - body: uses the bytes, and returns the number that it used.
  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> Int
}

/// A repeatable source in place of a circular buffer of this size. It loses the same bytes in an outage that a device
/// with such a buffer would lose.
final class RepeatableBytes: StreamBytes {
  private let source: any RepeatableSource
  let capacity: Int
  private var released: UInt64 = 0

  init(_ source: any RepeatableSource, capacity: Int) {
    self.source = source
    self.capacity = capacity
  }

  var oldest: UInt64 {
    let head = head
    return max(released, head - min(head, UInt64(capacity)))
  }
  var head: UInt64 { source.head }
  var isFinished: Bool { source.isFinished }

  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> CircularBuffer.Consumer.ReadResult<Int> {
    let head = head
    precondition(offset <= head, "reading beyond the head")
    guard offset < head else { return .empty }
    let oldest = oldest
    guard offset >= oldest else { return .overwritten(oldest: oldest) }
    return .bytes(source.read(at: offset, maximum: min(maximum, Int(head - offset)), body))
  }

  /// Each arrival causes a wake-up, even without a request.
  func requestWakeUp(beyond offset: UInt64) -> Bool { !source.isFinished && source.head <= offset }

  func release(upTo offset: UInt64) { released = max(released, offset) }
}
