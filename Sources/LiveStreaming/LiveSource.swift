// A source, the buffer it fills and the writer that drains it, until the stream ends.

internal import EventLoops
internal import StreamBuffers

/// Owned by the network loop's thread.
final class LiveSource {
  let source: any StreamSource
  let writer: StreamWriter
  /// Until the source has it.
  private var producer: CircularBuffer.Producer?
  /// Whether the loop watches the buffer.
  private var isRegistered = false

  init(source: any StreamSource, producer: consuming CircularBuffer.Producer, writer: StreamWriter) {
    self.source = source
    self.writer = writer
    self.producer = consume producer
  }

  /// - Throws: ``SystemError`` when the loop cannot watch the buffer, ``LiveStreamError`` when the source cannot begin.
  func start(on loop: EventLoop, context: SourceContext, dataArrived: @escaping () -> Void) throws {
    // Once: the producer is gone afterwards.
    guard let producer = producer.take() else { return }
    try loop.register(writer.dataDescriptor, [.readable, .edgeTriggered]) { _ in dataArrived() }
    isRegistered = true
    try source.start(into: producer, context: context)
  }

  func stop(on loop: EventLoop) {
    source.stop()
    if isRegistered { loop.deregister(writer.dataDescriptor) }
    isRegistered = false
  }
}
