// Sends the data that earlier processes left in a spool.

internal import EventLoops
internal import HTTPMessages
public import Spool
public import SpooledStreams
public import UploadClient

/// Sends the stretches that earlier processes left in a spool, one after another, oldest first. Each stretch continues
/// the upload that its process began, from the server's offset to the end of the stretch.
///
/// All calls may come from any thread. Events come on the session's thread. Keep the object until
/// ``Event/ended(delivered:kept:)``.
public final class BacklogStreamer: @unchecked Sendable {
  // Unchecked, because everything is used on the session's thread after `init`.

  /// An event of the backlog.
  public enum Event: Sendable {
    /// A stretch begins. The event has its length in bytes and the start of its capture in milliseconds since 1970.
    case begins(stretch: String, byteCount: UInt64, created: Int64)
    /// An event of the stream that sends a stretch.
    case stream(stretch: String, LiveStreamEvent)
    /// A stretch cannot be sent, for this reason. It stays in the spool.
    case unreadable(stretch: String, Obstacle)
    /// The last event. Stretches that were not delivered stay in the spool.
    case ended(delivered: Int, kept: Int)
  }

  /// The reason why a stretch cannot be sent.
  public enum Obstacle: Equatable, Sendable, CustomStringConvertible {
    /// The spool cannot open it.
    case spool(SpoolError)
    /// Its file does not describe where to send it, or describes it like another version of Sluice.
    case noDestination(path: String)
    /// Another stream of this process already sends it.
    case inUse(path: String)

    /// The file and the reason, in words.
    public var description: String {
      switch self {
      case .spool(let error): error.description
      case .noDestination(let path): "\(path): no valid description of the stream and its URL"
      case .inUse(let path): "\(path): another stream of this process already sends it"
      }
    }
  }

  private let spool: StreamSpool
  private let configuration: LiveStreamConfiguration
  private let session: UploadSession
  /// The names of the stretches that come next.
  private var waiting: [String]
  /// Whether the spool is opening a stretch.
  private var isOpening = false
  private var current: LiveStreamer?
  private var handler: @Sendable (Event) -> Void = { _ in }
  private var delivered = 0
  private var kept = 0
  private var isCancelled = false
  /// The registration for the closing of the session, from the start to the end.
  private var closing: UInt64?

  /// Creates a streamer for the data of earlier processes.
  ///
  /// - Parameters:
  ///   - spool: the spool with the data of earlier processes.
  ///   - configuration: the settings. The URL, the stream ID and the media type are those of each stretch.
  ///   - session: sends the requests.
  public init(_ spool: StreamSpool, configuration: LiveStreamConfiguration, session: UploadSession) {
    self.spool = spool
    self.configuration = configuration
    self.session = session
    waiting = spool.backlog
  }

  /// The size of libcurl's buffer in bytes.
  private static let uploadBufferSize = 256 << 10

  /// Begins with the oldest stretch. If the session is closed, the backlog ends at once, on the calling thread.
  public func start(_ handler: @escaping @Sendable (Event) -> Void) {
    let isOpen = session.execute { [self] in
      self.handler = handler
      closing = session.whenClosing { [weak self] in self?.cancelNow() }
      // The session is about to close.
      if closing == nil { isCancelled = true }
      next()
    }
    if !isOpen { handler(.ended(delivered: 0, kept: waiting.count)) }
  }

  /// Ends at once. Unacknowledged bytes stay in the spool.
  public func cancel() { session.loop.execute { [self] in cancelNow() } }

  private func cancelNow() {
    isCancelled = true
    current?.cancelNow()
    // The disk may never finish opening the next stretch, and a session that closes does not wait for it.
    if isOpening { end(kept: 1) }
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
    if let closing { session.forgetClosing(closing) }
    closing = nil
    handler(.ended(delivered: delivered, kept: kept + more + waiting.count))
    handler = { _ in }
  }

  private func opened(_ result: OpenedStretch, _ name: String) {
    let stretch: SpooledBacklog
    switch result {
    case .backlog(let opened): stretch = opened
    // The server has the whole stretch.
    case .nothingLeft: return next()
    case .unreadable(let error): return skip(name, .spool(error))
    }
    let path = "\(spool.path)/\(name)"
    guard let description = StretchDescription(stretch.description) else {
      return skip(name, .noDestination(path: path))
    }
    let configuration = configuration(for: stretch, description)
    guard let streamer = LiveStreamer(stretch, configuration: configuration, session: session, spool: spool) else {
      return skip(name, .inUse(path: path))
    }
    current = streamer
    handler(
      .begins(
        stretch: name, byteCount: stretch.kept.upperBound - stretch.kept.lowerBound, created: stretch.created))
    streamer.start { [self] event in
      handler(.stream(stretch: name, event))
      guard case .ended(let summary) = event else { return }
      if summary.error == nil { delivered += 1 } else { kept += 1 }
      // Or the session closes, and cannot send the other stretches either.
      if summary.error?.kind == .cancelled { isCancelled = true }
      next()
    }
  }

  /// The stretch stays in the spool.
  private func skip(_ name: String, _ obstacle: Obstacle) {
    kept += 1
    handler(.unreadable(stretch: name, obstacle))
    next()
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
    configuration.request.fields = configuration.request.fields.without(["Content-Type"])
    if let type = description.contentType { configuration.request.fields.append("Content-Type", type) }
    configuration.streamID = description.streamID
    if let rate = description.bytesPerSecond { configuration.buffer = .time(.seconds(2), bytesPerSecond: rate) }
    // A plain server has stored the bytes before. The rest belongs in the same recording, which has no upload resource.
    if configuration.resumable == .auto, resumption.upload == nil, resumption.acknowledged ?? 0 > 0 {
      configuration.resumable = .never
    }
    configuration.resumeData = configuration.resumable == .never ? nil : resumption.upload
    // The spool has later acknowledgements than the resumption.
    let released = stretch.released > 0 ? stretch.released.addingSaturated(stretch.pausedByteCount) : 0
    configuration.acknowledged = max(resumption.acknowledged ?? 0, released)
    configuration.sentDescription = resumption.description
    // The disk supplies bytes as fast as they are read, so the number of system calls limits the throughput. At a
    // limited rate, libcurl would send a whole buffer at once, and then nothing until the next one.
    if configuration.request.maximumSendRate == nil {
      configuration.request.uploadBufferSize = max(configuration.request.uploadBufferSize, Self.uploadBufferSize)
    }
    // The bytes that the server has already stored are not available here for the digest.
    (configuration.description, configuration.digest) = (nil, nil)
    return configuration
  }
}
