// The offsets that a client receives during its request.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import Metrics
internal import ResumableUploads
internal import StreamServing

extension LogTransfer {
  func standing(_ state: UploadResourceState) -> ServerAnswer.Standing {
    .init(
      offset: state.durable, length: state.length, isComplete: false, limits: state.limits,
      location: log.location(of: token))
  }

  /// - Parameter evenIfKnown: whether to send an offset again that was sent to an earlier request.
  func tell(_ action: ProgressSchedule.Action, evenIfKnown: Bool = false) {
    switch action {
    case .nothing: break
    case .setTimer(let time):
      announcement = log.loop.schedule(at: MonotonicInstant(nanoseconds: time)) { [self] in
        announcement = nil
        tell(schedule.timerFired(now: now))
      }
    case .announce:
      guard let exchange, request.version.number != nil, var state else { return }
      let told = acknowledging { state.announceProgress() }
      self.state = state
      guard let offset = told ?? (evenIfKnown ? state.announced : nil),
        let fields = ServerAnswer.progress(offset, request.version)
      else { return }
      exchange.sendInterim(UploadFields.resumptionSupported, fields)
    }
  }

  func stopTelling() {
    if let announcement { log.loop.cancel(announcement) }
    announcement = nil
  }

  /// Counts the bytes that `announce` acknowledges to the client.
  func acknowledging(_ announce: () -> UInt64?) -> UInt64? {
    let before = state?.announced ?? 0
    let result = announce()
    guard let offset = result, offset > before else { return result }
    log.context.figures.values.acknowledgedBytes += offset - before
    if let since = unacknowledgedSince {
      log.context.figures.values.acknowledgementDelays.record(
        Double(MonotonicInstant.now.nanoseconds(since: since)) / 1e9)
    }
    unacknowledgedSince = append.unstoredCount > 0 ? .now : nil
    return result
  }

  func emit(_ kind: ServerEvent.Kind, offset: UInt64, bytes: UInt64? = nil, reason: String? = nil) {
    var event = ServerEvent(kind, peer: peer, reason: reason)
    event.stream = streamID
    event.offset = streamStart + offset
    event.bytes = bytes
    if plain != nil { event.missing = streamStart }
    log.context.emit(event)
  }
}
