// Where a stream takes bytes after others have continued it.
//
// A server that joins the uploads of a stream answers a creation with 409 if nothing can be stored at its offset any
// more: others have begun a next part behind it, or have ended the stream. The answer names the stream and tells how
// much of it is stored, as no portal does. Asked again and again, the server would say the same for ever.

internal import HTTPMessages

extension UploadClientStateMachine {
  /// Whether an answer is about the stream, as only a server's can be that joins its uploads.
  func namesStream(_ answer: ClientAnswer) -> Bool {
    answer.fields["Stream-ID"].map { $0 == configuration.streamID } ?? false
  }

  /// A creation was answered with 409.
  ///
  /// - Returns: nil if the answer does not speak of the stream, or nobody has acknowledged any of it yet.
  mutating func placeRefused(_ answer: ClientAnswer, _ supply: Supply) -> Action? {
    guard configuration.length == nil, hasAcknowledged, !isOptimistic, namesStream(answer),
      let stored = answer.fields["Stream-Offset"].flatMap({ UInt64($0) })
    else { return nil }
    placeRefusals += 1
    // Once more: no byte is given up because of one answer.
    guard placeRefusals > 1 else { return creationFailed() }
    // The stream ended before this offset, or this client ends before the offset at which the stream continues.
    if stored <= base || supply.isFinished && stored > supply.head { return fail(.refused(status: answer.status)) }
    // What is captured from there on finds its place.
    guard stored <= supply.head else { return creationFailed() }
    continueBehind(stored, supply)
    return create(supply)
  }

  /// The next upload begins there. Nothing in front of it can be stored.
  private mutating func continueBehind(_ place: UInt64, _ supply: Supply) {
    let kept = max(reportedUpTo, everAcknowledged)
    if place > kept {
      noteGap(from: kept, to: place, pause: supply.pause, isServersFault: true)
      reportedUpTo = place
    }
    heldNotes = heldNotes.map { note in
      if case .newPart(let reason, let previous, _) = note {
        .newPart(reason, previous: previous, from: place)
      } else {
        note
      }
    }
    base = place
  }
}
