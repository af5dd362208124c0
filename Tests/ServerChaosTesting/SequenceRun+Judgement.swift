// The model's judgement of an answer: whether it is permitted, and what is known after it.

internal import EventLoops

extension SequenceRun {
  /// Judges the results of simultaneous requests.
  ///
  /// - Parameter isOrdered: whether the first was active before the second.
  func judge(_ calls: [Call], isOrdered: Bool = true) throws(Violation) {
    // By the state before all of them, and not by their effects.
    for call in calls { call.mustBeRefused = call.isForeign || isAnothers(call, calls) }
    for call in calls {
      if call.outcome.isHung { throw fail("a request is never answered", call.request.text) }
      if [500, 501, 505].contains(call.outcome.status) {
        throw fail("status \(call.outcome.status)", call.outcome.text)
      }
    }
    for call in calls where call.upload == nil && !call.mustBeRefused {
      if ![401, 403, 404].contains(call.outcome.status) { call.stream.claims[call.token] = true }
    }
    // The answer to a creation comes first, because the others may concern its upload.
    for call in calls where !call.mustBeRefused {
      let others = calls.filter { $0 !== call }
      switch call.intent {
      case .create: try judgeCreation(call, others)
      case .plain: try judgePlain(call, others)
      case .append, .complete: try judgeAppend(call, others)
      case .head, .delete: break
      }
    }
    for call in calls where !call.isForeign {
      let others = calls.filter { $0 !== call }
      if call.intent == .head { try judgeHEAD(call, others) }
      if call.intent == .delete { try judgeDELETE(call, others) }
    }
    for call in calls { try judgeForeign(call) }
    try judgePair(calls, isOrdered)
    for stream in Set(calls.map { ObjectIdentifier($0.stream) }).compactMap({ id in
      calls.first { ObjectIdentifier($0.stream) == id }?.stream
    }) where stream.evidence.count > 1 {
      throw fail("one stream belongs to two tokens according to the responses", stream.base)
    }
  }

  // MARK: Another token's

  /// Whether the stream certainly belongs to another token than the request's, whatever the others do.
  private func isAnothers(_ call: Call, _ calls: [Call]) -> Bool {
    guard call.upload == nil, let owner = call.ownerBefore, owner != call.token else { return false }
    if isVague(call.stream) { return false }
    if isLeft(by: owner, call.stream) { return false }
    // Deleting the last upload of a stream releases it. If nothing is stored, so does its completion.
    return !calls.contains {
      $0.stream === call.stream && $0.token == owner
        && ($0.intent == .delete || !isStored && ($0.completes || $0.intent == .plain))
    }
  }

  /// Whether a token's whole part of a stream may have expired, with the stored bytes.
  private func isLeft(by token: Int, _ stream: StreamModel) -> Bool {
    guard stream.plainEnd[token] == 0, stream.completeEnd == nil else { return false }
    return uploads.filter { $0.stream === stream && $0.token == token && $0.phase != .deleted }.allSatisfy { upload in
      MonotonicInstant.now - upload.lastTouch >= .seconds(options.maximumAge)
        && (upload.length != nil || upload.givenLength != nil || upload.acknowledged == 0 || !isStored)
    }
  }

  /// Another token learns and changes nothing. It does not even learn that the target exists.
  private func judgeForeign(_ call: Call) throws(Violation) {
    guard call.mustBeRefused else { return }
    if call.isDropped, call.upload == nil { call.stream.mayBeginLate = true }
    guard let final = call.outcome.final else { return }
    // A stopping server examines no further requests.
    guard [401, 403, 404].contains(final.status) || final.status == 503 && isStopping else {
      throw fail(
        "another token's \(call.intent.rawValue) is answered with \(final.status)",
        "\(call.stream.base): \(call.outcome.text)")
    }
    if final["upload-offset"] != nil || final["stream-offset"] != nil || call.outcome.announced != nil {
      throw fail("an offset is reported to another token", call.outcome.text)
    }
  }

  // MARK: Permitted answers

