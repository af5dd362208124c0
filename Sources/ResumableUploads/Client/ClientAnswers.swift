// What each answer means to the client, state by state.

internal import HTTPMessages

extension UploadClientStateMachine {
  // MARK: Interim responses

  /// A 1xx response to the request under way. Returns the reason to abort the request, or nil.
  package mutating func received(interim answer: ClientAnswer, sentUpTo: UInt64) -> ClientFailure? {
    sent = max(sent, sentUpTo)
    // A client must ignore anything but a 104 of its own version (appendix "Draft Version Identification").
    guard answer.status == UploadFields.resumptionSupported, speaksVersion(answer.fields) else { return nil }
    server.isVersionSettled = true
    noteLimits(answer.fields)
    switch state {
    case .creating:
      resource.hasInterim = true
      if let location = answer.location {
        if let announced = resource.announced, announced != location {
          if !hasAcknowledged { return .locationChanged }
        } else {
          resource.announced = location
          take(location: location)
          noteStream(answer.fields)
        }
      }
      // Until the upload resource is announced, a lost connection means that everything must be sent again.
      if resource.announced != nil { noteProgress(answer.fields, sentUpTo: sentUpTo) }
    case .appending: noteProgress(answer.fields, sentUpTo: sentUpTo)
    default: break
    }
    // The upload resource already exceeds the limit, so it must be cancelled there.
    return exceededLimit
  }

  /// Whether the creation under way carries more than the server accepts in one request. It must then be aborted, and
  /// the upload continues in smaller requests (`max-append-size`, section "Limits").
  package var exceedsAppendSize: Bool {
    guard state == .creating, isOptimistic, resource.announced != nil, let size = server.limits.maximumAppendSize else {
      return false
    }
    return configuration.length.map { $0 - min(base, $0) > size } ?? false
  }

  func speaksVersion(_ fields: HeaderFields) -> Bool {
    switch InteropVersion.Named(fields) {
    case .absent: server.version.number == nil
    case .known(let named): named == server.version
    case .unknown: false
    }
  }

  mutating func noteLimits(_ fields: HeaderFields) {
    guard server.version.hasLimits, let newer = UploadLimits(fields, version: server.version) else { return }
    server.note(limits: newer)
    forgetImpossibleSize()
  }

  /// Discards a size limit that the upload resource already exceeds.
  mutating func forgetImpossibleSize() {
    guard let size = server.limits.maximumSize, size < acknowledged - min(base, acknowledged) else { return }
    server.limits.maximumSize = nil
  }

  /// What an answer reports about completeness, in this version's field or in the other one. SwiftNIO's final responses
  /// have `Upload-Incomplete` where the version requires `Upload-Complete`, and the reverse.
  func completeness(_ fields: HeaderFields) -> Bool? {
    let version = server.version
    return version.completeness(fields)
      ?? InteropVersion.drafts.first { $0.invertsCompleteness != version.invertsCompleteness }?.completeness(fields)
  }

  mutating func noteStream(_ fields: HeaderFields) {
    if let streamID = configuration.streamID { server.joinsParts = fields["Stream-ID"] == streamID }
  }

  /// `Upload-Offset` in an interim response: the bytes before it need not be kept.
  mutating func noteProgress(_ fields: HeaderFields, sentUpTo: UInt64) {
    guard let count = UploadFields.offset(fields) else { return }
    // The server had stored no more bytes than the client knew when this request began, so bytes that the request has
    // not sent cannot have arrived. The final response or the next HEAD shows the true offset.
    if base + count <= sentUpTo {
      // During a creation, the target reports the offset. That proves nothing about the upload resource.
      if state != .creating { prove() }
      acknowledge(upTo: base + count)
      noteInterimAdvance()
    } else {
      notes.append(.impossibleOffset(base + count))
    }
  }

  // MARK: Final responses

