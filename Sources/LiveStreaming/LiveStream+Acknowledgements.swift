// The acknowledgements of a live stream: their sources, the bytes that may be released, and the events.

internal import Digests
internal import EventLoops
internal import HTTPMessages
internal import ResumableUploads
internal import StreamBuffers
internal import UploadClient

extension LiveStream {
  // MARK: Acknowledgements

  /// Notes that the writer has written to the pair.
  func didWrite() {
    if trustsTransport {
      guard let writer else { return }
      if transport.isDue(writer, now: .now) { checkTransport() }
      schedulePressureCheck(writer)
    } else if let request, request.step.rollsOver {
      if rollOverTimer == nil {
        rollOverTimer = loop.schedule(after: configuration.rollOver.after) { [unowned self] in rollOver() }
      }
      // A server that reports nothing before the end of a request must answer while the buffer still has room.
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

  /// Reports and releases the acknowledged bytes.
  func settleAcknowledged() {
    let (acknowledged, releasable) = Self.acknowledged(&machine)
    if trustsTransport {
      // The spool may still need the bytes if the server has confirmed a stream of which it lacks some.
      if machine.isEnded, live?.spool != nil { return }
      // Nothing is released between a request's end and its verdict, because the bytes of a refused request may be
      // needed again.
      let end = transport.releasable(acknowledged: releasable, newest: content.newest, capacity: content.capacity)
      // Comes first, so that another process never misses bytes that no server has stored. Only these bytes are noted.
      // Bytes that TCP acknowledged and the server has not read are lost when a connection is reset, and are sent again
      // from here.
      live?.spool?.noteReleased(upTo: end)
      release(upTo: end)
    } else {
      noteResumption()
      release(upTo: releasable)
      if acknowledged > toldAcknowledged {
        toldAcknowledged = acknowledged
        handler(.acknowledged(acknowledged))
      }
    }
  }

  /// Makes the spool store the data with which another process can continue.
  func noteResumption() {
    guard let spool = live?.spool, !machine.isEnded else { return }
    let resumable =
      trustsTransport
      ? transport.resumable(
        acknowledged: machine.releasable, oldest: content.oldest, newest: content.newest, capacity: content.capacity)
      : nil
    spool.note(machine.resumeData, acknowledged: resumable)
  }

  func release(upTo offset: UInt64) {
    released = max(released, offset)
    content.release(upTo: offset)
  }

  /// Called for each message. Reading from an `any` copies its whole content unless it can be modified in place.
  private static func acknowledged(
    _ machine: inout some StreamStateMachine
  ) -> (offset: UInt64, releasable: UInt64) {
    (machine.acknowledged, machine.releasable)
  }

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

  /// Compares `Repr-Digest` (RFC 9530) with the digest of the sent bytes.
  func compareDigest(_ response: HTTPResponse, sentUpTo: UInt64) {
    let base = machine.base
    guard let algorithm = configuration.digest, response.isSuccess, let text = response[DigestField.representation],
      let theirs = DigestField(parsing: text)?[algorithm.name], let ours = content.digest(since: base),
      ours.upTo == sentUpTo, base <= sentUpTo
    else { return }
    // The digest covers the bytes that the server has stored, which may be fewer than were sent.
    if let offset = response[UploadFields.offset], UInt64(offset) != sentUpTo - base { return }
    if theirs == ours.value.bytes {
      verified = base..<sentUpTo
    } else {
      handler(.upload(.digestMismatch(offset: sentUpTo)))
      digestError = LiveStreamError(
        .protocolBroken,
        "the server's bytes differ from those that were sent: the \(algorithm.name) digests do not match")
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
    // In this order, so that the reported amount never exceeds the capacity.
    let captured = content.newest
    let oldest = min(content.oldest, captured)
    let account = losses.account(
      captured: captured, oldest: oldest, acknowledgedUpTo: machine.acknowledged, pause: content.pause)
    let settled = account.acknowledged + account.lost
    // Bytes that were damaged in the spool are not among them. They count as buffered until they are read.
    let ahead = LossLedger.byteCount(of: content.holes, in: settled..<captured)
    let buffered = content.byteCount(from: settled)
    return StreamProgress(
      elapsed: .now - startTime, captured: captured, sent: max(machine.sent, request?.sentUpTo ?? 0),
      acknowledged: account.acknowledged, lost: account.lost + ahead,
      buffered: live == nil ? 0 : min(Int(clamping: buffered - min(buffered, ahead)), content.capacity),
      capacity: content.capacity,
      outageCount: machine.outageCount,
      isConnected: request != nil || awaitedOffset != nil, bytesPerSecond: live?.bytesPerSecond)
  }

  // MARK: Losses

  /// The bytes that the server has not acknowledged and the buffer no longer contains. The next request begins after
  /// them, with a gap.
  var discarded: [Range<UInt64>] {
    let start = machine.acknowledged
    let end = min(content.oldest, content.head)
    return start < end ? LossLedger.lost(start..<end, pause: content.pause) : []
  }

  /// Bytes that are lost after the oldest ones that can be sent: the buffer discarded them while the disk of the spool
  /// refused them. A gap is noted when a request gets there. Only those from `start` on count.
  private var holes: (start: UInt64, ranges: [Range<UInt64>]) {
    let start = max(machine.acknowledged, content.oldest, losses.end)
    return (start, content.holes.filter { $0.upperBound > start })
  }

  /// Reports that the buffer discards bytes, once for each gap.
  func noteDiscarding() {
    let (discarded, holes) = (discarded, holes)
    var isNew = false
    // A hole was reported before the stream reached it.
    if discardingFrom == nil, let last = discarded.last, last.upperBound > released,
      discardingHole?.overlaps(last) != true
    {
      (discardingFrom, isNew) = (last.lowerBound, true)
    }
    if let last = holes.ranges.last {
      isNew = isNew || discardingHole.map { $0.lowerBound < last.lowerBound } ?? true
      discardingHole = last
    }
    guard isNew else { return }
    let count = LossLedger.byteCount(of: discarded, in: 0..<UInt64.max)
    handler(.discarding(count + LossLedger.byteCount(of: holes.ranges, in: holes.start..<UInt64.max)))
  }

  /// Reports the gaps at the end of the stream, after which no request begins.
  func noteLastGaps() {
    for range in discarded {
      // The server had acknowledged the bytes before this offset.
      let limit = min(max(released, range.lowerBound), range.upperBound)
      if range.lowerBound < limit {
        note(Gap(offset: range.lowerBound, length: limit - range.lowerBound, cause: .serverLost))
      }
      if limit < range.upperBound {
        note(Gap(offset: limit, length: range.upperBound - limit, cause: .bufferFull))
      }
    }
    // They are not noted as lost, because bytes before them stay in the spool. The progress counts them.
    let (start, ranges) = holes
    for range in ranges {
      let offset = max(range.lowerBound, start)
      gaps += 1
      handler(.gap(Gap(offset: offset, length: range.upperBound - offset, cause: .bufferFull)))
    }
  }

  func note(_ gap: Gap) {
    // The loss that was reported last may be further on.
    let end = gap.offset.addingSaturated(gap.length)
    if let start = discardingFrom, start < end { discardingFrom = nil }
    if let hole = discardingHole, hole.lowerBound < end { discardingHole = nil }
    // A new upload resource after a gap may fail, and the next one begins after the same gap.
    for range in losses.unknown(in: gap.offset..<gap.offset.addingSaturated(gap.length)) {
      gaps += 1
      losses.add(range)
      handler(.gap(Gap(offset: range.lowerBound, length: range.upperBound - range.lowerBound, cause: gap.cause)))
    }
  }
}
