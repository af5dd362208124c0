// What each answer means to the client, state by state.

extension UploadClientStateMachine {
  // MARK: Interim responses

  /// A 1xx response to the request under way. Returns why the request has to be broken off, if it has to.
  package mutating func received(interim answer: ClientAnswer, sentUpTo: UInt64) -> ClientFailure? {
    sent = max(sent, sentUpTo)
    // Anything but a 104 of the very version is to be ignored (appendix "Draft Version Identification").
    guard answer.status == UploadFields.resumptionSupported, speaksVersion(answer.fields) else { return nil }
    isVersionSettled = true
    noteLimits(answer.fields)
    switch state {
    case .creating:
      if let location = answer.location {
        if let announced, announced != location { return .locationChanged }
        announced = location
        take(location: location)
        noteStream(answer.fields)
      }
      // As long as nobody has said where the upload goes on, a lost connection means all of it once more.
      if announced != nil { noteProgress(answer.fields) }
    case .appending: noteProgress(answer.fields)
    default: break
    }
    return nil
  }

  private func speaksVersion(_ fields: FieldLines) -> Bool {
    switch InteropVersion.Named(fields) {
    case .absent: version.number == nil
    case .known(let named): named == version
    case .unknown: false
    }
  }

  private mutating func noteLimits(_ fields: FieldLines) {
    guard version.hasLimits, let newer = UploadLimits(fields, version: version) else { return }
    limits = limits.updated(by: newer)
    toldLifetime = newer.maximumAge ?? toldLifetime
  }

  private mutating func noteStream(_ fields: FieldLines) {
    if let streamID = configuration.streamID { joinsParts = fields["Stream-ID"] == streamID }
  }

  /// `Upload-Offset` in an interim response: these bytes will not be needed again.
  private mutating func noteProgress(_ fields: FieldLines) {
    guard let count = UploadFields.offset(fields) else { return }
    // What was never sent cannot have arrived; the end of the request, or the next HEAD, will show what is true.
    if base + count <= sent { acknowledge(upTo: base + count) } else { notes.append(.impossibleOffset(base + count)) }
  }

  // MARK: Final responses

  /// The request under way has its final response.
  ///
  /// - Parameter sentUpTo: stream offset up to which content was handed over in this request.
  package mutating func answered(_ answer: ClientAnswer, sentUpTo: UInt64, _ supply: Supply) -> Action {
    sent = max(sent, sentUpTo)
    switch state {
    case .discovering: return discovered(answer, supply)
    case .creating: return created(answer, sentUpTo: sentUpTo, supply)
    case .appending(let append): return appended(append, answer, sentUpTo: sentUpTo, supply)
    case .retrievingOffset: return retrieved(answer, supply)
    case .cancelling: return fail(.cancelled)
    case .idle, .ready, .interrupted, .ended: return .none
    }
  }

  private mutating func discovered(_ answer: ClientAnswer, _ supply: Supply) -> Action {
    let named = InteropVersion.Named(answer.fields)
    if answer.isSuccess, let found = UploadLimits(answer.fields, version: version) {
      limits = limits.updated(by: found)
      isVersionSettled = true
      if asksForLimits {
        asksForLimits = false
        return uploadURL == nil ? create(supply) : retrieveOffset()
      }
      return create(supply)
    }
    if asksForLimits {
      asksForLimits = false
      return uploadURL == nil ? create(supply) : retrieveOffset()
    }
    if answer.allowsRetry { return wait(.discovery) }
    if [401, 403, 407].contains(answer.status) { return fail(.refused(status: answer.status)) }
    if speaksOfVersions(answer) || answer.status == 412, stepDown(to: named) { return discoverOrCreate(supply) }
    return unsupported("it does not offer them (OPTIONS is answered \(answer.status), without Upload-Limit)")
  }

  /// Whether an answer names a version, or shows a server that knows older ones: the protocol of tus 1.0 answers for it then.
  private func speaksOfVersions(_ answer: ClientAnswer) -> Bool {
    [InteropVersion.fieldName, "Tus-Version", "Tus-Resumable"].contains { answer.fields.contains($0) }
  }

  /// Goes to the version that the server named, or to the next older one; false when there is none left.
  private mutating func stepDown(to named: InteropVersion.Named) -> Bool {
    guard !isVersionSettled, let older = version.older else { return false }
    var next = older
    // Only downwards: so that it ends.
    if case .known(let wanted) = named, let number = wanted.number, number < version.number ?? .max { next = wanted }
    version = next
    notes.append(.steppedDown(to: next))
    return true
  }

