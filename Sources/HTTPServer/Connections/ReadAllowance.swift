// How much one call may read. Long calls make bulk uploads cheap, and are what a live stream's bytes would wait behind:
// they are for a loop that has no others.

/// What all connections of a loop are, as far as it decides how much each may read at once. Pure; sizes in bytes.
struct ReadAllowance {
  /// While all are bulk uploads. Fewer and longer calls: fewer acknowledgements to send, each of which has the sender's
  /// TCP run on our time. No more is won above this.
  static let alone = 2 << 20
  /// While anybody else is connected: read and written in a tenth of a millisecond.
  static let shared = 256 * 1024
  /// Where a head is expected. What comes behind it may have to wait for its handler, as a copy that is the
  /// connection's alone.
  static let head = 64 * 1024
  /// A read of so much, half of what loopback carries in one segment, is of a bulk upload. A microphone's is a tenth of
  /// it.
  static let bulkRead = 32 * 1024

  private var connections = 0
  private var bulkConnections = 0

  mutating func connectionOpened() { connections += 1 }

  /// After `connectionTurned(bulk: false)`, if it was one.
  mutating func connectionClosed() { connections -= 1 }

  mutating func connectionTurned(bulk: Bool) { bulkConnections += bulk ? 1 : -1 }

  func limit(expectsHead: Bool) -> Int {
    if expectsHead { return Self.head }
    return bulkConnections == connections ? Self.alone : Self.shared
  }
}
