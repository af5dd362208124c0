// Whether the log still has what servers have acknowledged: nothing is served as complete that is not.

internal import EventLoops
internal import JetStream

/// Compares how many messages an upload has with what its last message says. Only on the loop's thread.
final class LogVerification {
  enum Verdict {
    case intact
    /// Messages are missing; the reason is for the operator.
    case lost(String)
    case unavailable(BrokerError)
  }

  private static let pause = Duration.milliseconds(100)

  private let log: UploadLog
  private let token: String
  /// Of the last message that counts.
  private let last: LogEntry.Link
  private let sequence: UInt64
  /// Whether all messages but the last may be gone.
  private let mayBePurged: Bool
  private let deadline: MonotonicInstant
  private let completion: (Verdict) -> Void

  /// - Parameters:
  ///   - last: the link of the last message that counts, which has that sequence.
  ///   - mayBePurged: whether all messages but the last may have been removed on purpose.
  ///   - patience: for how long the brokers may fail.
  init(
    _ log: UploadLog, _ token: String, upTo last: LogEntry.Link, at sequence: UInt64, mayBePurged: Bool = false,
    patience: Duration = .nanoseconds(LogAppend.patience), _ completion: @escaping (Verdict) -> Void
  ) {
    (self.log, self.token, self.last, self.sequence) = (log, token, last, sequence)
    (self.mayBePurged, self.completion) = (mayBePurged, completion)
    deadline = .now + patience
  }

  /// Messages leave the subject of an upload that is not over only if the brokers lose them. So their number shows a
  /// loss, and costs one question, however long the upload is.
  func start() {
    guard last.number > 1 else { return completion(.intact) }
    log.stream.count(of: token) { [self] answer in
      switch answer {
      case .failure(let error): again(error)
      // A broker that is behind has answered.
      case .success(let found) where found.reached < sequence: again(.timedOut)
      case .success(let found) where mayBePurged && found.messages == 1: completion(.intact)
      case .success(let found) where found.messages < last.number:
        completion(.lost("the log has \(found.messages) of the \(last.number) messages of upload \(token)"))
      case .success: completion(.intact)
      }
    }
  }

  private func again(_ error: BrokerError) {
    guard error.isTransient, MonotonicInstant.now < deadline else { return completion(.unavailable(error)) }
    log.loop.schedule(after: Self.pause) { [self] in start() }
  }
}
