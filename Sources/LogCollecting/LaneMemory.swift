// The limit of the messages that streams keep in memory while they wait.

/// The size of the messages that the waiting lanes keep. A value.
///
/// A lane cannot continue without its first message. So half of the limit is reserved for first messages.
struct LaneMemory {
  /// The maximum size of all messages, in bytes.
  static let limit = 64 << 20
  /// The maximum size of a lane's messages, in bytes, unless it has only one.
  static let share = 1 << 20

  private(set) var size = 0
  /// Whether there was no memory for the first message of a lane.
  private(set) var isFull = false

  /// Whether a lane may keep another message of that size.
  ///
  /// - Parameter others: the size of the other messages that the lane keeps. Nil if it keeps none.
  mutating func reserve(_ size: Int, behind others: Int?) -> Bool {
    let fits = others.map { $0 + size <= Self.share && self.size + size <= Self.limit / 2 }
    guard fits ?? (self.size + size <= Self.limit) else {
      if others == nil { isFull = true }
      return false
    }
    self.size += size
    return true
  }

  /// Called when a message is no longer kept.
  mutating func release(_ size: Int) {
    self.size -= size
    if self.size <= Self.limit / 2 { isFull = false }
  }
}
