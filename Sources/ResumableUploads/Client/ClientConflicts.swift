// The offset that the client uses when HEAD and the upload resource's own 409 contradict each other.
//
// A cache may answer HEAD with an outdated offset. No cache answers PATCH (RFC 9111, section 4), so a 409 that names an
// offset comes from the upload resource itself. When HEAD repeats an offset that the upload resource has just refused,
// the client uses the offset in the 409. It still sends HEAD, because some servers end an upload with their 409.

extension UploadClientStateMachine {
  /// An append that was refused because the upload resource is at another offset. Stream offsets.
  struct Conflict: Equatable, Sendable {
    /// Where the append began.
    var refused: UInt64
    /// Where the upload resource is.
    var actual: UInt64
    /// Whether the upload resource has reported it several times in a row.
    var isRepeated = false

    /// Delay cannot explain an offset above the one that HEAD reported. It can explain a lower one: bytes of an earlier
    /// request may arrive between the two answers.
    var isProved: Bool { actual > refused || isRepeated }
  }

  /// The upload resource has refused an append at `start` because it is at `actual`.
  mutating func note(conflictAt start: UInt64, _ actual: UInt64, _ supply: Supply) {
    guard actual != start, actual <= believable(supply) else {
      // The client has since appended elsewhere, so the earlier refusal is out of date.
      if resource.conflict?.refused != start { resource.conflict = nil }
      return
    }
    if let conflict = resource.conflict, conflict.refused == start, conflict.actual == actual {
      resource.conflict?.isRepeated = true
    } else {
      resource.conflict = Conflict(refused: start, actual: actual)
    }
  }

  /// Returns the upload resource's offset after HEAD has reported `told`.
  func resolved(_ told: UInt64, _ supply: Supply) -> UInt64 {
    let limit = believable(supply)
    guard let conflict = resource.conflict, conflict.isProved, conflict.actual <= limit else { return told }
    let isOutdated = told < acknowledged && conflict.actual >= acknowledged
    return told == conflict.refused || told > limit || isOutdated ? conflict.actual : told
  }

  /// Whether the upload resource has refused an append at that offset.
  func isDenied(_ offset: UInt64) -> Bool {
    resource.conflict.map { $0.isProved && $0.refused == offset } ?? false
  }

  /// Sends an append without content, to learn whether the upload resource is at that offset. Returns nil if that was
  /// tried before, or if the upload resource accepts no such append.
  mutating func probe(at offset: UInt64) -> Action? {
    guard !resource.hasProbed, server.limits.minimumAppendSize ?? 0 == 0 else { return nil }
    resource.hasProbed = true
    return send(Append(start: offset, completes: false), maximum: 0)
  }
}
