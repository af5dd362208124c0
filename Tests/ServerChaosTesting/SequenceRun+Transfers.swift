// The model's judgement of requests that bring bytes.

extension SequenceRun {
  func judgeCreation(_ call: Call, _ others: [Call]) throws(Violation) {
    let (outcome, stream) = (call.outcome, call.stream)
    // Its bytes may belong to the other uploads too.
    for upload in uploads where upload.stream === stream { upload.exact = nil }
    guard let location = outcome.location ?? (outcome.isSuccess && call.completes ? "" : nil) else {
      // It is unknown whether there is an upload.
      if ![401, 403, 404].contains(outcome.status) { stream.hasUnknown = true }
      if !call.hasAnswer, call.completes { stream.mayBeComplete = true }
      let isExpected =
        call.detail.digest == .wrong || mayMeetHole(call) || stream.completeEnd != nil || stream.mayBeComplete
        || !isAlone(call, others) || mayExceedQuota(call)
      guard isExpected else { throw fail("a creation is refused", outcome.text) }
      return
    }
    let upload = UploadModel(
      location, stream, base: call.offset, token: call.token, version: call.detail.version, length: call.length)
    if location.isEmpty { (upload.mayBeGone, stream.hasUnknown) = (true, true) } else { uploads.append(upload) }
    upload.lastTouch = call.sentAt
    try announced(upload, call)
    // The request has had more effect than its answer shows.
    if !call.hasAnswer, call.completes { (upload.mayBeComplete, stream.mayBeComplete) = (true, true) }
    guard outcome.isSuccess else {
      if outcome.final?.isComplete == true { upload.phase = .refused }
      // It was complete without a byte, and could not end its stream yet. Its length is known since then.
      if call.completes, call.count == 0 { upload.givenLength = 0 }
      guard
        !isAlone(call, others) || call.detail.digest == .wrong || mayMeetHole(call) || stream.completeEnd != nil
          || mayExceedQuota(call)
      else { throw fail("the content of a creation is refused", outcome.text) }
      return
    }
    guard call.detail.digest != .wrong else { throw fail("content with a wrong digest is accepted", outcome.text) }
    if call.completes {
      guard outcome.final?.isComplete != false else { throw fail("a whole upload is not complete", outcome.text) }
      if let offset = outcome.final?.offset, offset != call.count {
        throw fail("a final answer announces another offset than the stored one", "\(offset), and not \(call.count)")
      }
      completed(upload, call.count, streamEnd: outcome.streamEnd)
      return
    }
    if let offset = outcome.final?.offset, offset != call.count, others.isEmpty {
      throw fail("a final answer announces another offset than the stored one", "\(offset), and not \(call.count)")
    }
    if others.isEmpty { upload.exact = call.count }
  }

  /// Whether missing bytes may precede or follow the start of a request.
  private func mayMeetHole(_ call: Call) -> Bool {
    // With a log, an upload may begin at any offset of its stream.
    if isLog, call.intent == .create { return false }
    return call.detail.hole > 0 || call.stream.hasHole(call.token) || call.stream.mayHaveLost
  }

  func judgePlain(_ call: Call, _ others: [Call]) throws(Violation) {
    let (outcome, stream) = (call.outcome, call.stream)
    if outcome.isSuccess {
      let end = outcome.streamEnd ?? call.offset + call.count
      guard end >= call.offset + call.count else { throw fail("a plain request is stored in part", outcome.text) }
      guard end <= stream.sentEnd[call.token] else { throw fail("more is stored than was sent", outcome.text) }
      for upload in uploads where upload.stream === stream { (upload.exact, upload.mayBeGone) = (nil, true) }
      stream.hasUnknown = true
      guard isStored else { return stream.reset() }
      stream.plainEnd[call.token] = max(stream.plainEnd[call.token], end)
      insert(call.token, stream)
      stream.completeEnd = max(stream.completeEnd ?? 0, end)
      return
    }
    let wasKnown = stream.hasUnknown || stream.completeEnd != nil || uploads.contains { $0.stream === stream }
    stream.hasUnknown = true
    stream.mayBeComplete = true
    for upload in uploads where upload.stream === stream { (upload.exact, upload.mayBeGone) = (nil, true) }
    guard
      wasKnown || mayMeetHole(call) || !isAlone(call, others) || !others.isEmpty || call.isDropped || isStopping
        || mayExceedQuota(call)
    else { throw fail("a plain request is refused", outcome.text) }
  }

  /// Whether the request would end the stream without a byte, at an offset that another upload may not have reached.
  private func endsBehindOthers(_ call: Call, _ upload: UploadModel) -> Bool {
    call.completes && call.count == 0 && call.offset == 0
      && uploads.contains { $0 !== upload && $0.stream === upload.stream && $0.isOpen }
  }

