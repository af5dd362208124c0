// The unfinished uploads of a log, as far as one server knows them: their number, their bytes, and the time since their
// last requests.

internal import EventLoops
internal import ResumableUploads
internal import StreamServing

/// The unfinished uploads of all servers. A value without I/O. Times are those of ``ServedTime/own(_:)``.
///
/// Bytes that the server itself accepts are counted before they are in the log. Bytes of other servers are counted when
/// their messages are read.
struct OpenUploads {
  /// The digest of the credential of an upload's creator. Nil if the servers require none.
  typealias Owner = [UInt8]?

  private struct Entry {
    var owner: Owner
    /// The sequence of its last known message. 0 if there is none.
    var sequence: UInt64 = 0
    /// The number of its bytes in the log.
    var end: UInt64 = 0
    /// The number of its bytes, including those that this server has accepted.
    var claimed: UInt64 = 0
    /// Whether its length was not announced. Nil if this is not known here.
    var isLive: Bool?
    /// When the last message was read.
    var seen: Int64
    /// The number of requests with content at this server.
    var requestCount = 0
    /// Whether this server has ended it, and has not read that message yet.
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
  /// The sequence up to which the log was read.
  private var position: UInt64 = 0
  /// Counts the calls of ``forget()``. A sequence of an earlier epoch may belong to a message that the log has lost.
  private(set) var epoch: UInt64 = 0

  init(_ limits: UploadLimitsConfiguration, _ lifetimes: UploadLifetimes) {
    (self.limits, self.lifetimes) = (limits, lifetimes)
  }

  /// The number of unfinished uploads.
  var count: Int { total.count }
  /// The number of their bytes.
  var bytes: UInt64 { total.bytes }
  /// The number of entries in memory.
  var entryCount: Int { entries.count }