  /// The request under way has its final response.
  ///
  /// - Parameter sentUpTo: stream offset up to which content was handed over in this request.
  package mutating func answered(_ answer: ClientAnswer, sentUpTo: UInt64, _ supply: Supply) -> Action {
    sent = max(sent, sentUpTo)
    toleratedFailure = nil
    guard configuration.retriesRefusals, !hasAcknowledged else {
      return judged(answer, sentUpTo: sentUpTo, supply)
    }
    let before = self
    let action = judged(answer, sentUpTo: sentUpTo, supply)
    if case .fail(let failure) = action, mayPass(failure, answer) { return tolerate(failure, before) }
    return action
  }

  private mutating func judged(_ answer: ClientAnswer, sentUpTo: UInt64, _ supply: Supply) -> Action {
    switch state {
    case .discovering: return discovered(answer, supply)
    case .creating: return created(answer, sentUpTo: sentUpTo, supply)
    case .appending(let append):
      noteDoubt(answer)
      resource.answeredAppend = append.start < sentUpTo ? append.start..<sentUpTo : nil
      return appended(append, answer, sentUpTo: sentUpTo, supply)
    case .retrievingOffset:
      noteDoubt(answer)
      return retrieved(answer, supply)
    case .cancelling(let reason): return cancelled(answer, reason)
    case .idle, .ready, .interrupted, .ended: return .none
    }
  }

  mutating func discovered(_ answer: ClientAnswer, _ supply: Supply) -> Action {
    noteMethods(answer)
    let named = InteropVersion.Named(answer.fields)
    // Something in front of the target may add the limits to its answer even if the target itself does not support
    // OPTIONS.
    let mayHaveLimits = [200, 204, 404, 405].contains(answer.status)
    let found = mayHaveLimits ? UploadLimits(answer.fields, version: server.version) : nil
    if let found {
      server.limits = server.limits.updated(by: found)
      server.isVersionSettled = true
    }
    if discovery.asksForLimits {
      discovery.asksForLimits = false
      return resource.url == nil ? create(supply) : retrieveOffset()
    }
    if found != nil || (answer.isSuccess && named == .known(server.version)) {
      discovery.isOffered = true
      return create(supply)
    }
    if answer.status == 500, !server.isVersionSettled {
      // Either an outage, or a plain server that answers every OPTIONS like this.
      discovery.refusedQuestions += 1
      if discovery.refusedQuestions > 2 {
        return unsupported("it answers OPTIONS with 500 each time", or: .refused(status: 500))
      }
    }
    if answer.allowsRetry { return wait(.discovery) }
    // 403 may apply to OPTIONS alone, so the upload request itself decides.
    if answer.isRefusal, answer.status != 403 { return wait(.discovery) }
    // A server that the URL does not lead to yet. Any other refusal may be that of a plain server.
    if (300..<400).contains(answer.status), isRefusal(answer) { return wait(.discovery) }
    if blamesVersion(answer), stepDown(to: named) { return discoverOrCreate(supply) }
    // A server that knows the target names the allowed methods. A portal or a proxy that is being reconfigured does
    // not. A stream that is taken for a plain upload by mistake loses bytes with each connection.
    if answer.fields["Allow"] == nil, !discovery.hasAskedTwice {
      discovery.hasAskedTwice = true
      return discover()
    }
    return unsupported(
      "it does not offer them (OPTIONS is answered \(answer.status), without Upload-Limit)",
      or: .refused(status: answer.status))
  }

  /// Whether an answer names a version, or comes from a server that supports only older ones. Such a server may answer
  /// with the protocol of tus 1.0.
  func speaksOfVersions(_ answer: ClientAnswer) -> Bool {
    [InteropVersion.fieldName, "Tus-Version", "Tus-Resumable"].contains { answer.fields.contains($0) }
  }

  /// Whether an answer gives the version as its reason. A server of tus 1.0 may add no field to its 412. If the
  /// user has set a condition, the status may mean that instead.
  private func blamesVersion(_ answer: ClientAnswer) -> Bool {
    speaksOfVersions(answer) || answer.status == 412 && !configuration.hasCondition
  }

