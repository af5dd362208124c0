// What a live stream's server has: how that is learned, what may be let go for it, what is told about it.

internal import Digests
internal import EventLoops
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
    machine.wrote(upTo: request.step.start + request.task.sentByteCount)
    machine.acknowledgedByTransport(bodyCount: request.task.acknowledgedByteCount, now: .now)
  }

  /// Tells what is acknowledged, and gives it up.
  func settleAcknowledged() {
    let acknowledged = Self.acknowledged(&machine)
    if trustsTransport {
      // Nothing is released between a request's end and its verdict: what a refused one has carried may be needed again.
      content.release(upTo: transport.releasable(acknowledged: acknowledged, capacity: content.capacity))
    } else {
      content.release(upTo: acknowledged)
      if acknowledged > toldAcknowledged {
        toldAcknowledged = acknowledged
        handler(.acknowledged(acknowledged))
      }
    }
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
      handler(.progress(progress()))
      tickProgress()
    }
  }

  func progress() -> StreamProgress {
    let head = content.head
    let sent = max(machine.sent, request?.sentUpTo ?? 0)
    return StreamProgress(
      elapsed: .now - startTime, captured: head, sent: sent, acknowledged: machine.acknowledged,
      buffered: live == nil ? 0 : Int(head - min(head, max(machine.acknowledged, content.oldest))),
      capacity: live == nil ? 0 : configuration.buffer.byteCount,
      dropouts: machine.dropouts, lost: machine.lost, isConnected: request != nil || awaitedOffset != nil)
  }
}
