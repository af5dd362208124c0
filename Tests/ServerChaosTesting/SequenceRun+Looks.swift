// Looks behind a step: what an upload says of itself, whether that holds, what is left of a quota, what lies in the directory.

internal import EventLoops

extension SequenceRun {
  /// Asks an upload where it stands, and appends there.
  func settle(_ upload: UploadModel, probe count: Int?) throws(Violation) {
    guard !upload.location.isEmpty else { return }
    let call = query(.head, token: upload.token, upload)
    send(call, nil, .afterFirst)
    try judge([call])
    if let count { try probe(upload, count) }
  }

  /// Appends where an upload is said to stand, which must be accepted.
  func probe(_ upload: UploadModel, _ count: Int) throws(Violation) {
    guard upload.isOpen, upload.exact != nil else { return }
    // A stream that somebody else has completed, or may have, takes no more.
    guard upload.stream.completeEnd == nil, !upload.stream.mayBeComplete else { return }
    var detail = RequestDetail()
    (detail.count, detail.isChunked, detail.isOnNewConnection) = (count, count % 2 == 0, count % 3 == 0)
    let call = append(detail, token: upload.token, upload, completes: false)
    send(call, nil, .afterFirst)
    let offset = call.offset
    try judge([call])
    if call.outcome.status == 409, !uploads.contains(where: { $0 !== upload && $0.stream === upload.stream }),
      !upload.stream.hasUnknown
    {
      throw fail("an announced offset is refused", "\(offset): \(call.outcome.text)")
    }
  }

  /// Deletes what is unfinished and fills each token's quota to the last byte: what others did must not have used any of it.
  func countQuota() throws(Violation) {
    // What nobody knows the URL of, or what is in a stream of plain requests, cannot be deleted.
    guard streams.allSatisfy({ !$0.hasUnknown && !$0.wasReleased || $0.sentEnd == [0, 0] }) else { return }
    note("quotas")
    for upload in uploads where upload.isOpen {
      let call = query(.delete, token: upload.token, upload)
      send(call, nil, .afterFirst)
      try judge([call])
    }
    for token in 0...1 {
      var detail = RequestDetail()
      detail.count = Int(options.quota)
      let call = create(detail, token: token, newStream())
      send(call, nil, .afterFirst)
      guard call.outcome.status == 201, let location = call.outcome.location else {
        throw fail("a quota is not free again", "\(token == 0 ? "owner" : "other"): \(call.outcome.text)")
      }
      try judge([call])
      detail.count = 1
      guard let upload = uploads.last(where: { $0.location == location }) else { continue }
      let more = append(detail, token: token, upload, completes: false)
      send(more, nil, .afterFirst)
      guard more.outcome.status == 507 else {
        throw fail("a quota takes more than it says", "\(token == 0 ? "owner" : "other"): \(more.outcome.text)")
      }
      let end = query(.delete, token: token, upload)
      send(end, nil, .afterFirst)
      try judge([end])
    }
  }

  // MARK: Files

  /// Whether what was acknowledged lies in a stream's files, and nothing else does.
  func checkFiles(of stream: StreamModel, in directory: StoredFiles) throws(Violation) {
    let files = directory.files(of: stream.base)
    let parts = files.filter { !$0.hasSuffix(".gaps") }
    let gaps = try directory.gaps(of: stream.base)
    let mine = uploads.filter { $0.stream === stream }
    note("files of \(stream.base): \(files.map { "\($0) \(directory.size($0))" }), gaps \(gaps)")
    if parts.isEmpty, files.contains(where: { $0.hasSuffix(".gaps") }), !stream.mayHaveLost {
      throw fail("the record of gaps is left without its stream", stream.base)
    }
    // Whose bytes they are.
    for file in parts {
      let content = try directory.contents(file)
      let tokens = stream.owner.map { [$0] } ?? [0, 1]
      let differences = tokens.map { difference(content, stream.content[$0], gaps) }
      if let first = differences.compactMap({ $0 }).min(), !differences.contains(nil) {
        throw fail("a file has bytes that are not the stream's", "\(file) differs at \(first) of \(content.count)")
      }
    }
    guard !stream.mayHaveLost else { return }
    // What must be there.
    let acknowledged =
      mine.filter { upload in
        switch upload.phase {
        case .open, .complete, .forgotten: true
        // Age deletes nothing of a live stream.
        case .expired: upload.length == nil && upload.givenLength == nil
        case .refused: false
        case .deleted, .lost: false
        }
      }.filter { $0.token == stream.owner && $0.acknowledged > 0 }.map { $0.base + $0.acknowledged }.max() ?? 0
    let needed = max(acknowledged, stream.plainEnd.max() ?? 0)
    let longest = parts.map { directory.size($0) }.max() ?? 0
    if needed > 0, stream.owner != nil, UInt64(longest) < needed {
      throw fail("acknowledged bytes are lost", "\(stream.base) has \(longest) of \(needed)")
    }
    if let end = stream.completeEnd {
      let final = parts.filter { !$0.hasSuffix(".part") }
      let isShared = mine.count > 1 || stream.hasUnknown
      guard final.contains(where: { UInt64(directory.size($0)) == end || isShared && directory.size($0) > end }) else {
        throw fail("a complete stream has no file of its length", "\(stream.base) of \(end): \(parts)")
      }
    }
    // What must not.
    if mine.count == 1, let upload = mine.first, upload.phase == .deleted, !stream.hasUnknown, !files.isEmpty {
      throw fail("a deleted upload leaves something behind", "\(files)")
    }
  }

  /// The first offset outside of the gaps at which a file is not what a token would have sent.
  private func difference(_ content: [UInt8], _ expected: ChaosBytes, _ gaps: [Range<UInt64>]) -> UInt64? {
    var position: UInt64 = 0
    let end = UInt64(content.count)
    for gap in gaps.sorted(by: { $0.lowerBound < $1.lowerBound }) + [end..<end] {
      let stop = min(max(gap.lowerBound, position), end)
      if position < stop, let found = expected.firstDifference(content[Int(position)..<Int(stop)], at: position) {
        return found
      }
      position = max(position, min(gap.upperBound, end))
    }
    return nil
  }
}