  private mutating func unsupported(_ reason: String) -> Action {
    state = .ended
    return .unsupported(reason)
  }

  private mutating func created(_ answer: ClientAnswer, sentUpTo: UInt64, _ supply: Supply) -> Action {
    let completeness = version.completeness(answer.fields)
    noteLimits(answer.fields)
    switch answer.status {
    case 200..<300:
      if isOptimistic, completeness != false {
        let claimed = UploadFields.offset(answer.fields).map { base + $0 }
        let end = claimed ?? (answer.isEarly ? base : sentUpTo)
        guard supply.isFinished, end == supply.head else { return fail(.completedEarly) }
        return complete(upTo: end)
      }
      if completeness == true { return fail(.completedEarly) }
      if let announced, let location = answer.location, announced != location { return fail(.locationChanged) }
      guard let location = answer.location ?? announced else {
        return configuration.discovers ? unsupported("it took an empty upload for a whole one") : fail(.noLocation)
      }
      isVersionSettled = true
      take(location: location)
      noteStream(answer.fields)
      // Not taken for granted: what it says, if it says anything but nothing.
      if isOptimistic || (UploadFields.offset(answer.fields) ?? 0) != 0 { return retrieveOffset() }
      return append(supply)
    case _ where completeness == true: return fail(.refused(status: answer.status))
    case 400, 412, 501:
      guard announced == nil, !isVersionSettled else { break }
      // Not with all of it in each attempt, unless the answer says that it is a matter of versions.
      guard !isOptimistic || answer.status == 412 || speaksOfVersions(answer) else { break }
      if stepDown(to: InteropVersion.Named(answer.fields)) { return create(supply) }
      return unsupported("it speaks no version that is known here (creating one is answered \(answer.status))")
    case 413:
      if let size = limits.maximumSize, let length = configuration.length, length - min(base, length) > size {
        return fail(.tooLarge(limit: size))
      }
      guard isOptimistic else { break }
      // In parts, then, with care.
      isOptimistic = false
      return shrink(sentUpTo - min(sentUpTo, base), supply)
    default: break
    }
    return answer.allowsRetry ? wait(creationIsLost()) : fail(.refused(status: answer.status))
  }

  private mutating func appended(
    _ append: Append, _ answer: ClientAnswer, sentUpTo: UInt64, _ supply: Supply
  ) -> Action {
    let completeness = version.completeness(answer.fields)
    noteLimits(answer.fields)
    if append.isReplay, !answer.allowsRetry { return complete(upTo: append.start) }
    switch answer.status {
    case 200..<300:
      isVersionSettled = true
      let claimed = UploadFields.offset(answer.fields).map { base + $0 }
      let tookAll = !answer.isEarly && (claimed ?? sentUpTo) == sentUpTo
      // Silence in the answer to a completing request means done: many servers say nothing.
      if completeness ?? (append.completes && tookAll) {
        if append.endsPart {
          acknowledge(upTo: append.start)
          return beginPart(supply)
        }
        // Complete may be what was not transmitted in full (section "Completeness"): then it has what it says that it has, or
        // what it said before.
        let end = tookAll ? sentUpTo : min(claimed ?? acknowledged, sentUpTo)
        guard supply.isFinished, end == supply.head else { return completedEarly(end, supply) }
        return complete(upTo: end)
      }
      if append.completes || answer.isEarly || (claimed ?? sentUpTo) != sentUpTo { return detour(answer.status) }
      acknowledge(upTo: sentUpTo)
      offset = sentUpTo
      return self.append(supply)
    case _ where completeness == true: return fail(.processingFailed(status: answer.status))
    case 404, 410: return gone(append, supply)
    case 413:
      // Before the content's end it is its size that is refused, and not the part of it that was sent by then.
      let sent = sentUpTo - min(sentUpTo, append.start)
      return shrink(answer.isEarly ? appendMaximum ?? sent : sent, supply)
    case 307, 308: return redirected(answer)
    // 400 is what some servers say after an interruption. One of them destroys an upload with its 409: ask, never guess.
    case 400, 409: return detour(answer.status)
    default:
      return answer.allowsRetry ? wait(.offsetRetrieval) : fail(.refused(status: answer.status))
    }
  }

