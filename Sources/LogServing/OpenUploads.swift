// The uploads of a log that are not over, as one server knows them: how many there are, how many bytes they have, and
// how long they have been left alone.

internal import EventLoops
internal import ResumableUploads
internal import StreamServing

/// The unfinished uploads of all servers. Pure. Times are what ``ServedTime/own(_:)`` says.
///
/// What the server does itself is counted before it is in the log. What other servers do is counted when their messages
/// are read.
struct OpenUploads {
  /// What identifies the credential of an upload's creator; nil where servers ask for none.
  typealias Owner = [UInt8]?

  private struct Entry {
    var owner: Owner
    /// Of its last message that is known; 0 while there is none.
    var sequence: UInt64 = 0
    /// How many bytes it has in the log.
    var end: UInt64 = 0
    /// How many it has, with those that this server has accepted.
    var claimed: UInt64 = 0
    /// Whether nobody had said how long it would be; nil if nobody here knows.
    var isLive: Bool?
    /// When the last message was read.
    var seen: Int64
    /// Requests of this server that bring bytes.
    var requestCount = 0
    /// Whether this server has ended it, and has not read that yet.
    var isOver = false

    var bytes: UInt64 { isOver ? 0 : max(end, claimed) }
    var count: Int { isOver ? 0 : 1 }
  }

  private struct Tally {
    var count = 0
    var bytes: UInt64 = 0
  }

  private let limits: UploadLimitsConfiguration
  private let lifetimes: UploadLifetimes
  private var entries: [String: Entry] = [:]
  private var owners: [Owner: Tally] = [:]
  private var total = Tally()
  /// Of the last message that was read.
  private var position: UInt64 = 0

  init(_ limits: UploadLimitsConfiguration, _ lifetimes: UploadLifetimes) {
    (self.limits, self.lifetimes) = (limits, lifetimes)
  }

  /// How many uploads are not over.
  var count: Int { total.count }
  /// How many bytes they have.
  var bytes: UInt64 { total.bytes }
  /// The memory that is taken, in entries.
  var entryCount: Int { entries.count }

  private mutating func set(_ token: String, _ new: Entry?) {
    let old = entries[token]
    // An upload never changes hands.
    guard let owner = (new ?? old).map(\.owner) else { return }
    entries[token] = new
    let (count, bytes) = ((new?.count ?? 0) - (old?.count ?? 0), (new?.bytes ?? 0) &- (old?.bytes ?? 0))
    total.count += count
    total.bytes &+= bytes
    var tally = owners[owner] ?? Tally()
    tally.count += count
    tally.bytes &+= bytes
    owners[owner] = tally.count == 0 && tally.bytes == 0 ? nil : tally
  }

  // MARK: What the log says

  /// A message of an upload was read, or its last one was.
  ///
  /// - Parameter seen: when.
  mutating func read(_ entry: LogEntry, of token: String, at sequence: UInt64, seen: Int64) {
    position = max(position, sequence)
    var known = entries[token]
    if let known, known.sequence > sequence { return }
    if entry.isOver { return set(token, nil) }
    if known == nil { known = Entry(owner: entry.owner, seen: seen) }
    guard var known else { return }
    if known.sequence < sequence { known.seen = seen }
    (known.sequence, known.end) = (sequence, max(entry.end, known.end))
    if entry.length == nil || entry.link.number == 1 { known.isLive = entry.length == nil }
    set(token, known)
  }

  /// What the first message of an upload says.
  mutating func setLive(_ isLive: Bool, _ token: String) { entries[token]?.isLive = isLive }

  /// The log has nothing of the upload any more.
  mutating func remove(_ token: String) { set(token, nil) }

  /// The log may be another one: only what is at work here is known.
  mutating func forget() {
    for (token, entry) in entries {
      guard entry.requestCount > 0, !entry.isOver else {
        set(token, nil)
        continue
      }
      var entry = entry
      entry.sequence = 0
      set(token, entry)
    }
    position = 0
  }

  // MARK: Requests of this server

