// One request's bytes on their way into the log, as a pure state machine: which message goes out when, what is known to
// be stored, and what an error means. No I/O, no clock.

internal import JetStream
internal import ResumableUploads

/// Publishes the bytes of one request, one message at a time, each behind the one before it. Times are nanoseconds of
/// any clock that does not go back.
struct LogAppend {
  /// What one message is to hold.
  struct Batch: Equatable {
    /// Counted from 1: the second half of the publisher's mark.
    var number: UInt64
    var offset: UInt64
    var bytes: [UInt8]
    var completes = false
    var deactivation: Deactivation?
    var end: UInt64 { offset + UInt64(bytes.count) }
  }

  enum Action: Equatable {
    case nothing
    /// Publish it behind the message with that sequence, and tell ``published(sequence:)`` or ``failed(_:now:)``.
    case publish(Batch, after: UInt64)
    /// Read the subject's last message, and tell ``found(_:sequence:now:)`` or ``failed(_:now:)``.
    case readLast
    /// Call ``retry()`` at this time.
    case wait(until: Int64)
    /// The log has more than before.
    case advanced
    /// Somebody else has changed the upload: this request is over.
    case takenOver
    /// The brokers did not take it for longer than we are patient.
    case failed(BrokerError)
  }

  private enum Phase: Equatable {
    case ready, publishing, reading
    case waiting(toRead: Bool)
    case over
  }

  /// For how long a message is tried again.
  static let patience: Int64 = 8_000_000_000
  /// Between two attempts, at first; it doubles.
  private static let firstPause: Int64 = 20_000_000
  private static let longestPause: Int64 = 500_000_000

  /// The sequence of the subject's last message, as far as we know.
  private(set) var sequence: UInt64
  /// How many bytes of the upload the log has for certain.
  private(set) var durable: UInt64
  /// Bytes that came and are in no message yet.
  private(set) var waiting: [UInt8] = []
  private var inFlight: Batch?
  private var phase = Phase.ready
  /// Of the message in flight, or of the last one.
  private(set) var lastNumber: UInt64 = 0
  /// The sequence of the last message that this request has stored; 0 if it has stored none.
  private(set) var storedSequence: UInt64 = 0
  /// Whether the upload is over with that message.
  private(set) var isLast = false
  private var wantsMessage: Bool
  private var wantsCompletion = false
  private var deactivation: Deactivation?
  /// Since when the message in flight has failed, and how often.
  private var trouble: (since: Int64, count: Int)?

  /// - Parameters:
  ///   - sequence: of the subject's last message, 0 for an upload that is created.
  ///   - offset: how many bytes the upload has.
  ///   - announcing: whether a message goes out before there is a byte, to create the upload.
  init(after sequence: UInt64, at offset: UInt64, announcing: Bool) {
    (self.sequence, durable) = (sequence, offset)
    wantsMessage = announcing
  }

  /// How many bytes came and are not known to be stored.
  var unstoredCount: Int { waiting.count + (inFlight?.bytes.count ?? 0) }
  /// Whether everything that came is stored, and nothing is under way.
  var isDrained: Bool {
    phase == .ready && waiting.isEmpty && !wantsMessage && !wantsCompletion && deactivation == nil
  }

  /// Whether nothing is under way, and one message can hold everything that came.
  func isAtLastMessage(limit: Int) -> Bool { phase == .ready && waiting.count <= limit }

  // MARK: What came

  /// A message goes out, even if nothing came.
  mutating func announce() { wantsMessage = true }

  mutating func take(_ bytes: some Sequence<UInt8>) { waiting += bytes }

  /// No more bytes come, and the upload is complete with those that did.
  mutating func complete() { wantsCompletion = true }

  /// The upload is over for that reason, and what waits is dropped.
  mutating func discard(_ cause: Deactivation) { (waiting, deactivation) = ([], cause) }

  /// The upload is over for that reason.
  mutating func deactivate(_ cause: Deactivation) { deactivation = cause }

  /// What is to be done now; call it after each change.
  ///
  /// - Parameter limit: how many bytes a message may have.
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

  // MARK: What the log says

  /// The message in flight is stored.
  mutating func published(sequence: UInt64) -> Action {
    guard let batch = inFlight, phase != .over else { return .nothing }
    (self.sequence, storedSequence) = (sequence, sequence)
    isLast = batch.completes || batch.deactivation != nil
    durable = batch.end
    (inFlight, trouble, phase) = (nil, nil, .ready)
    return .advanced
  }

  /// What was asked for last did not succeed. Where it may have been done all the same, it is done again: a message
  /// that is there makes the broker refuse its repetition.
  mutating func failed(_ error: BrokerError, now: Int64) -> Action {
    guard phase == .publishing || phase == .reading else { return .nothing }
    if error.isWrongLastSequence {
      phase = .reading
      return .readLast
    }
    guard error.isTransient else { return give(up: error) }
    return pause(error, now: now, toRead: phase == .reading)
  }

  /// The subject's last message, when the message in flight was refused because of it.
  ///
  /// - Parameter isOwn: whether it is the message in flight: its acknowledgement was lost.
  mutating func found(sequence: UInt64, isOwn: Bool, now: Int64) -> Action {
    guard phase == .reading else { return .nothing }
    if isOwn { return published(sequence: sequence) }
    // A broker that was behind has answered: the refusal says that there is more.
    if sequence <= self.sequence { return pause(.timedOut, now: now, toRead: true) }
    phase = .over
    return .takenOver
  }

  /// The pause is over.
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
