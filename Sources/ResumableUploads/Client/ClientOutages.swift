// What the client makes of answers that the protocol has no meaning for, and of an upload resource that seems to be
// gone.
//
// Who answers need not be the server. A proxy that is set up anew answers 404, a portal 302, a maintenance page 200.
// Once the server has acknowledged bytes, to this process or to the one whose upload this one continues, such answers
// are an outage: the client waits and asks again.

extension UploadClientStateMachine {
  /// Whether the server was seen to have bytes of this stream, or a process that saw it has left its upload.
  package var hasAcknowledged: Bool { hasProgressed || isResumed }

  /// Whether the server was seen to have bytes of this stream by this process.
  package var hasProgressed: Bool { furthest > 0 }

  /// Whether to ask again after a pause. A refusal is one, too: how long to wait for other credentials is not decided
  /// here.
  func isOutage(_ answer: ClientAnswer) -> Bool {
    answer.allowsRetry || answer.isRefusal || hasAcknowledged
  }

  /// The upload resource's URL, or where it is at the moment.
  var currentURL: String? { diversion?.url ?? uploadURL }

  /// Asks where the server stands: at once as a rule, after a pause where that leads nowhere.
  mutating func detour(_ status: Int) -> Action {
    detours += 1
    if detours <= Self.immediateDetours { return retrieveOffset() }
    if detours <= Self.maximumDetours || hasAcknowledged { return wait(.offsetRetrieval) }
    return fail(.noProgress(status: status))
  }

  /// 307 is for the time being. 308 is believed once an upload is found there.
  mutating func redirected(_ answer: ClientAnswer) -> Action {
    guard let location = answer.location else {
      if hasAcknowledged { return wait(.offsetRetrieval) }
      return fail(answer.isLocationInsecure ? .insecureLocation : .noLocation)
    }
    diversion = (location, answer.status == 308)
    detours += 1
    // The way there is no detour that may wait: waiting leads back to the first URL.
    if detours <= Self.maximumDetours { return retrieveOffset() }
    return hasAcknowledged ? wait(.offsetRetrieval) : fail(.noProgress(status: answer.status))
  }

  /// Takes POST for the creation where the server takes it and not the user's method; false if nothing changes.
  @discardableResult
  mutating func noteMethods(_ answer: ClientAnswer) -> Bool {
    let allowed = answer.allowedMethods
    guard creationMethod == nil, let method = configuration.replaceableMethod, allowed.contains("POST"),
      !allowed.contains(where: { $0 == method })
    else { return false }
    creationMethod = "POST"
    return true
  }

  /// 404 or 410: the upload resource is no more.
  mutating func gone(_ append: Append?, _ status: Int, _ supply: Supply) -> Action {
    let confirmations = status == 404 ? 2 : detours > Self.immediateDetours ? 1 : 0
    if hasAcknowledged, missing < confirmations {
      missing += 1
      return wait(.offsetRetrieval)
    }
    // Some servers forget an upload as soon as it is complete. It is if it was asked to be and all of it is
    // acknowledged; one that was never asked to be has lost it.
    let end = countingSurplus(supply).head
    let hasAll = acknowledged == end || isResumed && offset == end
    if append == nil, awaitsFinalResponse && hasAll || isFinalResponseUnproved, supply.isFinished {
      return complete(upTo: end)
    }
    detours += 1
    // Of a live stream that has ended, only the end itself is refused then: no byte is at stake.
    let isOnlyTheEnd = configuration.length == nil && supply.isFinished && acknowledged == supply.head
    if detours > Self.maximumDetours, !hasProgressed || isOnlyTheEnd && restarts >= Self.maximumDetours {
      return fail(.noProgress(status: status))
    }
    if !isProven, !former.isEmpty { return returnToFormer() }
    if hasProgressed { former = [self] }
    restarts += 1
    furthestSinceRestart = 0
    partEnd = .gone
    return beginPart(supply)
  }
}
