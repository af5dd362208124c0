// The messages of a log after the end of its servers.

internal import BrokerTesting
internal import EventLoops
internal import JetStream
internal import LogServing
internal import ResumableUploads

/// The messages of one subject: an upload, or one beginning of a plain stream.
struct LoggedUpload {
  let token: String
  let streamID: String
  /// The SHA-256 of the owner's token in hexadecimal.
  let owner: String?
  /// The stream offset at which it begins; in a plain stream, without its holes.
  private(set) var start: UInt64
  /// Its bytes with their stream offsets.
  private(set) var pieces: [(offset: UInt64, bytes: [UInt8])] = []
  private(set) var isComplete = false
  /// The value of `Sluice-Ended`.
  private(set) var ended: String?
  /// The offset in the upload after its last message.
  private(set) var end: UInt64 = 0
  private var link = LogEntry.Link()
  /// The first contradiction between its messages.
  private var contradiction: String?

  /// The number of stored bytes.
  var count: UInt64 { UInt64(pieces.map(\.bytes.count).reduce(0, +)) }
  var isPlain: Bool { token.hasPrefix("plain-") }
  /// Whether its bytes are to be removed.
  var isDiscarded: Bool { !isComplete && ["cancelled", "expired", "refuted"].contains(ended) }
  /// A contradiction between the messages. If bytes are to be removed, some of their messages may be missing.
  var problem: String? { isDiscarded ? nil : contradiction }

  /// Begins with the first message that is there.
  init(_ token: String, _ entry: LogEntry, _ message: StoredMessage) {
    self.token = token
    (streamID, start) = (entry.streamID, entry.streamStart)
    owner = message.content["Sluice-Owner"]
    if entry.link.number > 1 {
      contradiction = "the messages before number \(entry.link.number) are missing"
      (end, link) = (entry.offset, .init(number: entry.link.number - 1, digest: ""))
    }
  }

  mutating func take(_ entry: LogEntry, _ message: StoredMessage) {
    let isFirst = link.number > 0 && link.digest.isEmpty
    if entry.link.number != link.number + 1 || !isFirst && link.next(message.content) != entry.link {
      contradict(message, "has number \(entry.link.number) and a digest that do not follow number \(link.number)")
    }
    if entry.offset != end { contradict(message, "is at \(entry.offset), after \(end)") }
    if isPlain ? entry.streamStart < start : entry.streamStart != start {
      contradict(message, "is at another place of the stream")
    }
    if message.content["Sluice-Owner"] != owner { contradict(message, "has another owner") }
    if entry.streamID != streamID { contradict(message, "has another stream") }
    // Only the record of a complete upload can still be deleted.
    let isDeletion = isComplete && ended == nil && entry.deactivation == .cancelled && entry.count == 0
    if isComplete || ended != nil, !isDeletion { contradict(message, "follows the last one") }
    (start, end, link) = (entry.streamStart, entry.end, entry.link)
    (isComplete, ended) = (entry.isComplete, entry.deactivation?.rawValue)
    if entry.count > 0 { pieces.append((entry.streamStart + entry.offset, message.content.payload)) }
  }

  mutating func contradict(_ message: StoredMessage, _ problem: String) {
    contradiction = contradiction ?? "message \(message.sequence) \(problem)"
  }
}

/// All uploads of a log, by their `Stream-ID`.
struct StoredLog: Sendable {
  private var uploads: [String: LoggedUpload] = [:]
  /// Messages that no server can have written.
  private(set) var damaged: [String] = []

  /// Reads all messages.
  init(_ log: ChaosLog) throws {
    let found = Lock(StoredLog())
    try BrokerLoop(BrokerOptions(servers: [log.url])).read(ChaosLog.stream) { message in
      found.withLock { $0.take(message) }
    }
    self = found.withLock { $0 }
  }

  private init() {}

  private mutating func take(_ message: StoredMessage) {
    let token = message.subject.split(separator: ".").last.map { String($0) } ?? ""
    // These subjects are not uploads (docs/jetstream.md, "The served time" and "Confirmed answers").
    if token == UploadLog.ticks || token == UploadLog.barriers { return }
    // This compares the checksum of the payload.
    guard UploadToken.isValid(token), let entry = LogEntry(message.content) else {
      return damaged.append("message \(message.sequence) of \(message.subject)")
    }
    uploads[token, default: LoggedUpload(token, entry, message)].take(entry, message)
  }

  var streamIDs: Set<String> { Set(uploads.values.map(\.streamID)) }

  subscript(token: String) -> LoggedUpload? { uploads[token] }

  func uploads(of streamIDs: Set<String>) -> [LoggedUpload] {
    uploads.values.filter { streamIDs.contains($0.streamID) }.sorted { $0.token < $1.token }
  }
}