  /// Changes to the version that the server named, or to the next older one. Returns false when there is none left.
  mutating func stepDown(to named: InteropVersion.Named) -> Bool {
    guard !server.isVersionSettled || namesOlder(named), let older = server.version.older else { return false }
    var next = older
    // Only to an older version, so that this ends.
    if case .known(let wanted) = named, let number = wanted.number, number < server.version.number ?? .max {
      next = wanted
    }
    server.version = next
    notes.append(.steppedDown(to: next))
    return true
  }

  /// Whether the answer to a creation may be about its version.
  private func maySpeakOlder(_ answer: ClientAnswer) -> Bool {
    !server.isVersionSettled || namesOlder(InteropVersion.Named(answer.fields))
  }

  /// Whether a server names a version below the client's before it has created anything. The answers to OPTIONS are
  /// nearly the same in all versions, so they do not settle the version.
  private func namesOlder(_ named: InteropVersion.Named) -> Bool {
    guard !server.hasCreated, case .known(let wanted) = named, let number = wanted.number else { return false }
    return number < server.version.number ?? .max
  }

  /// Without resumable uploads, the stream is sent elsewhere as a whole, unless the server already has a part of it.
  private mutating func unsupported(_ reason: String, or failure: ClientFailure) -> Action {
    // The server has supported resumable uploads before, so something in front of it answers in its place.
    if hasAcknowledged { return state == .discovering ? wait(.discovery) : creationFailed() }
    guard configuration.length != nil || acknowledged == 0 else { return fail(failure) }
    state = .ended
    return .unsupported(reason)
  }

  /// Whether the server may refuse resumability because the representation is too small, or possibly too small
  /// (`min-size`, section "Limits").
  private var isBelowMinimum: Bool {
    guard let minimum = server.limits.minimumSize, !isOptimistic, configuration.discovers else {
      return false
    }
    return configuration.length ?? 0 < minimum
  }

  /// A 2xx to a creation with everything has no field of the protocol, which is required. HEAD decides about a
  /// `Location`, which may be an upload resource.
  private mutating func createdSilently(_ answer: ClientAnswer) -> Action {
    guard let location = answer.location else {
      if hasAcknowledged { return creationFailed() }
      return fail(answer.isLocationInsecure ? .insecureLocation : .noLocation)
    }
    // If it is none, do not send everything again without knowing the upload resource.
    isOptimistic = false
    take(location: location)
    return detour(answer.status)
  }

