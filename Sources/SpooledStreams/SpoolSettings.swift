// How a stream is spooled, and what happens to its spool.

public import EventLoops
public import Spool

/// How a stream is spooled.
public struct SpoolSettings: Sendable {
  /// The most bytes that all stretches of the stream keep together.
  public var limit: UInt64
  /// How much a power cut may take, in time.
  public var syncInterval = Duration.seconds(1)
  /// Whether the oldest bytes make room when ``limit`` is reached. Otherwise nothing more is copied until there is
  /// room.
  public var evicts = true
  /// Bytes that were captured longer ago are evicted; nil for never.
  public var retention: Duration?
  /// How long a disk that works otherwise may fail to read bytes before they count as lost, and how long a stream waits
  /// for a stretch that cannot be opened now.
  package var readingPatience = Duration.seconds(60)
  /// How long the end of a stretch waits for the last bytes of its stopped source. This is less than a stream waits for
  /// the disk at its end.
  package var sourcePatience = Duration.milliseconds(500)

  /// Creates a spool of at most `limit` bytes, with the defaults for everything else.
  public init(limit: UInt64) { self.limit = limit }
}

/// Something that happened to a spool.
public enum SpoolEvent: Equatable, Sendable {
  /// Nothing can be written, for this reason. The stream continues in memory, and the spool tries again.
  case failing(SpoolError)
  /// It can be written again.
  case recovered
  /// Another program has removed this file of a stretch. Its bytes that the server does not receive are lost when this
  /// process ends.
  case removed(String)
  /// Another program has truncated this file of a stretch. The bytes that were cut off are lost, and reported as lost
  /// when the stream gets there.
  case truncated(String)
  /// The file system in memory has no room for what must survive the end of the process: bytes are written to the disk
  /// more often.
  case withoutSharedMemory(SystemError)
  /// A stretch of an earlier process has lost bytes.
  case damaged(stretch: String, SpoolDamage)
  /// A stretch of an earlier process cannot be read. It stays where it is.
  case unreadable(SpoolError)
}

extension SpoolEvent {
  /// Whether bytes may be lost, although nothing shows which. Streams report losses that are known.
  package var reportsDoubt: Bool { if case .damaged(_, let damage) = self { damage.kind.leavesDoubt } else { false } }
}
