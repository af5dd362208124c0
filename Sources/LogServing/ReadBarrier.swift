// Proves that an answer of the brokers is not an old one.

internal import EventLoops
internal import JetStream

/// Finds a sequence that is greater than those of all messages acknowledged before the request for it. Only on the
/// loop's thread.
///
/// A broker that was stopped or cut off may still act as the leader of the stream. Its answers then lack the messages
/// that the others have stored since. But it cannot store a message, because most of the others do not follow it. So
/// this publishes one: an answer of a broker that has it is a current one. (The Raft dissertation of D. Ongaro, section
/// 6.4, describes the problem and this remedy.)
final class ReadBarrier {
  /// The second part of the messages' subject.
  static let token = "barrier"
  /// The number of messages after which the earlier ones are removed.
  private static let keptCount = 64

  typealias Completion = (Result<UInt64, BrokerError>) -> Void

  private let stream: MessageStream
  /// The unique beginning of the marks of this loop's messages.
  private let name: String
  private var waiting: [Completion] = []
  private var isPublishing = false
  private var count = 0

  init(_ stream: MessageStream, name: String) { (self.stream, self.name) = (stream, name) }

  /// Passes the sequence of a message that is published after this call. Requests that wait at the same time share it.
  func pass(_ completion: @escaping Completion) {
    waiting.append(completion)
    if !isPublishing { publish() }
  }

  private func publish() {
    let passing = waiting
    (waiting, isPublishing) = ([], true)
    count += 1
    let message = MessageContent(headers: [.init("Sluice-Publisher", "\(name)-b.\(count)")])
    stream.publish(message, to: Self.token, after: nil) { [self] result in
      isPublishing = false
      if count % Self.keptCount == 0 { stream.purge(Self.token) { _ in } }
      for completion in passing { completion(result) }
      if !waiting.isEmpty, !isPublishing { publish() }
    }
  }
}

/// Confirms for one request that a message was the last one of its upload at some time after the request began. Only on
/// the loop's thread.
final class LogConfirmation {
  private enum Verdict {
    case current
    case outdated
    case unavailable(BrokerError)
  }

  private static let patience = Duration.seconds(3)

  private let log: UploadLog
  private let deadline = MonotonicInstant.now + LogConfirmation.patience
  private var pauses = RetryPauses(.milliseconds(2)...(.milliseconds(100)))
  /// A sequence that is greater than those of all messages before the request. Nil if none is known yet.
  private var barrier: UInt64?

  init(_ log: UploadLog) { self.log = log }

  /// Calls one of the last three closures, if the request still waits.
  ///
  /// - Parameters:
  ///   - entry: the last known message of the upload, which has that sequence. Nil if there is none.
  ///   - isAwaited: whether the request still waits.
  ///   - outdated: called if there are later messages. Read the last one again.
  func confirm(
    _ entry: LogEntry?, at sequence: UInt64, of token: String, isAwaited: @escaping () -> Bool,
    current: @escaping () -> Void, outdated: @escaping () -> Void, unavailable: @escaping (BrokerError) -> Void
  ) {
    judge(entry, at: sequence, of: token) { verdict in
      guard isAwaited() else { return }
      switch verdict {
      case .current: current()
      case .outdated: outdated()
      case .unavailable(let error): unavailable(error)
      }
    }
  }

  private func judge(
    _ entry: LogEntry?, at sequence: UInt64, of token: String, _ completion: @escaping (Verdict) -> Void
  ) {
    // Only one broker answers, or no message can follow.
    guard log.stream.isReplicated, entry?.deactivation == nil else { return completion(.current) }
    guard let barrier else {
      return log.barrier.pass { [self] result in
        switch result {
        case .success(let sequence): barrier = sequence
        case .failure(let error): return completion(.unavailable(error))
        }
        judge(entry, at: sequence, of: token, completion)
      }
    }
    guard sequence < barrier else { return completion(.current) }
    log.stream.count(of: token) { [self] answer in
      switch answer {
      case .failure(let error): completion(.unavailable(error))
      case .success(let found):
        let number = entry?.link.number ?? 0
        // A collector may have purged all messages of a complete upload except the last one.
        let hasAll = found.messages == number || entry?.isComplete == true && found.messages == 1
        // If not, this broker lacks messages, or the one that answered before did.
        if found.reached >= barrier, hasAll { completion(.current) } else { outdated(completion) }
      }
    }
  }

  private func outdated(_ completion: @escaping (Verdict) -> Void) {
    guard MonotonicInstant.now < deadline else { return completion(.unavailable(.timedOut)) }
    log.loop.schedule(after: pauses.next()) { completion(.outdated) }
  }
}
