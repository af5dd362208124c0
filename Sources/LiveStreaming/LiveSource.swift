// A source, and how its stream hears of new bytes, until the stream ends.

internal import EventLoops
internal import StreamBuffers
internal import UploadClient

/// Owned by the network loop's thread.
final class LiveSource {
  private enum Kind {
    /// Fills a circular buffer, on whatever thread.
    case buffered(any StreamSource, BufferedBytes)
    /// On the stream's own loop.
    case repeatable(any RepeatableSource)
  }

  let writer: StreamWriter
  private let kind: Kind
  /// Until the source has it.
  private var producer: CircularBuffer.Producer?
  /// Whether the loop watches the buffer.
  private var isRegistered = false

  /// - Throws: ``SystemError`` when memory or descriptors for the buffer are refused.
  convenience init(_ source: any StreamSource, _ configuration: LiveStreamConfiguration) throws(SystemError) {
    // What libcurl may hold back never counts as acknowledged: a buffer that holds no more would stay full.
    let held = configuration.request.hasPlainFraming ? 0 : configuration.request.mostHeldByteCount
    let retention = configuration.resumable == .always ? 0 : configuration.retention.addingSaturated(held)
    let ends = try CircularBuffer.make(
      capacity: .bytes(configuration.buffer.byteCount.addingSaturated(retention)),
      overflow: configuration.overflow == .dropOldest ? .dropOldest : .refuse, memory: configuration.memory,
      allowsPauses: true)
    let bytes = BufferedBytes(
      ends.consumer, frames: FrameGrid(headerLength: source.header.count, frameLength: source.frameLength))
    self.init(.buffered(source, bytes), bytes, producer: ends.producer, configuration)
  }

  convenience init(_ source: any RepeatableSource, _ configuration: LiveStreamConfiguration) {
    self.init(
      .repeatable(source), RepeatableBytes(source, capacity: configuration.buffer.byteCount), producer: nil,
      configuration)
  }

  private init(
    _ kind: Kind, _ bytes: any StreamBytes, producer: consuming CircularBuffer.Producer?,
    _ configuration: LiveStreamConfiguration
  ) {
    self.kind = kind
    self.producer = producer
    writer = StreamWriter(
      bytes, pairSize: configuration.pairSize, digest: configuration.digest,
      headroom: configuration.buffer.headroom)
  }

  /// - Throws: ``SystemError`` when the loop cannot watch the buffer, ``LiveStreamError`` when the source cannot begin.
  func start(on loop: EventLoop, context: @autoclosure () -> SourceContext, dataArrived: @escaping () -> Void) throws {
    switch kind {
    case .repeatable(let source): source.start(on: loop, arrived: dataArrived)
    case .buffered(let source, let bytes):
      // Once: the producer is gone afterwards.
      guard let producer = producer.take() else { return }
      try loop.register(bytes.descriptor, [.readable, .edgeTriggered]) { _ in dataArrived() }
      isRegistered = true
      try source.start(into: producer, context: context())
    }
  }

  /// What each part of the stream begins with.
  var header: [UInt8] {
    switch kind {
    case .buffered(let source, _): source.header
    case .repeatable: []
    }
  }

  /// The source ends after what is at hand.
  func finish() {
    switch kind {
    case .repeatable(let source): source.stop()
    case .buffered(let source, _): source.stop()
    }
  }

  func stop(on loop: EventLoop) {
    finish()
    if isRegistered, case .buffered(_, let bytes) = kind { loop.deregister(bytes.descriptor) }
    isRegistered = false
  }
}

extension CircularBuffer.Capacity {
  /// Two seconds of the source, or 1 MiB where nobody knows its rate.
  fileprivate var headroom: Int {
    switch self {
    case .bytes: 1 << 20
    case .time(_, let bytesPerSecond): Int(clamping: Int64(bytesPerSecond).multipliedSaturated(by: 2))
    }
  }
}
