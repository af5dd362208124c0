// The removals of streams: the requests that wait for them, and the retries of removals that the disk refused.

internal import EventLoops
internal import Glibc
internal import StreamServing

/// The streams of one loop whose files are being removed. Only on the loop's thread.
///
/// A removal that the disk refused stays here until it succeeds. A timer retries it after a growing pause, and so does
/// a request for the stream. The stream cannot be opened before that.
final class StreamRemovals {
  private struct Removal {
    /// Called after each attempt with the error, and after the last one with nil, because everything is removed.
    var observers: [(SystemError?) -> Void] = []
    /// Called after the current attempt.
    var waiting: [() -> Void] = []
    /// When the last attempt failed. Nil during an attempt.
    var failed: MonotonicInstant?
    var retry: (timer: EventLoop.Timer, pauses: RetryPauses)?
    /// The last reported error.
    var complaint: String?
  }

  /// The time after a failure in which a request does not cause another attempt.
  private static let requestPause = Duration.seconds(1)

  private let store: any StreamStore
  private let loop: EventLoop
  private let emit: (ServerEvent) -> Void
  private var removals: [StreamName: Removal] = [:]
  private var stops = false

  init(_ store: any StreamStore, _ loop: EventLoop, emit: @escaping (ServerEvent) -> Void) {
    (self.store, self.loop, self.emit) = (store, loop, emit)
  }

  /// Removes the files of a stream.
  ///
  /// - Parameter observer: called after each attempt, with the error or, after success, with nil.
  /// - Returns: false if nothing is removed. Then the observer is not called.
  @discardableResult
  func begin(
    _ remains: StreamRemains, of name: StreamName, _ observer: @escaping (SystemError?) -> Void = { _ in }
  ) -> Bool {
    if removals[name] != nil {
      removals[name]?.observers.append(observer)
      return true
    }
    // The store may finish at once.
    removals[name] = Removal(observers: [observer])
    let begins = store.discard(remains, of: name, on: loop) { [weak self] in self?.ended(name, $0) }
    if !begins { removals[name] = nil }
    return begins
  }

  /// Whether the stream is being removed now. This continues a removal that an earlier server has begun.
  func resumes(_ name: StreamName) -> Bool { removals[name] != nil || begin(.record, of: name) }

  /// Whether `action` will be called later, after an attempt. Also false if the disk has just refused one.
  func waits(for name: StreamName, _ action: @escaping () -> Void) -> Bool {
    guard let removal = removals[name] else { return false }
    if let failed = removal.failed {
      guard failed + Self.requestPause <= .now else { return false }
      attempt(name)
    }
    // A removal that finished at once has removed the entry.
    guard removals[name] != nil else {
      action()
      return true
    }
    removals[name]?.waiting.append(action)
    return true
  }

  private func attempt(_ name: StreamName) {
    removals[name]?.failed = nil
    if let retry = removals[name]?.retry { loop.cancel(retry.timer) }
    // Regardless of the first request, because the stream could not be opened since then.
    let begins = store.discard(.growingRecording, of: name, on: loop) { [weak self] in self?.ended(name, $0) }
    if !begins { ended(name, nil) }
  }

  /// Called after an attempt.
  private func ended(_ name: StreamName, _ error: SystemError?) {
    guard var removal = removals[name] else { return }
    let waiting = removal.waiting
    removal.waiting = []
    if let error {
      complain(error, of: name, &removal)
      removal.failed = .now
      var pauses = removal.retry?.pauses ?? RecordingSplit.retryPauses
      let pause = pauses.next()
      removal.retry = stops ? nil : (loop.schedule(after: pause) { [weak self] in self?.attempt(name) }, pauses)
      removals[name] = removal
    } else {
      removals[name] = nil
    }
    for observer in removal.observers { observer(error) }
    for action in waiting { action() }
  }

  private func complain(_ error: SystemError, of name: StreamName, _ removal: inout Removal) {
    guard removal.complaint != "\(error)" else { return }
    removal.complaint = "\(error)"
    var event = ServerEvent(
      .warning,
      reason: "cannot remove a discarded recording: \(error). The server retries. Until then, it answers "
        + "requests for the stream with 503")
    event.stream = name.streamID.isEmpty ? nil : name.streamID
    event.file = name.partial
    emit(event)
  }

  /// Called at the end of the server. The next server removes the rest.
  func stop() {
    stops = true
    for removal in removals.values { if let retry = removal.retry { loop.cancel(retry.timer) } }
  }
}
