// Compares bytes of a stream that are sent again with those in the log, which are read one message at a time.

internal import EventLoops
internal import JetStream
internal import StreamServing

/// Compares the beginning of a request's content with the stored bytes of its stream. Only on the loop's thread.
final class LogComparison {
  enum Verdict {
    /// The bytes equal the stored ones, and these bytes follow them.
    case same([UInt8])
    case different
    /// Messages are missing or were changed. The reason is for the operator.
    case lost(String)
    case unavailable(BrokerError)
  }

  private static let pause = Duration.milliseconds(100)

  private let log: UploadLog
  private let token: String
  /// The last message, and its sequence.
  private let last: LogEntry
  private let sequence: UInt64
  /// The stream offset of the next byte to be compared, and where the comparison ends.
  private var cursor: UInt64
  private let limit: UInt64
  private let completion: (Verdict) -> Void
  /// Called when all received bytes are compared, and more are to come.
  private let drained: () -> Void
  /// Received bytes, of which the first ones are compared.
  private var received: [UInt8] = []
  private var comparedCount = 0
  private var hasEnded = false
  private var isReading = false
  private var isOver = false
  /// The message that was read last, and its bytes.
  private var message: (entry: LogEntry, sequence: UInt64, payload: [UInt8])?
  /// Bytes before this stream offset are in no message. They are a hole, or were removed after the stream was complete.
  private var gap: (end: UInt64, isHole: Bool) = (0, true)
  private var deadline = MonotonicInstant.now

  /// - Parameters:
  ///   - last: the last message of the stream, which has that sequence.
  ///   - cursor: the stream offset of the content, which is before the end of the stream.
  ///   - drained: called when all received bytes are compared, and more are to come.
  init(
    _ log: UploadLog, _ token: String, _ last: LogEntry, at sequence: UInt64, from cursor: UInt64,
    drained: @escaping () -> Void, _ completion: @escaping (Verdict) -> Void
  ) {
    (self.log, self.token, self.last, self.sequence) = (log, token, last, sequence)
    (self.cursor, limit, self.drained, self.completion) = (cursor, last.streamEnd, drained, completion)
  }

  /// The number of bytes that are not compared yet.
  var waitingCount: Int { received.count - comparedCount }

  func take(_ bytes: UnsafeBufferPointer<UInt8>) {
    received += bytes
    proceed()
  }

  /// Called when the content has ended.
  func finish() {
    hasEnded = true
    proceed()
  }

  private func conclude(_ verdict: Verdict) {
    isOver = true
    message = nil
    completion(verdict)
  }

  // MARK: Comparing

  private func proceed() {
    while !isReading, !isOver {
      if cursor == limit || waitingCount == 0 && hasEnded { return conclude(.same(Array(received[comparedCount...]))) }
      if waitingCount == 0 { return drained() }
      let wanted = min(UInt64(waitingCount), limit - cursor)
      if cursor < gap.end {
        // A hole reads as zeros in a recording.
        let count = Int(min(wanted, gap.end - cursor))
        guard !gap.isHole || next(count).allSatisfy({ $0 == 0 }) else { return conclude(.different) }
        passed(count)
      } else if let message, cursor >= message.entry.streamOffset, cursor < message.entry.streamEnd {
        let begin = Int(cursor - message.entry.streamOffset)
        let count = min(Int(wanted), message.payload.count - begin)
        guard message.payload[begin..<(begin + count)] == next(count) else { return conclude(.different) }
        passed(count)
      } else {
        deadline = .now + .nanoseconds(LogAppend.patience)
        if let message { read(from: message.sequence + 1) { [self] in follow($0) } } else { locate() }
      }
    }
  }

  private func next(_ count: Int) -> ArraySlice<UInt8> { received[comparedCount..<(comparedCount + count)] }

  private func passed(_ count: Int) {
    comparedCount += count
    cursor += UInt64(count)
    guard waitingCount == 0 else { return }
    received.removeAll(keepingCapacity: true)
    comparedCount = 0
  }

  // MARK: Reading

  private typealias Message = (entry: LogEntry, sequence: UInt64, payload: [UInt8])

  /// Finds a message that begins at or before the cursor, with few questions. First it searches backwards from the last
  /// message with growing steps, and then between the two messages that enclose the cursor.
  private func locate(back distance: UInt64 = 1, below high: UInt64? = nil) {
    let probe = sequence > distance ? sequence - distance : 1
    read(from: probe) { [self] found in
      if found.entry.streamOffset <= cursor { return narrow(found, below: high ?? sequence + 1) }
      guard probe > 1 else { return take(found, behind: nil) }
      locate(back: distance &* 2, below: probe)
    }
  }

  /// - Parameters:
  ///   - low: a message that begins at or before the cursor.
  ///   - high: messages from this sequence on begin after it.
  private func narrow(_ low: Message, below high: UInt64) {
    guard cursor >= low.entry.streamEnd, high - min(high, low.sequence) > 1 else { return take(low, behind: low) }
    let probe = low.sequence + (high - low.sequence) / 2
    read(from: probe) { [self] found in
      found.entry.streamOffset <= cursor ? narrow(found, below: high) : narrow(low, below: probe)
    }
  }

  private func follow(_ found: Message) { take(found, behind: message) }

  /// - Parameter former: the message before it, if that is known.
  private func take(_ found: Message, behind former: Message?) {
    isReading = false
    message = found
    if found.entry.streamOffset > cursor {
      let follows = former.map { found.entry.link.number == $0.entry.link.number + 1 } ?? (found.entry.link.number == 1)
      // A collector has purged the others, and has them.
      guard follows || last.isComplete else {
        return conclude(.lost("message \(found.sequence) of \(token) does not follow the one before it"))
      }
      gap = (found.entry.streamOffset, follows)
    }
    proceed()
  }

  private func read(from first: UInt64, _ take: @escaping (Message) -> Void) {
    isReading = true
    guard first <= sequence else { return conclude(.lost("bytes before message \(sequence) of \(token) are missing")) }
    log.stream.message(of: token, from: first) { [self] answer in
      guard !isOver else { return }
      switch answer {
      case .failure(let error): again(error, first, take)
      // A broker that is behind has answered.
      case .success(nil): again(.timedOut, first, take)
      case .success(let found?):
        guard let entry = LogEntry(found.content) else {
          return conclude(.lost("message \(found.sequence) of \(token) is damaged"))
        }
        take((entry, found.sequence, found.content.payload))
      }
    }
  }

  private func again(_ error: BrokerError, _ first: UInt64, _ take: @escaping (Message) -> Void) {
    guard error.isTransient, MonotonicInstant.now < deadline else { return conclude(.unavailable(error)) }
    log.loop.schedule(after: Self.pause) { [self] in if !isOver { read(from: first, take) } }
  }

  /// Called when the result is no longer required.
  func abandon() { isOver = true }
}
