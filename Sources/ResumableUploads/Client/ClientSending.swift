// What the client sends: it asks, creates, appends, and continues in another upload resource when one ends before the
// stream.

internal import HTTPMessages

extension UploadClientStateMachine {
  // MARK: Requests

  /// In versions without limits, an answer to OPTIONS cannot show support.
  mutating func discoverOrCreate(_ supply: Supply) -> Action { server.version.hasLimits ? discover() : create(supply) }

  mutating func discover() -> Action {
    state = .discovering
    // Without Upload-Complete, because that would make it a creation (section "Limits").
    return .send(request(.discovery, content: .absent))
  }

  mutating func retrieveOffset() -> Action {
    guard let url = resource.currentURL else { return fail(.noLocation) }
    state = .retrievingOffset
    return .send(request(.offsetRetrieval, url: url, content: .absent))
  }

  /// The limit that an upload of known length exceeds; nil if it exceeds none.
  var exceededLimit: ClientFailure? {
    guard let size = server.limits.maximumSize, let length = configuration.length,
      length - min(base, length) > size
    else { return nil }
    return .tooLarge(limit: size)
  }

  mutating func create(_ supply: Supply) -> Action {
    skipMissing(supply)
    if let failure = exceededLimit { return fail(failure) }
    state = .creating
    resource = Resource(offset: base)
    // Another process's bytes are in another upload resource.
    if sent == .max { sent = base }
    // Skipped bytes do not count as acknowledged while they may still be needed, for example by a plain upload.
    acknowledged = parts.missing?.range.lowerBound ?? base
    var request = request(.creation, content: isOptimistic ? .bytes(from: base, maximum: nil) : .empty)
    request.creationMethod = server.creationMethod
    server.version.setCompleteness(isOptimistic, &request.fields)
    if server.version.hasLimits, let length = configuration.length,
      let value = UploadFields.value(length - min(base, length))
    {
      request.fields.append(UploadFields.length, value)
    }
    if let streamID = configuration.streamID {
      request.fields.append("Stream-ID", streamID)
      request.fields.append("Stream-Offset", String(base))
    }
    if base == 0, let digest = configuration.digest {
      request.fields.append(DigestField.representation, digest.value)
    }
    if let algorithm = configuration.digestAlgorithm {
      request.fields.append(DigestField.wantRepresentation, "\(algorithm)=10")
    }
    return .send(request)
  }

  /// The next append, if there is anything to append.
  mutating func append(_ supply: Supply) -> Action {
    let supply = countingSurplus(supply)
    if let failure = exceededLimit { return abandon(failure) }
    if let limit = limitTooSmall(supply) {
      guard hasAcknowledged else { return abandon(.limitTooSmall(limit)) }
      // The server has accepted bytes before, so a 413 will show whether this limit is real.
      if server.limits.maximumAppendSize ?? .max <= limit { server.limits.maximumAppendSize = nil }
      if server.limits.maximumSize ?? .max <= limit { server.limits.maximumSize = nil }
      return append(supply)
    }
    if resource.offset < supply.oldest {
      parts.end = parts.end ?? (supply.pause?.contains(resource.offset) == true ? .pause : .gap)
    } else if parts.end == .gap || parts.end == .pause || parts.end == .serverWentBack {
      // The server has more than it had reported.
      parts.end = nil
    }
    // The offset is after the head if another process had sent bytes that are no longer kept here.
    let available = supply.head - min(resource.offset, supply.head)
    let isDone = supply.isFinished && available == 0
    if let end = parts.end, !isDone { return endPart(end, supply) }
    let least = max(1, server.limits.minimumAppendSize ?? 1)
    var maximum = maximumAppendSize(atLeast: least)
    if let size = server.limits.maximumSize {
      let room = size - min(size, resource.offset - base)
      // Leave out a remainder that is too small for an append of its own.
      if room < least, !(supply.isFinished && available <= room) {
        // An upload resource that accepts nothing would only be followed by another like it. Ask once more if the
        // server has accepted bytes before.
        if resource.offset == base, hasAcknowledged {
          server.limits.maximumSize = nil
          return wait(.offsetRetrieval)
        }
        return resource.offset == base ? abandon(.tooLarge(limit: size)) : endPart(.size, supply)
      }
      maximum = min(maximum ?? .max, room)
    }
    if isDone, supply.isCutOff { return leaveIncomplete(supply) }
    // Only a completing append may be smaller than the server's minimum, and no byte is dropped to avoid it.
    if supply.isFinished, available <= maximum ?? .max, !supply.isCutOff || available < least {
      return send(Append(start: resource.offset, completes: true), maximum: available)
    }
    if let maximum, maximum < least {
      guard hasAcknowledged else {
        return abandon(
          server.shrunkAppendSize == nil ? .limitsContradict(minimum: least, maximum: maximum) : .appendTooLarge)
      }
      // The server has accepted bytes before, so one of these limits is wrong.
      (server.limits.maximumAppendSize, server.limits.minimumAppendSize, server.shrunkAppendSize) = (nil, nil, nil)
      return wait(.offsetRetrieval)
    }
    // Nothing follows these bytes in this upload resource, and only its last append may be so small.
    if supply.pausesAtHead, available > 0, available < least {
      parts.end = .pause
      return send(Append(start: resource.offset, completes: true, endsPart: true), maximum: available)
    }
    // A smaller one might be refused (`min-append-size`).
    if available < least, !supply.isFinished { return awaitBytes(upTo: resource.offset + least) }
    return send(Append(start: resource.offset, completes: false, minimum: least), maximum: maximum)
  }