  private mutating func set(_ token: String, _ new: Entry?) {
    let old = entries[token]
    // The owner of an upload never changes.
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

  // MARK: The log

  /// Called when the next message of the log was read.
  ///
  /// - Parameter seen: when it was read.
  mutating func read(_ entry: LogEntry, of token: String, at sequence: UInt64, seen: Int64) {
    position = max(position, sequence)
    learn(entry, of: token, at: sequence, seen: seen)
  }

  /// Called when the last message of an upload was read, while others before it may be unread.
  mutating func learn(_ entry: LogEntry, of token: String, at sequence: UInt64, seen: Int64) {
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

  /// The same for a message that does not end its upload. Returns false if the upload is not known yet.
  mutating func advance(
    _ token: String, to end: UInt64, isLive: Bool, at sequence: UInt64, seen: Int64
  ) -> Bool {
    guard var known = entries[token] else { return false }
    position = max(position, sequence)
    guard known.sequence <= sequence else { return true }
    if known.sequence < sequence { known.seen = seen }
    (known.sequence, known.end) = (sequence, max(end, known.end))
    if isLive { known.isLive = true }
    set(token, known)
    return true
  }

  /// Records whether an upload is live, as its first message states.
  mutating func setLive(_ isLive: Bool, _ token: String) { entries[token]?.isLive = isLive }

  /// Called when the log has no message of the upload any more.
  mutating func remove(_ token: String) { set(token, nil) }

  /// Called when the log may be another one. Only uploads with requests at this server remain known.
  mutating func forget() {
    for (token, entry) in entries {
      guard entry.requestCount > 0, !entry.isOver else {
        set(token, nil)
        continue
      }
      var entry = entry
      (entry.sequence, entry.end) = (0, 0)
      set(token, entry)
    }
    position = 0
    epoch += 1
  }

  /// The same as ``learn(_:of:at:seen:)``, even if the known message is a later one. The brokers may have answered a
  /// request just before they lost that message.
  ///
  /// - Parameter known: the sequence of the last known message before the brokers were asked.
  mutating func correct(_ entry: LogEntry, of token: String, at sequence: UInt64, known: UInt64, seen: Int64) {
    if var former = entries[token], former.sequence == known, former.requestCount == 0 {
      (former.sequence, former.end) = (0, 0)
      set(token, former)
    }
    learn(entry, of: token, at: sequence, seen: seen)
  }

  // MARK: Requests of this server

  /// The number of further bytes that the owner's uploads may contain.
  func room(for owner: Owner) -> UInt64 {
    let own = owner == nil ? nil : limits.quotaPerClient.map { $0 - min($0, owners[owner]?.bytes ?? 0) }
    return min(limits.quota.map { $0 - min($0, total.bytes) } ?? .max, own ?? .max)
  }

  /// Adds an upload that a request creates.
  ///
  /// - Parameter claimed: its announced number of bytes.
  /// - Returns: the epoch in which the request begins.
  @discardableResult
  mutating func admit(
    _ token: String, of owner: Owner, claiming claimed: UInt64, isLive: Bool, seen: Int64
  ) throws(UploadRefusal) -> UInt64 {
    let own = owner == nil ? 0 : owners[owner]?.count ?? 0
    guard total.count < limits.maximumCount, own < limits.maximumCountPerClient ?? .max else { throw .tooManyUploads }
    guard room(for: owner) >= max(claimed, 1) else { throw .quotaExhausted }
    var entry = Entry(owner: owner, isLive: isLive, seen: seen)
    entry.requestCount = 1
    set(token, entry)
    return epoch
  }

  /// Adds a request that appends to an upload.
  ///
  /// - Parameters:
  ///   - entry: the last message of the upload, which has that sequence.
  ///   - count: the announced number of bytes of the request.
  /// - Returns: the epoch in which the request begins.
  @discardableResult
  mutating func enter(
    _ token: String, _ entry: LogEntry, at sequence: UInt64, bringing count: UInt64, seen: Int64
  ) throws(UploadRefusal) -> UInt64 {
    guard room(for: entry.owner) >= count else { throw .quotaExhausted }
    // A message after that one, which was read, has ended the upload.
    if entries[token] == nil, sequence <= position { return epoch }
    // The messages before that one are not all read yet, so the position stays.
    if entries[token] == nil { learn(entry, of: token, at: sequence, seen: seen) }
    guard var known = entries[token] else { return epoch }
    known.requestCount += 1
    known.claimed = max(known.claimed, entry.end)
    set(token, known)
    return epoch
  }

  /// Counts received bytes of an upload. Returns how many of them may be stored.
  mutating func claim(_ count: UInt64, for token: String) -> UInt64 {
    guard var entry = entries[token], !entry.isOver else { return count }
    let granted = min(count, room(for: entry.owner))
    entry.claimed += granted
    set(token, entry)
    return granted
  }

  /// Called at the end of a request.
  ///
  /// - Parameters:
  ///   - sequence: the sequence of its last stored message. 0 if none was stored.
  ///   - end: the number of bytes of the upload up to the end of that message.
  ///   - isOver: whether that message ends the upload.
  ///   - epoch: the one in which the request began. If it is over, the log alone determines what it has of the request.
  mutating func leave(
    _ token: String, at sequence: UInt64, end: UInt64, isOver: Bool, seen: Int64, epoch: UInt64
  ) {
    guard var entry = entries[token] else { return }
    entry.requestCount = max(0, entry.requestCount - 1)
    // Bytes that did not get into the log no longer count.
    if entry.requestCount == 0 { entry.claimed = 0 }
    if epoch == self.epoch {
      if sequence > entry.sequence { (entry.sequence, entry.seen) = (sequence, seen) }
      entry.end = max(entry.end, end)
      entry.isOver = entry.isOver || isOver && sequence >= entry.sequence
    }
    set(token, entry.sequence == 0 && entry.requestCount == 0 ? nil : entry)
  }

  /// Called when this server has published the last message of an upload, in that epoch.
  mutating func end(_ token: String, at sequence: UInt64, epoch: UInt64) {
    guard epoch == self.epoch, var entry = entries[token], sequence > entry.sequence else { return }
    (entry.sequence, entry.isOver) = (sequence, true)
    set(token, entry)
  }

  /// The sequence of the upload's last known message; 0 if there is none.
  func lastSequence(of token: String) -> UInt64 { entries[token]?.sequence ?? 0 }

  // MARK: Ages

  var tokens: [String] { Array(entries.keys) }

  /// The time until the upload is over, unless a message arrives. Nil if it is over, or has a request at this server.
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
