// The writing end of a live stream whose bytes come from a task.

/// The writing end of a stream in ``UploadClient/UploadSession/withStream(to:contentType:_:)``.
///
/// Several tasks may write at the same time. The bytes of one call stay together.
public struct LiveStreamWriter: Sendable {
  let source: WrittenSource
  let operation: StreamOperation
  /// The stream ends with the last reference to it, even if observers remain.
  let task: LiveStreamTask

  /// All events of the stream. See ``LiveStreamTask/events``.
  public var events: Observations<LiveStreamEvent> { task.events }

  /// The progress of the stream. See ``LiveStreamTask/progress``.
  public var progress: Observations<StreamProgress> { task.progress }

  /// Appends the UTF-8 bytes of `text` to the stream.
  ///
  /// - Throws: see ``write(_:)-([UInt8])``.
  nonisolated(nonsending) public func write(_ text: String) async throws(LiveStreamError) {
    try await write(Array(text.utf8))
  }

  /// Appends bytes to the stream. While the buffer is full, the call waits until the server has acknowledged enough
  /// bytes. Cancelling the waiting task stops the stream.
  ///
  /// - Throws: ``LiveStreamError`` with the reason why the stream has ended. Its kind is
  ///   ``LiveStreamError/Kind/source`` if the stream has ended normally.
  nonisolated(nonsending) public func write(_ bytes: [UInt8]) async throws(LiveStreamError) {
    // Usually there is room, and the call does not wait.
    let written = Task.isCancelled ? nil : source.writeAtOnce(bytes)
    if written == bytes.count { return }
    let isWritten = await withTaskCancellationHandler {
      await source.write(bytes, after: written)
    } onCancel: {
      operation.cancel()
    }
    if !isWritten {
      // The stream may still wait for the server, for as long as that cannot be reached.
      throw await operation.summaryOrCancellation.error
        ?? LiveStreamError(.source, "cannot write: the stream has ended")
    }
  }

  /// Appends bytes to the stream, as ``write(_:)-([UInt8])`` does.
  nonisolated(nonsending) public func write(_ bytes: some Collection<UInt8> & Sendable) async throws(LiveStreamError) {
    try await write(Array(bytes))
  }
}
