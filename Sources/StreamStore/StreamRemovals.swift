// The removals of streams: who waits for them, and what the disk refused to remove, which is tried again.

internal import EventLoops
internal import Glibc
internal import StreamServing

/// The streams of one loop whose files are being removed. Only on the loop's thread.
///
/// What the disk refuses stays here until it is removed: a timer tries it again after a growing pause, and so does a
/// request for the stream. The stream cannot be opened until then.
final class StreamRemovals {
  private struct Removal {
    /// Told the end of each attempt: nil when everything is removed, which is the last one.
    var observers: [(SystemError?) -> Void] = []
    /// Called at the end of the attempt at work.
    var waiting: [() -> Void] = []
    /// When the last attempt failed; nil while one is at work.
    var failed: MonotonicInstant?
    var retry: (timer: EventLoop.Timer, pause: Duration)?
    /// What was reported last.
    var complaint: String?
  }

  /// How long a request does not try again what the disk has just refused.
  private static let requestPause = Duration.seconds(1)

  private let store: any StreamStore
  private let loop: EventLoop
  private let emit: (ServerEvent) -> Void
  private var removals: [StreamName: Removal] = [:]
  private var stops = false

  init(_ store: any StreamStore, _ loop: EventLoop, emit: @escaping (ServerEvent) -> Void) {
    (self.store, self.loop, self.emit) = (store, loop, emit)
  }

  /// Removes what nobody asks for any more.
  ///
  /// - Parameter observer: told the end of each attempt: the error of one that failed, and nil of the one that
  ///   succeeded.
  /// - Returns: false if nothing is removed. The observer is told nothing then.
  @discardableResult
  func begin(
    _ remains: StreamRemains, of name: StreamName, _ observer: @escaping (SystemError?) -> Void = { _ in }
  ) -> Bool {
    if removals[name] != nil {
      removals[name]?.observers.append(observer)
      return true
    }
    // The store may be done at once.
    removals[name] = Removal(observers: [observer])
    let begins = store.discard(remains, of: name, on: loop) { [weak self] in self?.ended(name, $0) }
    if !begins { removals[name] = nil }
    return begins
  }

  /// Whether a removal of the stream is known now: one that an earlier server has begun goes on.
  func resumes(_ name: StreamName) -> Bool { removals[name] != nil || begin(.record, of: name) }

  /// Whether `action` will be called later, at the end of an attempt. False also if the disk has just refused one.
  func waits(for name: StreamName, _ action: @escaping () -> Void) -> Bool {
    guard let removal = removals[name] else { return false }
    if let failed = removal.failed {
      guard failed + Self.requestPause <= .now else { return false }
      attempt(name)
    }
    // A removal that is done at once has taken the entry away.
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
    // Whatever it was before: nobody could open the stream since.
    let begins = store.discard(.growingRecording, of: name, on: loop) { [weak self] in self?.ended(name, $0) }
    if !begins { ended(name, nil) }
  }

  /// An attempt is over.
  private func ended(_ name: StreamName, _ error: SystemError?) {
    guard var removal = removals[name] else { return }
    let waiting = removal.waiting
    removal.waiting = []
    if let error {
      complain(error, of: name, &removal)
      removal.failed = .now
      let pauses = RecordingSplit.retryPauses
      let pause = removal.retry.map { min($0.pause * 2, pauses.longest) } ?? pauses.first
      removal.retry =
        stops ? nil : (loop.schedule(after: pause) { [weak self] in self?.attempt(name) }, pause)
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

  /// The server ends. The next one removes the rest.
  func stop() {
    stops = true
    for removal in removals.values { if let retry = removal.retry { loop.cancel(retry.timer) } }
  }
}