  func judgeAppend(_ call: Call, _ others: [Call]) throws(Violation) {
    guard let upload = call.upload else { return }
    // A completing request may have completed it, whether or not it was answered.
    let alone = isAlone(call, others) && call.phaseBefore == .open && !call.stream.mayBeComplete
    // However many uploads share the stream, nothing has arrived since the offset was reported.
    let isQuiet =
      others.isEmpty && !isStopping && call.phaseBefore == .open && call.stream.completeEnd == nil
      && !call.stream.mayBeComplete && !mayBeOthers(call.stream, call.token)
    let outcome = call.outcome
    try announced(upload, call)
    // More bytes than the stated length invalidate the upload.
    if call.misfitsLength { upload.mayBeGone = true }
    guard let final = outcome.final else {
      // A prefix of it may have been accepted.
      if call.phaseBefore == .open { upload.exact = nil }
      if call.completes { (upload.mayBeComplete, call.stream.mayBeComplete) = (true, true) }
      if call.completes, call.isDropped || isStopping { upload.mayBeCompleteUnseen = true }
      if isLog, call.isDropped, call.phaseBefore == .open {
        upload.dropped(call.offset..<(call.offset + call.count))
      }
      guard call.isDropped || !alone || mayBeTakenOver(call, upload, others) else {
        throw fail("a request is closed without an answer", call.request.text)
      }
      return
    }
    if outcome.isSuccess {
      switch call.phaseBefore {
      case .open: break
      // The response is requested again.
      case .complete(let total) where call.completes && call.count == 0 && call.offset == total: return
      // Others have completed the stream, and the upload with it.
      case .refused where call.completes && call.count == 0: return
      default: throw fail("an append to an upload that is over is accepted", outcome.text)
      }
      guard call.detail.digest != .wrong else { throw fail("content with a wrong digest is accepted", outcome.text) }
      let end = call.offset + call.count
      if call.completes {
        if let offset = final.offset, offset != end {
          throw fail("a final answer announces another offset than the stored one", "\(offset), and not \(end)")
        }
        return completed(upload, end, streamEnd: outcome.streamEnd)
      }
      if others.isEmpty || alone, final.offset != end {
        throw fail(
          "a final answer announces another offset than the stored one", "\(final.offset ?? 0), and not \(end)")
      }
      upload.exact = others.isEmpty || alone ? end : nil
      return
    }
    if final.isComplete == true, upload.isOpen { upload.phase = .refused }
    // It was complete without further bytes, and could not end its stream yet. Its length is known since then.
    if call.completes, call.count == 0, call.phaseBefore == .open, final.status == 503 {
      upload.givenLength = call.offset
    }
    switch final.status {
    case 404, 410: try gone(upload, others, outcome.text)
    case 409 where useUpLateBytes(of: upload, from: call.exactBefore ?? call.offset, to: final.offset):
      (upload.exact, call.wasOvertaken) = (others.isEmpty ? final.offset : nil, true)
    case 409:
      guard !alone && !isQuiet || call.exactBefore != call.offset || endsBehindOthers(call, upload) else {
        throw fail("an announced offset is refused", "\(call.offset): \(outcome.text)")
      }
      if alone, let exact = call.exactBefore, let offset = final.offset, offset != exact {
        throw fail("a 409 announces another offset than the stored one", "\(offset), and not \(exact)")
      }
      if others.isEmpty, upload.isOpen, let offset = final.offset { upload.exact = offset }
    case 400 where call.detail.digest == .wrong || call.phaseBefore != .open || call.misfitsLength: break
    case 507 where mayExceedQuota(call): upload.exact = nil
    case 503 where isStopping:
      upload.exact = nil
      // The handler may have been finishing the representation.
      if call.completes { (upload.mayBeComplete, call.stream.mayBeComplete) = (true, true) }
    default:
      if call.phaseBefore == .open { upload.exact = nil }
      // A dropped request may be processed late, and take over the stream for a moment.
      let isLasting = final.status != 503 || final["retry-after"] == nil
      guard !alone && !(isQuiet && isLasting) || call.exactBefore != call.offset else {
        throw fail("an append is refused with \(final.status)", outcome.text)
      }
    }
  }
}

extension SequenceRun {
  /// Whether a request may exceed its token's quota. Half of the quota is more than the other requests of a sequence
  /// use.
  private func mayExceedQuota(_ call: Call) -> Bool {
    // With a log, the parts of a stream count separately, and each has its own bytes.
    let parts = isLog ? streams : [call.stream]
    return call.outcome.status == 507
      && parts.map { $0.sentEnd[call.token] }.reduce(0, +) > options.quota / 2
  }

  /// Uses up the bytes with which a dropped append that came late explains the growth of an upload. Returns false if
  /// nothing explains it.
  ///
  /// HEAD ends the requests that have begun, at any server (docs/scaling.md). But a client that drops its connection
  /// cannot know whether a server will still read what it has sent. If a server begins this request after a HEAD,
  /// possibly another server's, the request follows at the offset that HEAD has announced. The next append is then
  /// refused with the new offset. These bytes are the client's own, and no other growth is permitted.
  func useUpLateBytes(of upload: UploadModel, from old: UInt64, to new: UInt64?) -> Bool {
    guard isLog, let new else { return false }
    return upload.useUpLateBytes(from: old, to: new)
  }

  /// Whether a log may end an append without an answer although no other request is active: a dropped one has come
  /// late, or a server has ended the upload because of its age at this moment (`LogTransfer.takenOver`).
  private func mayBeTakenOver(_ call: Call, _ upload: UploadModel, _ others: [Call]) -> Bool {
    isLog && (upload.mayBeContinuedLate(at: call.offset) || mayBeGone(upload, others))
  }
}

extension Call {
  /// Whether it exceeds the announced length.
  fileprivate var misfitsLength: Bool {
    guard let length = upload?.length ?? upload?.givenLength else { return false }
    return offset + count > length || completes && offset + count != length
  }
}
