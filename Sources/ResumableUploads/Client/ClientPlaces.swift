// How a stream continues after other processes have continued it.
//
// A server that joins the uploads of a stream answers a creation with 409 if it can no longer store anything at that
// offset: another process has begun a part behind it, or has ended the stream. The answer names the stream and reports
// how much of it is stored, which no portal does. The server would answer the same to every repetition.

internal import HTTPMessages

extension UploadClientStateMachine {
  /// Whether an answer is about the stream, which only a server that joins its uploads can give.
  func namesStream(_ answer: ClientAnswer) -> Bool {
    answer.fields["Stream-ID"].map { $0 == configuration.streamID } ?? false
  }

  /// Whether the server has every byte of the stream, although this upload resource has fewer: it joins the bytes of
  /// several, and others have stored the rest.
  func stores(_ supply: Supply, _ answer: ClientAnswer) -> Bool {
    guard namesStream(answer), let stored = answer.fields["Stream-Offset"].flatMap({ UInt64($0) }) else { return false }
    return stored >= supply.head
  }

  /// A creation was answered with 409.
  ///
  /// - Returns: nil if the answer does not name the stream, or no byte of it was acknowledged yet.
  mutating func placeRefused(_ answer: ClientAnswer, _ supply: Supply) -> Action? {
    guard configuration.length == nil, hasAcknowledged, !isOptimistic, namesStream(answer),
      let stored = answer.fields["Stream-Offset"].flatMap({ UInt64($0) })
    else { return nil }
    patience.placeRefusals += 1
    // Try once more: no byte is discarded because of a single answer.
    guard patience.placeRefusals > 1 else { return creationFailed() }
    // The stream ended before this offset, or this client ends before the offset at which the stream continues.
    if stored <= base || supply.isFinished && stored > supply.head { return fail(.refused(status: answer.status)) }
    // Bytes captured from that offset on can be stored.
    guard stored <= supply.head else { return creationFailed() }
    continueBehind(stored, supply)
    return create(supply)
  }

  /// The next upload begins at `place`. Nothing before it can be stored.
  private mutating func continueBehind(_ place: UInt64, _ supply: Supply) {
    reportMissing()
    // The bytes before this upload are in earlier ones, even if only HEAD has reported them.
    let kept = max(highWater.reported, highWater.acknowledged, base)
    if place > kept {
      // The server is not the reason why bytes before the oldest one are lost.
      let discarded = min(max(kept, supply.oldest), place)
      noteGap(from: kept, to: discarded, pause: supply.pause, serversFaultBefore: kept)
      noteGap(from: discarded, to: place, pause: supply.pause, serversFaultBefore: place)
      highWater.report(kept..<place)
    }
    base = place
    moveHeldPart()
  }
}
