// The writing end of a live stream whose bytes a task makes.

/// The writing end of a stream, within ``UploadClient/UploadSession/withStream(to:contentType:_:)``.
///
/// Several tasks may write at the same time. The bytes of one call stay together.
public struct LiveStreamWriter: Sendable {
  let source: WrittenSource
  let operation: StreamOperation
  /// Ends with its last reference, not before its observers.
  let task: LiveStreamTask

  /// Everything that happens to the stream; see ``LiveStreamTask/events``.
  public var events: Observations<LiveStreamEvent> { task.events }

  /// How the stream stands; see ``LiveStreamTask/progress``.
  public var progress: Observations<StreamProgress> { task.progress }

  /// Appends the UTF-8 bytes of `text` to the stream.
  ///
  /// - Throws: see ``write(_:)-([UInt8])``.
  nonisolated(nonsending) public func write(_ text: String) async throws(LiveStreamError) {
    try await write(Array(text.utf8))
  }

  /// Appends bytes to the stream. Waits while the buffer is full: until the server has acknowledged enough of what it
  /// has. Cancelling the task that waits stops the stream.
  ///
  /// - Throws: ``LiveStreamError`` with the reason why the stream has ended, of kind ``LiveStreamError/Kind/source``
  ///   after its proper end.
  nonisolated(nonsending) public func write(_ bytes: [UInt8]) async throws(LiveStreamError) {
    // As a rule there is room, and nothing to wait for.
    let written = Task.isCancelled ? nil : source.writeAtOnce(bytes)
    if written == bytes.count { return }
    let isWritten = await withTaskCancellationHandler {
      await source.write(bytes, after: written)
    } onCancel: {
      operation.cancel()
    }
    if !isWritten {
      throw await operation.summary.error
        ?? LiveStreamError(.source, "the stream has ended: nothing more can be written")
    }
  }

  /// Appends bytes to the stream, as ``write(_:)-([UInt8])`` does.
  nonisolated(nonsending) public func write(_ bytes: some Collection<UInt8> & Sendable) async throws(LiveStreamError) {
    try await write(Array(bytes))
  }
}
