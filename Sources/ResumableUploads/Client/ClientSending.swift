// What the client sends: it asks, creates, appends, and goes on in another upload resource where one ends before the
// stream.

internal import HTTPMessages

extension UploadClientStateMachine {
  // MARK: Requests

  /// Versions without limits have nothing that an answer to OPTIONS could show support by.
  mutating func discoverOrCreate(_ supply: Supply) -> Action { version.hasLimits ? discover() : create(supply) }

  mutating func discover() -> Action {
    state = .discovering
    // Without Upload-Complete: or it would be a creation (section "Limits").
    return .send(request(.discovery, content: .absent))
  }

  mutating func retrieveOffset() -> Action {
    guard let url = currentURL else { return fail(.noLocation) }
    state = .retrievingOffset
    return .send(request(.offsetRetrieval, url: url, content: .absent))
  }

  /// The limit that an upload of known length cannot keep to; nil while it keeps to all.
  var exceededLimit: ClientFailure? {
    guard let size = limits.maximumSize, let length = configuration.length, length - min(base, length) > size else {
      return nil
    }
    return .tooLarge(limit: size)
  }

  mutating func create(_ supply: Supply) -> Action {
    if let failure = exceededLimit { return fail(failure) }
    state = .creating
    (isForgotten, awaitsFinalResponse, hasToldLength, confirms) = (false, false, false, false)
    (isProven, doubts, isFinalResponseUnproved) = (false, 0, false)
    (conflict, hasProbed, surplus) = (nil, false, nil)
    // Another process's bytes are in another upload.
    if sent == .max { sent = base }
    announced = nil
    uploadURL = nil
    diversion = nil
    offset = base
    acknowledged = base
    var request = request(.creation, content: isOptimistic ? .bytes(from: base, maximum: nil) : .empty)
    request.creationMethod = creationMethod
    version.setCompleteness(isOptimistic, &request.fields)
    if version.hasLimits, let length = configuration.length, let value = UploadFields.value(length - min(base, length))
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

  /// The next append, as far as there is something to append.
  mutating func append(_ supply: Supply) -> Action {
    let supply = countingSurplus(supply)
    if let failure = exceededLimit { return abandon(failure) }
    if let limit = limitTooSmall(supply) {
      guard hasAcknowledged else { return abandon(.limitTooSmall(limit)) }
      // It has taken bytes before: 413 will show whether this is true.
      if limits.maximumAppendSize ?? .max <= limit { limits.maximumAppendSize = nil }
      if limits.maximumSize ?? .max <= limit { limits.maximumSize = nil }
      return append(supply)
    }
    if offset < supply.oldest {
      partEnd = partEnd ?? (supply.pause?.contains(offset) == true ? .pause : .gap)
    } else if partEnd == .gap || partEnd == .pause || partEnd == .serverWentBack {
      // It has more than it had said.
      partEnd = nil
    }
    let available = supply.head - offset
    let isDone = supply.isFinished && available == 0
    if let partEnd, !isDone { return endPart(partEnd, supply) }
    let least = max(1, limits.minimumAppendSize ?? 1)
    var maximum = maximumAppendSize(atLeast: least)
    if let size = limits.maximumSize {
      let room = size - min(size, offset - base)
      // A rest that is too small for an append of its own stays empty.
      if room < least, !(supply.isFinished && available <= room) {
        // An upload resource that takes nothing is followed by another like it. It is asked once more if the server has
        // taken bytes before.
        if offset == base, hasAcknowledged {
          limits.maximumSize = nil
          return wait(.offsetRetrieval)
        }
        return offset == base ? abandon(.tooLarge(limit: size)) : endPart(.size, supply)
      }
      maximum = min(maximum ?? .max, room)
    }
    if supply.isFinished, available <= maximum ?? .max {
      return send(Append(start: offset, completes: true), maximum: available)
    }
    if let maximum, maximum < least {
      guard hasAcknowledged else { return abandon(.appendTooLarge) }
      // It has taken some before: of these limits one is wrong.
      (limits.maximumAppendSize, limits.minimumAppendSize, shrunkAppendSize) = (nil, nil, nil)
      return wait(.offsetRetrieval)
    }
    // Nothing follows these in this upload resource, and only its last append may be so small.
    if supply.pausesAtHead, available > 0, available < least {
      partEnd = .pause
      return send(Append(start: offset, completes: true, endsPart: true), maximum: available)
    }
    // A smaller one might be refused (`min-append-size`).
    if available < least, !supply.isFinished { return awaitBytes(upTo: offset + least) }
    return send(Append(start: offset, completes: false, minimum: least), maximum: maximum)
  }

  /// The server's limit that would take more than one tiny request; nil where it has none.
  private func limitTooSmall(_ supply: Supply) -> UInt64? {
    let limit = min(limits.maximumAppendSize ?? .max, limits.maximumSize ?? .max)
    let fits = supply.isFinished && supply.head - min(offset, supply.head) <= limit
    return limit < configuration.smallestLimit && !fits ? limit : nil
  }

  /// The most bytes of one append; nil without limit.
  private func maximumAppendSize(atLeast least: UInt64) -> UInt64? {
    // The server's least is above the user's most.
    [configuration.appendSize.map { max($0, least) }, limits.maximumAppendSize, shrunkAppendSize].compactMap { $0 }
      .min()
  }

  /// There is nothing to append yet.
  private mutating func awaitBytes(upTo end: UInt64) -> Action {
    guard offset > acknowledged else {
      state = .ready
      return .awaitBytes(upTo: end)
    }
    // HEAD has said so, and no append shows whether it is true. If the buffer is full, the source waits for the answer.
    if limits.minimumAppendSize ?? 0 == 0 { return send(Append(start: offset, completes: false), maximum: 0) }
    confirms = true
    return detour(200)
  }

  mutating func send(_ append: Append, maximum: UInt64?) -> Action {
    guard let value = UploadFields.value(append.start - base) else {
      return fail(.tooLarge(limit: 999_999_999_999_999))
    }
    state = .appending(append)
    appendMaximum = maximum
    confirms = false
    var request = request(
      .append, url: currentURL, content: maximum == 0 ? .empty : .bytes(from: append.start, maximum: maximum))
    request.fields.append(UploadFields.offset, value)
    version.setCompleteness(append.completes, &request.fields)
    if version.namesMediaType { request.fields.append("Content-Type", UploadFields.partialUpload) }
    // As soon as it is known, and where Content-Length does not say it (section "Length"); once, for some servers
    // refuse a second one even if it is equal.
    if version.hasLimits, append.completes, let maximum, maximum > 0, configuration.length == nil, !hasToldLength,
      let length = UploadFields.value(append.start + maximum - base)
    {
      request.fields.append(UploadFields.length, length)
      hasToldLength = true
    }
    // Asks intermediaries to forward what they have as it comes (draft-ietf-httpbis-incremental, section 3).
    request.fields.append("Incremental", "?1")
    return .send(request)
  }

  func request(_ purpose: ClientRequest.Purpose, url: String? = nil, content: ClientRequest.Content) -> ClientRequest {
    var fields = HeaderFields()
    // On every request: without it servers answer in another protocol, or not at all.
    version.setVersion(&fields)
    return ClientRequest(purpose: purpose, url: url, fields: fields, content: content)
  }

  // MARK: Parts

  /// The upload resource's end before the stream's: the stream goes on in a new one.
  mutating func endPart(_ reason: PartEnd, _ supply: Supply) -> Action {
    partEnd = reason
    // What a server joins by itself must not be completed; any other keeps a part only if it is.
    if !joinsParts && reason != .gone || endsInGap(supply) {
      return send(Append(start: offset, completes: true, endsPart: true), maximum: 0)
    }
    return beginPart(supply)
  }

  /// Whether nothing is kept of the stream's rest, and the server joins parts. It makes a gap only for a byte behind it.
  /// While the upload resource is incomplete, it refuses another one that has no byte: the bytes before that may come.
  func endsInGap(_ supply: Supply) -> Bool {
    joinsParts && supply.isFinished && supply.oldest == supply.head && offset < supply.head
  }

  /// The upload resource is complete, and nothing is kept that could follow it.
  mutating func completeBeforeGap(_ supply: Supply) -> Action {
    noteGap(
      from: max(reportedUpTo, acknowledged), to: supply.head, pause: supply.pause,
      isServersFault: partEnd == .serverWentBack || supply.oldest <= everAcknowledged)
    return complete(upTo: supply.head)
  }

  mutating func beginPart(_ supply: Supply) -> Action {
    let previous = uploadURL
    let reason = partEnd ?? .gone
    var notes: [ClientNote] = []
    partEnd = nil
    // What another process has left is behind it.
    isResumed = false
    // What is acknowledged is nobody's to send again, unless the upload is gone that had it.
    let kept = max(reportedUpTo, reason == .gone ? acknowledged : max(acknowledged, offset))
    // What only HEAD has told comes once more: a server that joins parts finds it there, and no part begins behind what
    // was kept because of one wrong answer.
    var next =
      switch reason {
      case .gone: supply.oldest
      // A file begins anew, also if the target has reported how much of it came with the creation.
      case .unproven: max(base, supply.oldest)
      default: max(acknowledged, supply.oldest)
      }
    if supply.oldest > kept {
      // What is missing was given up because the server had acknowledged it, and not because the buffer was full: then
      // all that is kept here follows.
      let isServersFault = reason == .serverWentBack || supply.oldest <= everAcknowledged
      if !isServersFault { next = max(supply.restart, supply.oldest) }
      noteGap(from: kept, to: next, pause: supply.pause, isServersFault: isServersFault)
      reportedUpTo = next
    }
    notes.append(.newPart(reason, previous: previous, from: next))
    // The old upload resource is not left before there is a new one.
    if former.isEmpty { self.notes += notes } else { heldNotes = notes }
    base = next
    // Each upload resource that seems to be gone is asked for once more.
    missing = 0
    return create(supply)
  }

  /// What is missing on either side of a pause is lost, and in it is nothing.
  mutating func noteGap(from start: UInt64, to end: UInt64, pause: Range<UInt64>?, isServersFault: Bool) {
    let pause = (pause ?? end..<end).clamped(to: start..<end)
    for (start, end) in [(start, pause.lowerBound), (pause.upperBound, end)] where start < end {
      notes.append(.gap(from: start, to: end, isServersFault: isServersFault))
    }
  }

  /// What to do when a creation's answer will not come.
  mutating func creationIsLost() -> Next {
    if let announced {
      take(location: announced)
      return .offsetRetrieval
    }
    guard isOptimistic else { return .creation }
    // Perhaps somebody in between drops 104: next time, ask first and create with care.
    isOptimistic = false
    return configuration.discovers ? .discovery : .creation
  }
}
