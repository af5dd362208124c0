// The buffers of a spool, for the streams that use them.

internal import EventLoops
package import StreamBuffers

/// A stretch that an earlier process has captured.
package final class SpooledBacklog: Sendable {
  /// The name of its file.
  package let name: String
  /// When its process began, in milliseconds since 1970.
  package let created: Int64
  /// The description at its creation.
  package let description: String
  package let stretch: SpooledStretch
  /// The range of positions that are kept.
  package let kept: Range<UInt64>
  /// The server has acknowledged everything before it.
  package let released: UInt64
  /// The total length of the pauses before ``released``, in bytes.
  package let pausedByteCount: UInt64
  /// The data for resuming it, in the stream's own format.
  package let resumption: String
  private let ends: Lock<CircularBuffer.FinishedEnds?>

  init(
    name: String, created: Int64, description: String, stretch: SpooledStretch, kept: Range<UInt64>, released: UInt64,
    pausedByteCount: UInt64, resumption: String, ends: consuming sending CircularBuffer.FinishedEnds
  ) {
    (self.name, self.created) = (name, created)
    self.description = description
    self.stretch = stretch
    (self.kept, self.released, self.pausedByteCount) = (kept, released, pausedByteCount)
    self.resumption = resumption
    self.ends = Lock(consume ends)
  }

  /// Returns its end, once, for the stream that sends the bytes.
  package func takeEnds() -> CircularBuffer.FinishedEnds? { ends.withLock { $0.take() } }
}

/// The circular buffer of a stream that begins.
package final class SpooledBuffer: Sendable {
  package let stretch: SpooledStretch
  private let ends: Lock<CircularBuffer.CopiedEnds?>

  init(_ ends: consuming sending CircularBuffer.CopiedEnds, stretch: SpooledStretch) {
    self.ends = Lock(consume ends)
    self.stretch = stretch
  }

  /// Returns its ends, once.
  package func takeEnds() -> CircularBuffer.CopiedEnds? { ends.withLock { $0.take() } }
}
