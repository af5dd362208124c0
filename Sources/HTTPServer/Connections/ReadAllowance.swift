// How much one call may read. Long calls make bulk uploads cheap, but delay the bytes of live streams. So they are only
// for a loop without live streams.

/// The kinds of a loop's connections, which determine how much each may read at once. Pure. Sizes are in bytes.
struct ReadAllowance {
  /// If all connections are bulk uploads. Fewer and longer calls mean fewer acknowledgements, each of which runs the
  /// sender's TCP in our time. Larger sizes gain nothing.
  static let alone = 2 << 20
  /// If any other connection exists. Reading and writing this takes a tenth of a millisecond.
  static let shared = 256 * 1024
  /// If a head is expected. The bytes after it may have to wait for its handler, as a copy for this connection alone.
  static let head = 64 * 1024
  /// A read of this size, half of one loopback segment, belongs to a bulk upload. A microphone's reads are a tenth of
  /// it.
  static let bulkRead = 32 * 1024

  private var connections = 0
  private var bulkConnections = 0

  mutating func connectionOpened() { connections += 1 }

  /// Call it after `connectionTurned(bulk: false)` if the connection was a bulk upload.
  mutating func connectionClosed() { connections -= 1 }

  mutating func connectionTurned(bulk: Bool) { bulkConnections += bulk ? 1 : -1 }

  func limit(expectsHead: Bool) -> Int {
    if expectsHead { return Self.head }
    return bulkConnections == connections ? Self.alone : Self.shared
  }
}
