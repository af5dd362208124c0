// The streams that a collector leaves to the next one, because their records cannot be read or their messages wait.
// The next collector reads the log from their first message, and passes over the messages of other streams that this
// one has applied.

internal import StreamServing

/// The positions of streams in the log. All streams have the same one, except those that this collector or an earlier
/// one has omitted, and those whose messages wait at a checkpoint. A value.
struct OmittedStreams {
  /// The collection changes nothing of them.
  private let names: Set<StreamName>
  /// Their uploads in the last checkpoint, which stay as they are. Empty after ``rewind()``, because the log that is
  /// read again admits them anew.
  private var uploads: [CollectorCheckpoint.Upload]
  /// The streams of their known uploads that are not over, by token.
  private var streams: [String: StreamName]
  /// The first messages of these streams that were not applied.
  private var first: [StreamName: UInt64]
  /// Earlier collectors have applied all messages up to this one, except those of ``behind``.
  private(set) var applied: CollectorCheckpoint.Position
  /// The streams that earlier collectors have omitted, with their first messages that were not applied.
  private var behind: [StreamName: UInt64]
  /// Uploads that are in no checkpoint, some of whose messages earlier collectors have applied, by token. The stream is
  /// nil if the beginning of the upload is no longer in the log. Only while such messages are read.
  private var passed: [String: StreamName?] = [:]

  /// - Parameter checkpoint: the one to which the directory was restored.
  init(_ names: Set<StreamName>, after checkpoint: CollectorCheckpoint) {
    self.names = names
    uploads = checkpoint.uploads.filter { names.contains($0.origin.name) }
    streams = Dictionary(uploads.map { ($0.token, $0.origin.name) }, uniquingKeysWith: { _, new in new })
    applied = checkpoint.applied ?? checkpoint.position
    behind = Dictionary(
      checkpoint.omissions.map { (StreamName(base: $0.base), $0.sequence) }, uniquingKeysWith: { min($0, $1) })
    first = behind.filter { names.contains($0.key) }
  }

  func contains(_ name: StreamName) -> Bool { names.contains(name) }

  /// The stream of an upload. Nil unless it is a known upload of one of these streams.
  func stream(ofToken token: String) -> StreamName? { streams[token] }

  // MARK: Messages that were applied

  /// Whether earlier collectors have applied the message with that sequence, unless they have omitted its stream.
  func mayBeApplied(_ sequence: UInt64) -> Bool { sequence <= applied.sequence }

  /// Whether an earlier collector has applied a message of that stream.
  func isApplied(_ sequence: UInt64, of name: StreamName) -> Bool {
    guard mayBeApplied(sequence) else { return false }
    return behind[name].map { sequence < $0 } ?? true
  }

  /// Whether the brokers have lost messages that earlier collectors have applied, because another one has the sequence
  /// of one of them: of the last one, or with a later storage time than all of them.
  ///
  /// - Parameter message: with its own storage time.
  func isReplaced(_ message: CollectorCheckpoint.Position) -> Bool {
    guard mayBeApplied(message.sequence) else { return false }
    if applied.time > 0, message.time > applied.time { return true }
    return message.sequence == applied.sequence && !applied.mark.isEmpty && message.mark != applied.mark
  }

  /// Called when an earlier collector has applied a message of an upload that is in no checkpoint.
  ///
  /// - Parameter name: the stream. Nil if the beginning of the upload is no longer in the log.
  mutating func pass(_ token: String, of name: StreamName?, isLast: Bool) {
    if !isLast { passed.updateValue(name, forKey: token) }
  }

  /// Whether a message of such an upload is passed over.
  mutating func passes(_ token: String, at sequence: UInt64, isLast: Bool) -> Bool {
    guard mayBeApplied(sequence) else {
      passed = [:]
      return false
    }
    guard let name = passed[token] else { return false }
    // A collector that could not read the stream any more has applied only the messages before this one.
    if let name, !isApplied(sequence, of: name) {
      passed[token] = nil
      return false
    }
    if isLast { passed[token] = nil }
    return true
  }

  // MARK: Messages that are not applied

  /// Called when a message is not applied, because it belongs to one of these streams.
  ///
  /// - Parameter isLast: whether no message of the upload follows.
  mutating func omit(_ token: String, of name: StreamName, at sequence: UInt64, isLast: Bool) {
    streams[token] = isLast ? nil : name
    if first[name] == nil, !isApplied(sequence, of: name) { first[name] = sequence }
  }

  /// Whether a message is before all messages of these streams, so that the next collector need not read it.
  func isBeforeAll(_ sequence: UInt64) -> Bool { first.values.allSatisfy { sequence < $0 } }

  /// Called when the log is read again from its beginning.
  mutating func rewind() {
    (uploads, streams) = ([], [:])
    (first, behind, passed) = ([:], [:], [:])
    applied = .beginning
  }

  // MARK: The checkpoint

  /// Adds the uploads and the positions to a checkpoint, whose sequence is known.
  ///
  /// - Parameters:
  ///   - others: the unfinished uploads of the other streams.
  ///   - waiting: those of the other streams with messages that are not applied, and the first of these messages.
  ///   - reached: the last message up to which this collector has applied or omitted all others that it has read.
  func describe(
    in checkpoint: inout CollectorCheckpoint, with others: [CollectedUpload], waiting: [StreamName: UInt64],
    reached: CollectorCheckpoint.Position
  ) {
    checkpoint.uploads = others.compactMap(\.checkpoint) + uploads
    var positions = first
    let isBehind = reached.sequence < applied.sequence
    // This collector has not read all messages yet that an earlier one has omitted.
    if isBehind {
      for (name, sequence) in behind where !names.contains(name) {
        positions[name] = max(sequence, reached.sequence + 1)
      }
    }
    positions.merge(waiting) { min($0, $1) }
    let omissions = positions.map { CollectorCheckpoint.Omission(base: $0.key.base, sequence: $0.value) }
    checkpoint.omissions = omissions.sorted { $0.base < $1.base }
    checkpoint.applied = positions.isEmpty ? nil : isBehind ? applied : reached
  }
}
