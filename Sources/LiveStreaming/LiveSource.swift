// A source, and the wake-ups of its stream for new bytes until the stream ends.

internal import EventLoops
internal import HTTPMessages
internal import Spool
internal import SpooledStreams
internal import StreamBuffers
internal import UploadClient

/// Owned by the network loop's thread.
final class LiveSource {
  private enum Kind {
    /// Fills a circular buffer on any thread.
    case buffered(any StreamSource, BufferedBytes)
    /// Data that an earlier process left in the spool, with the header of each part of the stream.
    case spooled(header: [UInt8], BufferedBytes)
    /// Uses the stream's own loop.
    case repeatable(any RepeatableSource)
  }

  let writer: StreamWriter
  /// Keeps the bytes until the server has stored them. Nil for memory only.
  let spool: SpoolLink?
  let failure = SourceFailure()
  private let kind: Kind
  /// Set until the source takes it.
  private var producer: CircularBuffer.Producer?

  /// - Throws: ``SystemError`` when memory or descriptors for the buffer are refused.
  convenience init(_ source: any StreamSource, _ configuration: LiveStreamConfiguration) throws(SystemError) {
    // Bytes that libcurl may retain never count as acknowledged. A buffer without room for more would stay full.
    let held = configuration.request.hasPlainFraming ? 0 : configuration.request.mostHeldByteCount
    let retention = configuration.resumable == .always ? 0 : configuration.retention.addingSaturated(held)
    let ends = try CircularBuffer.make(
      capacity: .bytes(configuration.buffer.byteCount.addingSaturated(retention)),
      overflow: configuration.overflow == .dropOldest ? .dropOldest : .refuse, memory: configuration.memory,
      allowsPauses: true)
    let bytes = BufferedBytes(
      ends.consumer, frames: FrameGrid(headerLength: source.header.count, frameLength: source.frameLength),
      source: source as? any OnDemandSource)
    self.init(.buffered(source, bytes), bytes, producer: ends.producer, configuration)
  }

  /// Streams a source with a spool behind the circular buffer.
  ///
  /// - Throws: ``SpoolError`` when the spool cannot begin a stretch.
  convenience init(
    _ source: any StreamSource, _ configuration: LiveStreamConfiguration, _ spool: StreamSpool
  ) throws(SpoolError) {
    var description = StretchDescription(url: configuration.request.url, streamID: configuration.streamID)
    description.contentType = configuration.request.fields.first("Content-Type")
    (description.header, description.frameLength) = (source.header, source.frameLength)
    if case .time(_, let rate) = configuration.buffer { description.bytesPerSecond = rate }
    let buffer = try spool.begin(
      description: description.text ?? "", capacity: configuration.buffer.byteCount,
      overflow: configuration.overflow == .dropOldest ? .dropOldest : .refuse)
    // The ends are taken for the first time.
    let ends = buffer.takeEnds()!
    let stretch = buffer.stretch
    let bytes = BufferedBytes(
      ends.consumer, frames: FrameGrid(headerLength: source.header.count, frameLength: source.frameLength))
    self.init(
      .buffered(source, bytes), bytes, producer: ends.producer, configuration, spool: SpoolLink(spool, stretch))
  }

  /// Streams data that an earlier process left in the spool. Nil if another stream already has it.
  convenience init?(_ backlog: SpooledBacklog, _ configuration: LiveStreamConfiguration, _ spool: StreamSpool) {
    guard let ends = backlog.takeEnds(), let description = StretchDescription(backlog.description) else { return nil }
    let stretch = backlog.stretch
    let bytes = BufferedBytes(
      ends.consumer,
      frames: FrameGrid(headerLength: description.header.count, frameLength: description.frameLength))
    self.init(
      .spooled(header: description.header, bytes), bytes, producer: nil, configuration,
      spool: SpoolLink(spool, stretch, resumption: StretchResumption(backlog.resumption)))
  }

  convenience init(_ source: any RepeatableSource, _ configuration: LiveStreamConfiguration) {
    self.init(
      .repeatable(source), RepeatableBytes(source, capacity: configuration.buffer.byteCount), producer: nil,
      configuration)
  }

  private init(
    _ kind: Kind, _ bytes: any StreamBytes, producer: consuming CircularBuffer.Producer?,
    _ configuration: LiveStreamConfiguration, spool: SpoolLink? = nil
  ) {
    self.kind = kind
    self.spool = spool
    self.producer = producer
    writer = StreamWriter(
      bytes, pairSize: max(1, configuration.pairSize),
      // A plain server sends none to compare it with.
      digest: configuration.resumable == .never ? nil : configuration.digest,
      headroom: configuration.buffer.headroom)
    writer.hasSourceFailed = { [unowned self] in
      if case .buffered(let source, _) = self.kind { source.reportFailure() }
      return isCutOff
    }
  }

  /// Whether the source of these bytes has failed, in this process or in an earlier one.
  var isCutOff: Bool { failure.error != nil || spool?.isCutOff == true }

  /// - Throws: ``SystemError`` when the loop cannot watch the buffer, and ``LiveStreamError`` when the source cannot
  ///   start.
  func start(on loop: EventLoop, context: @autoclosure () -> SourceContext, dataArrived: @escaping () -> Void) throws {
    switch kind {
    case .repeatable(let source): source.start(on: loop, arrived: dataArrived)
    case .buffered(let source, let bytes):
      // Happens once, because the producer is gone afterwards.
      guard let producer = producer.take() else { return }
      try loop.register(bytes.descriptor, [.readable, .edgeTriggered]) { _ in dataArrived() }
      // A spool stores the bytes of a source even while the stream needs none.
      if spool == nil { (source as? any OnDemandSource)?.arrived = dataArrived }
      try source.start(into: producer, context: context())
    case .spooled(_, let bytes):
      try loop.register(bytes.descriptor, [.readable, .edgeTriggered]) { _ in dataArrived() }
    }
  }

  /// Whether the bytes were captured by an earlier process.
  var isSpooled: Bool { if case .spooled = kind { true } else { false } }

  /// The bytes with which each part of the stream begins.
  var header: [UInt8] {
    switch kind {
    case .buffered(let source, _): source.header
    case .spooled(let header, _): header
    case .repeatable: []
    }
  }

  /// The rate of the source, if it is constant.
  var bytesPerSecond: Int? {
    switch kind {
    case .buffered(let source, _): source.bytesPerSecond
    case .spooled, .repeatable: nil
    }
  }

  /// Ends the source after the available bytes.
  func finish() {
    switch kind {
    case .repeatable(let source): source.stop()
    case .buffered(let source, _): source.stop()
    case .spooled: break
    }
  }

  /// Also ends the watch of the buffer. It may not have begun.
  func stop(on loop: EventLoop) {
    finish()
    switch kind {
    case .buffered(let source, let bytes):
      (source as? any OnDemandSource)?.arrived = nil
      loop.deregister(bytes.descriptor)
    case .spooled(_, let bytes): loop.deregister(bytes.descriptor)
    case .repeatable: break
    }
  }
}

extension CircularBuffer.Capacity {
  /// Two seconds of the source, or 1 MiB if its rate is unknown.
  fileprivate var headroom: Int {
    switch self {
    case .bytes: 1 << 20
    case .time(_, let bytesPerSecond): Int(clamping: Int64(bytesPerSecond).multipliedSaturated(by: 2))
    }
  }
}
