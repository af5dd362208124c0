// The end of an upload whose lifetime is over.

internal import EventLoops
internal import JetStream
internal import ResumableUploads

/// Ends one upload, unless a message has arrived for it. The message that ends it names the last one that was seen, so
/// the broker decides, also between servers. Only on the loop's thread.
///
/// Bytes of a live stream are never removed because of age. Its upload ends as interrupted, and its messages are kept.
struct LogExpiry {
  private let log: UploadLog
  private let token: String
  /// The sequence of the last message that was seen.
  private let sequence: UInt64
  private let completion: () -> Void

  /// - Parameter completion: called after this attempt. If it failed, the upload is still due.
  init(_ log: UploadLog, _ token: String, at sequence: UInt64, _ completion: @escaping () -> Void) {
    (self.log, self.token, self.sequence, self.completion) = (log, token, sequence, completion)
  }

  func start() {
    log.stream.lastMessage(of: token) { [self] answer in
      switch answer {
      case .failure: completion()
      case .success(nil):
        // An operator has removed all of its messages.
        log.usage.remove(token)
        completion()
      case .success(let message?):
        // A damaged message is kept for the search for the cause. The servers answer 410.
        guard let entry = LogEntry(message.content) else {
          log.usage.remove(token)
          return completion()
        }
        guard message.sequence == sequence, !entry.isOver else {
          log.usage.correct(entry, of: token, at: message.sequence, known: sequence)
          return completion()
        }
        entry.length == nil ? judge(entry, isLive: true) : lookAtFirst(entry)
      }
    }
  }

  /// Reads the first message, because the last request of a live stream may have announced a length.
  private func lookAtFirst(_ entry: LogEntry) {
    log.stream.message(of: token, from: 1) { [self] answer in
      switch answer {
      case .failure: completion()
      case .success(let message):
        // If this is unknown, no byte is removed.
        let first = message.flatMap { LogEntry($0.content) }
        judge(entry, isLive: first.map { $0.length == nil || $0.link.number != 1 } ?? true)
      }
    }
  }

  private func judge(_ entry: LogEntry, isLive: Bool) {
    guard log.usage.isDue(token, at: sequence, isLive: isLive) else { return completion() }
    var ended = entry
    (ended.offset, ended.count) = (entry.end, 0)
    ended.deactivation = isLive && entry.end > 0 ? .interrupted : .expired
    ended.mark = .init(publisher: log.newPublisher(.expiry), number: 1)
    let message = ended.message([], behind: entry.link)
    log.publish(message, to: token, after: sequence) { [self, epoch = log.usage.epoch] result in
      switch result {
      case .success(let sequence):
        log.usage.end(token, at: sequence, epoch: epoch)
        completion()
      // A message has arrived for it, another server was faster, or the brokers are not ready.
      case .failure: completion()
      }
    }
  }
}
