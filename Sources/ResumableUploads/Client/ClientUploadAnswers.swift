// What an upload resource's answers mean to the client: to an append, to the question for its offset, to its end.

extension UploadClientStateMachine {
  mutating func appended(
    _ append: Append, _ answer: ClientAnswer, sentUpTo: UInt64, _ supply: Supply
  ) -> Action {
    let supply = countingSurplus(supply)
    let completeness = completeness(answer.fields)
    let claimed = UploadFields.offset(answer.fields).map { base + $0 }
    noteLimits(answer.fields)
    // An answer that tells where an append has to begin is none of the target's, whatever it says about completeness.
    let isConflict = answer.status == 409 && claimed != nil
    if isConflict, let claimed { note(conflictAt: append.start, claimed, supply) }
    if append.isReplay, !answer.allowsRetry, answer.isSuccess || completeness != true || isConflict {
      // It is complete, as HEAD has said; a server need not tell the final response again.
      return denies(answer, append) ? wait(.offsetRetrieval) : complete(upTo: append.start)
    }
    switch answer.status {
    case 200..<300:
      isVersionSettled = true
      // What cannot be read is not silence, and may say that bytes are missing. Only a completeness that can be read
      // lets the upload resource be forgotten then.
      if UploadFields.unreadable(answer.fields) != nil {
        isFinalResponseUnproved = completeness == true && isFinal(append, answer, sentUpTo: sentUpTo, supply)
        return detour(answer.status)
      }
      // An answer without a word of the protocol is not the upload resource's: a portal and a maintenance page say 200,
      // too.
      if completeness == nil, claimed == nil, InteropVersion.Named(answer.fields) != .known(version), hasAcknowledged {
        isFinalResponseUnproved = isFinal(append, answer, sentUpTo: sentUpTo, supply)
        return detour(answer.status)
      }
      prove()
      conflict = nil
      // Less than it had acknowledged is a loss: HEAD confirms it, and it is reported.
      if (claimed ?? sentUpTo) < acknowledged { return detour(answer.status) }
      // More than there was, HEAD confirms as well.
      if let claimed, claimed > sentUpTo { return detour(answer.status) }
      let tookAll = !answer.isEarly && (claimed ?? sentUpTo) == sentUpTo
      // Silence in the answer to a completing request means done: many servers say nothing.
      if completeness ?? (append.completes && tookAll) {
        if append.endsPart {
          acknowledge(upTo: tookAll ? max(append.start, sentUpTo) : append.start)
          return endsInGap(supply) ? completeBeforeGap(supply) : beginPart(supply)
        }
        // Complete may be what was not transmitted in full (section "Completeness"): then it has what it says that it
        // has, or what it said before.
        let end = tookAll ? sentUpTo : min(claimed ?? acknowledged, sentUpTo)
        guard supply.isFinished, end == supply.head else { return completedEarly(end, supply) }
        return complete(upTo: end)
      }
      if append.completes || answer.isEarly || (claimed ?? sentUpTo) != sentUpTo { return detour(answer.status) }
      if sentUpTo > acknowledged { (disbelieved, hasProbed) = (0, false) }
      acknowledge(upTo: sentUpTo)
      offset = sentUpTo
      return self.append(supply)
    case _ where completeness == true && !isConflict: return fail(.processingFailed(status: answer.status))
    case 404, 410: return gone(append, answer.status, supply)
    // The server has other bytes of this stream there, and has ended the upload resource. The same bytes sent again
    // would be refused again.
    case 409 where claimed == nil && namesStream(answer): return fail(.refused(status: answer.status))
    case 413:
      return shrink(refusedSize(sentUpTo - min(sentUpTo, append.start)), supply)
    case 307, 308: return redirected(answer)
    // A part that the server will not have completed (it has lost bytes, and knows another length) stays as it is: the
    // stream goes on without it. Not at the first 409, which may be a matter of the offset.
    case 409 where isConflict && append.endsPart && detours <= Self.maximumDetours && isDenied(append.start):
      return detour(answer.status)
    case 400 where append.endsPart, 409 where append.endsPart && detours > 0: return beginPart(supply)
    // 400 is what some servers say after an interruption. One of them destroys an upload with its 409: ask, never
    // guess.
    case 400, 409: return detour(answer.status)
    default: return isOutage(answer) ? wait(.offsetRetrieval) : fail(.refused(status: answer.status))
    }
  }

