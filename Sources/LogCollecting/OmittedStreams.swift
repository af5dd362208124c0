// The streams that a collector leaves to the next one, because their records cannot be read.

internal import StreamServing

/// What the next collector must know about these streams, and about the others whose messages it reads again for that
/// reason. A value.
struct OmittedStreams {
  /// The collection changes nothing of them, and the next collector reads their messages.
  private let names: Set<StreamName>
  /// Their uploads in the last checkpoint, which stay as they are.
  private let uploads: [CollectorCheckpoint.Upload]
  /// Their known uploads that are not over.
  private var tokens: Set<String>
  /// The sequence of their first message. No checkpoint counts it or a later one, so that the next collector reads it.
  /// Nil if there is none.
  private(set) var firstSequence: UInt64?
  /// Forgotten uploads of other streams whose messages the next collector may read again, by token.
  private var retained: [String: CollectorCheckpoint.Upload] = [:]

  /// - Parameter checkpoint: the one to which the directory was restored.
  init(_ names: Set<StreamName>, after checkpoint: CollectorCheckpoint) {
    self.names = names
    uploads = checkpoint.uploads.filter { names.contains($0.origin.name) }
    tokens = Set(uploads.map(\.token))
  }

  func contains(_ name: StreamName) -> Bool { names.contains(name) }

  /// Whether it is a known upload of one of these streams.
  func contains(token: String) -> Bool { tokens.contains(token) }

  /// Called when a received message is not applied, because it belongs to one of these streams.
  ///
  /// - Parameter isLast: whether no message of the upload follows.
  mutating func omit(_ token: String, at sequence: UInt64, isLast: Bool) {
    if isLast { tokens.remove(token) } else { tokens.insert(token) }
    if firstSequence == nil { firstSequence = sequence }
  }

  /// Whether the next collector reads a message again that this one has applied.
  func isReadAgain(_ sequence: UInt64) -> Bool { firstSequence.map { sequence > $0 } ?? false }

  /// Called when an upload of another stream is forgotten. If the next collector reads messages again, it does not store
  /// the bytes of the upload again. Otherwise, they would begin another recording if theirs is closed.
  mutating func retain(_ upload: CollectedUpload) {
    guard firstSequence != nil else { return }
    var state = upload.state
    // It no longer has a recording.
    if state.phase == .open { state.phase = .closed }
    retained[state.token] = state
  }

  /// Called when an upload of another stream begins, or continues after it was forgotten.
  mutating func admit(_ token: String) { retained[token] = nil }

  /// Called when the log is read again from its beginning.
  mutating func rewind() {
    firstSequence = nil
    retained = [:]
  }

  /// The uploads for a checkpoint.
  ///
  /// - Parameter others: the unfinished uploads of the other streams.
  func checkpoint(with others: [CollectedUpload]) -> [CollectorCheckpoint.Upload] {
    let known = firstSequence == nil ? others.compactMap(\.checkpoint) : others.map(\.state)
    return known + uploads + retained.values
  }
}
