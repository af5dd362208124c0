// The source of a case: noise in small pieces, at the pace of the case's own clock.

import EventLoops
import LiveStreaming
import StreamBuffers

/// Writes some bytes with each tick. Owned by the session's thread; unchecked for that reason.
final class CaseSource: StreamSource, @unchecked Sendable {
  private var producer: CircularBuffer.Producer?
  private(set) var produced: UInt64 = 0
  private(set) var capacity = 0
  /// Bytes that were due while the buffer was full.
  private var owed = 0

  func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) throws(LiveStreamError) {
    capacity = producer.capacity
    self.producer = consume producer
  }

  func stop() {
    producer?.finish()
    producer = nil
  }

  var isOpen: Bool { producer != nil }

  /// Produces up to `count` further bytes. Bytes that do not fit follow with the next tick.
  func produce(_ count: Int) {
    owed = min(owed + count, 65_536)
    while owed > 0, producer != nil {
      let piece = OffsetNoise.bytes(from: produced, count: min(owed, 2048))
      guard case .written(let written)? = producer?.write(copying: piece.span.bytes), written > 0 else { return }
      produced += UInt64(written)
      owed -= written
    }
  }

  var isIdle: Bool { owed == 0 }
}
