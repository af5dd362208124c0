// The state machine that publishes the bytes of one request: when to send which message, which bytes are certainly
// stored, and what follows from an error. No I/O, no clock.

internal import JetStream
internal import ResumableUploads

/// Publishes the bytes of one request, one message at a time, each after the one before it. Times are nanoseconds of
/// a monotonic clock.
struct LogAppend {
  /// The content of one message.
  struct Batch: Equatable {
    /// The number in the publisher's mark, counted from 1.
    var number: UInt64
    var offset: UInt64
    var bytes: [UInt8]
    var completes = false
    var deactivation: Deactivation?
    var end: UInt64 { offset + UInt64(bytes.count) }
  }

  enum Action: Equatable {
    case nothing
    /// Publish it after the message with that sequence, and then call ``published(sequence:)`` or ``failed(_:now:)``.
    case publish(Batch, after: UInt64)
    /// Read the subject's last message, and then call ``found(sequence:isOwn:now:)`` or ``failed(_:now:)``.
    case readLast
    /// Call ``retry()`` at this time.
    case wait(until: Int64)
    /// More bytes are stored.
    case advanced
    /// Another request has changed the upload, so this one is over.
    case takenOver
    /// The brokers did not accept a message within ``patience``.
    case failed(BrokerError)
  }

  private enum Phase: Equatable {
    case ready, publishing, reading
    case waiting(toRead: Bool)
    case over
  }

  /// How long a message is retried, in nanoseconds.
  static let patience: Int64 = 8_000_000_000
  /// The first pause between two attempts, in nanoseconds. It doubles each time.
  private static let firstPause: Int64 = 20_000_000
  private static let longestPause: Int64 = 500_000_000

  /// The sequence of the subject's last known message.
  private(set) var sequence: UInt64
  /// The number of bytes of the upload that are certainly stored.
  private(set) var durable: UInt64
  /// Received bytes that are not in a message yet.
  private(set) var waiting: [UInt8] = []
  private var inFlight: Batch?
  private var phase = Phase.ready
  /// The number of the message in flight, or of the last one.
  private(set) var lastNumber: UInt64 = 0
  /// The sequence of the last message that this request has stored. 0 if it has stored none.
  private(set) var storedSequence: UInt64 = 0
  /// Whether that message ends the upload.
  private(set) var isLast = false
  /// The sequence of the last message of another request that was read.
  private var lastOther: UInt64 = 0
  private var wantsMessage: Bool
  private var wantsCompletion = false
  private var deactivation: Deactivation?
  /// When the message in flight first failed, and the number of its failures.
  private var trouble: (since: Int64, count: Int)?

  /// - Parameters:
  ///   - sequence: the sequence of the subject's last message. 0 for a creation.
  ///   - offset: the number of bytes of the upload.
  ///   - announcing: whether to publish a message before there is a byte, to create the upload.
  init(after sequence: UInt64, at offset: UInt64, announcing: Bool) {
    (self.sequence, durable) = (sequence, offset)
    wantsMessage = announcing
  }

  /// The number of received bytes that may not be stored yet.
  var unstoredCount: Int { waiting.count + (inFlight?.bytes.count ?? 0) }
  /// Whether all received bytes are stored, and no message is in flight.
  var isDrained: Bool {
    phase == .ready && waiting.isEmpty && !wantsMessage && !wantsCompletion && deactivation == nil
  }

  /// Whether no message is in flight, and all received bytes fit into one message.
  func isAtLastMessage(limit: Int) -> Bool { phase == .ready && waiting.count <= limit }

  // MARK: Content

  /// Requests a message, even without bytes. None follows the one that ends the upload.
  mutating func announce() { wantsMessage = !isLast }

  mutating func take(_ bytes: some Sequence<UInt8>) { waiting += bytes }

  /// The content is complete, and completes the upload.
  mutating func complete() { wantsCompletion = true }

