// The removal of a collected upload from the log.

internal import JetStream
internal import LogServing
internal import ResumableUploads
internal import StreamServing

/// Removes the messages of one upload whose recording is complete and synced. Only on the loop's thread.
///
/// A server counts the messages of an unfinished upload, and reports missing ones as a loss. So an unfinished upload is
/// ended first.
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
        // Damaged messages are kept for the search for the cause.
        guard let last = LogEntry(message.content) else { return completion(.success(())) }
        if last.isComplete || last.deactivation != nil { return remove(before: purge.sequence, completion) }
        // More bytes have arrived since then, so its messages are kept.
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
    let message = entry.message([], behind: last.link)
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
