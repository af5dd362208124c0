// Checks that the log still contains all acknowledged bytes, so that no incomplete upload is reported as complete.

internal import EventLoops
internal import JetStream
internal import StreamServing

/// Compares the number of messages of an upload with its last message, or reads all of them. Only on the loop's
/// thread.
final class LogVerification {
  enum Verdict {
    case intact
    /// Messages are missing or were changed. The reason is for the operator.
    case lost(String)
    case unavailable(BrokerError)
  }

  private static let pause = Duration.milliseconds(100)

  private let log: UploadLog
  private let token: String
  /// The link of the last message that counts.
  private let last: LogEntry.Link
  private let sequence: UInt64
  /// Whether all messages except the last one may have been removed.
  private let mayBePurged: Bool
  private let patience: Duration
  private var deadline: MonotonicInstant
  private let completion: (Verdict) -> Void
  /// The position up to which the messages were read.
  private var (link, end, readSequence) = (LogEntry.Link(), UInt64(0), UInt64(0))

  /// - Parameters:
  ///   - last: the link of the last message that counts, which has that sequence.
  ///   - mayBePurged: whether all messages except the last one may have been removed on purpose.
  ///   - patience: how long the brokers may fail.
  init(
    _ log: UploadLog, _ token: String, upTo last: LogEntry.Link, at sequence: UInt64, mayBePurged: Bool = false,
    patience: Duration = .nanoseconds(LogAppend.patience), _ completion: @escaping (Verdict) -> Void
  ) {
    (self.log, self.token, self.last, self.sequence) = (log, token, last, sequence)
    (self.mayBePurged, self.patience, self.completion) = (mayBePurged, patience, completion)
    deadline = .now + patience
  }

  /// The subject of an unfinished upload has fewer messages only if the brokers have lost some, and more only if they
  /// have stored one twice. So their number shows both. It requires one question, or two, regardless of the length of
  /// the upload.
  func count() {
    guard last.number > 1 else { return completion(.intact) }
    log.stream.count(of: token) { [self] answer in
      switch answer {
      case .failure(let error): again(error) { self.count() }
      // A broker has answered that does not have the newest messages yet.
      case .success(let found) where found.reached < sequence: again(.timedOut) { self.count() }
      case .success(let found) where mayBePurged && found.messages == 1: completion(.intact)
      case .success(let found) where found.messages < last.number:
        completion(.lost("the log has \(found.messages) of the \(last.number) messages of upload \(token)"))
      case .success(let found) where found.messages > last.number: compareLast(found.messages)
      case .success: completion(.intact)
      }
    }
  }

  /// Called if the subject had more messages than the last one states. They may be later ones.
  private func compareLast(_ count: UInt64) {
    log.stream.lastMessage(of: token) { [self] answer in
      switch answer {
      case .failure(let error): again(error) { self.compareLast(count) }
      case .success(let message?) where message.sequence == sequence:
        completion(.lost("the log has \(count) messages of upload \(token), and not \(last.number)"))
      case .success: completion(.intact)
      }
    }
  }

  /// Passes all bytes to `update`, and compares each message with the one before it. One message is read at a time, so
  /// the loop serves other requests in between, and little memory is used.
  func read(_ update: @escaping (Span<UInt8>) -> Void) {
    guard readSequence < sequence else { return completion(.intact) }
    log.stream.message(of: token, from: readSequence + 1) { [self] answer in
      switch answer {
      case .failure(let error): again(error) { self.read(update) }
      // A broker has answered that does not have the newest messages yet.
      case .success(nil): again(.timedOut) { self.read(update) }
      case .success(let message?): take(message, update)
      }
    }
  }

  private func take(_ message: StoredMessage, _ update: @escaping (Span<UInt8>) -> Void) {
    guard let entry = LogEntry(message.content), entry.offset == end, link.next(message.content) == entry.link,
      message.sequence != sequence || entry.link == last
    else {
      return completion(
        .lost("message \(message.sequence) of \(message.subject) does not follow message \(readSequence)"))
    }
    let payload = message.content.payload
    update(payload.span)
    (link, end, readSequence) = (entry.link, entry.end, message.sequence)
    deadline = .now + patience
    read(update)
  }

  private func again(_ error: BrokerError, _ step: @escaping () -> Void) {
    guard error.isTransient, MonotonicInstant.now < deadline else { return completion(.unavailable(error)) }
    log.loop.schedule(after: Self.pause, step)
  }
}
