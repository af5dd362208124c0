// A stream that was started, and those who wait for its end or observe it.

internal import EventLoops
internal import UploadClient

/// Joins a ``LiveStreamer`` with tasks. It lives until the stream's end.
final class StreamOperation: Sendable {
  /// How many events are kept for an observer.
  static let eventLimit = 128
  /// How often progress is published while it is observed.
  static let progressInterval = Duration.milliseconds(100)

  let events = EventBroadcast<LiveStreamEvent>(.all(limit: eventLimit, missed: { .missed($0) }))
  let progress = EventBroadcast<StreamProgress>(.newest)
  private let streamer: LiveStreamer
  private let session: UploadSession
  private let end = Lock<End>(End())

  private struct End {
    var summary: StreamSummary?
    var waiters: [UnsafeContinuation<StreamSummary, Never>] = []
    var isTicking = false
  }

  /// Starts the stream.
  init(_ streamer: LiveStreamer, _ session: UploadSession) {
    self.streamer = streamer
    self.session = session
    // Until the stream's end, when the engine drops its handler.
    streamer.start { [self] event in handle(event) }
  }

  private func handle(_ event: LiveStreamEvent) {
    guard case .ended(let summary) = event else { return events.publish(event) }
    let waiters = end.withLock { end in
      end.summary = summary
      let waiters = end.waiters
      end.waiters = []
      return waiters
    }
    progress.publish(summary.progress, isLast: true)
    events.publish(event, isLast: true)
    for waiter in waiters { waiter.resume(returning: summary) }
  }

  /// The stream's end. It does not obey cancellation: cancel the stream instead, which then ends at once.
  var summary: StreamSummary {
    get async {
      await withUnsafeContinuation { continuation in
        let summary = end.withLock { end in
          if end.summary == nil { end.waiters.append(continuation) }
          return end.summary
        }
        if let summary { continuation.resume(returning: summary) }
      }
    }
  }

  /// The stream's end. Cancelling the task cancels the stream.
  var summaryOrCancellation: StreamSummary {
    get async {
      await withTaskCancellationHandler {
        await summary
      } onCancel: {
        cancel()
      }
    }
  }

  func cancel() { streamer.cancel() }
  func finish(within limit: Duration? = nil) { streamer.finish(within: limit) }
  func suspend() { streamer.suspend() }
  func resume() { streamer.resume() }

  // MARK: Progress

  /// Publishes progress for as long as somebody observes it.
  func progressIsObserved() {
    let begins = end.withLock { end in
      guard end.summary == nil, !end.isTicking else { return false }
      end.isTicking = true
      return true
    }
    if begins { tick() }
  }

  private func tick() {
    streamer.withProgress { [self] now in
      let goesOn = end.withLock { end in
        end.isTicking = end.summary == nil && progress.isObserved
        return end.isTicking
      }
      guard goesOn else { return }
      progress.publish(now)
      session.loop.schedule(after: Self.progressInterval) { [weak self] in self?.tick() }
    }
  }
}