  /// Whether no other request can affect this one's result.
  func isAlone(_ call: Call, _ others: [Call]) -> Bool {
    !isStopping && !call.isDropped && !mayBeOthers(call.stream, call.token)
      && others.allSatisfy(\.mustBeRefused)
      && uploads.filter { $0.stream === call.stream }.count <= 1 && !call.stream.hasUnknown
  }

  /// Whether a power failure may have destroyed the record of the owner. Without durability, nothing is certain then.
  ///
  /// With `interval`, bytes that were not synced yet may exist without that record if the file system has no extended
  /// attributes (docs/server.md, "Durability").
  func isVague(_ stream: StreamModel) -> Bool {
    guard stream.mayHaveLost else { return false }
    return switch options.setting.durability {
    case "none": true
    case "interval": !options.hasAttributes
    default: false
    }
  }

  /// Whether the stream may belong to another token.
  func mayBeOthers(_ stream: StreamModel, _ token: Int) -> Bool {
    if isVague(stream) { return true }
    return stream.owner != token && (stream.claims[1 - token] || stream.evidence.contains(1 - token))
  }

  /// Whether a request to an upload's URL may be answered with 404 or 410.
  func mayBeGone(_ upload: UploadModel, _ others: [Call]) -> Bool {
    switch upload.phase {
    case .deleted, .expired, .lost, .forgotten: return true
    case .open, .complete, .refused: break
    }
    if upload.mayBeGone || mayBeOthers(upload.stream, upload.token) { return true }
    // For two uploads of one stream, the newer one may take it from the older.
    if uploads.filter({ $0.stream === upload.stream }).count > 1 || upload.stream.hasUnknown { return true }
    if others.contains(where: { $0.upload === upload && $0.intent == .delete && $0.token == upload.token }) {
      return true
    }
    if others.contains(where: { $0.stream === upload.stream && $0.upload == nil && $0.token == upload.token }) {
      return true
    }
    return MonotonicInstant.now - upload.lastTouch >= .seconds(options.maximumAge)
  }

  /// A request to an upload is answered as if it did not exist.
  func gone(_ upload: UploadModel, _ others: [Call], _ text: String) throws(Violation) {
    guard mayBeGone(upload, others) else { throw fail("an upload is gone", text) }
    guard upload.isOpen || upload.phase == .lost else {
      if case .complete(let total) = upload.phase { upload.phase = .forgotten(total) }
      return
    }
    let isOld = MonotonicInstant.now - upload.lastTouch >= .seconds(options.maximumAge)
    upload.phase = others.contains { $0.intent == .delete } ? .deleted : isOld ? .expired : .lost
    if upload.phase == .expired { tally.expired += 1 }
    if upload.mayBeDeleted { cancelled(upload) }
    // The stored bytes of a file are removed with it, and any token can own the stream then.
    let isLost = upload.stream.mayHaveLost && upload.stream.completeEnd == nil && options.setting.durability != "always"
    // If nothing is stored, a simultaneous request has completed the stream, which is forgotten with its last upload.
    let isForgotten =
      !isStored
      && !uploads.contains {
        $0 !== upload && $0.stream === upload.stream && $0.token == upload.token && $0.isOpen
      }
    if isLost || isForgotten || isLeft(by: upload.token, upload.stream) {
      upload.stream.evidence.remove(upload.token)
    }
    upload.exact = nil
  }

  /// Processes an offset that was reported to an upload's owner.
  func announced(_ upload: UploadModel, _ call: Call) throws(Violation) {
    for answer in call.outcome.interims + (call.outcome.final.map { [$0] } ?? []) {
      guard let offset = answer.offset else { continue }
      guard offset <= upload.sentEnd else {
        throw fail("more is announced than was sent", "\(offset) of \(upload.sentEnd): \(call.outcome.text)")
      }
      guard offset >= call.acknowledgedBefore else {
        throw fail(
          "an announced offset went back", "\(offset) after \(call.acknowledgedBefore): \(call.outcome.text)")
      }
      upload.acknowledged = max(upload.acknowledged, offset)
      tally.announcedOffsets += 1
      // If nothing is stored, a simultaneous request may have completed the stream, which is then forgotten.
      if offset > 0, isStored || upload.isOpen && !upload.mayBeGone { insert(upload.token, upload.stream) }
    }
  }

