// What each answer means to the client, state by state.

internal import HTTPMessages

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
        if let announced, announced != location {
          if !hasAcknowledged { return .locationChanged }
        } else {
          announced = location
          take(location: location)
          noteStream(answer.fields)
        }
      }
      // As long as nobody has said where the upload goes on, a lost connection means all of it once more.
      if announced != nil { noteProgress(answer.fields, sentUpTo: sentUpTo) }
    case .appending: noteProgress(answer.fields, sentUpTo: sentUpTo)
    default: break
    }
    // Behind where the upload is: there it is to be cancelled.
    return exceededLimit
  }

  /// Whether the creation under way carries more than the server takes in one request: to be broken off, for the upload
  /// to go on in smaller ones (`max-append-size`, section "Limits").
  package var exceedsAppendSize: Bool {
    guard state == .creating, isOptimistic, announced != nil, let size = limits.maximumAppendSize else { return false }
    return configuration.length.map { $0 - min(base, $0) > size } ?? false
  }

  func speaksVersion(_ fields: HeaderFields) -> Bool {
    switch InteropVersion.Named(fields) {
    case .absent: version.number == nil
    case .known(let named): named == version
    case .unknown: false
    }
  }

  mutating func noteLimits(_ fields: HeaderFields) {
    guard version.hasLimits, let newer = UploadLimits(fields, version: version) else { return }
    limits = limits.updated(by: newer)
    forgetImpossibleSize()
    toldLifetime = newer.maximumAge ?? toldLifetime
  }

  /// A limit is not true if the upload resource has more already.
  mutating func forgetImpossibleSize() {
    if let size = limits.maximumSize, size < acknowledged - min(base, acknowledged) { limits.maximumSize = nil }
  }

  /// What an answer says about completeness, by this version's field or by the other: SwiftNIO's final responses have
  /// `Upload-Incomplete` where the version says `Upload-Complete`, and the other way round.
  func completeness(_ fields: HeaderFields) -> Bool? {
    version.completeness(fields)
      ?? InteropVersion.drafts.first { $0.invertsCompleteness != version.invertsCompleteness }?.completeness(fields)
  }

  mutating func noteStream(_ fields: HeaderFields) {
    if let streamID = configuration.streamID { joinsParts = fields["Stream-ID"] == streamID }
  }

  /// `Upload-Offset` in an interim response: these bytes will not be needed again.
  mutating func noteProgress(_ fields: HeaderFields, sentUpTo: UInt64) {
    guard let count = UploadFields.offset(fields) else { return }
    // What this request has not sent cannot have arrived, since the server had no more when it began; its end, or the
    // next HEAD, will show what is true.
    if base + count <= sentUpTo {
      // In a creation, it is the target that says so.
      if state != .creating { prove() }
      acknowledge(upTo: base + count)
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
    switch state {
    case .discovering: return discovered(answer, supply)
    case .creating: return created(answer, sentUpTo: sentUpTo, supply)
    case .appending(let append):
      doubt(answer)
      return appended(append, answer, sentUpTo: sentUpTo, supply)
    case .retrievingOffset:
      doubt(answer)
      return retrieved(answer, supply)
    case .cancelling: return cancelled(answer)
    case .idle, .ready, .interrupted, .ended: return .none
    }
  }

  mutating func discovered(_ answer: ClientAnswer, _ supply: Supply) -> Action {
    noteMethods(answer)
    let named = InteropVersion.Named(answer.fields)
    // A target that knows no OPTIONS itself may be wrapped by something that adds the limits to what it says.
    let found = [200, 204, 404, 405].contains(answer.status) ? UploadLimits(answer.fields, version: version) : nil
    if let found {
      limits = limits.updated(by: found)
      isVersionSettled = true
    }
    if asksForLimits {
      asksForLimits = false
      return uploadURL == nil ? create(supply) : retrieveOffset()
    }
    if found != nil || (answer.isSuccess && named == .known(version)) {
      isOffered = true
      return create(supply)
    }
    if answer.status == 500, !isVersionSettled {
      // An outage, or what a plain server makes of OPTIONS: that it would say each time.
      refusedQuestions += 1
      if refusedQuestions > 2 { return unsupported("it answers OPTIONS with 500 each time", or: .refused(status: 500)) }
    }
    if answer.allowsRetry { return wait(.discovery) }
    // 403 may be about OPTIONS alone: the request itself will tell.
    if answer.isRefusal, answer.status != 403 { return wait(.discovery) }
    if speaksOfVersions(answer) || answer.status == 412, stepDown(to: named) { return discoverOrCreate(supply) }
    // A server that knows the target says what it allows; a portal, or a proxy that is set up anew, does not. A stream
    // that is plain by mistake loses bytes with each connection.
    if answer.fields["Allow"] == nil, !hasAskedTwice {
      hasAskedTwice = true
      return discover()
    }
    return unsupported(
      "it does not offer them (OPTIONS is answered \(answer.status), without Upload-Limit)",
      or: .refused(status: answer.status))
  }

  /// Whether an answer names a version, or shows a server that knows older ones: the protocol of tus 1.0 answers for it
  /// then.
  func speaksOfVersions(_ answer: ClientAnswer) -> Bool {
    [InteropVersion.fieldName, "Tus-Version", "Tus-Resumable"].contains { answer.fields.contains($0) }
  }

  /// Goes to the version that the server named, or to the next older one; false when there is none left.
  mutating func stepDown(to named: InteropVersion.Named) -> Bool {
    guard !isVersionSettled || namesOlder(named), let older = version.older else { return false }
    var next = older
    // Only downwards: so that it ends.
    if case .known(let wanted) = named, let number = wanted.number, number < version.number ?? .max { next = wanted }
    version = next
    notes.append(.steppedDown(to: next))
    return true
  }

  /// Whether the answer to a creation may be about its version.
  private func maySpeakOlder(_ answer: ClientAnswer) -> Bool {
    !isVersionSettled || namesOlder(InteropVersion.Named(answer.fields))
  }

  /// Whether a server names a version below the client's before it has created anything: its answer to OPTIONS, which
  /// is much the same in all of them, has settled nothing then.
  private func namesOlder(_ named: InteropVersion.Named) -> Bool {
    guard !hasCreated, case .known(let wanted) = named, let number = wanted.number else { return false }
    return number < version.number ?? .max
  }

  /// For want of resumable uploads the stream goes elsewhere as a whole, unless the server has a part of it already.
  private mutating func unsupported(_ reason: String, or failure: ClientFailure) -> Action {
    // It did support them: something in front of it answers in its place.
    if hasAcknowledged { return state == .discovering ? wait(.discovery) : creationFailed() }
    guard configuration.length != nil || max(base, acknowledged) == 0 else { return fail(failure) }
    state = .ended
    return .unsupported(reason)
  }

  /// Whether the server may refuse resumability because there is too little to be uploaded, or perhaps too little
  /// (`min-size`, section "Limits").
  private var isBelowMinimum: Bool {
    guard let minimum = limits.minimumSize, minimum > 0, !isOptimistic, configuration.discovers else { return false }
    return configuration.length ?? 0 < minimum
  }

  mutating func created(_ answer: ClientAnswer, sentUpTo: UInt64, _ supply: Supply) -> Action {
    let completeness = completeness(answer.fields)
    noteLimits(answer.fields)
    switch answer.status {
    case 200..<300:
      let isUnreadable = UploadFields.unreadable(answer.fields) != nil
      if isOptimistic, completeness != false {
        // What cannot be read is not silence, and may say that bytes are missing: HEAD decides.
        if isUnreadable {
          if let location = announced ?? answer.location {
            take(location: location)
            return detour(answer.status)
          }
          if hasAcknowledged { return creationFailed() }
          return fail(answer.isLocationInsecure ? .insecureLocation : .noLocation)
        }
        let claimed = UploadFields.offset(answer.fields).map { base + $0 }
        // The server that announced the upload resource speaks the protocol: an answer without a word of it is a
        // portal's as likely as the target's, and HEAD decides.
        if let announced, completeness == nil, claimed == nil, InteropVersion.Named(answer.fields) != .known(version) {
          take(location: announced)
          isFinalResponseUnproved = !answer.isEarly && sentUpTo == supply.head
          return detour(answer.status)
        }
        let end = claimed ?? (answer.isEarly ? base : sentUpTo)
        // A server that has spoken the protocol says where the upload is, or that it is complete.
        if hasAcknowledged, completeness == nil, claimed == nil, answer.location ?? announced == nil {
          return creationFailed()
        }
        if supply.isFinished, end == supply.head, end <= sentUpTo { return complete(upTo: end) }
        // Who tells an offset and where the upload is does not mean a target that has everything.
        let resource = announced ?? (completeness == nil && claimed != nil ? answer.location : nil)
        guard completeness == nil || hasAcknowledged, let resource else {
          return hasAcknowledged && completeness == nil ? creationFailed() : fail(.completedEarly)
        }
        // It has not said that it wants no more, or has acknowledged less than that.
        take(location: resource)
        return detour(answer.status)
      }
      if completeness == true { return hasAcknowledged ? creationFailed() : fail(.completedEarly) }
      if let announced, let location = answer.location, announced != location {
        return hasAcknowledged ? creationFailed() : abandon(.locationChanged)
      }
      guard let location = answer.location ?? announced else {
        if hasAcknowledged { return creationFailed() }
        if answer.isLocationInsecure { return fail(.insecureLocation) }
        // A server that has offered resumable uploads does not take them for plain ones: a portal answers in its place,
        // or a proxy that is set up anew. A stream that is plain by mistake loses bytes with each connection.
        if isOffered, plainAnswers < Self.mostPlainAnswers {
          plainAnswers += 1
          return creationFailed()
        }
        return configuration.discovers
          ? unsupported("it treated an empty upload as a complete one", or: .noLocation) : fail(.noLocation)
      }
      isVersionSettled = true
      take(location: location)
      noteStream(answer.fields)
      // Not taken for granted: what it says, if it says anything but nothing.
      if isOptimistic || isUnreadable || (UploadFields.offset(answer.fields) ?? 0) != 0 { return retrieveOffset() }
      return append(supply)
    case _ where completeness == true: return fail(.refused(status: answer.status))
    case 400 where announced != nil, 409 where announced != nil, 410 where announced != nil:
      // There was an upload until something came between: so some servers call an interruption. Whether it still
      // exists, HEAD decides, as it does after an append.
      _ = creationIsLost()
      return detour(answer.status)
    case 400 where maySpeakOlder(answer), 412 where maySpeakOlder(answer), 501 where maySpeakOlder(answer):
      // Not with all of it in each attempt, unless the answer says that it is a matter of versions.
      guard !isOptimistic || answer.status == 412 || speaksOfVersions(answer) else { break }
      if stepDown(to: InteropVersion.Named(answer.fields)) { return create(supply) }
      return unsupported(
        "it supports no known version of the protocol (it answered the creation with \(answer.status))",
        or: .refused(status: answer.status))
    case 400 where isBelowMinimum, 411 where isBelowMinimum, 422 where isBelowMinimum:
      return unsupported(
        "it requires uploads of at least \(limits.minimumSize ?? 0) bytes, and of known length",
        or: .refused(status: answer.status))
    case 413:
      if let failure = exceededLimit { return abandon(failure) }
      guard isOptimistic else { return hasAcknowledged ? creationFailed() : fail(.refused(status: 413)) }
      // In parts, then, with care.
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