  mutating func created(_ answer: ClientAnswer, sentUpTo: UInt64, _ supply: Supply) -> Action {
    let completeness = completeness(answer.fields)
    noteLimits(answer.fields)
    switch answer.status {
    case 200..<300:
      let isUnreadable = UploadFields.unreadable(answer.fields) != nil
      if isOptimistic, completeness != false {
        // An unreadable field is not a missing one, and may report missing bytes. HEAD decides.
        if isUnreadable {
          if let location = resource.announced ?? answer.location {
            take(location: location)
            return detour(answer.status)
          }
          if hasAcknowledged { return creationFailed() }
          return fail(answer.isLocationInsecure ? .insecureLocation : .noLocation)
        }
        let claimed = UploadFields.offset(answer.fields).map { base + $0 }
        let isSilent =
          completeness == nil && claimed == nil && InteropVersion.Named(answer.fields) != .known(server.version)
        // The server that announced the upload resource supports the protocol. An answer without any of its fields may
        // as well come from a portal, so HEAD decides.
        if resource.announced != nil, isSilent {
          resource.isFinalResponseUnproved = !answer.isEarly && sentUpTo == supply.head
          return detour(answer.status)
        }
        // Without the protocol, a 206 does not confirm that the server has everything.
        if !ConfirmingStatus.contains(answer.status), !answer.isEarly, isSilent {
          return isOutage(answer) ? creationFailed() : fail(.refused(status: answer.status))
        }
        // A portal answers like this as well, and has stored nothing.
        if configuration.requiresProtocol, isSilent, !resource.hasInterim { return createdSilently(answer) }
        let end = claimed ?? (answer.isEarly ? base : sentUpTo)
        // A server that has used the protocol before names the upload resource or reports that it is complete.
        if hasAcknowledged, completeness == nil, claimed == nil, answer.location ?? resource.announced == nil {
          return creationFailed()
        }
        if supply.isFinished, end == supply.head, end <= sentUpTo { return complete(upTo: end) }
        // An answer that reports an offset and names the upload resource does not mean that the target has everything.
        let url = resource.announced ?? (completeness == nil && claimed != nil ? answer.location : nil)
        guard completeness == nil || hasAcknowledged, let url else {
          if hasAcknowledged, completeness == nil { return creationFailed() }
          return fail(end > sentUpTo ? .offsetBeyondSent(offset: end, sent: sentUpTo) : .completedEarly)
        }
        // The server has not reported completion, or has acknowledged less than everything.
        take(location: url)
        return detour(answer.status)
      }
      if completeness == true { return hasAcknowledged ? creationFailed() : fail(.completedEarly) }
      if let announced = resource.announced, let location = answer.location, announced != location {
        return hasAcknowledged ? creationFailed() : abandon(.locationChanged)
      }
      guard let location = answer.location ?? resource.announced else {
        if hasAcknowledged { return creationFailed() }
        if answer.isLocationInsecure { return fail(.insecureLocation) }
        // A server that has offered resumable uploads does not treat one as a plain upload. A portal answers in its
        // place, or a proxy that is being reconfigured. A stream that is taken for a plain upload by mistake loses
        // bytes with each connection.
        if discovery.isOffered, discovery.plainAnswers < Self.mostPlainAnswers {
          discovery.plainAnswers += 1
          return creationFailed()
        }
        return configuration.discovers
          ? unsupported("it treated an empty upload as a complete one", or: .noLocation) : fail(.noLocation)
      }
      server.isVersionSettled = true
      take(location: location)
      noteStream(answer.fields)
      // The upload is not assumed to exist after an optimistic creation. An offset other than 0 needs a HEAD.
      if isOptimistic || isUnreadable || (UploadFields.offset(answer.fields) ?? 0) != 0 { return retrieveOffset() }
      return append(supply)
    case _ where completeness == true: return fail(.refused(status: answer.status))
    case 400 where resource.announced != nil, 409 where resource.announced != nil, 410 where resource.announced != nil:
      // Some servers use this status for an interruption. HEAD decides whether the upload still exists, as after an
      // append.
      return detour(answer.status)
    case 400 where maySpeakOlder(answer), 412 where maySpeakOlder(answer), 501 where maySpeakOlder(answer):
      // Do not send everything in each attempt, unless the answer blames the version.
      guard blamesVersion(answer) || !isOptimistic && answer.status != 412 else { break }
      if stepDown(to: InteropVersion.Named(answer.fields)) { return create(supply) }
      // A plain upload is no alternative, and the answers need not have been about the versions.
      if !configuration.discovers, !blamesVersion(answer), isRefusal(answer) {
        server.version = configuration.version
        return creationFailed()
      }
      return unsupported(
        "it supports no known version of the protocol (it answered the creation with \(answer.status))",
        or: .refused(status: answer.status))
    case 400 where isBelowMinimum, 411 where isBelowMinimum, 422 where isBelowMinimum:
      return unsupported(
        "it requires uploads of at least \(server.limits.minimumSize ?? 0) bytes, and of known length",
        or: .refused(status: answer.status))
    case 413:
      if let failure = exceededLimit { return abandon(failure) }
      guard isOptimistic else { return hasAcknowledged ? creationFailed() : fail(.refused(status: 413)) }
      // From now on in parts, and without optimism.
      isOptimistic = false
      appendMaximum = max(supply.head, configuration.length ?? 0) - base
      return shrink(refusedSize(sentUpTo - min(sentUpTo, base)), supply)
    case 405 where noteMethods(answer): return create(supply)
    case 409: if let action = placeRefused(answer, supply) { return action }
    default: break
    }
    return isOutage(answer) ? creationFailed() : fail(.refused(status: answer.status))
  }
}
