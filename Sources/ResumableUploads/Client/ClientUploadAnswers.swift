// What an upload resource's answers mean to the client: to an append, to an offset retrieval, to a cancellation.

extension UploadClientStateMachine {
  mutating func appended(
    _ append: Append, _ answer: ClientAnswer, sentUpTo: UInt64, _ supply: Supply
  ) -> Action {
    let supply = countingSurplus(supply)
    let completeness = completeness(answer.fields)
    let claimed = UploadFields.offset(answer.fields).map { base + $0 }
    noteLimits(answer.fields)
    // An answer that reports where an append must begin does not come from the target, whatever it reports about
    // completeness.
    let isConflict = answer.status == 409 && claimed != nil
    if isConflict, let claimed { note(conflictAt: append.start, claimed, supply) }
    if append.isReplay, !answer.allowsRetry, answer.isSuccess || completeness != true || isConflict {
      // HEAD has reported it complete. A server need not repeat the final response.
      return denies(answer, append) ? wait(.offsetRetrieval) : complete(upTo: append.start)
    }
    switch answer.status {
    case 200..<300:
      server.isVersionSettled = true
      // An unreadable field is not a missing one, and may report missing bytes. The client forgets the upload resource
      // only if completeness is readable.
      if UploadFields.unreadable(answer.fields) != nil {
        resource.isFinalResponseUnproved = completeness == true && isFinal(append, answer, sentUpTo: sentUpTo, supply)
        return detour(answer.status)
      }
      // An answer without any of the protocol's fields is not the upload resource's. A portal and a maintenance page
      // also answer 200. If nothing was acknowledged before, a 404 to the HEAD then means that nothing is stored.
      if completeness == nil, claimed == nil, InteropVersion.Named(answer.fields) != .known(server.version),
        hasAcknowledged || configuration.requiresProtocol
      {
        resource.isFinalResponseUnproved =
          hasAcknowledged && isFinal(append, answer, sentUpTo: sentUpTo, supply)
        return detour(answer.status)
      }
      prove()
      resource.conflict = nil
      // A lower offset than the acknowledged one is a loss. HEAD must confirm it before it is reported.
      if (claimed ?? sentUpTo) < acknowledged { return detour(answer.status) }
      // HEAD must also confirm an offset beyond what was sent.
      if let claimed, claimed > sentUpTo { return detour(answer.status) }
      let tookAll = !answer.isEarly && (claimed ?? sentUpTo) == sentUpTo
      // Many servers omit the field in the answer to a completing request. Then it means complete.
      if completeness ?? (append.completes && tookAll) {
        if append.endsPart {
          acknowledge(upTo: tookAll ? max(append.start, sentUpTo) : append.start)
          guard endsInGap(supply) else { return beginPart(supply) }
          return stores(supply, answer) ? complete(upTo: supply.head) : completeBeforeGap(supply)
        }
        // An upload can be complete although it was not transmitted in full (section "Completeness"). Then the server
        // has what it reports now, or what it reported before.
        let end = tookAll ? sentUpTo : min(claimed ?? acknowledged, sentUpTo)
        judgeAppend(at: end)
        guard supply.isFinished, end == supply.head else { return completedEarly(end, supply) }
        return complete(upTo: end)
      }
      if append.completes || answer.isEarly || (claimed ?? sentUpTo) != sentUpTo { return detour(answer.status) }
      if sentUpTo > acknowledged { (patience.disbelieved, resource.hasProbed) = (0, false) }
      acknowledge(upTo: sentUpTo)
      judgeAppend(at: sentUpTo)
      resource.offset = sentUpTo
      return self.append(supply)
    case _ where completeness == true && !isConflict: return fail(.processingFailed(status: answer.status))
    case 404, 410: return gone(append, answer.status, supply)
    // The server has stored other bytes of this stream there, and has ended the upload resource. It would refuse the
    // same bytes again.
    case 409 where claimed == nil && namesStream(answer): return fail(.refused(status: answer.status))
    case 413:
      return shrink(refusedSize(sentUpTo - min(sentUpTo, append.start)), supply)
    case 307, 308: return redirected(answer)
    // The server refuses to complete a part, for example because it has lost bytes and has another length on record.
    // That part stays as it is, and the stream continues without it. The first 409 may be about the offset instead.
    case 409 where isConflict && append.endsPart && patience.detours <= Self.maximumDetours && isDenied(append.start):
      return detour(answer.status)
    case 400 where append.endsPart, 409 where append.endsPart && patience.detours > 0: return beginPart(supply)
    // Some servers answer 400 after an interruption. One server destroys an upload with its 409. So ask instead of
    // guessing.
    case 400, 409: return detour(answer.status)
    default: return isOutage(answer) ? wait(.offsetRetrieval) : fail(.refused(status: answer.status))
    }
  }

