// A live stream as tasks see it: what happens to it, and how it ends.

/// A live stream that is running.
///
/// Made by ``UploadClient/UploadSession/stream(_:configuration:)``. The stream ends when its source ends, with
/// ``finish(within:)``, with ``cancel()``, and when nobody refers to this object any more. All members may be used from
/// any thread.
public final class LiveStreamTask: Sendable {
  let operation: StreamOperation

  init(_ operation: StreamOperation) { self.operation = operation }

  deinit { operation.cancel() }

  /// Everything that happens, up to ``LiveStreamEvent/ended(_:)``. The first observer gets all events from the start of
  /// the stream, each other one those that follow. At most 128 events are kept for an observer. If it misses any, it
  /// gets ``LiveStreamEvent/missed(_:)`` in their place.
  public var events: Observations<LiveStreamEvent> {
    Observations(broadcast: operation.events, owner: self, observed: {})
  }

  /// How the stream stands, ten times per second while it is observed, and once at the end. A slow observer gets the
  /// newest value.
  public var progress: Observations<StreamProgress> {
    Observations(
      broadcast: operation.progress, owner: self, observed: { [operation] in operation.progressIsObserved() })
  }

  /// How the stream ended, once the server has confirmed all of it. Cancelling a task that waits for it stops the
  /// stream.
  ///
  /// - Throws: ``LiveStreamError``, with the reason why the stream ended earlier.
  public var value: StreamSummary {
    get async throws(LiveStreamError) {
      let summary = await operation.summaryOrCancellation
      if let error = summary.error { throw error }
      return summary
    }
  }

  /// Ends the source, sends what is buffered, and waits for the server's answer. ``value`` returns then.
  ///
  /// - Parameter limit: the longest time without an acknowledgement; nil for no limit.
  public func finish(within limit: Duration? = nil) { operation.finish(within: limit) }

  /// Stops the stream at once. Bytes that the server has not acknowledged are lost.
  public func cancel() { operation.cancel() }
}
