// The end of an upload that was left alone.

internal import EventLoops
internal import JetStream
internal import ResumableUploads

/// Ends one upload, unless something has come for it: the message that ends it names the last one that was seen, so the
/// broker decides, between servers as well. Only on the loop's thread.
///
/// Age removes no byte of a live stream: its upload ends as interrupted, and its messages stay.
struct LogExpiry {
  private let log: UploadLog
  private let token: String
  /// Of the last message that was seen.
  private let sequence: UInt64
  private let completion: () -> Void

  /// - Parameter completion: called when this attempt is over. If it was in vain, the upload is still due.
  init(_ log: UploadLog, _ token: String, at sequence: UInt64, _ completion: @escaping () -> Void) {
    (self.log, self.token, self.sequence, self.completion) = (log, token, sequence, completion)
  }

  func start() {
    log.stream.lastMessage(of: token) { [self] answer in
      switch answer {
      case .failure: completion()
      case .success(nil):
        // An operator has removed all of it.
        log.usage.remove(token)
        completion()
      case .success(let message?):
        // A damaged message stays, for whoever looks for the cause. The servers answer 410.
        guard let entry = LogEntry(message.content) else {
          log.usage.remove(token)
          return completion()
        }
        guard message.sequence == sequence, !entry.isOver else {
          log.usage.read(entry, of: token, at: message.sequence)
          return completion()
        }
        entry.length == nil ? judge(entry, isLive: true) : lookAtFirst(entry)
      }
    }
  }

  /// A live stream may have got a length with its last request.
  private func lookAtFirst(_ entry: LogEntry) {
    log.stream.message(of: token, from: 1) { [self] answer in
      switch answer {
      case .failure: completion()
      case .success(let message):
        // Where nobody knows, nothing is removed.
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
    guard let message = ended.message([], behind: entry.link) else { return completion() }
    log.publish(message, to: token, after: sequence) { [self] result in
      switch result {
      case .success(let sequence):
        log.usage.end(token, at: sequence)
        completion()
      // Something has come for it, another server was faster, or the brokers are not ready.
      case .failure: completion()
      }
    }
  }
}
