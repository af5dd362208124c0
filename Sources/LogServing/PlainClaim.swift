// Finds the stream of a request without the protocol of resumable uploads, and takes it over from a request at any
// server.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import JetStream
internal import ResumableUploads
internal import StreamServing

/// Finds a plain stream in the log, and ends the request that appends to it, at any server. For this, it publishes a
/// message without bytes after the last one. The broker then refuses the next message of the other server. Only on the
/// loop's thread.
final class PlainClaim {
  /// The position of the request's content.
  enum Outcome {
    /// After that message of this request. The state determines how much of the content the upload accepts.
    case begin(LogEntry, sequence: UInt64, token: String, UploadResourceState)
    /// In a stream that this message completes.
    case complete(LogEntry, sequence: UInt64, token: String)
    case refuse(UploadRefusal)
    case answer(Int, String, StreamAnswer.Standing?)
  }

  /// How long a request tries to take over its stream.
  private static let patience = Duration.seconds(3)
  /// How long another server may still store the bytes before this request.
  private static let stragglers = Duration.seconds(1)
  static let asksForMissing =
    "bytes before this offset are missing. Send them if you have them, or the rest of the stream"

  private let log: UploadLog
  private let allowance: LogAllowance
  private let head: RequestHead
  private let name: StreamName
  /// The offset of the content in the stream.
  private let offset: UInt64
  /// The publisher of the claim's messages. Those of the content have another one.
  private let publisher: String
  private let representation: String?
  private let began = MonotonicInstant.now
  private var attempts = 0
  private var pauses = RetryPauses(.milliseconds(2)...(.milliseconds(100)))
  private let confirmation: LogConfirmation
  private var completion: ((Outcome) -> Void)?

  /// - Parameter representation: the announced digest of the whole stream, as a field.
  init(
    _ log: UploadLog, _ allowance: LogAllowance, _ head: RequestHead, _ name: StreamName, at offset: UInt64,
    representation: String?
  ) {
    (self.log, self.allowance, self.head, self.name, self.offset) = (log, allowance, head, name, offset)
    (publisher, self.representation) = (log.newPublisher(), representation)
    confirmation = LogConfirmation(log)
  }

  func start(_ completion: @escaping (Outcome) -> Void) {
    self.completion = completion
    find()
  }

  /// Called when the result is no longer required.
  func abandon() { completion = nil }

  private func end(_ outcome: Outcome) {
    let completion = completion
    self.completion = nil
    completion?(outcome)
  }

  // MARK: Finding

  private func find() {
    log.find(plain: name) { [self] found in
      guard completion != nil else { return }
      switch found {
      case .unavailable(let error): findAgain(error)
      case .absent(let token): claim(nil, at: 0, token)
      case .entry(let entry, let sequence, let token): consider(entry, at: sequence, token)
      }
    }
  }

  private func consider(_ entry: LogEntry, at sequence: UInt64, _ token: String) {
    // It is the message of this request, whose acknowledgement was lost.
    if entry.mark.publisher == publisher || entry.mark.publisher == publisher + LogEntry.Mark.asking {
      return claimed(entry, at: sequence, token)
    }
    guard entry.owner == nil || entry.owner == head.credential else {
      return end(.answer(403, StreamAnswer.notYours, nil))
    }
    if let cause = entry.deactivation { return end(.answer(409, cause.description, .init(entry))) }
    guard entry.isComplete else { return claim(entry, at: sequence, token) }
    guard offset <= entry.streamEnd else { return end(.answer(409, StreamConflict.beyondEnd.reason, .init(entry))) }
    end(.complete(entry, sequence: sequence, token: token))
  }

  /// Called when another request was faster, or when the brokers are not ready.
  private func findAgain(_ error: BrokerError) {
    guard completion != nil else { return }
    guard error.isWrongLastSequence || error.isTransient else { return end(.refuse(UploadRefusal(error))) }
    guard MonotonicInstant.now - began < Self.patience else {
      return end(
        .refuse(
          error.isWrongLastSequence
            ? .outOfResources("another request of the stream does not come to an end") : UploadRefusal(error)))
    }
    attempts += 1
    log.loop.schedule(after: pauses.next()) { [self] in if completion != nil { find() } }
  }

  // MARK: Claiming