  /// Whether an answer follows the last byte of the stream and the request that completes the upload.
  private func isFinal(_ append: Append, _ answer: ClientAnswer, sentUpTo: UInt64, _ supply: Supply) -> Bool {
    append.completes && !append.endsPart && !answer.isEarly && sentUpTo == supply.head
  }

  /// Whether to send HEAD again after it reported everything as present and complete: its answer may have been
  /// corrupted on the way. Some servers forget a complete upload, and others answer with an error, but none reports
  /// fewer bytes of it.
  private mutating func denies(_ answer: ClientAnswer, _ append: Append) -> Bool {
    let hasLess = UploadFields.offset(answer.fields).map { base + $0 < append.start } ?? false
    let isIncomplete = answer.isSuccess && completeness(answer.fields) == false
    let isError = !answer.isSuccess && ![404, 410].contains(answer.status) && completeness(answer.fields) != true
    guard patience.denials < (hasLess || isIncomplete ? Self.maximumDenials : isError ? 1 : 0) else { return false }
    patience.denials += 1
    return true
  }

  mutating func retrieved(_ answer: ClientAnswer, _ supply: Supply) -> Action {
    noteLimits(answer.fields)
    switch answer.status {
    case 200..<300:
      guard let count = UploadFields.offset(answer.fields) else {
        patience.detours += 1
        return hasAcknowledged || patience.detours <= Self.maximumDetours ? wait(.offsetRetrieval) : fail(.noOffset)
      }
      return resynchronized(base + count, isComplete: completeness(answer.fields) == true, supply)
    case 410:
      // Not for 404: this upload was ended, not forgotten. The last append may have been answered by a portal.
      (resource.awaitsFinalResponse, resource.isFinalResponseUnproved) = (false, false)
      return gone(nil, 410, supply)
    case 404:
      // Early versions have no 410. The server reports that the upload which it ended was incomplete. If that field is
      // unreadable, its completeness is unknown.
      if completeness(answer.fields) == false || UploadFields.unreadable(answer.fields) != nil {
        (resource.awaitsFinalResponse, resource.isFinalResponseUnproved) = (false, false)
      }
      return gone(nil, 404, supply)
    case 307, 308: return redirected(answer)
    case 400, 409:
      patience.detours += 1
      return hasAcknowledged || patience.detours <= Self.maximumDetours
        ? wait(.offsetRetrieval) : fail(.noProgress(status: answer.status))
    default: return isOutage(answer) ? wait(.offsetRetrieval) : fail(.refused(status: answer.status))
    }
  }

  /// The server has reported its offset (section "Offset Retrieval").
  mutating func resynchronized(_ told: UInt64, isComplete: Bool, _ supply: Supply) -> Action {
    let claimed = isComplete ? told : resolved(told, supply)
    if let action = checkSurplus(claimed, supply) { return action }
    let supply = countingSurplus(supply)
    guard claimed <= (isComplete ? min(sent, supply.head) : believable(supply)) else {
      notes.append(.impossibleOffset(claimed))
      patience.disbelieved += 1
      // Ask once more, because an answer can be corrupted on its way.
      guard patience.disbelieved > 3 else { return wait(.offsetRetrieval) }
      // Unlike a stream, a file would be abandoned.
      if !isComplete, configuration.length != nil, acknowledged > base, let probe = probe(at: acknowledged) {
        return probe
      }
      // A live stream has bytes to save, whatever the server has stored there. The bytes of another process may have
      // been sent without being kept. The client does not send the rest again for that reason.
      if isResumed ? highWater.acknowledged > base : hasProgressed, configuration.length == nil {
        (parts.end, patience.disbelieved, resource.offset) = (.impossibleOffset, 0, acknowledged)
        return beginPart(supply)
      }
      let failure = ClientFailure.offsetBeyondSent(offset: claimed, sent: min(sent, supply.head))
      // Cancel the upload if it can be sent again. The bytes that a live stream has stored there are worth more than
      // nothing.
      return configuration.length == nil ? fail(failure) : abandon(failure)
    }
    prove()
    // If a new one was to replace it, its own offset decides again what is missing.
    parts.missing = nil
    judgeAppend(at: claimed)
    if sent == .max { sent = claimed }
    if claimed < acknowledged {
      // Ask once more here as well, because a break in the stream or duplicate bytes would follow.
      if patience.disbelieved == 0 {
        patience.disbelieved += 1
        return wait(.offsetRetrieval)
      }
      // Bytes that are no longer kept count as lost only if the upload resource itself confirms it. If parts are not
      // joined, the append that ends this one does so.
      if server.joinsParts, claimed < supply.oldest, !isComplete, let probe = probe(at: claimed) { return probe }
      notes.append(.serverWentBack(from: acknowledged, to: claimed))
      if claimed < supply.oldest {
        (acknowledged, resource.offset, patience.disbelieved) = (claimed, claimed, 0)
        return isComplete ? completedEarly(claimed, supply, .serverWentBack) : endPart(.serverWentBack, supply)
      }
      acknowledged = claimed
    }
    if resource.confirms, claimed == resource.offset { acknowledge(upTo: claimed) }
    (resource.offset, resource.confirms, resource.hasProbed) = (claimed, false, false)
    (patience.disbelieved, patience.missing) = (0, 0)
    resource.awaitsFinalResponse = isComplete
    if !isComplete { patience.denials = 0 }
    resource.isFinalResponseUnproved = resource.isFinalResponseUnproved && isComplete
    // Only now is it certain that the redirect leads to an upload.
    if let diversion = resource.diversion, diversion.isPermanent {
      (resource.url, resource.diversion) = (diversion.url, nil)
    }
    // This is progress, although no other answer has shown it.
    noteAdvance(to: claimed)
    guard isComplete else { return append(supply) }
    if supply.isFinished && claimed == supply.head {
      // The final response was lost. The server may repeat it (section "Upload Append").
      return send(Append(start: resource.offset, completes: true, isReplay: true), maximum: 0)
    }
    return completedEarly(claimed, supply)
  }

