// Removes the bytes of discarded uploads from the log, and tries again what the brokers refuse.

internal import EventLoops
internal import JetStream
internal import StreamServing

/// The discarded uploads whose bytes may still be in the log. Only on the loop's thread.
///
/// They share a timer. When it fires, their bytes are removed one after another up to the first refusal. Only the first
/// of several refusals is reported.
final class DiscardedUploads {
  private let log: UploadLog
  /// The last one is tried next.
  private var waiting: [String] = []
  private var timer: EventLoop.Timer?
  /// Whether the next upload is tried after the answer to a request.
  private var isAtWork = false
  /// They grow with each refusal that the timer has met.
  private var pauses = RetryPauses(.seconds(5)...(.seconds(600)))
  /// The pause before the next attempt; nil for the shortest.
  private var pause: Duration?
  /// Whether a refusal was reported since the last time when there was nothing to remove.
  private var isReported = false
  /// How often all were forgotten. An answer about an earlier log does not apply to the present one.
  private var generation: UInt64 = 0

  init(_ log: UploadLog) { self.log = log }

  /// Removes the bytes of an upload now.
  func remove(_ token: String) {
    // Before all messages are read, the log may be another one, in which the upload has other bytes.
    guard log.usage.isCurrent else { return removeLater(token) }
    request(token) { _ in }
  }

  /// Removes the bytes of an upload after a pause, because another request or server may be about to do it.
  func removeLater(_ token: String) {
    waiting.append(token)
    arm()
  }

  /// Removes the bytes of an upload after a pause, because the brokers have refused this to a request.
  ///
  /// - Parameter epoch: the one in which the upload was found. If it is over, the log may be another one.
  func removeLater(_ token: String, epoch: UInt64) {
    // A client may repeat its request during an outage.
    guard epoch == log.usage.epoch, !waiting.contains(token) else { return }
    removeLater(token)
  }

  /// Forgets all of them, because the server stops or the log may be another one.
  func forget() {
    if let timer { log.loop.cancel(timer) }
    (waiting, timer, isAtWork) = ([], nil, false)
    succeeded()
    generation += 1
  }

  private func succeeded() {
    pauses.reset()
    pause = nil
  }

  private func arm() {
    guard timer == nil, !isAtWork, !waiting.isEmpty else { return }
    timer = log.loop.schedule(after: pause ?? pauses.shortest) { [weak self] in
      guard let self else { return }
      timer = nil
      removeNext()
    }
  }

  private func removeNext() {
    guard log.usage.isCurrent, let token = waiting.popLast() else { return arm() }
    isAtWork = true
    request(token) { [weak self] isRemoved in
      guard let self else { return }
      isAtWork = false
      if isRemoved { removeNext() } else { pause = pauses.next() }
    }
  }

  /// - Parameter completion: called with whether the brokers have removed the bytes. If not, the upload waits again.
  private func request(_ token: String, _ completion: @escaping (_ isRemoved: Bool) -> Void) {
    log.stream.purge(token) { [weak self, generation] result in
      guard let self, generation == self.generation else { return }
      switch result {
      case .success:
        completion(true)
        if waiting.isEmpty, !isAtWork {
          succeeded()
          isReported = false
        }
      case .failure(let error):
        waiting.insert(token, at: 0)
        completion(false)
        report(token, error)
        arm()
      }
    }
  }

  private func report(_ token: String, _ error: BrokerError) {
    guard !isReported else { return }
    isReported = true
    let reason = "cannot remove the messages of discarded uploads, such as \(token): \(error). The server retries."
    log.context.emit(ServerEvent(.warning, reason: reason))
  }
}