  /// Whether an answer follows the last byte of the stream, and the request to complete the upload with it.
  private func isFinal(_ append: Append, _ answer: ClientAnswer, sentUpTo: UInt64, _ supply: Supply) -> Bool {
    append.completes && !append.endsPart && !answer.isEarly && sentUpTo == supply.head
  }

  /// Whether HEAD is asked again, after it has said that everything is there and complete: its answer may have been
  /// spoiled on its way. Some servers forget what is complete, and others answer with an error; but none knows less of
  /// it.
  private mutating func denies(_ answer: ClientAnswer, _ append: Append) -> Bool {
    let hasLess = UploadFields.offset(answer.fields).map { base + $0 < append.start } ?? false
    let isIncomplete = answer.isSuccess && completeness(answer.fields) == false
    let isError = !answer.isSuccess && ![404, 410].contains(answer.status) && completeness(answer.fields) != true
    guard denials < (hasLess || isIncomplete ? Self.maximumDenials : isError ? 1 : 0) else { return false }
    denials += 1
    return true
  }

  mutating func retrieved(_ answer: ClientAnswer, _ supply: Supply) -> Action {
    noteLimits(answer.fields)
    switch answer.status {
    case 200..<300:
      guard let count = UploadFields.offset(answer.fields) else {
        detours += 1
        return hasAcknowledged || detours <= Self.maximumDetours ? wait(.offsetRetrieval) : fail(.noOffset)
      }
      return resynchronized(base + count, isComplete: completeness(answer.fields) == true, supply)
    case 410:
      // Not 404: this one was ended, and not forgotten. Whoever has answered the last append may be a portal.
      (awaitsFinalResponse, isFinalResponseUnproved) = (false, false)
      return gone(nil, 410, supply)
    case 404:
      // Early versions have no 410: the server says that what it has ended was not complete. If that cannot be read,
      // nobody knows whether it was.
      if completeness(answer.fields) == false || UploadFields.unreadable(answer.fields) != nil {
        (awaitsFinalResponse, isFinalResponseUnproved) = (false, false)
      }
      return gone(nil, 404, supply)
    case 307, 308: return redirected(answer)
    case 400, 409:
      detours += 1
      return hasAcknowledged || detours <= Self.maximumDetours
        ? wait(.offsetRetrieval) : fail(.noProgress(status: answer.status))
    default: return isOutage(answer) ? wait(.offsetRetrieval) : fail(.refused(status: answer.status))
    }
  }

  /// The server has said how far it is (section "Offset Retrieval").
  mutating func resynchronized(_ told: UInt64, isComplete: Bool, _ supply: Supply) -> Action {
    let claimed = isComplete ? told : resolved(told, supply)
    if let action = checkSurplus(claimed, supply) { return action }
    let supply = countingSurplus(supply)
    guard claimed <= (isComplete ? min(sent, supply.head) : believable(supply)) else {
      notes.append(.impossibleOffset(claimed))
      disbelieved += 1
      // Once more: an answer can be spoiled on its way.
      guard disbelieved > 3 else { return wait(.offsetRetrieval) }
      // Other than a stream, a file would be given up.
      if !isComplete, configuration.length != nil, acknowledged > base, let probe = probe(at: acknowledged) {
        return probe
      }
      // Whatever it is that the server has there: a live stream has bytes to save. What another process has left may have
      // been sent without being kept, and is no reason to send the rest again.
      if isResumed ? everAcknowledged > base : hasProgressed, configuration.length == nil {
        (partEnd, disbelieved, offset) = (.impossibleOffset, 0, acknowledged)
        return beginPart(supply)
      }
      let failure = ClientFailure.offsetBeyondSent(offset: claimed, sent: min(sent, supply.head))
      // Cancelled, as it should be, where it can be sent anew. What a live stream has there is worth more than nothing.
      return configuration.length == nil ? fail(failure) : abandon(failure)
    }
    prove()
    if sent == .max { sent = claimed }
    if claimed < acknowledged {
      // Once more here as well: what follows is a break in the stream, or bytes sent twice.
      if disbelieved == 0 {
        disbelieved += 1
        return wait(.offsetRetrieval)
      }
      // Bytes that are not kept any more are given up only for the word of the upload resource itself. Where parts are
      // not joined, the append that ends this one asks for it.
      if joinsParts, claimed < supply.oldest, !isComplete, let probe = probe(at: claimed) { return probe }
      notes.append(.serverWentBack(from: acknowledged, to: claimed))
      if claimed < supply.oldest {
        (acknowledged, offset, disbelieved) = (claimed, claimed, 0)
        return isComplete ? completedEarly(claimed, supply, .serverWentBack) : endPart(.serverWentBack, supply)
      }
      acknowledged = claimed
    }
    if confirms, claimed == offset { acknowledge(upTo: claimed) }
    (disbelieved, offset, confirms, missing, hasProbed) = (0, claimed, false, 0, false)
    awaitsFinalResponse = isComplete
    if !isComplete { denials = 0 }
    isFinalResponseUnproved = isFinalResponseUnproved && isComplete
    // Only now is it known that an upload is where a redirect leads.
    if let diversion, diversion.isPermanent { (uploadURL, self.diversion) = (diversion.url, nil) }
    // Progress, although no other answer has shown it.
    noteAdvance(to: claimed)
    guard isComplete else { return append(supply) }
    if supply.isFinished && claimed == supply.head {
      // Its final response was lost: the server may tell it again (section "Upload Append").
      return send(Append(start: offset, completes: true, isReplay: true), maximum: 0)
    }
    return completedEarly(claimed, supply)
  }

