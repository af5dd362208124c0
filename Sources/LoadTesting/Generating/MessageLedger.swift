// The state of each message: due, passed to the engine, accepted by TCP, acknowledged. The engine reports stream
// offsets, which are converted to messages here.

/// The messages of one stream that are due and not acknowledged, in order. A value; allocates only when more are open
/// than ever before.
struct MessageLedger {
  struct Message: Equatable {
    /// Stream offset one past its last byte.
    var end: UInt64
    var byteCount: Int
    /// When it was due, on the run's clock.
    var due: Int64
    /// How many of its bytes the stream gave up, because the buffer was full or the server had lost them.
    var lostByteCount = 0
  }

  /// From `first` on; what stands before is done with.
  private var messages: [Message] = []
  private var first = 0
  /// Counted from the array's start: which is the first that was not handed over, not taken by TCP.
  private var firstUnsent = 0
  private var firstUnaccepted = 0

  /// Stream offset one past the last byte that was ever due.
  private(set) var head: UInt64 = 0

  /// A message's time has come.
  mutating func due(_ byteCount: Int, at due: Int64) {
    head += UInt64(byteCount)
    messages.append(Message(end: head, byteCount: byteCount, due: due))
  }

  /// The stream gave these bytes up. It goes on behind them, and what it acknowledges from then on does not mean them.
  mutating func lost(_ range: Range<UInt64>) {
    for index in first..<messages.count {
      let own = messages[index].end - UInt64(messages[index].byteCount)..<messages[index].end
      let count = min(own.upperBound, range.upperBound)
      messages[index].lostByteCount += Int(count - min(count, max(own.lowerBound, range.lowerBound)))
    }
  }

  var isEmpty: Bool { first == messages.count }

  /// The oldest message that is not acknowledged.
  var oldest: Message? { isEmpty ? nil : messages[first] }

  /// The next message that was handed over as a whole, if everything before `offset` was; ask until there is none.
  mutating func nextSent(before offset: UInt64) -> Message? {
    guard firstUnsent < messages.count, messages[firstUnsent].end <= offset else { return nil }
    defer { firstUnsent += 1 }
    return messages[firstUnsent]
  }

  /// The next message that TCP has taken, if it has taken everything before `offset`; ask until there is none.
  mutating func nextAccepted(before offset: UInt64) -> Message? {
    guard firstUnaccepted < messages.count, messages[firstUnaccepted].end <= offset else { return nil }
    defer { firstUnaccepted += 1 }
    return messages[firstUnaccepted]
  }

  /// The next message that the server has, if it has everything before `offset`; ask until there is none.
  mutating func nextAcknowledged(before offset: UInt64) -> Message? {
    guard first < messages.count, messages[first].end <= offset else { return nil }
    let message = messages[first]
    first += 1
    firstUnsent = max(firstUnsent, first)
    firstUnaccepted = max(firstUnaccepted, first)
    if first == messages.count || first >= 64 { forget() }
    return message
  }

  private mutating func forget() {
    messages.removeFirst(first)
    firstUnsent -= first
    firstUnaccepted -= first
    first = 0
  }
}
