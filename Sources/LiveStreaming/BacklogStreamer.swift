// What earlier processes have left in a spool, on its way to the server.

internal import EventLoops
public import SpooledStreams
public import UploadClient

/// Sends the stretches that earlier processes have left in a spool, one after another, oldest first. Each continues the
/// upload that its process has begun, from where the server has it to the stretch's end.
///
/// All calls may come from any thread; events come on the session's thread. Keep it until
/// ``Event/ended(delivered:kept:)``.
public final class BacklogStreamer: @unchecked Sendable {
  // Unchecked: all of it is used on the session's thread after `init`.

  /// Something happened to the backlog.
  public enum Event: Sendable {
    /// A stretch begins: its length in bytes, and when its capture began (milliseconds since 1970).
    case begins(stretch: String, byteCount: UInt64, created: Int64)
    /// Something happened to the stream that sends a stretch.
    case stream(stretch: String, LiveStreamEvent)
    /// Nobody can say what a stretch is: it stays in the spool.
    case unreadable(stretch: String)
    /// The last event. Stretches that were not delivered stay in the spool.
    case ended(delivered: Int, kept: Int)
  }

  private let spool: StreamSpool
  private let configuration: LiveStreamConfiguration
  private let session: UploadSession
  /// The names of those that come next.
  private var waiting: [String]
  /// Whether the spool opens one.
  private var isOpening = false
  private var current: LiveStreamer?
  private var handler: @Sendable (Event) -> Void = { _ in }
  private var delivered = 0
  private var kept = 0
  private var isCancelled = false

  /// - Parameters:
  ///   - spool: what earlier processes have left.
  ///   - configuration: how to send. URL, stream ID and media type are those of each stretch.
  ///   - session: sends the requests.
  public init(_ spool: StreamSpool, configuration: LiveStreamConfiguration, session: UploadSession) {
    self.spool = spool
    self.configuration = configuration
    self.session = session
    waiting = spool.backlog
  }

  /// libcurl's buffer, in bytes.
  private static let uploadBufferSize = 256 << 10

  /// Begins with the oldest stretch.
  public func start(_ handler: @escaping @Sendable (Event) -> Void) {
    session.loop.execute { [self] in
      self.handler = handler
      next()
    }
  }

  /// Ends at once. What was not acknowledged stays in the spool.
  public func cancel() {
    session.loop.execute { [self] in
      isCancelled = true
      current?.cancel()
      // The disk may take for ever to open the next one.
      if isOpening { end(kept: 1) }
    }
  }

  private func next() {
    current = nil
    guard !isCancelled, !waiting.isEmpty else { return end(kept: 0) }
    let name = waiting.removeFirst()
    isOpening = true
    spool.open(name) { [self] stretch in
      session.loop.execute { [self] in
        guard isOpening else { return }
        isOpening = false
        opened(stretch, name)
      }
    }
  }

  private func end(kept more: Int) {
    isOpening = false
    handler(.ended(delivered: delivered, kept: kept + more + waiting.count))
    handler = { _ in }
  }

  private func opened(_ result: OpenedStretch, _ name: String) {
    guard case .backlog(let stretch) = result, let description = StretchDescription(stretch.description),
      let streamer = LiveStreamer(
        stretch, configuration: configuration(for: stretch, description), session: session, spool: spool)
    else {
      // The server has everything of it.
      if case .nothingLeft = result { return next() }
      kept += 1
      handler(.unreadable(stretch: name))
      return next()
    }
    current = streamer
    handler(
      .begins(
        stretch: name, byteCount: stretch.kept.upperBound - stretch.kept.lowerBound, created: stretch.created))
    streamer.start { [self] event in
      handler(.stream(stretch: name, event))
      guard case .ended(let summary) = event else { return }
      if summary.error == nil { delivered += 1 } else { kept += 1 }
      next()
    }
  }

  private func configuration(
    for stretch: SpooledBacklog, _ description: StretchDescription
  ) -> LiveStreamConfiguration {
    let resumption = StretchResumption(stretch.resumption)
    var configuration = configuration
    if UploadRequest.origin(of: configuration.request.url) != UploadRequest.origin(of: description.url) {
      configuration.bearerToken = nil
    }
    configuration.request = configuration.request.directed(to: description.url)
    configuration.request.fields.removeAll { $0.name.lowercased() == "content-type" }
    if let type = description.contentType {
      configuration.request.fields.append(.init(name: "Content-Type", value: type))
    }
    configuration.streamID = description.streamID
    if let rate = description.bytesPerSecond { configuration.buffer = .time(.seconds(2), bytesPerSecond: rate) }
    configuration.resumeData = configuration.resumable == .never ? nil : resumption.upload
    // The spool has heard of later acknowledgements than the resumption.
    configuration.acknowledged =
      resumption.acknowledged.map {
        max($0, stretch.released.addingSaturated(stretch.pausedByteCount))
      } ?? 0
    configuration.sentDescription = resumption.description
    // The disk gives bytes as fast as they are taken, and then system calls are what counts. At a limited rate, libcurl
    // would send a whole buffer at once, and nothing until the next one.
    if configuration.request.maximumSendRate == nil {
      configuration.request.uploadBufferSize = max(configuration.request.uploadBufferSize, Self.uploadBufferSize)
    }
    // The bytes that the server already has are not here to be digested.
    (configuration.description, configuration.digest) = (nil, nil)
    return configuration
  }
}