  /// The server has asked for larger appends than there can be, although it has taken smaller ones. It is asked where
  /// it stands, and for its limits with that.
  package mutating func forgetMinimumAppendSize() -> Action {
    limits.minimumAppendSize = nil
    return wait(.offsetRetrieval)
  }

  /// The answer to a cancellation: only one that says so means that the server has forgotten the upload.
  mutating func cancelled(_ answer: ClientAnswer) -> Action {
    switch answer.status {
    case 307, 308:
      detours += 1
      guard detours <= Self.maximumDetours, let location = answer.location else { break }
      diversion = (location, false)
      return abandon(reason ?? .cancelled)
    // A portal says 200, too.
    case 200..<300 where answer.status == 204 || InteropVersion.Named(answer.fields) != .absent, 404, 410:
      isForgotten = true
    default: break
    }
    return fail(reason ?? .cancelled)
  }

  // MARK: What answers have in common

  mutating func complete(upTo end: UInt64) -> Action {
    acknowledge(upTo: end)
    state = .ended
    isForgotten = true
    return .completed
  }

  /// The server has closed the upload, the stream goes on: in another one.
  mutating func completedEarly(_ end: UInt64, _ supply: Supply, _ reason: PartEnd = .completed) -> Action {
    // A file has all of its bytes before its upload can be complete. An answer can be spoiled on its way, so it is
    // asked for again.
    guard configuration.length == nil || hasAcknowledged, detours < Self.maximumDetours else {
      return fail(.completedEarly)
    }
    detours += 1
    if configuration.length != nil { return wait(.offsetRetrieval) }
    acknowledge(upTo: end)
    offset = end
    partEnd = reason
    return endsInGap(supply) ? completeBeforeGap(supply) : beginPart(supply)
  }

  /// How large the content was that 413 has refused, as far as that can be known.
  func refusedSize(_ sent: UInt64) -> UInt64 {
    // A file's size was announced: it is that which is refused, however little of it was sent by then. Of a stream the
    // server has seen no more than what was sent; what is less than a buffer's worth says nothing.
    configuration.length == nil ? min(appendMaximum ?? .max, max(sent, 64 << 10)) : appendMaximum ?? sent
  }

  /// 413: smaller appends, as the server says, or as it turns out.
  mutating func shrink(_ size: UInt64, _ supply: Supply) -> Action {
    shrinks += 1
    if shrinks > Self.maximumShrinks { return smallestIsRefused() }
    let smallest = max(1, limits.minimumAppendSize ?? 1)
    let allowed = limits.maximumAppendSize ?? .max
    if allowed >= size {
      // Not known, or not true: an intermediary may have limits of its own.
      if size <= smallest { return smallestIsRefused() }
      let before = shrunkAppendSize ?? .max
      shrunkAppendSize = max(smallest, min(before / 2, size / 2))
      if limits.maximumAppendSize == nil, before == .max, version.hasLimits {
        asksForLimits = true
        return discover()
      }
    }
    return uploadURL == nil ? create(supply) : retrieveOffset()
  }
  /// 413 to what cannot be made smaller: to an append of no bytes, for example.
  private mutating func smallestIsRefused() -> Action {
    guard hasAcknowledged else { return fail(.appendTooLarge) }
    // It has taken some before, so this is no matter of size.
    (shrunkAppendSize, shrinks) = (nil, 0)
    return uploadURL == nil ? creationFailed() : wait(.offsetRetrieval)
  }
}