  /// The server's limit that would force the client into many tiny requests; nil if there is none.
  private func limitTooSmall(_ supply: Supply) -> UInt64? {
    let limit = min(server.limits.maximumAppendSize ?? .max, server.limits.maximumSize ?? .max)
    let fits = supply.isFinished && supply.head - min(resource.offset, supply.head) <= limit
    return limit < configuration.smallestLimit && !fits ? limit : nil
  }

  /// The most bytes of one append; nil without limit.
  private func maximumAppendSize(atLeast least: UInt64) -> UInt64? {
    // The server's minimum may exceed the user's maximum.
    [configuration.appendSize.map { max($0, least) }, server.limits.maximumAppendSize, server.shrunkAppendSize]
      .compactMap { $0 }.min()
  }

  /// Waits, because there is nothing to append yet.
  private mutating func awaitBytes(upTo end: UInt64) -> Action {
    guard resource.offset > acknowledged else {
      state = .ready
      return .awaitBytes(upTo: end)
    }
    // HEAD has reported the offset, and no append can show whether it is true. A full buffer makes the source wait for
    // that answer.
    if server.limits.minimumAppendSize ?? 0 == 0 {
      return send(Append(start: resource.offset, completes: false), maximum: 0)
    }
    resource.confirms = true
    return detour(200)
  }

  /// The server has every byte that can be sent, and the stream has no end, because its source failed.
  private mutating func leaveIncomplete(_ supply: Supply) -> Action {
    // HEAD has reported the offset, and must be right before the bytes are released.
    guard resource.offset <= acknowledged else { return awaitBytes(upTo: resource.offset) }
    if resource.offset < supply.head { noteLastGap(supply) }
    acknowledge(upTo: supply.head)
    state = .ended
    return .leftIncomplete
  }

  mutating func send(_ append: Append, maximum: UInt64?) -> Action {
    guard let value = UploadFields.value(append.start - base) else {
      return fail(.tooLarge(limit: 999_999_999_999_999))
    }
    state = .appending(append)
    appendMaximum = maximum
    var request = request(
      .append, url: resource.currentURL, content: maximum == 0 ? .empty : .bytes(from: append.start, maximum: maximum))
    request.fields.append(UploadFields.offset, value)
    server.version.setCompleteness(append.completes, &request.fields)
    if server.version.namesMediaType { request.fields.append("Content-Type", UploadFields.partialUpload) }
    // As soon as the length is known, unless Content-Length already implies it (section "Length"). Only once, because
    // some servers refuse a second Upload-Length even if it is equal.
    if server.version.hasLimits, append.completes, let maximum, maximum > 0, configuration.length == nil,
      !resource.hasToldLength, let length = UploadFields.value(append.start + maximum - base)
    {
      request.fields.append(UploadFields.length, length)
      resource.hasToldLength = true
    }
    // Asks intermediaries to forward bytes as they arrive (draft-ietf-httpbis-incremental, section 3).
    request.fields.append("Incremental", "?1")
    return .send(request)
  }

