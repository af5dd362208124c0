// The consumer's end of a circular buffer, by stream offset: with the pauses that the source has made.
//
// A pause is longer than the buffer. Its silence never passes through, where it would take the place of bytes that the
// server does not have yet. The bytes before it come first: until all of them are released, the stream seems to end
// there for the moment. Then it goes on behind the pause, as it does where bytes were lost, but for the loss.

internal import EventLoops
internal import StreamBuffers

/// Owned by the network loop's thread.
final class BufferedBytes: StreamBytes {
  private var consumer: CircularBuffer.Consumer
  /// The lengths of all pauses passed so far: what stream offsets are more than the buffer's. As the buffer says it.
  private(set) var pausedByteCount: UInt64
  /// The buffer's offset up to which bytes were released. The buffer itself may keep some more.
  private var released: UInt64 = 0
  /// The buffer's offset of the last pause that was passed.
  private var floor: UInt64 = 0
  private(set) var pause: Range<UInt64>?
  private let frames: FrameGrid

  /// - Parameter frames: where the oldest byte may lie: what begins there can be played.
  init(_ consumer: consuming CircularBuffer.Consumer, frames: FrameGrid = .bytes) {
    pausedByteCount = consumer.pausedByteCount
    self.consumer = consumer
    self.frames = frames
  }

  /// Readable when what ``requestWakeUp(beyond:)`` waits for is there.
  var descriptor: Int32 { consumer.dataDescriptor }

  var capacity: Int { consumer.capacity }

  /// Passes the pauses that are due, and returns the buffer's offset up to which bytes can be read now.
  private func settle() -> UInt64 {
    // Before the pauses are looked at: a byte that is seen here is not behind one that is not seen below.
    let head = consumer.head
    while let next = consumer.nextPause {
      guard max(released, consumer.released) >= next.position else { return min(head, next.position) }
      let start = next.position.addingSaturated(pausedByteCount)
      // Two in a row are one.
      let first = pause?.upperBound == start ? pause?.lowerBound ?? start : start
      consumer.passPause()
      pausedByteCount = consumer.pausedByteCount
      pause = first..<next.position.addingSaturated(pausedByteCount)
      floor = next.position
    }
    return head
  }

  var oldest: UInt64 {
    let end = settle()
    return min(oldestPosition, end).addingSaturated(pausedByteCount)
  }

  /// The buffer's offset of the first frame that is kept as a whole. What was released is not, even while it is still
  /// there: it was acknowledged, or told to be lost.
  private var oldestPosition: UInt64 { max(frames.ceiling(consumer.released), frames.floor(released), floor) }

  func aligned(_ offset: UInt64) -> UInt64 {
    offset < pausedByteCount ? offset : frames.ceiling(offset - pausedByteCount).addingSaturated(pausedByteCount)
  }

  var head: UInt64 { settle().addingSaturated(pausedByteCount) }

  var isFinished: Bool {
    guard consumer.isFinished else { return false }
    _ = settle()
    return consumer.nextPause == nil
  }

  var newest: UInt64 { consumer.head.addingSaturated(pausedByteCount).addingSaturated(consumer.nextPause?.length ?? 0) }

  func byteCount(from offset: UInt64) -> UInt64 {
    // In this order: the buffer never holds more than it can.
    let head = consumer.head
    return head - min(head, max(offset - min(offset, pausedByteCount), oldestPosition))
  }

  func pauses(at offset: UInt64) -> Bool {
    if pause?.contains(offset) == true { return true }
    return consumer.nextPause.map { $0.position.addingSaturated(pausedByteCount) == offset } ?? false
  }

  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> CircularBuffer.Consumer.ReadResult<Int> {
    let end = settle()
    let position = offset - min(offset, pausedByteCount)
    guard offset >= pausedByteCount, position >= floor else { return .overwritten(oldest: oldest) }
    guard position < end else { return .empty }
    switch consumer.read(at: position, maximum: min(maximum, Int(clamping: end - position)), body) {
    case .bytes(let count): return .bytes(count)
    case .empty: return .empty
    case .overwritten: return .overwritten(oldest: oldest)
    }
  }

  func isMissing(at offset: UInt64) -> Bool {
    offset >= pausedByteCount && offset - pausedByteCount >= floor && consumer.isMissing(at: offset - pausedByteCount)
  }

  func isLoading(at offset: UInt64) -> Bool {
    offset >= pausedByteCount && offset - pausedByteCount >= floor && consumer.isBacked(at: offset - pausedByteCount)
      && offset - pausedByteCount >= consumer.released
  }

  func requestWakeUp(beyond offset: UInt64) -> Bool {
    let end = settle()
    guard offset >= pausedByteCount else { return false }
    let position = offset - pausedByteCount
    guard position >= floor else { return false }
    if position < end { return false }
    // Behind a pause that is not passed yet nothing can be waited for but its passing, which needs no wake-up.
    if consumer.nextPause != nil { return false }
    guard consumer.requestWakeUp(beyond: position) else { return false }
    // It may have come meanwhile, and have found nobody waiting.
    return consumer.nextPause == nil
  }

  func release(upTo offset: UInt64) {
    let end = settle()
    guard offset >= pausedByteCount else { return }
    let position = min(offset - pausedByteCount, end)
    released = max(released, position)
    // A frame is kept until all of it is released.
    consumer.release(upTo: frames.floor(position))
    _ = settle()
  }
}
