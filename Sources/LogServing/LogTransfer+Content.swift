// Receives the content of a request, and ends it.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

extension LogTransfer {
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
    guard isStillAuthorized(within: .seconds(1)) else { return stop(.notAuthorized) }
    arrivedCount += UInt64(pieces.reduce(0) { $0 + $1.count })
    if plain != nil { return receivePlain(bytes, pieces: pieces) }
    guard ending == nil, var state else { return }
    for piece in pieces {
      let intake = allowance.limited(state.received(UInt64(piece.count), by: transferNumber))
      // It is at most the length of the piece.
      let taken = Int(clamping: intake.count)
      switch digests.take(bytes.extracting(piece).extracting(0..<taken)) {
      case .append: bytes.extracting(piece).extracting(0..<taken).withUnsafeBufferPointer { append.take($0) }
      case .hold: break
      case .refuse(let refusal):
        self.state = state
        return end(with: refusal)
      }
      state.kept(intake.count)
      if unacknowledgedSince == nil, taken > 0 { unacknowledgedSince = .now }
      if let refusal = intake.refusal {
        if state.isInactive { append.deactivate(.lengthExceeded) }
        append.take(digests.release())
        ending = .refuse(refusal)
        break
      }
    }
    self.state = state
    proceed()
    pauseIfFull()
  }

  /// The number of received bytes that are not stored.
  private var unstoredCount: Int { append.unstoredCount + (plain?.comparison?.waitingCount ?? 0) }

  func pauseIfFull() {
    guard unstoredCount > Self.highWater, !isPaused else { return }
    (isPaused, wasPaused) = (true, true)
    exchange?.pauseBody()
  }

  func resumeIfDrained() {
    guard isPaused, unstoredCount < Self.lowWater else { return }
    isPaused = false
    exchange?.resumeBody()
  }

  /// Refuses the content before its end. Bytes that are held back for a digest do not count.
  func end(with refusal: UploadRefusal) {
    state?.contentRefuted()
    digests.drop()
    ending = .refuse(refusal)
    proceed()
  }

  func end() {
    if plain != nil { return conclude(.ended) }
    guard ending == nil else { return }
    let number = transferNumber
    if digests.holdsContent, state?.transfer != nil {
      guard digests.isContentRight else { return end(with: .contentDigest) }
      state?.contentVerified()
      append.take(digests.release())
    }
    switch state?.contentEnded(number) {
    case .acknowledge where !isStillAuthorized(within: .zero), .process where !isStillAuthorized(within: .zero):
      ending = .refuse(.notAuthorized)
    case .acknowledge:
      // The offset of an append without content must be that of the brokers' last message, as after a HEAD.
      if append.isDrained, append.storedSequence == 0 { append.announce() }
      ending = .acknowledge
    case .process: ending = .complete
    case .replay: return askAgain()
    case .refuse(let refusal): ending = .refuse(refusal)
    case .ignore, nil: return
    }
    proceed()
  }

  /// Whether the token is valid, or was valid very recently.
  func isStillAuthorized(within patience: Duration) -> Bool {
    allowance.isStillAuthorized(head.credential, within: patience)
  }

  /// The content of unknown length was empty, so the request asks for the response to the complete upload.
  private func askAgain() {
    request.content = .absent
    if let exchange { begin(exchange) }
  }

  func aborted(_ reason: AbortReason) {
    exchange = nil
    stopTelling()
    if plain != nil { return conclude(.interrupted(reason.description)) }
    // Received bytes are stored, unless the request has not begun. Without its end, the content cannot be compared
    // with its digest. It is kept, as with a directory.
    if ending == nil {
      ending = .interrupted(reason.description)
      keepHeld()
    }
    if state != nil { proceed() }
  }

  /// The client of a plain stream can continue it if its request names the stream (`Stream-Offset`).
  var canBeContinued: Bool {
    request.content == .unsized && (plain == nil ? isAnnounced : head.fields.count("stream-id") > 0)
  }

  func serverStops() {
    guard state != nil, hasPublished || !isCreation else { return refuse(.serverStops) }
    exchange?.takeArrived()
    stop(.serverStops)
  }

  /// Refuses the rest of the content. The received bytes count.
  func stop(_ refusal: UploadRefusal) {
    if plain != nil { return conclude(.refused(refusal)) }
    guard ending == nil else { return }
    keepHeld()
    ending = .refuse(refusal)
    proceed()
  }

  /// Makes the retained bytes count, although the content is incomplete.
  func keepHeld() {
    let number = transferNumber
    state?.ended(number)
    append.take(digests.release())
  }

  var transferNumber: Int { state?.transfer?.number ?? 0 }
}
