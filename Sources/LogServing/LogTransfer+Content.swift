// The content of a request that brings bytes, as it comes, and how it stops.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

extension LogTransfer {
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
    guard ending == nil, var state else { return }
    for piece in pieces {
      let intake = allowance.limited(state.received(UInt64(piece.count), by: transferNumber))
      // No more than the piece has.
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
    if append.unstoredCount > Self.highWater, !isPaused {
      isPaused = true
      exchange?.pauseBody()
    }
  }

  /// The content is refused before all of it has come: nothing that is held of it counts.
  func end(with refusal: UploadRefusal) {
    state?.contentRefuted()
    digests.drop()
    ending = .refuse(refusal)
    proceed()
  }

  func end() {
    guard ending == nil else { return }
    let number = transferNumber
    if digests.holdsContent, state?.transfer != nil {
      guard digests.isContentRight else { return end(with: .contentDigest) }
      state?.contentVerified()
      append.take(digests.release())
    }
    switch state?.contentEnded(number) {
    case .acknowledge: ending = .acknowledge
    case .process:
      // The token may have been withdrawn meanwhile.
      if let credential = head.credential, !log.context.isValid(credential) {
        ending = .refuse(.notAuthorized)
        break
      }
      ending = .complete
    case .refuse(let refusal): ending = .refuse(refusal)
    case .ignore, nil: return
    }
    proceed()
  }

  func aborted(_ reason: AbortReason) {
    exchange = nil
    stopTelling()
    // What came is stored all the same; nothing was promised of a request that has not begun. Nobody can compare content
    // with its digest any more: it is kept, as with a directory.
    if ending == nil {
      ending = .interrupted(reason.description)
      keepHeld()
    }
    if state != nil { proceed() }
  }

  var canBeContinued: Bool { !isPlain && request.content == .unsized && isAnnounced }

  func serverStops() {
    guard state != nil, hasPublished || !isCreation else { return refuse(.serverStops) }
    exchange?.takeArrived()
    stop(.serverStops)
  }

  /// The rest of the content is refused. What came of it counts.
  func stop(_ refusal: UploadRefusal) {
    guard ending == nil else { return }
    keepHeld()
    ending = .refuse(refusal)
    proceed()
  }

  /// What came counts, although not all of it has come.
  func keepHeld() {
    let number = transferNumber
    state?.ended(number)
    append.take(digests.release())
  }

  var transferNumber: Int { state?.transfer?.number ?? 0 }
}
