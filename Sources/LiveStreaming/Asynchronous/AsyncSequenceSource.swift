// An asynchronous sequence of bytes as the source of a stream.

internal import EventLoops
internal import StreamBuffers

/// Reads a sequence on a separate task, from the stream's start to its end.
final class AsyncSequenceSource<Sequence: AsyncSequence & Sendable>: StreamSource {
  private let sequence: Sequence
  private let bytes: @Sendable (Sequence.Element) -> [UInt8]
  private let written = WrittenSource()
  private let reader = Lock<Task<Void, Never>?>(nil)

  /// - Parameter bytes: the bytes of an element.
  init(_ sequence: Sequence, bytes: @escaping @Sendable (Sequence.Element) -> [UInt8]) {
    self.sequence = sequence
    self.bytes = bytes
  }

  func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) throws(LiveStreamError) {
    try written.start(into: producer, context: context)
    let task = Task.detached { [sequence, bytes, written] in
      do {
        for try await element in sequence {
          // The stream has the reason.
          guard await written.write(bytes(element)) else { return }
        }
        written.end(nil)
      } catch {
        written.end(LiveStreamError(.source, "the sequence of bytes failed: \(error)"))
      }
    }
    reader.withLock { $0 = task }
  }

  func stop() {
    // Comes first, so that the error with which a sequence may answer the cancellation is no failure of the source.
    written.stop()
    reader.withLock { $0.take() }?.cancel()
  }
}