  /// The server requires larger appends than are possible, although it has accepted smaller ones. The client asks for
  /// its offset and its current limits.
  package mutating func forgetMinimumAppendSize() -> Action {
    server.limits.minimumAppendSize = nil
    return wait(.offsetRetrieval)
  }

  /// The answer to a cancellation. Only an answer of the protocol means that the server has removed the upload.
  mutating func cancelled(_ answer: ClientAnswer, _ reason: ClientFailure) -> Action {
    switch answer.status {
    case 307, 308:
      patience.detours += 1
      guard patience.detours <= Self.maximumDetours, let location = answer.location else { break }
      resource.diversion = (location, false)
      return abandon(reason)
    // A portal also answers 200.
    case 200..<300 where answer.status == 204 || InteropVersion.Named(answer.fields) != .absent, 404, 410:
      resource.isForgotten = true
    default: break
    }
    return fail(reason)
  }

  // MARK: Common to several answers

  mutating func complete(upTo end: UInt64) -> Action {
    acknowledge(upTo: end)
    state = .ended
    resource.isForgotten = true
    return .completed
  }

  /// The server has completed the upload before the stream's end. The stream continues in another one.
  mutating func completedEarly(_ end: UInt64, _ supply: Supply, _ reason: PartEnd = .completed) -> Action {
    // An upload cannot be complete before it contains all bytes of the file. An answer can be corrupted on its way, so
    // ask again.
    guard configuration.length == nil || hasAcknowledged, patience.detours < Self.maximumDetours else {
      return fail(.completedEarly)
    }
    patience.detours += 1
    if configuration.length != nil { return wait(.offsetRetrieval) }
    acknowledge(upTo: end)
    resource.offset = end
    parts.end = reason
    return endsInGap(supply) ? completeBeforeGap(supply) : beginPartInTime(supply)
  }

  /// The size of the content that a 413 has refused, as far as it is known.
  func refusedSize(_ sent: UInt64) -> UInt64 {
    // A file's size was announced, so the server refuses that size, however little was sent by then. For a stream, the
    // server knows only what was sent. Less than a buffer's worth is no evidence.
    configuration.length == nil ? min(appendMaximum ?? .max, max(sent, 64 << 10)) : appendMaximum ?? sent
  }

  /// 413: use smaller appends, by the server's limit or by trial.
  mutating func shrink(_ size: UInt64, _ supply: Supply) -> Action {
    patience.shrinks += 1
    let isSlow = storesLittle || patience.hasShrunkInVain
    if patience.shrinks > Self.maximumShrinks { return smallestIsRefused() }
    let smallest = max(1, server.limits.minimumAppendSize ?? 1)
    let allowed = server.limits.maximumAppendSize ?? .max
    if allowed >= size {
      // The limit is unknown or wrong, since an intermediary may have limits of its own.
      if size <= smallest { return smallestIsRefused() }
      let before = server.shrunkAppendSize ?? .max
      server.shrunkAppendSize = max(smallest, min(before / 2, size / 2))
      if server.limits.maximumAppendSize == nil, before == .max, server.version.hasLimits {
        discovery.asksForLimits = true
        return isSlow ? wait(.discovery) : discover()
      }
    }
    guard resource.url != nil else { return create(supply) }
    // Each byte that the server stores is progress, so the number of refusals is not limited.
    return isSlow ? wait(.offsetRetrieval) : retrieveOffset()
  }

  /// A 413 to an append that cannot be made smaller, such as one without bytes.
  private mutating func smallestIsRefused() -> Action {
    guard hasAcknowledged else { return fail(.appendTooLarge) }
    // The server has accepted bytes before, so the size is not the cause.
    (server.shrunkAppendSize, patience.shrinks, patience.hasShrunkInVain) = (nil, 0, true)
    return resource.url == nil ? creationFailed() : wait(.offsetRetrieval)
  }
}
