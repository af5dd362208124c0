// What the client believes when HEAD and the upload resource's own 409 contradict each other.
//
// A cache may answer HEAD with what was true long ago. No cache answers PATCH (RFC 9111, section 4): a 409 that names
// an offset is the upload resource's own. So when HEAD repeats an offset that the upload resource has just refused, the
// offset in the 409 counts. HEAD is asked all the same, because some servers end an upload with their 409.

extension UploadClientStateMachine {
  /// An append that was refused because the upload resource is at another offset. Stream offsets.
  struct Conflict: Equatable, Sendable {
    /// Where the append began.
    var refused: UInt64
    /// Where the upload resource is.
    var actual: UInt64
    /// How often in a row it has said so.
    var count = 1

    /// More bytes than HEAD has reported cannot be explained by time. Fewer can: those of an earlier request may arrive
    /// between the two answers.
    var isProved: Bool { actual > refused || count > 1 }
  }

  /// The upload resource has refused an append at `start` because it is at `actual`.
  mutating func note(conflictAt start: UInt64, _ actual: UInt64, _ supply: Supply) {
    guard actual != start, actual <= believable(supply) else {
      // It was asked elsewhere by now: what it has said before is out of date.
      if conflict?.refused != start { conflict = nil }
      return
    }
    if let conflict, conflict.refused == start, conflict.actual == actual {
      self.conflict?.count = min(conflict.count + 1, 2)
    } else {
      conflict = Conflict(refused: start, actual: actual)
    }
  }

  /// Where the upload resource is, after HEAD has reported `told`.
  func resolved(_ told: UInt64, _ supply: Supply) -> UInt64 {
    let limit = believable(supply)
    guard let conflict, conflict.isProved, conflict.actual <= limit else { return told }
    let isOutdated = told < acknowledged && conflict.actual >= acknowledged
    return told == conflict.refused || told > limit || isOutdated ? conflict.actual : told
  }

  /// Whether the upload resource has said that it is not at that offset.
  func isDenied(_ offset: UInt64) -> Bool { conflict.map { $0.isProved && $0.refused == offset } ?? false }

  /// Asks the upload resource by an append without content whether it is at that offset; nil if it was asked, or
  /// accepts no such append.
  mutating func probe(at offset: UInt64) -> Action? {
    guard !hasProbed, limits.minimumAppendSize ?? 0 == 0 else { return nil }
    hasProbed = true
    return send(Append(start: offset, completes: false), maximum: 0)
  }
}