  private mutating func retrieved(_ answer: ClientAnswer, _ supply: Supply) -> Action {
    noteLimits(answer.fields)
    switch answer.status {
    case 200..<300:
      guard let count = UploadFields.offset(answer.fields) else {
        return detours < Self.maximumDetours ? detour(answer.status) : fail(.noOffset)
      }
      return resynchronized(base + count, isComplete: version.completeness(answer.fields) == true, supply)
    case 404, 410: return gone(nil, supply)
    case 307, 308: return redirected(answer)
    case 400, 409:
      detours += 1
      return detours > Self.maximumDetours ? fail(.noProgress(status: answer.status)) : wait(.offsetRetrieval)
    default:
      return answer.allowsRetry ? wait(.offsetRetrieval) : fail(.refused(status: answer.status))
    }
  }

  /// The server has said how far it is (section "Offset Retrieval").
  private mutating func resynchronized(_ claimed: UInt64, isComplete: Bool, _ supply: Supply) -> Action {
    guard claimed <= min(sent, supply.head) else {
      notes.append(.impossibleOffset(claimed))
      disbelieved += 1
      // Once more: an answer can be spoiled on its way. Then it is a failure, and the upload is left as it is: a live
      // stream's bytes are worth more at the server than gone.
      if disbelieved > 3 { return fail(.offsetBeyondSent(offset: claimed, sent: min(sent, supply.head))) }
      return wait(.offsetRetrieval)
    }
    if sent == .max { sent = claimed }
    if claimed < acknowledged {
      // Once more here as well: what follows is a break in the stream, or bytes sent twice.
      if disbelieved == 0 {
        disbelieved += 1
        return wait(.offsetRetrieval)
      }
      notes.append(.serverWentBack(from: acknowledged, to: claimed))
      if claimed < supply.oldest {
        partEnd = .serverWentBack
        acknowledged = claimed
        offset = claimed
        disbelieved = 0
        return beginPart(supply)
      }
      acknowledged = claimed
    }
    disbelieved = 0
    offset = claimed
    if claimed > furthest {
      // Progress, although no answer has said so.
      (furthest, detours) = (claimed, 0)
    }
    guard isComplete else { return append(supply) }
    if supply.isFinished && claimed == supply.head {
      // Its final response was lost: the server may tell it again (section "Upload Append").
      return send(Append(start: offset, completes: true, isReplay: true), maximum: 0)
    }
    return completedEarly(claimed, supply)
  }

  // MARK: What answers have in common

  private mutating func complete(upTo end: UInt64) -> Action {
    acknowledge(upTo: end)
    state = .ended
    return .completed
  }

  /// The server has closed the upload, the stream goes on: in another one.
  private mutating func completedEarly(_ end: UInt64, _ supply: Supply) -> Action {
    guard configuration.length == nil, detours < Self.maximumDetours else { return fail(.completedEarly) }
    detours += 1
    acknowledge(upTo: end)
    offset = end
    partEnd = .completed
    return beginPart(supply)
  }

  /// Asks at once where the server stands, but not for ever.
  private mutating func detour(_ status: Int) -> Action {
    detours += 1
    return detours > Self.maximumDetours ? fail(.noProgress(status: status)) : retrieveOffset()
  }

  private mutating func redirected(_ answer: ClientAnswer) -> Action {
    guard let location = answer.location else { return fail(.noLocation) }
    uploadURL = location
    return detour(answer.status)
  }

  /// 404 or 410: the upload resource is no more.
  private mutating func gone(_ append: Append?, _ supply: Supply) -> Action {
    // Some servers forget an upload as soon as it is complete: all of it was acknowledged, so nothing is missing.
    if supply.isFinished, acknowledged == supply.head {
      state = .ended
      return .completed
    }
    detours += 1
    if detours > Self.maximumDetours { return fail(.noProgress(status: 404)) }
    partEnd = .gone
    return beginPart(supply)
  }

  /// 413: smaller appends, as the server says, or as it turns out.
  private mutating func shrink(_ size: UInt64, _ supply: Supply) -> Action {
    detours += 1
    if detours > Self.maximumDetours * 4 { return fail(.appendTooLarge) }
    let smallest = max(1, limits.minimumAppendSize ?? 1)
    let allowed = limits.maximumAppendSize ?? .max
    if allowed >= size {
      // Not known, or not true: an intermediary may have limits of its own.
      if size <= smallest, size > 0 { return fail(.appendTooLarge) }
      let before = shrunkAppendSize ?? .max
      shrunkAppendSize = max(smallest, min(before / 2, max(size, 2) / 2))
      if limits.maximumAppendSize == nil, before == .max, version.hasLimits {
        asksForLimits = true
        return discover()
      }
    }
    return uploadURL == nil ? create(supply) : retrieveOffset()
  }
}
