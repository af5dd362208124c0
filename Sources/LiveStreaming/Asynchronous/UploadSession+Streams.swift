// Live streams that tasks start, write and await.

public import UploadClient

extension UploadSession {
  /// Streams the bytes of `source`, and resumes after every interruption.
  ///
  /// The source starts at once, even if the server cannot be reached. The buffer has 16 MiB. While it is full, the
  /// oldest bytes are discarded and reported. To change this, use a ``LiveStreaming/LiveStreamConfiguration``.
  ///
  /// - Parameters:
  ///   - source: produces the bytes.
  ///   - url: an absolute `http` or `https` URL.
  ///   - contentType: the media type of the stream.
  /// - Throws: ``LiveStreaming/LiveStreamError`` of kind ``LiveStreaming/LiveStreamError/Kind/source`` when memory for
  ///   the buffer is refused, and ``LiveStreaming/LiveStreamError/Kind/cancelled`` when the session is closed.
  public func stream(
    _ source: some StreamSource, to url: String, contentType: String = "application/octet-stream"
  ) throws(LiveStreamError) -> LiveStreamTask {
    try stream(source, configuration: LiveStreamConfiguration(to: url, contentType: contentType))
  }

  /// Streams the bytes of `source`, and resumes after every interruption.
  ///
  /// - Throws: ``LiveStreaming/LiveStreamError`` of kind ``LiveStreaming/LiveStreamError/Kind/source`` when memory for
  ///   the buffer is refused, and ``LiveStreaming/LiveStreamError/Kind/cancelled`` when the session is closed.
  public func stream(
    _ source: some StreamSource, configuration: LiveStreamConfiguration
  ) throws(LiveStreamError) -> LiveStreamTask {
    LiveStreamTask(try operation(source, configuration))
  }

  /// Streams an asynchronous sequence of bytes. The sequence waits while the buffer of 16 MiB is full.
  ///
  /// - Parameters:
  ///   - bytes: the sequence, read from its start to its end.
  ///   - url: an absolute `http` or `https` URL.
  ///   - contentType: the media type of the stream.
  /// - Throws: ``LiveStreaming/LiveStreamError`` of kind ``LiveStreaming/LiveStreamError/Kind/source`` when memory for
  ///   the buffer is refused, and ``LiveStreaming/LiveStreamError/Kind/cancelled`` when the session is closed.
  public func stream<Bytes: AsyncSequence & Sendable>(
    _ bytes: Bytes, to url: String, contentType: String = "application/octet-stream"
  ) throws(LiveStreamError) -> LiveStreamTask where Bytes.Element == UInt8 {
    try stream(
      AsyncSequenceSource(bytes) { [$0] }, configuration: .waiting(to: url, contentType: contentType))
  }

  /// Streams an asynchronous sequence of pieces, such as `[UInt8]` or Foundation's `Data`. The sequence waits while the
  /// buffer of 16 MiB is full.
  ///
  /// - Parameters:
  ///   - pieces: the sequence, read from its start to its end.
  ///   - url: an absolute `http` or `https` URL.
  ///   - contentType: the media type of the stream.
  /// - Throws: ``LiveStreaming/LiveStreamError`` of kind ``LiveStreaming/LiveStreamError/Kind/source`` when memory for
  ///   the buffer is refused, and ``LiveStreaming/LiveStreamError/Kind/cancelled`` when the session is closed.
  public func stream<Pieces: AsyncSequence & Sendable>(
    _ pieces: Pieces, to url: String, contentType: String = "application/octet-stream"
  ) throws(LiveStreamError) -> LiveStreamTask where Pieces.Element: Collection<UInt8> {
    try stream(
      AsyncSequenceSource(pieces) { Array($0) }, configuration: .waiting(to: url, contentType: contentType))
  }

