// How the client treats answers that have no meaning in the protocol, and an upload resource that seems to be gone.
//
// An answer need not come from the server. A proxy that is being reconfigured answers 404, a portal 302, a maintenance
// page 200. Once the server has acknowledged bytes, to this process or to the one whose upload it continues, such
// answers count as an outage: the client waits and asks again.

extension UploadClientStateMachine {
  /// Whether the server was seen to have bytes of this stream, or this process continues an upload that another one
  /// began.
  package var hasAcknowledged: Bool { hasProgressed || isResumed }

  /// Whether a response to this process has shown that the server has stored bytes of this stream.
  package var hasProgressed: Bool { highWater.shown > 0 }

  /// Whether to ask again after a pause. This includes a refusal: the caller decides how long to wait for its end.
  func isOutage(_ answer: ClientAnswer) -> Bool {
    answer.allowsRetry || isRefusal(answer) || hasAcknowledged
  }

  /// Whether the server joins the parts of the stream, as far as is known.
  package var joinsParts: Bool { server.joinsParts }

  /// Whether the caller limits the time of refusals before the first acknowledged byte.
  package var retriesRefusals: Bool { configuration.retriesRefusals }

  /// Whether an answer refuses the upload for a reason that may change: other credentials, or before the first
  /// acknowledged byte, another server behind a portal.
  package func isRefusal(_ answer: ClientAnswer) -> Bool {
    answer.isRefusal || configuration.retriesRefusals && !hasAcknowledged && answer.isVagueRefusal
  }

  /// Whether an answer that ends the upload may be followed by a better one: it does not follow the protocol, or does
  /// not speak of it.
  func mayPass(_ failure: ClientFailure, _ answer: ClientAnswer) -> Bool {
    switch failure {
    case .noLocation, .insecureLocation, .noOffset: true
    case .refused, .noProgress, .completedEarly: answer.isForeign
    case .cancelled, .processingFailed, .offsetBeyondSent, .locationChanged, .tooLarge, .limitTooSmall,
      .limitsContradict, .appendTooLarge:
      false
    }
  }

  /// Repeats a creation, or asks for the offset again, although the last answer ended the upload. The caller limits the
  /// time of such answers.
  ///
  /// - Parameter before: the state before that answer.
  mutating func tolerate(_ failure: ClientFailure, _ before: UploadClientStateMachine) -> Action {
    let action: Action
    switch before.state {
    case .creating:
      self = before
      action = creationFailed()
    case .appending, .retrievingOffset:
      self = before
      resource.doubt(.answer)
      action = wait(.offsetRetrieval)
    case .idle, .discovering, .ready, .interrupted, .cancelling, .ended: return .fail(failure)
    }
    toleratedFailure = failure
    return action
  }

  /// Asks for the offset: at once as a rule, after a pause if earlier attempts led nowhere, or not far.
  mutating func detour(_ status: Int) -> Action {
    patience.detours += 1
    if patience.detours <= Self.immediateDetours, !storesLittle { return retrieveOffset() }
    if patience.detours <= Self.maximumDetours || hasAcknowledged { return wait(.offsetRetrieval) }
    return fail(.noProgress(status: status))
  }

  /// 307 is temporary. 308 counts as permanent once an upload is found there.
  mutating func redirected(_ answer: ClientAnswer) -> Action {
    guard let location = answer.location else {
      if hasAcknowledged { return wait(.offsetRetrieval) }
      return fail(answer.isLocationInsecure ? .insecureLocation : .noLocation)
    }
    resource.diversion = (location, answer.status == 308)
    patience.detours += 1
    // Asking for the offset must not become a detour that waits, because waiting leads back to the first URL.
    if patience.detours <= Self.maximumDetours { return followInTime() }
    return hasAcknowledged ? wait(.offsetRetrieval) : fail(.noProgress(status: answer.status))
  }

  /// Uses POST for the creation if the server accepts it but not the user's method. Returns false if nothing changes.
  @discardableResult
  mutating func noteMethods(_ answer: ClientAnswer) -> Bool {
    let allowed = answer.allowedMethods
    guard server.creationMethod == nil, let method = configuration.replaceableMethod, allowed.contains("POST"),
      !allowed.contains(where: { $0 == method })
    else { return false }
    server.creationMethod = "POST"
    return true
  }

  /// 404 or 410: the upload resource no longer exists.
  mutating func gone(_ append: Append?, _ status: Int, _ supply: Supply) -> Action {
    judgeAppend(at: acknowledged)
    let confirmations = status == 404 ? 2 : patience.detours > Self.immediateDetours ? 1 : 0
    if hasAcknowledged, patience.missing < confirmations {
      patience.missing += 1
      return wait(.offsetRetrieval)
    }
    // Some servers forget an upload as soon as it is complete. It is complete if the client asked to complete it and
    // every byte is acknowledged. An upload that the client never asked to complete is lost.
    let end = countingSurplus(supply).head
    let hasAll = acknowledged == end || isResumed && resource.offset == end
    if append == nil, resource.awaitsFinalResponse && hasAll || resource.isFinalResponseUnproved, supply.isFinished {
      return complete(upTo: end)
    }
    patience.detours += 1
    // Only the end of a finished live stream is refused then, so no byte is at stake.
    let isOnlyTheEnd = configuration.length == nil && supply.isFinished && acknowledged == supply.head
    let isStuck = !hasProgressed || isOnlyTheEnd && patience.restarts >= Self.maximumDetours
    // A portal may have named an upload resource that never existed. Then the caller limits the time.
    let mayBeFalse = retriesRefusals && !hasAcknowledged && !resource.isProven
    if patience.detours > Self.maximumDetours, isStuck {
      guard mayBeFalse else { return fail(.noProgress(status: status)) }
      // Otherwise, the next creation and its append would follow without a pause, and perhaps for ever.
      if append != nil {
        toleratedFailure = .noProgress(status: status)
        return wait(.offsetRetrieval)
      }
    }
    if !resource.isProven, !parts.former.isEmpty { return returnToFormer() }
    if hasProgressed { parts.former = [self] }
    patience.restarts += 1
    highWater.sinceRestart = 0
    parts.end = .gone
    return beginPartInTime(supply)
  }
}
