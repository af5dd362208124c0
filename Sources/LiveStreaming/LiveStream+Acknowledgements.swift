// What a live stream's server has: how that is learned, what may be let go for it, what is told about it.

internal import Digests
internal import EventLoops
internal import HTTPMessages
internal import ResumableUploads
internal import StreamBuffers
internal import UploadClient

extension LiveStream {
  // MARK: Acknowledgements

  /// The writer has written into the pair.
  func didWrite() {
    if trustsTransport {
      guard let writer else { return }
      if transport.isDue(writer, now: .now) { checkTransport() }
      schedulePressureCheck(writer)
    } else if let request, request.step.rollsOver {
      if rollOverTimer == nil {
        rollOverTimer = loop.schedule(after: configuration.rollOver.after) { [unowned self] in rollOver() }
      }
      // A server that tells nothing before the end of a request is asked for its word while there is still room.
      if let writer, Int(writer.cursor - min(writer.cursor, toldAcknowledged)) > writer.capacity / 2 {
        rollOver()
      }
    }
  }

  func checkTransport() {
    request?.task.updateAcknowledged()
    takeCounts()
    settleAcknowledged()
  }

  func takeCounts() {
    guard let request else { return }
    machine.wrote(upTo: request.sentUpTo)
    machine.acknowledgedByTransport(bodyCount: request.streamed(request.task.acknowledgedByteCount), now: .now)
  }

  /// Tells what is acknowledged, and gives it up.
  func settleAcknowledged() {
    let acknowledged = Self.acknowledged(&machine)
    if trustsTransport {
      // Nothing is released between a request's end and its verdict: what a refused one has carried may be needed
      // again.
      let end = transport.releasable(acknowledged: acknowledged, newest: content.newest, capacity: content.capacity)
      // First: another process must not find bytes gone, and nobody who has them. No more than these: what TCP has
      // acknowledged and the server has not read is lost with a connection that is reset, and is sent again from here.
      if !machine.isEnded { live?.spool?.noteReleased(upTo: end) }
      release(upTo: end)
    } else {
      noteResumption()
      release(upTo: acknowledged)
      if acknowledged > toldAcknowledged {
        toldAcknowledged = acknowledged
        handler(.acknowledged(acknowledged))
      }
    }
  }

  /// Has the spool keep how another process would go on.
  func noteResumption() {
    guard let spool = live?.spool, !machine.isEnded else { return }
    spool.note(machine.resumeData, acknowledged: trustsTransport ? machine.acknowledged : nil)
  }

  func release(upTo offset: UInt64) {
    released = max(released, offset)
    content.release(upTo: offset)
  }

  /// With each message: a look into an `any` copies all that is in it, unless it might be changed there.
  private static func acknowledged(_ machine: inout some StreamStateMachine) -> UInt64 { machine.acknowledged }

  func schedulePressureCheck(_ writer: StreamWriter) {
    guard transport.timer == nil, let delay = transport.pressureDelay(writer, acknowledged: machine.acknowledged) else {
      return
    }
    transport.timer = loop.schedule(after: delay) { [unowned self] in
      transport.timer = nil
      let before = machine.acknowledged
      checkTransport()
      transport.looked(hasProgress: machine.acknowledged > before)
      if request != nil { schedulePressureCheck(writer) }
    }
  }

  /// `Repr-Digest` (RFC 9530) against the digest of what went out.
  func compareDigest(_ response: HTTPResponse, sentUpTo: UInt64) {
    guard let algorithm = configuration.digest, response.isSuccess, let text = response[DigestField.representation],
      let theirs = DigestField(parsing: text)?[algorithm.name], let ours = content.digest(since: machine.base),
      ours.upTo == sentUpTo
    else { return }
    // It is the digest of what the server has, which may be less than what was sent.
    if let offset = response[UploadFields.offset], UInt64(offset) != sentUpTo - machine.base { return }
    if theirs == ours.value.bytes {
      verified = sentUpTo
    } else {
      handler(.upload(.digestMismatch(offset: sentUpTo)))
      sourceError =
        sourceError
        ?? LiveStreamError(
          .protocolBroken, "the server has other bytes than were sent: its \(algorithm.name) digest differs")
    }
  }

  // MARK: Progress

  func tickProgress() {
    guard let interval = configuration.progressInterval else { return }
    progressTimer = loop.schedule(after: interval) { [unowned self] in
      if trustsTransport { checkTransport() }
      noteDiscarding()
      handler(.progress(progress()))
      tickProgress()
    }
  }

  func progress() -> StreamProgress {
    // In this order: the buffer never holds more than it can.
    let captured = content.newest
    let oldest = min(content.oldest, captured)
    let account = losses.account(
      captured: captured, oldest: oldest, acknowledgedUpTo: machine.acknowledged, pause: content.pause)
    return StreamProgress(
      elapsed: .now - startTime, captured: captured, sent: max(machine.sent, request?.sentUpTo ?? 0),
      acknowledged: account.acknowledged, lost: account.lost,
      buffered: live == nil ? 0 : Int(clamping: content.byteCount(from: account.acknowledged + account.lost)),
      capacity: content.capacity,
      dropouts: beforeFallBack.dropouts + machine.dropouts, isConnected: request != nil || awaitedOffset != nil)
  }

  // MARK: Losses

  /// What the server has not acknowledged, and is no longer kept here. The next request begins behind
  /// it, with a gap.
  var discarded: [Range<UInt64>] {
    let start = machine.acknowledged
    let end = min(content.oldest, content.head)
    return start < end ? LossLedger.lost(start..<end, pause: content.pause) : []
  }

  /// Tells that the buffer has begun to discard bytes, once for each gap.
  func noteDiscarding() {
    guard !isDiscarding, let last = discarded.last, last.upperBound > released else { return }
    isDiscarding = true
    handler(.discarding(discarded.reduce(0) { $0 + ($1.upperBound - $1.lowerBound) }))
  }

  /// The stream ends with bytes discarded: a gap that no request begins behind.
  func noteLastGap() {
    for range in discarded {
      note(
        Gap(
          offset: range.lowerBound, length: range.upperBound - range.lowerBound,
          cause: range.upperBound > released ? .bufferFull : .serverLost))
    }
  }

  func note(_ gap: Gap) {
    isDiscarding = false
    // A new upload resource behind a gap may fail, and the next one begins behind the same gap.
    for range in losses.unknown(in: gap.offset..<gap.offset.addingSaturated(gap.length)) {
      gaps += 1
      losses.add(range)
      handler(.gap(Gap(offset: range.lowerBound, length: range.upperBound - range.lowerBound, cause: gap.cause)))
    }
  }
}
