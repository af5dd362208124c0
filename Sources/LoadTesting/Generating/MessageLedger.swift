// The state of each message: due, passed to the engine, accepted by TCP, acknowledged. The engine reports stream
// offsets, which are converted to messages here.

/// The due and unacknowledged messages of one stream, in order. A value, which allocates only if more are open than
/// ever before.
struct MessageLedger {
  struct Message: Equatable {
    /// Stream offset one past its last byte.
    var end: UInt64
    var byteCount: Int
    /// When it was due, on the run's clock.
    var due: Int64
    /// How many of its bytes the stream lost, because the buffer was full or the server had lost them.
    var lostByteCount = 0
  }

  /// From `first` on. Earlier elements are finished.
  private var messages: [Message] = []
  private var first = 0
  /// Indices in the array: the first message that was not passed on, and the first not accepted by TCP.
  private var firstUnsent = 0
  private var firstUnaccepted = 0

  /// Stream offset after the last byte that was ever due.
  private(set) var head: UInt64 = 0

  /// A message becomes due.
  mutating func due(_ byteCount: Int, at due: Int64) {
    head += UInt64(byteCount)
    messages.append(Message(end: head, byteCount: byteCount, due: due))
  }

  /// The stream lost these bytes. It continues after them, and its later acknowledgements do not include them.
  mutating func lost(_ range: Range<UInt64>) {
    for index in first..<messages.count {
      let own = messages[index].end - UInt64(messages[index].byteCount)..<messages[index].end
      let count = min(own.upperBound, range.upperBound)
      messages[index].lostByteCount += Int(count - min(count, max(own.lowerBound, range.lowerBound)))
    }
  }

  var isEmpty: Bool { first == messages.count }

  /// The oldest unacknowledged message.
  var oldest: Message? { isEmpty ? nil : messages[first] }

  /// The next message that was passed on completely, given that everything before `offset` was. Call it until it
  /// returns nil.
  mutating func nextSent(before offset: UInt64) -> Message? {
    guard firstUnsent < messages.count, messages[firstUnsent].end <= offset else { return nil }
    defer { firstUnsent += 1 }
    return messages[firstUnsent]
  }

  /// The next message that TCP has accepted, given that it has accepted everything before `offset`. Call it until it
  /// returns nil.
  mutating func nextAccepted(before offset: UInt64) -> Message? {
    guard firstUnaccepted < messages.count, messages[firstUnaccepted].end <= offset else { return nil }
    defer { firstUnaccepted += 1 }
    return messages[firstUnaccepted]
  }

  /// The next message that the server has stored, given that it has stored everything before `offset`. Call it until it
  /// returns nil.
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