  /// The upload is over for that reason, and unpublished bytes are dropped.
  mutating func discard(_ cause: Deactivation) { (waiting, deactivation) = ([], cause) }

  /// The upload is over for that reason.
  mutating func deactivate(_ cause: Deactivation) { deactivation = cause }

  /// The next action. Call this after each change.
  ///
  /// - Parameter limit: the maximum number of bytes of a message.
  mutating func next(limit: Int) -> Action {
    guard phase == .ready, !isDrained else { return .nothing }
    lastNumber += 1
    var batch = Batch(number: lastNumber, offset: durable, bytes: [])
    if waiting.count <= limit {
      swap(&batch.bytes, &waiting)
      batch.completes = wantsCompletion
      batch.deactivation = deactivation
      (wantsCompletion, deactivation) = (false, nil)
    } else {
      batch.bytes = Array(waiting[..<limit])
      waiting.removeFirst(limit)
    }
    wantsMessage = false
    inFlight = batch
    phase = .publishing
    return .publish(batch, after: sequence)
  }

  // MARK: Answers of the log

  /// The message in flight is stored.
  mutating func published(sequence: UInt64) -> Action {
    guard let batch = inFlight, phase != .over else { return .nothing }
    (self.sequence, storedSequence) = (sequence, sequence)
    isLast = batch.completes || batch.deactivation != nil
    // A message that was requested meanwhile would reopen the upload.
    if isLast { wantsMessage = false }
    durable = batch.end
    (inFlight, trouble, phase) = (nil, nil, .ready)
    // The next message would be refused.
    if isOvertaken { phase = .over }
    return isOvertaken ? .takenOver : .advanced
  }

  /// The last action failed. It is repeated even if it may have been performed, because the broker refuses the
  /// repetition of a stored message.
  mutating func failed(_ error: BrokerError, now: Int64) -> Action {
    guard phase == .publishing || phase == .reading else { return .nothing }
    if error.isWrongLastSequence {
      phase = .reading
      return .readLast
    }
    guard error.isTransient else { return give(up: error) }
    return pause(error, now: now, toRead: phase == .reading)
  }

  /// Called with the subject's last message, because of which the broker refused the message in flight.
  ///
  /// - Parameter isOwn: whether it is the message in flight, whose acknowledgement was lost.
  mutating func found(sequence: UInt64, isOwn: Bool, now: Int64) -> Action {
    guard phase == .reading else { return .nothing }
    if isOwn { return published(sequence: sequence) }
    // A broker has answered that does not have the newest messages yet. The refusal shows that there are more.
    if sequence <= self.sequence { return pause(.timedOut, now: now, toRead: true) }
    phase = .over
    return .takenOver
  }

  /// Called when a message of another request was read from the log, even if this request has nothing to publish.
  mutating func read(other sequence: UInt64) -> Action {
    lastOther = max(lastOther, sequence)
    // The broker may have stored a message in flight before that one.
    guard phase == .ready, isOvertaken else { return .nothing }
    phase = .over
    return .takenOver
  }

  /// Whether another request has published after the last message of this one.
  private var isOvertaken: Bool { !isLast && lastOther > sequence }

  /// Called after a pause.
  mutating func retry() -> Action {
    guard case .waiting(let toRead) = phase, let batch = inFlight else { return .nothing }
    phase = toRead ? .reading : .publishing
    return toRead ? .readLast : .publish(batch, after: sequence)
  }

  private mutating func pause(_ error: BrokerError, now: Int64, toRead: Bool) -> Action {
    var trouble = trouble ?? (now, 0)
    guard now - trouble.since < Self.patience else { return give(up: error) }
    let pause = min(Self.firstPause << Int64(min(trouble.count, 8)), Self.longestPause)
    trouble.count += 1
    self.trouble = trouble
    phase = .waiting(toRead: toRead)
    return .wait(until: now + pause)
  }

  private mutating func give(up error: BrokerError) -> Action {
    phase = .over
    return .failed(error)
  }
}