  func request(_ purpose: ClientRequest.Purpose, url: String? = nil, content: ClientRequest.Content) -> ClientRequest {
    var fields = HeaderFields()
    // On every request: without it, servers answer in another protocol or not at all.
    server.version.setVersion(&fields)
    return ClientRequest(purpose: purpose, url: url, fields: fields, content: content)
  }

  // MARK: Parts

  /// The upload resource ends before the stream, which continues in a new one.
  mutating func endPart(_ reason: PartEnd, _ supply: Supply) -> Action {
    parts.end = reason
    if supply.isCutOff, endsInGap(supply) { return leaveIncomplete(supply) }
    // If the server joins parts by itself, a part must not be completed. Any other server keeps a part only if it is
    // complete.
    if !server.joinsParts && reason != .gone || endsInGap(supply) {
      return send(Append(start: resource.offset, completes: true, endsPart: true), maximum: 0)
    }
    return beginPart(supply)
  }

  /// Whether none of the stream's remaining bytes are kept, and the server joins parts. The server records a gap only
  /// when a byte follows it. While the upload resource is incomplete, the server refuses another one without a byte,
  /// because the missing bytes may still arrive.
  func endsInGap(_ supply: Supply) -> Bool {
    server.joinsParts && supply.isFinished && supply.oldest == supply.head
  }

  /// The upload resource is complete, and no byte that could follow it is kept.
  mutating func completeBeforeGap(_ supply: Supply) -> Action {
    noteLastGap(supply)
    return complete(upTo: supply.head)
  }

  /// None of the stream's remaining bytes are kept.
  private mutating func noteLastGap(_ supply: Supply) {
    let isServersFault = parts.end == .serverWentBack || supply.oldest <= highWater.acknowledged
    noteGap(
      from: max(highWater.reported, acknowledged), to: supply.head, pause: supply.pause,
      serversFaultBefore: isServersFault ? highWater.acknowledged : 0)
  }

  mutating func beginPart(_ supply: Supply) -> Action {
    let previous = resource.url
    let reason = parts.end ?? .gone
    parts.end = nil
    // The other process's upload is now behind this one.
    isResumed = false
    // Do not send acknowledged bytes again, unless the upload that stored them is gone.
    parts.kept = max(highWater.reported, reason == .gone ? acknowledged : max(acknowledged, resource.offset))
    // Send again any bytes that only HEAD has reported. A server that joins parts already has them, and one wrong
    // answer then cannot make the next part begin behind bytes that were never stored.
    var next =
      switch reason {
      case .gone: supply.oldest
      // A file starts over, even if the target has reported how much of it arrived with the creation.
      case .unproven: max(base, supply.oldest)
      default: max(acknowledged, supply.oldest)
      }
    // Bytes that were reported as lost before a creation failed are not sent, although some are still kept.
    if configuration.length == nil { next = max(next, highWater.reported) }
    // After a refused creation, the loss from before it continues.
    base = parts.missing?.range.upperBound ?? min(next, parts.kept)
    if supply.oldest > base || parts.missing != nil {
      let isServersFault = reason == .serverWentBack || supply.oldest <= highWater.acknowledged
      skip(supply, serversFaultBefore: isServersFault ? highWater.acknowledged : 0)
    }
    // Report the end of the old upload resource, and a loss after it, only once there is a new one.
    let note = ClientNote.newPart(reason, previous: previous, from: base)
    if parts.former.isEmpty, parts.missing == nil { notes.append(note) } else { parts.heldNotes = [note] }
    // If this upload resource also seems to be gone, its offset is requested once more.
    patience.missing = 0
    return create(supply)
  }

  /// Reports the bytes missing before and after a pause as lost. The pause itself contains none.
  ///
  /// - Parameter limit: the server has lost or refused the bytes before this offset. Those after it were discarded here
  ///   before it had them.
  mutating func noteGap(from start: UInt64, to end: UInt64, pause: Range<UInt64>?, serversFaultBefore limit: UInt64) {
    notes += Self.gaps(from: start, to: end, pause: pause, serversFaultBefore: limit)
  }

  /// What to do when the answer to a creation is lost.
  mutating func creationIsLost() -> Next {
    if resource.announced != nil { return .offsetRetrieval }
    guard isOptimistic else { return .creation }
    // An intermediary may drop 104s, so next time ask first and create without content.
    isOptimistic = false
    return configuration.discovers ? .discovery : .creation
  }
}
