// The consumer's end of a circular buffer by stream offset, including the pauses of the source.
//
// A pause is longer than the buffer. Its silence does not pass through the buffer, where it would replace bytes that
// the server has not stored. The bytes before the pause come first. Until all of them are released, the stream appears
// to end there. Then it continues after the pause, as it does after lost bytes, but without a loss.

internal import EventLoops
internal import StreamBuffers

/// Owned by the network loop's thread.
final class BufferedBytes: StreamBytes {
  private var consumer: CircularBuffer.Consumer
  /// The total length of all passed pauses, by which stream offsets exceed the buffer's offsets. The buffer counts it
  /// the same way.
  private(set) var pausedByteCount: UInt64
  /// The buffer's offset up to which bytes were released. The buffer itself may keep more.
  private var released: UInt64 = 0
  /// The buffer's offset of the last passed pause.
  private var floor: UInt64 = 0
  private(set) var pause: Range<UInt64>?
  private let frames: FrameGrid
  private let source: (any OnDemandSource)?

  /// - Parameters:
  ///   - frames: the possible offsets of the oldest byte. A part that begins at one of them can be played.
  ///   - source: asked for more bytes when the buffer is empty. Nil for a source that writes by itself.
  init(
    _ consumer: consuming CircularBuffer.Consumer, frames: FrameGrid = .bytes, source: (any OnDemandSource)? = nil
  ) {
    pausedByteCount = consumer.pausedByteCount
    self.consumer = consumer
    self.frames = frames
    self.source = source
  }

  /// Readable when the event that ``requestWakeUp(beyond:)`` waits for has occurred.
  var descriptor: Int32 { consumer.dataDescriptor }

  var capacity: Int { consumer.capacity }

  /// Passes the pauses that are due, and returns the buffer's offset up to which bytes can be read now.
  private func settle() -> UInt64 {
    // Read before the pauses, so that a byte that is visible here is not after a pause that is invisible below.
    let head = consumer.head
    while let next = consumer.nextPause {
      guard max(released, consumer.released) >= next.position else { return min(head, next.position) }
      let start = next.position.addingSaturated(pausedByteCount)
      // Two consecutive pauses count as one.
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

  /// The buffer's offset of the first complete frame. Released bytes do not count, even if they are still present,
  /// because they were acknowledged or reported as lost.
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
    // In this order, so that the reported amount never exceeds the capacity.
    let head = consumer.head
    return head - min(head, max(offset - min(offset, pausedByteCount), oldestPosition))
  }

  var holes: [Range<UInt64>] {
    // Read before the pauses, for the same reason as the head.
    let positions = consumer.holes
    _ = settle()
    let (paused, next) = (pausedByteCount, consumer.nextPause)
    return positions.flatMap { hole -> [Range<UInt64>] in
      // The part after a pause that is not passed yet is further on.
      let end = max(hole.lowerBound, min(hole.upperBound, next?.position ?? hole.upperBound))
      let shift = paused.addingSaturated(next?.length ?? 0)
      let before = hole.lowerBound.addingSaturated(paused)..<end.addingSaturated(paused)
      let after = end.addingSaturated(shift)..<hole.upperBound.addingSaturated(shift)
      return [before, after].filter { !$0.isEmpty }
    }
  }

  func pauses(at offset: UInt64) -> Bool {
    if pause?.contains(offset) == true { return true }
    return consumer.nextPause.map { $0.position.addingSaturated(pausedByteCount) == offset } ?? false
  }

  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> CircularBuffer.Consumer.ReadResult<Int> {
    var end = settle()
    let position = offset - min(offset, pausedByteCount)
    guard offset >= pausedByteCount, position >= floor else { return .overwritten(oldest: oldest) }
    if position >= end, fetch(beyond: position) { end = settle() }
    guard position < end else { return .empty }
    switch consumer.read(at: position, maximum: min(maximum, Int(clamping: end - position)), body) {
    case .bytes(let count): return .bytes(count)
    case .empty: return .empty
    case .overwritten: return .overwritten(oldest: oldest)
    }
  }

  /// Reads from the source until there are bytes beyond the buffer's offset `position`. Returns false if it has none.
  private func fetch(beyond position: UInt64) -> Bool {
    guard let source else { return false }
    while consumer.head <= position { guard source.fetch() else { break } }
    return consumer.head > position
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
    // After a pause that is not yet passed, the only event to wait for is its passing, which needs no wake-up.
    if consumer.nextPause != nil { return false }
    if fetch(beyond: position) || consumer.isFinished { return false }
    // It announces new bytes without a request.
    if source?.isReadOnDemand == true { return true }
    guard consumer.requestWakeUp(beyond: position) else { return false }
    // It may have arrived in the meantime without a waiter.
    return consumer.nextPause == nil
  }

  func release(upTo offset: UInt64) {
    let end = settle()
    guard offset >= pausedByteCount else { return }
    let position = min(offset - pausedByteCount, end)
    released = max(released, position)
    if consumer.isMissing(at: position) {
      // The rest of its frame will never come. The read makes the backing continue after the missing bytes.
      consumer.release(upTo: position)
      _ = consumer.read(at: position, maximum: 0) { _ in }
    } else {
      // A frame is kept until all of it is released.
      consumer.release(upTo: frames.floor(position))
    }
    _ = settle()
  }
}
