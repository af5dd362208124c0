// The directory after the server's end: it must contain all acknowledged bytes, and none of another token.

internal import EventLoops

extension SequenceRun {
  /// Checks that a stream's files contain the acknowledged bytes, and nothing else.
  func checkFiles(of stream: StreamModel, in directory: StoredFiles) throws(Violation) {
    let files = directory.files(of: stream.base)
    let recordings = try directory.recordings(of: stream.base)
    let mine = uploads.filter { $0.stream === stream }
    note(
      "files of \(stream.base): "
        + (files.isEmpty ? "none" : files.joined(separator: ", "))
        + recordings.map { "; \($0.name) from \($0.start) to \($0.end), gaps \($0.gaps)" }.joined())
    if recordings.isEmpty, !files.isEmpty, !stream.mayHaveLost {
      throw fail("the record of gaps is left without its stream", stream.base)
    }
    // Without durability, the record of its gaps may be older than a file.
    if !isVague(stream) { for recording in recordings { try checkContent(of: recording, stream) } }
    guard !stream.mayHaveLost else { return }
    try checkLength(of: stream, recordings, mine)
    if mine.count == 1, let upload = mine.first, upload.phase == .deleted, !upload.mayBeCompleteUnseen,
      !stream.hasUnknown, !stream.mayBeginLate, !files.isEmpty
    {
      throw fail("a deleted upload leaves something behind", "\(files)")
    }
  }

  /// All bytes belong to one token.
  private func checkContent(of recording: StoredRecording, _ stream: StreamModel) throws(Violation) {
    let tokens = stream.owner.map { [$0] } ?? [0, 1]
    let differences = tokens.map { difference(recording, stream.content[$0]) }
    guard !differences.contains(nil) else { return }
    let offsets = differences.compactMap { $0 }.map { "\($0)" }.joined(separator: " or ")
    throw fail(
      "a file contains bytes that are not the stream's", "\(recording.name) differs at \(offsets) of \(recording.end)")
  }

  /// The first offset outside the gaps at which a file differs from a token's content.
  private func difference(_ recording: StoredRecording, _ expected: ChaosBytes) -> UInt64? {
    let (start, end) = (recording.start, recording.end)
    var position = start
    for gap in recording.gaps.sorted(by: { $0.lowerBound < $1.lowerBound }) + [end..<end] {
      let stop = min(max(gap.lowerBound, position), end)
      if position < stop {
        let piece = recording.content[Int(position - start)..<Int(stop - start)]
        if let found = expected.firstDifference(piece, at: position) { return found }
      }
      position = max(position, min(gap.upperBound, end))
    }
    return nil
  }

  /// All acknowledged bytes are there.
  private func checkLength(
    of stream: StreamModel, _ recordings: [StoredRecording], _ mine: [UploadModel]
  ) throws(Violation) {
    let acknowledged =
      mine.filter { upload in
        guard upload.token == stream.owner, upload.acknowledged > 0 else { return false }
        let isLive = upload.length == nil && upload.givenLength == nil
        switch upload.phase {
        // The file of a client that was silent for this long, while the server was still running for others, may be
        // gone.
        case .open: return isLive || MonotonicInstant.now - upload.lastTouch < .seconds(options.maximumAge)
        case .complete, .forgotten: return true
        // Age removes no byte of a live stream.
        case .expired: return isLive && !stream.wasCancelled
        case .refused, .deleted, .lost: return false
        }
      }.map { $0.base + $0.acknowledged }.max() ?? 0
    let needed = max(acknowledged, stream.plainEnd.max() ?? 0)
    let longest = recordings.map(\.end).max() ?? 0
    if needed > 0, stream.hasContent, stream.owner != nil, longest < needed {
      throw fail("acknowledged bytes are lost", "\(stream.base) has \(longest) of \(needed)")
    }
    // The bytes of a plain request need not be synced, but a file with such bytes has no mark.
    let synced = recordings.map(\.syncedEnd).max() ?? 0
    if options.setting.durability == "always", stream.hasContent, synced < acknowledged {
      throw fail("acknowledged bytes are not marked as synced", "\(stream.base) has \(synced) of \(acknowledged)")
    }
    guard let end = stream.completeEnd else { return }
    let isShared = mine.count > 1 || stream.hasUnknown
    guard recordings.contains(where: { $0.isComplete && ($0.end == end || isShared && $0.end > end) }) else {
      throw fail("a complete stream has no file of its length", "\(stream.base) of \(end)")
    }
  }
}