  /// How many bytes more that owner's uploads may have.
  func room(for owner: Owner) -> UInt64 {
    let own = owner == nil ? nil : limits.quotaPerClient.map { $0 - min($0, owners[owner]?.bytes ?? 0) }
    return min(limits.quota.map { $0 - min($0, total.bytes) } ?? .max, own ?? .max)
  }

  /// Takes in an upload that a request creates.
  ///
  /// - Parameter claimed: how many bytes it is to have, as far as its client says.
  mutating func admit(
    _ token: String, of owner: Owner, claiming claimed: UInt64, isLive: Bool, seen: Int64
  ) throws(UploadRefusal) {
    let own = owner == nil ? 0 : owners[owner]?.count ?? 0
    guard total.count < limits.maximumCount, own < limits.maximumCountPerClient ?? .max else { throw .tooManyUploads }
    guard room(for: owner) >= max(claimed, 1) else { throw .quotaExhausted }
    var entry = Entry(owner: owner, isLive: isLive, seen: seen)
    entry.requestCount = 1
    set(token, entry)
  }

  /// Takes in a request that appends to an upload.
  ///
  /// - Parameters:
  ///   - entry: what the last message of the upload says, which has that sequence.
  ///   - count: how many bytes the request has, as far as its client says.
  mutating func enter(
    _ token: String, _ entry: LogEntry, at sequence: UInt64, bringing count: UInt64, seen: Int64
  ) throws(UploadRefusal) {
    guard room(for: entry.owner) >= count else { throw .quotaExhausted }
    // What was read behind that message says that the upload is over.
    if entries[token] == nil, sequence <= position { return }
    if entries[token] == nil { read(entry, of: token, at: sequence, seen: seen) }
    guard var known = entries[token] else { return }
    known.requestCount += 1
    known.claimed = max(known.claimed, entry.end)
    set(token, known)
  }

  /// Counts bytes that came for an upload, and returns how many of them may be stored.
  mutating func claim(_ count: UInt64, for token: String) -> UInt64 {
    guard var entry = entries[token], !entry.isOver else { return count }
    let granted = min(count, room(for: entry.owner))
    entry.claimed += granted
    set(token, entry)
    return granted
  }

  /// A request is over.
  ///
  /// - Parameters:
  ///   - sequence: of its last message that was stored; 0 if none was.
  ///   - end: how many bytes the upload has with that message.
  ///   - isOver: whether the upload is over with it.
  mutating func leave(_ token: String, at sequence: UInt64, end: UInt64, isOver: Bool, seen: Int64) {
    guard var entry = entries[token] else { return }
    entry.requestCount = max(0, entry.requestCount - 1)
    if sequence > entry.sequence { (entry.sequence, entry.seen) = (sequence, seen) }
    entry.end = max(entry.end, end)
    // What did not get into the log counts no more.
    if entry.requestCount == 0 { entry.claimed = 0 }
    entry.isOver = entry.isOver || isOver && sequence >= entry.sequence
    set(token, entry.sequence == 0 && entry.requestCount == 0 ? nil : entry)
  }

  /// This server has published the last message of an upload.
  mutating func end(_ token: String, at sequence: UInt64) {
    guard var entry = entries[token], sequence > entry.sequence else { return }
    (entry.sequence, entry.isOver) = (sequence, true)
    set(token, entry)
  }

  // MARK: Ages

  var tokens: [String] { Array(entries.keys) }

  /// After what time the upload is over unless something comes; nil if it is over, or a request is at work here.
  func remainder(of token: String, _ time: ServedTime, _ now: Int64) -> (left: Int64, sequence: UInt64)? {
    guard let entry = entries[token], entry.sequence > 0, entry.requestCount == 0, !entry.isOver else { return nil }
    let lifetime = lifetimes.of(isLive: entry.isLive ?? false).nanoseconds
    return (lifetime - time.age(of: entry.sequence, seen: entry.seen, now), entry.sequence)
  }
}

extension LogEntry {
  /// Whether it is the last message of its upload.
  var isOver: Bool { isComplete || deactivation != nil }
}