  /// Streams the bytes that `body` writes, and waits for the server's confirmation.
  ///
  /// ``LiveStreaming/LiveStreamWriter/write(_:)-([UInt8])`` waits while the buffer of 16 MiB is full. When `body`
  /// throws, the stream stops at once. Cancelling the task also stops the stream.
  ///
  /// - Parameters:
  ///   - url: an absolute `http` or `https` URL.
  ///   - contentType: the media type of the stream.
  ///   - body: writes the stream. The stream ends when it returns.
  /// - Returns: the summary of the stream.
  /// - Throws: ``LiveStreaming/LiveStreamError`` with the reason why the stream ended early, or the error of `body`. If
  ///   the task is cancelled, the kind is ``LiveStreaming/LiveStreamError/Kind/cancelled``, even if `body` throws
  ///   `CancellationError`.
  @discardableResult
  nonisolated(nonsending) public func withStream(
    to url: String, contentType: String = "application/octet-stream",
    _ body: nonisolated(nonsending) (LiveStreamWriter) async throws -> Void
  ) async throws -> StreamSummary {
    try await withStream(configuration: .waiting(to: url, contentType: contentType), body)
  }

  /// Streams the bytes that `body` writes, and waits for the server's confirmation.
  ///
  /// - Parameters:
  ///   - configuration: the destination and the settings. ``LiveStreaming/LiveStreamConfiguration/overflow`` does not
  ///     apply, because writers wait.
  ///   - body: writes the stream. The stream ends when it returns.
  /// - Returns: the summary of the stream.
  /// - Throws: ``LiveStreaming/LiveStreamError`` with the reason why the stream ended early, or the error of `body`. If
  ///   the task is cancelled, the kind is ``LiveStreaming/LiveStreamError/Kind/cancelled``, even if `body` throws
  ///   `CancellationError`.
  @discardableResult
  nonisolated(nonsending) public func withStream(
    configuration: LiveStreamConfiguration, _ body: nonisolated(nonsending) (LiveStreamWriter) async throws -> Void
  ) async throws -> StreamSummary {
    var configuration = configuration
    configuration.overflow = .wait
    let source = WrittenSource()
    let operation = try operation(source, configuration)
    let writer = LiveStreamWriter(source: source, operation: operation, task: LiveStreamTask(operation))
    // Its last reference ends the stream.
    defer { withExtendedLifetime(writer) {} }
    return try await withTaskCancellationHandler {
      do {
        try await body(writer)
      } catch {
        operation.cancel()
        let summary = await operation.summary
        // Whether the cancelled body throws this or returns, the result is the same.
        if error is CancellationError, let cancelled = summary.error, cancelled.kind == .cancelled { throw cancelled }
        throw error
      }
      operation.finish()
      let summary = await operation.summary
      if let error = summary.error { throw error }
      return summary
    } onCancel: {
      operation.cancel()
    }
  }

  private func operation(
    _ source: some StreamSource, _ configuration: LiveStreamConfiguration
  ) throws(LiveStreamError) -> StreamOperation {
    let operation: StreamOperation
    do {
      operation = StreamOperation(try LiveStreamer(source, configuration: configuration, session: self), self)
    } catch {
      throw LiveStreamError(.source, "cannot create the stream's buffer: \(error)")
    }
    // A source that never starts never ends, so no task may wait for it.
    guard operation.isStarted else { throw .sessionIsClosed }
    return operation
  }
}

extension LiveStreamConfiguration {
  /// Creates a configuration with a URL, a media type, and the defaults for everything else.
  ///
  /// - Parameters:
  ///   - url: an absolute `http` or `https` URL.
  ///   - contentType: the media type of the stream.
  public init(to url: String, contentType: String) {
    var request = UploadRequest(url: url)
    request.fields.addDefault("Content-Type", contentType)
    self.init(request: request)
  }

  /// The configuration for sources that can wait.
  static func waiting(to url: String, contentType: String) -> LiveStreamConfiguration {
    var configuration = LiveStreamConfiguration(to: url, contentType: contentType)
    configuration.overflow = .wait
    return configuration
  }
}
