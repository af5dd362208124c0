// The end of an upload in the log: its recording has everything.

internal import JetStream
internal import LogServing
internal import ResumableUploads
internal import StreamServing

/// Removes the messages of one upload, of which the disk has a complete recording. Only on the loop's thread.
///
/// A server counts the messages of an upload that is not over, and takes missing ones for a loss. So an upload that is
/// not over is ended first.
struct LogPurge {
  private let stream: MessageStream
  private let purge: CollectorCheckpoint.Purge

  init(_ stream: MessageStream, _ purge: CollectorCheckpoint.Purge) { (self.stream, self.purge) = (stream, purge) }

  func start(_ completion: @escaping (Result<Void, BrokerError>) -> Void) {
    stream.lastMessage(of: purge.token) { [self] answer in
      switch answer {
      case .failure(let error): completion(.failure(error))
      case .success(nil): completion(.success(()))
      case .success(let message?):
        // Damaged messages stay, for whoever looks for the cause.
        guard let last = LogEntry(message.content) else { return completion(.success(())) }
        if last.isComplete || last.deactivation != nil { return remove(before: purge.sequence, completion) }
        // More of it has come since: its messages stay.
        guard message.sequence == purge.sequence else { return completion(.success(())) }
        end(last, completion)
      }
    }
  }

  private func end(_ last: LogEntry, _ completion: @escaping (Result<Void, BrokerError>) -> Void) {
    var entry = last
    (entry.offset, entry.count) = (last.end, 0)
    entry.deactivation = .misplaced
    entry.mark = .init(publisher: StreamName.randomID(), number: 1)
    guard let message = entry.message([], behind: last.link) else { return completion(.failure(.timedOut)) }
    stream.publish(message, to: purge.token, after: purge.sequence) { [self] answer in
      switch answer {
      case .success(let sequence): remove(before: sequence, completion)
      case .failure(let error): completion(.failure(error))
      }
    }
  }

  private func remove(before sequence: UInt64, _ completion: @escaping (Result<Void, BrokerError>) -> Void) {
    stream.purge(purge.token, before: sequence, completion)
  }
}