  /// A token learned that bytes of a stream are stored for it.
  func insert(_ token: Int, _ stream: StreamModel) {
    // If nothing is stored, a stream is forgotten with its completion, whether or not that is answered.
    if let owner = stream.owner, owner != token, isLeft(by: owner, stream) || !isStored || isVague(stream) {
      stream.evidence = []
    }
    stream.evidence.insert(token)
  }

  /// A 2xx has completed an upload.
  ///
  /// - Parameter streamEnd: the length of its stream at that time; nil if the answer does not state it.
  func completed(_ upload: UploadModel, _ total: UInt64, streamEnd: UInt64? = nil) {
    upload.phase = .complete(total)
    upload.acknowledged = max(upload.acknowledged, total)
    upload.exact = nil
    let stream = upload.stream
    // Others have stored more of the stream, so it does not end here.
    if let streamEnd, streamEnd > upload.base + total, upload.length == nil { return insert(upload.token, stream) }
    if isStored {
      insert(upload.token, stream)
      stream.completeEnd = max(stream.completeEnd ?? 0, upload.base + total)
    } else {
      // If nothing is stored, a complete stream is forgotten.
      stream.evidence.remove(upload.token)
      for other in uploads where other.stream === stream && other !== upload { other.mayBeGone = true }
    }
  }

  // MARK: Queries

  func judgeHEAD(_ call: Call, _ others: [Call]) throws(Violation) {
    guard let upload = call.upload, let final = call.outcome.final else {
      if !isStopping, !call.isDropped, others.isEmpty { throw fail("HEAD is not answered", call.outcome.text) }
      return
    }
    if [404, 410].contains(final.status) { return try gone(upload, others, "HEAD: \(call.outcome.text)") }
    guard call.outcome.isSuccess else {
      if final.status == 503 && isStopping { return }
      throw fail(
        "HEAD is answered with \(final.status)", "\(call.outcome.text) after \(MonotonicInstant.now - call.sentAt)")
    }
    switch call.phaseBefore {
    case .deleted?, .lost?, .expired?: throw fail("an upload is back that was gone", call.outcome.text)
    default: break
    }
    try announced(upload, call)
    if final.isComplete == true {
      let isCompleting = others.contains { $0.upload === upload && $0.completes }
      switch call.phaseBefore {
      case .complete(let total)?, .forgotten(let total)?:
        if let offset = final.offset, offset != total {
          throw fail("a complete upload has another length", call.outcome.text)
        }
      case .refused?: break
      default:
        let isShared =
          upload.stream.completeEnd != nil || upload.stream.hasUnknown
          || uploads.contains { $0 !== upload && $0.stream === upload.stream }
        guard
          upload.mayBeComplete || isCompleting || isShared || upload.stream.mayBeComplete
            || mayBeOthers(upload.stream, upload.token)
        else {
          throw fail("an upload is complete that nobody has completed", call.outcome.text)
        }
        // By an answer that was judged before this one.
        if case .complete = upload.phase { return }
        if upload.mayBeComplete || isCompleting, !isShared, !mayBeOthers(upload.stream, upload.token) {
          if let offset = final.offset { completed(upload, offset) }
        } else {
          // The stream refused its bytes, and that answer is the upload's.
          upload.phase = .refused
          if !isStored { upload.stream.evidence.remove(upload.token) }
        }
      }
      return
    }
    if case .complete(let total)? = call.phaseBefore {
      guard upload.mayBeGone, final.offset == total else {
        throw fail("a complete upload is incomplete again", call.outcome.text)
      }
      return
    }
    guard let offset = final.offset else { throw fail("HEAD announces no offset", call.outcome.text) }
    if let exact = call.exactBefore, others.isEmpty, offset != exact, isAlone(call, others),
      !useUpLateBytes(of: upload, from: exact, to: offset)
    {
      throw fail("HEAD announces another offset than the stored one", "\(offset), and not \(exact)")
    }
    if upload.isOpen, others.isEmpty { upload.exact = offset }
  }

