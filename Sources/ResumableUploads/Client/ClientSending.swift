// What the client sends: it asks, creates, appends, and goes on in another upload resource where one ends before the stream.

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
    guard let uploadURL else { return fail(.noLocation) }
    state = .retrievingOffset
    return .send(request(.offsetRetrieval, url: uploadURL, content: .absent))
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
    (isForgotten, awaitsFinalResponse) = (false, false)
    announced = nil
    uploadURL = nil
    offset = base
    acknowledged = base
    var request = request(.creation, content: isOptimistic ? .bytes(from: base, maximum: nil) : .empty)
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
    if let failure = exceededLimit { return abandon(failure) }
    if offset < supply.oldest { partEnd = .gap }
    if let partEnd { return endPart(partEnd, supply) }
    let least = limits.minimumAppendSize ?? 1
    // The server's least is above the user's most.
    let wanted = configuration.appendSize.map { max($0, least) }
    var maximum = [wanted, limits.maximumAppendSize, shrunkAppendSize].compactMap { $0 }.min()
    if let size = limits.maximumSize {
      let room = size - min(size, offset - base)
      let takesRest = supply.isFinished && supply.head - offset <= room
      // A rest that is too small for an append of its own stays empty.
      if room < max(1, least), !takesRest { return endPart(.size, supply) }
      maximum = min(maximum ?? .max, room)
    }
    let available = supply.head - offset
    let completes = supply.isFinished && available <= maximum ?? .max
    if !completes {
      // A smaller one might be refused (`min-append-size`), and its size is not to be changed any more once it has begun.
      let minimum = max(1, min(least, maximum ?? .max))
      if available < minimum && !supply.isFinished {
        state = .ready
        return .awaitBytes(upTo: offset + minimum)
      }
    }
    return send(Append(start: offset, completes: completes), maximum: completes ? available : maximum)
  }

  mutating func send(_ append: Append, maximum: UInt64?) -> Action {
    guard let value = UploadFields.value(append.start - base) else {
      return fail(.tooLarge(limit: 999_999_999_999_999))
    }
    state = .appending(append)
    appendMaximum = maximum
    var request = request(
      .append, url: uploadURL, content: maximum == 0 ? .empty : .bytes(from: append.start, maximum: maximum))
    request.fields.append(UploadFields.offset, value)
    version.setCompleteness(append.completes, &request.fields)
    if version.namesMediaType { request.fields.append("Content-Type", UploadFields.partialUpload) }
    // Asks intermediaries to forward what they have as it comes (draft-ietf-httpbis-incremental, section 3).
    request.fields.append("Incremental", "?1")
    return .send(request)
  }

  func request(_ purpose: ClientRequest.Purpose, url: String? = nil, content: ClientRequest.Content) -> ClientRequest {
    var fields = FieldLines()
    // On every request: without it servers answer in another protocol, or not at all.
    version.setVersion(&fields)
    return ClientRequest(purpose: purpose, url: url, fields: fields, content: content)
  }

  // MARK: Parts

  /// The upload resource's end before the stream's: the stream goes on in a new one.
  mutating func endPart(_ reason: PartEnd, _ supply: Supply) -> Action {
    partEnd = reason
    // What a server joins by itself must not be completed; any other keeps a part only if it is.
    if !joinsParts && reason != .gone {
      return send(Append(start: offset, completes: true, endsPart: true), maximum: 0)
    }
    return beginPart(supply)
  }

  mutating func beginPart(_ supply: Supply) -> Action {
    let previous = uploadURL
    let reason = partEnd ?? .gone
    partEnd = nil
    // What is acknowledged is nobody's to send again, unless the upload is gone that had it.
    let kept = reason == .gone ? acknowledged : max(acknowledged, offset)
    var next = reason == .gone ? supply.oldest : max(offset, supply.oldest)
    if supply.oldest > kept {
      next = max(supply.restart, supply.oldest)
      notes.append(.gap(from: kept, to: next, isServersFault: reason == .serverWentBack))
    }
    notes.append(.newPart(reason, previous: previous, from: next))
    base = next
    return create(supply)
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

  mutating func take(location: String) {
    if uploadURL == nil { notes.append(.created(url: location, base: base)) }
    uploadURL = location
  }
}
