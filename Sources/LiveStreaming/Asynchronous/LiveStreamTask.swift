// A live stream as a task, with its events and its end.

/// A running live stream.
///
/// Create it with ``UploadClient/UploadSession/stream(_:configuration:)``. The stream ends when its source ends, when
/// you call ``finish(within:)`` or ``cancel()``, and when the last reference to this object is dropped. All members may
/// be used from any thread.
public final class LiveStreamTask: Sendable {
  let operation: StreamOperation

  init(_ operation: StreamOperation) { self.operation = operation }

  deinit { operation.cancel() }

  /// All events up to ``LiveStreamEvent/ended(_:)``. The first observer gets all events from the start of the stream.
  /// Each other observer gets only later events. At most 128 events are kept for an observer. If it misses some, it
  /// gets ``LiveStreamEvent/missed(_:)`` in their place.
  public var events: Observations<LiveStreamEvent> {
    Observations(broadcast: operation.events, owner: self, observed: {})
  }

  /// The progress of the stream. It is updated ten times per second while it is observed, and once at the end. A slow
  /// observer gets the newest value.
  public var progress: Observations<StreamProgress> {
    Observations(
      broadcast: operation.progress, owner: self, observed: { [operation] in operation.progressIsObserved() })
  }

  /// The summary of the stream, once the server has confirmed all of it. Cancelling a task that awaits it stops the
  /// stream.
  ///
  /// - Throws: ``LiveStreamError`` with the reason why the stream ended early.
  public var value: StreamSummary {
    get async throws(LiveStreamError) {
      let summary = await operation.summaryOrCancellation
      if let error = summary.error { throw error }
      return summary
    }
  }

  /// Ends the source, sends the buffered bytes, and waits for the server's response. ``value`` then returns.
  ///
  /// - Parameter limit: the longest time without an acknowledgement. Nil means no limit.
  public func finish(within limit: Duration? = nil) { operation.finish(within: limit) }

  /// Stops the stream at once. Bytes that the server has not acknowledged are lost.
  public func cancel() { operation.cancel() }
}
