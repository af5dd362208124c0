// What the client does if bytes are discarded here before an upload resource has them.
//
// An upload resource that begins before them would stay empty, and would count as unfinished at the server. So the next
// creation begins behind them. Nothing is reported as lost before that upload resource exists: until then, the server
// may turn out to be a plain one, the former upload resource may turn out to exist, and a long refusal is one loss.

extension UploadClientStateMachine {
  /// A loss that is reported once an upload resource behind it exists.
  struct Missing: Sendable {
    var range: Range<UInt64>
    var notes: [ClientNote] = []

    /// A long refusal is one loss.
    mutating func append(_ note: ClientNote) {
      if case .gap(let start, let middle, let isServersFault)? = notes.last,
        case .gap(from: middle, let end, isServersFault: isServersFault) = note
      {
        notes[notes.count - 1] = .gap(from: start, to: end, isServersFault: isServersFault)
      } else {
        notes.append(note)
      }
    }
  }

  /// Moves the next upload resource behind the bytes that were discarded here while none could be created.
  mutating func skipMissing(_ supply: Supply) {
    guard configuration.length == nil, !isOptimistic, supply.oldest > base || parts.missing != nil,
      // If no byte follows, the loss is reported at the end.
      supply.oldest < supply.head || !supply.isFinished
    else { return }
    skip(supply, serversFaultBefore: supply.oldest > highWater.acknowledged ? 0 : highWater.acknowledged)
  }

  /// Moves the next upload resource behind the bytes that are no longer kept, and notes which of them are lost.
  ///
  /// - Parameter limit: the server has lost the bytes before this offset.
  mutating func skip(_ supply: Supply, serversFaultBefore limit: UInt64) {
    let kept = parts.missing?.range.upperBound ?? max(highWater.reported, parts.kept, base)
    // Earlier upload resources have these bytes.
    guard supply.oldest > kept || parts.missing != nil else {
      base = supply.oldest
      return moveHeldPart()
    }
    // If the server had acknowledged all discarded bytes, the buffer is not full. Then everything that is kept follows.
    let start = supply.oldest > highWater.acknowledged ? max(supply.restart, supply.oldest) : supply.oldest
    // Never backwards: the answer to an earlier creation may be lost.
    let next = max(base, start)
    guard next > kept else { return }
    var missing = parts.missing ?? Missing(range: kept..<kept)
    for note in Self.gaps(from: kept, to: next, pause: supply.pause, serversFaultBefore: limit) { missing.append(note) }
    missing.range = missing.range.lowerBound..<next
    (base, parts.missing) = (next, missing)
    moveHeldPart()
  }

  /// The upload resource behind the skipped bytes exists, or the server refuses bytes there.
  mutating func reportMissing() {
    guard let missing = parts.missing else { return }
    parts.missing = nil
    notes += missing.notes
    highWater.report(missing.range)
    acknowledged = max(acknowledged, missing.range.upperBound)
  }

  /// The held notes name the offset at which the next upload resource begins.
  mutating func moveHeldPart() {
    parts.heldNotes = parts.heldNotes.map { note in
      if case .newPart(let reason, let previous, _) = note {
        .newPart(reason, previous: previous, from: base)
      } else {
        note
      }
    }
  }

  /// The losses before and after a pause, which itself contains none.
  ///
  /// - Parameter limit: the server has lost or refused the bytes before this offset.
  static func gaps(
    from start: UInt64, to end: UInt64, pause: Range<UInt64>?, serversFaultBefore limit: UInt64
  ) -> [ClientNote] {
    var notes: [ClientNote] = []
    let pause = (pause ?? end..<end).clamped(to: start..<end)
    for (start, end) in [(start, pause.lowerBound), (pause.upperBound, end)] where start < end {
      let limit = min(max(limit, start), end)
      if start < limit { notes.append(.gap(from: start, to: limit, isServersFault: true)) }
      if limit < end { notes.append(.gap(from: limit, to: end, isServersFault: false)) }
    }
    return notes
  }
}