  private func judgeDELETE(_ call: Call, _ others: [Call]) throws(Violation) {
    guard let upload = call.upload, let final = call.outcome.final else {
      if call.phaseBefore == .open, let upload = call.upload { (upload.mayBeGone, upload.mayBeDeleted) = (true, true) }
      if !isStopping, !call.isDropped, others.isEmpty { throw fail("DELETE is not answered", call.outcome.text) }
      return
    }
    upload.exact = nil
    if call.outcome.isSuccess {
      switch upload.phase {
      case .complete(let total), .forgotten(let total): upload.phase = .forgotten(total)
      default:
        upload.phase = .deleted
        cancelled(upload)
      }
    } else if [404, 410].contains(final.status) {
      try gone(upload, others, "DELETE: \(call.outcome.text)")
    } else if isLog, final.status == 503, !others.isEmpty {
      // Its message may be stored later.
      if call.phaseBefore == .open { (upload.mayBeGone, upload.mayBeDeleted) = (true, true) }
    } else if others.isEmpty, !(final.status == 503 && isStopping) {
      throw fail("DELETE is answered with \(final.status)", call.outcome.text)
    }
  }

  /// An unfinished upload was deleted. The stored bytes of the stream are removed with it, unless another upload's
  /// client learned of bytes.
  private func cancelled(_ upload: UploadModel) {
    let stream = upload.stream
    let siblings = uploads.filter { $0.stream === stream && $0 !== upload && $0.token == upload.token }
    if !siblings.isEmpty { stream.wasCancelled = true }
    let isNewest = uploads.last { $0.stream === stream && $0.token == upload.token } === upload
    // An upload without bytes contains none of it.
    let isLast = siblings.allSatisfy { [.deleted, .expired, .lost].contains($0.phase) || $0.acknowledged == 0 }
    // Neither can an upload continue if others have made the stream longer than its length.
    let isTooLong = { (upload: UploadModel) in
      (upload.length ?? upload.givenLength).map { upload.sentEnd > $0 } ?? false
    }
    guard isLast || isNewest && siblings.allSatisfy({ !$0.isOpen || $0.acknowledged == 0 || isTooLong($0) }) else {
      return
    }
    stream.wasCancelled = true
    for sibling in siblings { (sibling.mayBeGone, sibling.exact) = (true, nil) }
    let isComplete = siblings.contains { if case .complete = $0.phase { true } else { false } }
    if !isComplete || !isStored, stream.plainEnd[upload.token] == 0 { stream.evidence.remove(upload.token) }
  }

  /// Combinations of answers that two requests of one token to one upload must not have.
  private func judgePair(_ calls: [Call], _ isOrdered: Bool) throws(Violation) {
    guard calls.count == 2, let upload = calls[0].upload, upload === calls[1].upload,
      calls[0].token == upload.token, calls[1].token == upload.token
    else { return }
    let isTransfer = calls.map { $0.intent == .append || $0.intent == .complete }
    if isTransfer == [true, true], calls.allSatisfy({ $0.outcome.isSuccess && $0.count > 0 }),
      calls[0].offset == calls[1].offset, calls[0].phaseBefore == .open
    {
      throw fail("two appends at one offset were accepted", "\(calls[0].offset)")
    }
    // A HEAD after a request ends that request, and counts its bytes.
    guard let query = calls.last, query.intent == .head, isOrdered, isTransfer[0], upload.isOpen,
      query.outcome.isSuccess, let offset = query.outcome.final?.offset
    else {
      if upload.isOpen { upload.exact = nil }
      return
    }
    upload.exact = nil
    if let other = calls[0].outcome.final?.offset, calls[0].outcome.isSuccess {
      // With a log, HEAD ends only requests that have asked for the upload already. A request whose head is still with
      // the kernel, or at another server, may begin after HEAD, at its offset. (With a directory, HEAD waits until the
      // loops have served their ready connections: ARCHITECTURE.md, `UploadServer.gather`.)
      let isBefore = isLog && offset == calls[0].offset
      guard offset >= other || isBefore else {
        throw fail("HEAD has overtaken a request", "\(offset), and then \(other)")
      }
    }
    if calls[0].outcome.final == nil { upload.exact = offset }
  }
}
