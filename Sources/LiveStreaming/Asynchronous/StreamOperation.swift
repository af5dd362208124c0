// A started stream, and the tasks that await its end or observe it.

internal import EventLoops
internal import UploadClient

/// Connects a ``LiveStreamer`` with tasks. It keeps the stream, its buffer and its session until the stream ends.
final class StreamOperation: Sendable {
  /// The number of events that are kept for an observer.
  static let eventLimit = 128
  /// The interval at which progress is published while it is observed.
  static let progressInterval = Duration.milliseconds(100)

  let events = EventBroadcast<LiveStreamEvent>(.all(limit: eventLimit, missed: { .missed($0) }))
  let progress = EventBroadcast<StreamProgress>(.newest)
  /// Gets each event before the observers do.
  private let note: @Sendable (LiveStreamEvent) -> Void
  private let state: Lock<State>

  private struct State {
    /// Set until the stream ends.
    var streamer: LiveStreamer?
    var session: UploadSession?
    var isStarted = false
    /// Set when the stream has ended.
    var summary: StreamSummary?
    var waiters: [UnsafeContinuation<StreamSummary, Never>] = []
    var isTicking = false
  }

  /// Starts the stream. If the session is closed, the stream ends at once.
  init(
    _ streamer: LiveStreamer, _ session: UploadSession, note: @escaping @Sendable (LiveStreamEvent) -> Void = { _ in }
  ) {
    self.note = note
    state = Lock(State(streamer: streamer, session: session))
    // The engine drops its handler at the end of the stream.
    let isStarted = streamer.startIfOpen { [self] event in handle(event) }
    state.withLock { $0.isStarted = isStarted }
    if !isStarted { handle(.ended(streamer.summaryIfClosed)) }
  }

  /// Whether the session was open.
  var isStarted: Bool { state.withLock { $0.isStarted } }

  private var streamer: LiveStreamer? { state.withLock { $0.streamer } }

  private func handle(_ event: LiveStreamEvent) {
    note(event)
    guard case .ended(let summary) = event else { return events.publish(event) }
    let (waiters, kept) = state.withLock { state in
      let kept = (state.streamer.take(), state.session.take())
      let waiters = state.waiters
      state.waiters = []
      state.summary = state.summary ?? summary
      return (waiters, kept)
    }
    // Released outside of the lock.
    withExtendedLifetime(kept) {}
    progress.publish(summary.progress, isLast: true)
    events.publish(event, isLast: true)
    for waiter in waiters { waiter.resume(returning: summary) }
  }

  /// The summary of the ended stream. It ignores cancellation of the task. Cancel the stream instead, which then ends
  /// at once.
  var summary: StreamSummary {
    get async {
      await withUnsafeContinuation { continuation in
        let summary = state.withLock { state in
          if state.summary == nil { state.waiters.append(continuation) }
          return state.summary
        }
        if let summary { continuation.resume(returning: summary) }
      }
    }
  }

  /// The number of tasks that await the summary.
  var waiterCount: Int { state.withLock { $0.waiters.count } }

  /// The summary of the ended stream. Cancelling the task cancels the stream.
  var summaryOrCancellation: StreamSummary {
    get async {
      await withTaskCancellationHandler {
        await summary
      } onCancel: {
        cancel()
      }
    }
  }

  func cancel() { streamer?.cancel() }
  func finish(within limit: Duration? = nil) { streamer?.finish(within: limit) }
  func suspend() { streamer?.suspend() }
  func resume() { streamer?.resume() }

  // MARK: Progress

  /// Publishes progress as long as it is observed.
  func progressIsObserved() {
    let begins = state.withLock { state in
      guard state.summary == nil, !state.isTicking else { return false }
      state.isTicking = true
      return true
    }
    if begins { tick() }
  }

  private func tick() {
    streamer?.withProgress { [self] now in
      let loop = state.withLock { state -> EventLoop? in
        state.isTicking = state.summary == nil && progress.isObserved
        return state.isTicking ? state.session?.loop : nil
      }
      guard let loop else { return }
      progress.publish(now)
      loop.schedule(after: Self.progressInterval) { [weak self] in self?.tick() }
    }
  }
}

extension StreamSummary {
  /// The summary of a stream that could not be started.
  static let sessionIsClosed = StreamSummary(
    progress: StreamProgress(
      elapsed: .zero, captured: 0, sent: 0, acknowledged: 0, lost: 0, buffered: 0, capacity: 0, outageCount: 0,
      isConnected: false),
    gaps: 0, resent: 0, sourceLost: 0, error: .sessionIsClosed)
}

extension LiveStreamError {
  static let sessionIsClosed = LiveStreamError(.cancelled, "the session is closed. Create another session.")
}
