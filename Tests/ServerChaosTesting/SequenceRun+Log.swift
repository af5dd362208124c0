// The log after the servers' end: it must have all acknowledged bytes, each once, and none of another token.

internal import EventLoops

extension SequenceRun {
  /// Checks that the messages of all streams of the sequence have the acknowledged bytes, and nothing else.
  func checkMessages(in log: StoredLog) throws(Violation) {
    let found = log.uploads(of: Set(streams.map(\.id)))
    for upload in found {
      let state = upload.ended.map { ", \($0)" } ?? (upload.isComplete ? ", complete" : "")
      note(
        "log of \(upload.streamID): \(upload.token.prefix(12)) from \(upload.start), \(upload.count) bytes up to "
          + "\(upload.end)\(state)")
    }
    // This includes uploads whose location no client has learned.
    for upload in found { try checkContent(of: upload) }
    for upload in uploads { try check(upload, in: log) }
    for stream in streams { try checkCompletion(of: stream, found) }
  }

  /// All bytes belong to the owner, and the messages form one sequence.
  private func checkContent(of upload: LoggedUpload) throws(Violation) {
    if let problem = upload.problem { throw fail("messages of the log contradict each other", problem) }
    guard let owner = owners.firstIndex(where: { $0 == upload.owner }) else {
      throw fail("an upload in the log has an unknown owner", upload.token)
    }
    let content = streams.first { $0.id == upload.streamID }?.content[owner]
    for piece in upload.pieces {
      if let place = content?.firstDifference(piece.bytes[...], at: piece.offset) {
        throw fail("the log has bytes that are not the stream's", "\(upload.token) differs at \(place)")
      }
    }
  }

  /// The log has what was reported to the client of an upload.
  private func check(_ upload: UploadModel, in log: StoredLog) throws(Violation) {
    // The last message of an upload stays, whatever happens to the upload.
    guard let found = log[String(upload.location.split(separator: "/").last ?? "")] else {
      throw fail("an upload is not in the log", upload.location)
    }
    guard found.owner == owners[upload.token], found.start == upload.base, found.streamID == upload.stream.id else {
      throw fail("an upload in the log has another owner or place", "\(found.token) at \(found.start)")
    }
    switch upload.phase {
    case .complete(let total), .forgotten(let total):
      guard found.isComplete, found.end == total, found.count == total else {
        throw fail("a complete upload is not in the log", "\(found.count) bytes of \(total)")
      }
    case .open: try checkOpen(upload, found)
    // Age removes nothing of a live stream (docs/scaling.md, `--finish-after`).
    case .expired where isLive(upload) && !upload.stream.wasCancelled: try checkAcknowledged(upload, found)
    case .deleted:
      // A completion may have come before the deletion, which then only removes the record. A purge is not a message: a
      // broker that is killed may undo it. The upload is over all the same, because the message before the purge stays.
      let mayHaveBytes = upload.mayBeComplete && found.isComplete || sequence.event == .powerCut
      guard found.count == 0 || mayHaveBytes else {
        throw fail("a deleted upload leaves something behind", "\(found.count) bytes of \(found.token)")
      }
    case .expired, .refused, .lost: break
    }
  }

  private func checkOpen(_ upload: UploadModel, _ found: LoggedUpload) throws(Violation) {
    // The servers ran for others after the last request to this upload.
    let isOld = MonotonicInstant.now - upload.lastTouch >= .seconds(options.maximumAge)
    guard !isOld || isLive(upload) else { return }
    if !isOld, !upload.mayBeGone, let cause = found.ended { throw fail("an upload has ended", cause) }
    try checkAcknowledged(upload, found)
    if let exact = upload.exact, found.end != exact, !useUpLateBytes(of: upload, from: exact, to: found.end) {
      throw fail("the log has another offset than was announced last", "\(found.end), and not \(exact)")
    }
  }

  private func checkAcknowledged(_ upload: UploadModel, _ found: LoggedUpload) throws(Violation) {
    guard found.count >= upload.acknowledged, found.count == found.end else {
      throw fail("acknowledged bytes are lost", "\(found.token) has \(found.count) of \(upload.acknowledged)")
    }
  }

  /// Whether no length was known when the upload was created. The servers' logs decide by the first message, not by a
  /// later one that states a length (`LogExpiry`).
  private func isLive(_ upload: UploadModel) -> Bool { upload.length == nil }

  /// A stream that was reported complete is complete, even if its client has no location: a plain stream, or an upload
  /// whose only response was the final one.
  private func checkCompletion(of stream: StreamModel, _ found: [LoggedUpload]) throws(Violation) {
    guard let end = stream.completeEnd, !uploads.contains(where: { $0.stream === stream }) else { return }
    let owner = stream.owner.map { owners[$0] }
    let isThere = found.contains {
      $0.streamID == stream.id && $0.isPlain == stream.isPlainPart && $0.isComplete
        && (owner == nil || $0.owner == owner) && $0.start + $0.end == end
    }
    guard isThere else { throw fail("a complete stream is not in the log", "\(stream.base) of \(end)") }
  }
}