  /// - Parameter last: the stream's last message. Nil if it has none.
  private func claim(_ last: LogEntry?, at sequence: UInt64, _ token: String) {
    var asks = false
    switch StreamPlacement.begin(
      offset: offset, length: last?.streamEnd ?? 0, isComplete: false, maximumHole: log.maximumHole)
    {
    case .holeTooLarge, .beyondEnd:
      return confirm(last, at: sequence, token) { [self] in
        end(.answer(409, StreamConflict.largeHole.reason, standing(last)))
      }
    // The TCP of a server acknowledged the bytes before it, and the server may have been killed before it stored them.
    // The client may still have them, and is asked for them once.
    case .afterHole where last?.mark.asks != true:
      if MonotonicInstant.now - began < Self.stragglers { return findAgain(.timedOut) }
      asks = true
    case .afterHole, .at: break
    }
    do throws(UploadRefusal) {
      let (state, count) = try state(behind: last)
      try allowance.enter(plain: token, behind: last, at: sequence, of: head.credential, bringing: count)
      publish(behind: last, at: sequence, token, length: state.length, asks: asks)
    } catch {
      end(.refuse(error))
    }
  }

  /// Calls `work`, unless the log has later messages than that one.
  private func confirm(_ last: LogEntry?, at sequence: UInt64, _ token: String, _ work: @escaping () -> Void) {
    confirmation.confirm(last, at: sequence, of: token, isAwaited: { [self] in completion != nil }) {
      work()
    } outdated: { [self] in
      find()
    } unavailable: { [self] error in
      findAgain(error)
    }
  }

  /// The state of the upload with this request as the active one, and the announced number of new bytes. Checks lengths
  /// and limits before the first message.
  private func state(behind last: LogEntry?) throws(UploadRefusal) -> (UploadResourceState, UInt64?) {
    let (bytes, length) = (last?.end ?? 0, last?.streamEnd ?? 0)
    var content = RequestSummary.Content(head.framing)
    var newCount: UInt64?
    if case .sized(let count) = content {
      newCount = count - min(count, length - min(length, offset))
      content = .sized(newCount ?? 0)
    }
    var limits = log.limits
    // A hole counts like sent bytes.
    let holes = max(offset, length) - bytes
    limits.maximumSize = limits.maximumSize.map { $0 - min($0, holes) }
    var state = UploadResourceState(
      restoring: .incomplete, offset: bytes, promised: bytes, synced: bytes, length: nil, limits: limits,
      awaitsDisk: true)
    let request = UploadTransferRequest(version: .none, offset: bytes, completes: true, content: content)
    if case .refuse(let refusal) = state.append(request) { throw refusal }
    return (state, newCount)
  }

  private func publish(
    behind last: LogEntry?, at sequence: UInt64, _ token: String, length: UInt64?, asks: Bool
  ) {
    attempts += 1
    let mark = LogEntry.Mark(
      publisher: publisher + (asks ? LogEntry.Mark.asking : ""), number: UInt64(attempts))
    var entry = LogEntry(
      offset: last?.end ?? 0, count: 0, streamID: name.streamID, streamStart: last?.streamStart ?? 0,
      owner: last == nil ? head.credential : last?.owner, mark: mark)
    (entry.length, entry.digest) = (length, representation)
    let more = last == nil ? LogHeaders.origin(head) + LogHeaders.description(head) : LogHeaders.description(head)
    let message = entry.message([], behind: last?.link ?? .init(), more: more)
    log.publish(message, to: token, after: sequence) { [self, entry] result in
      guard completion != nil else { return }
      switch result {
      case .success(let sequence): claimed(entry, at: sequence, token)
      case .failure(let error): findAgain(error)
      }
    }
  }

  private func claimed(_ entry: LogEntry, at sequence: UInt64, _ token: String) {
    if entry.mark.asks { return end(.answer(503, Self.asksForMissing, .init(entry))) }
    do throws(UploadRefusal) {
      end(.begin(entry, sequence: sequence, token: token, try state(behind: entry).0))
    } catch {
      end(.refuse(error))
    }
  }

  private func standing(_ last: LogEntry?) -> StreamAnswer.Standing {
    last.map { .init($0) } ?? .init(name.streamID, length: 0, missing: 0)
  }
}

extension StreamAnswer.Standing {
  /// The holes of a plain stream, whose first byte has the offset 0. They are all bytes that are in no message.
  init(_ entry: LogEntry) {
    self.init(entry.streamID, length: entry.streamEnd, missing: entry.streamStart)
  }
}
