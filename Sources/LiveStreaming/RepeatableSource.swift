// Sources whose bytes need no buffer: what a generator or a file gives at an offset, it gives there again.

public import EventLoops
internal import StreamBuffers

/// Something that produces a stream by a rule: any byte of it can be had again, for as long as the stream lasts.
///
/// It lives on its stream's loop: all calls come from there, and it may not block. A stream of such a source takes no
/// circular buffer, and no descriptor besides its connection's; otherwise it is streamed like any other.
public protocol RepeatableSource: AnyObject, Sendable {
  /// Begins. Called once.
  ///
  /// - Parameters:
  ///   - loop: the stream's loop, on whose thread all calls come.
  ///   - arrived: to be called whenever ``head`` or ``isFinished`` has changed.
  func start(on loop: EventLoop, arrived: @escaping () -> Void)
  /// Ends where it is: ``isFinished`` is true from here on. Perhaps called more than once.
  func stop()
  /// Stream offset one past the newest byte.
  var head: UInt64 { get }
  /// Whether ``head`` is final.
  var isFinished: Bool { get }
  /// Hands `body` up to `maximum` bytes from `offset` on, at least one, contiguous, and returns what it returned.
  ///
  /// - Parameters:
  ///   - offset: below ``head``.
  ///   - maximum: the most bytes that `body` can use.
  ///   - body: takes the bytes, and returns how many of them it has used.
  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> Int
}

/// A repeatable source in the place of a circular buffer of this size: what a device with such a buffer would have
/// lost in an outage is lost here, too.
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

  /// Each arrival is told, asked for or not.
  func requestWakeUp(beyond offset: UInt64) -> Bool { !source.isFinished && source.head <= offset }

  func release(upTo offset: UInt64) { released = max(released, offset) }
}
