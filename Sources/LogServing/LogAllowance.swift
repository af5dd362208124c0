// What the limits leave to one request that brings bytes, and how other servers hear that it is at work.

internal import EventLoops
internal import ResumableUploads
internal import StreamServing

/// One request's part of the limits, given back when it is over. Only on the loop's thread.
///
/// A request may be silent for longer than an upload lives. Other servers see only the log, so it publishes a message
/// without bytes in time.
final class LogAllowance {
  private let log: UploadLog
  /// Of the upload. A plain request finds its upload after its beginning.
  private var token: String
  private var hasEntered = false
  private let rate: RateWatch
  private var silence: EventLoop.Timer?
  private var lastPublish = MonotonicInstant.now

  init(_ log: UploadLog, _ token: String) {
    (self.log, self.token) = (log, token)
    rate = RateWatch(log.loop)
  }

  // MARK: The beginning

  /// Does `work` when it is known what the limits leave.
  ///
  /// - Parameter work: why the request has to come again, if that is not known.
  func whenKnown(isCreation: Bool, _ work: @escaping (UploadRefusal?) -> Void) {
    guard isCreation || log.usage.limitsBytes else { return work(nil) }
    log.usage.whenCurrent(on: log.loop) { isKnown in
      work(isKnown ? nil : .outOfResources("the server does not know yet which uploads are unfinished"))
    }
  }

  /// A request that creates an upload.
  func admit(_ request: UploadTransferRequest, of owner: [UInt8]?) throws(UploadRefusal) {
    let length = try request.indicatedLength()
    try log.usage.admit(
      token, of: owner, claiming: max(length ?? 0, request.content.claimed), isLive: length == nil)
    hasEntered = true
  }

  /// A request that appends to an upload whose last message is that one.
  func enter(_ request: UploadTransferRequest, _ entry: LogEntry, at sequence: UInt64) throws(UploadRefusal) {
    try log.usage.enter(token, entry, at: sequence, bringing: request.content.claimed)
    hasEntered = true
  }

  /// A plain request, before it publishes anything.
  ///
  /// - Parameters:
  ///   - last: the last message of its stream, which has that sequence. Nil if the request begins the stream.
  ///   - owner: who begins it.
  ///   - count: how many bytes the request has, as far as its client says. Nil if it does not say.
  func enter(
    plain token: String, behind last: LogEntry?, at sequence: UInt64, of owner: [UInt8]?, bringing count: UInt64?
  ) throws(UploadRefusal) {
    if hasEntered {
      // The request tries again, and the stream may have another beginning by now.
      guard token != self.token else { return }
      hasEntered = false
      log.usage.leave(self.token, at: 0, end: 0, isOver: false)
    }
    if let last {
      try log.usage.enter(token, last, at: sequence, bringing: count ?? 0)
    } else {
      try log.usage.admit(token, of: owner, claiming: count ?? 0, isLive: count == nil)
    }
    (self.token, hasEntered) = (token, true)
  }

  // MARK: Bytes

  /// As many of the bytes that came as the quotas leave room for.
  func limited(_ intake: UploadResourceState.Intake) -> UploadResourceState.Intake {
    guard log.usage.limitsBytes, intake.count > 0 else { return intake }
    var intake = intake
    let granted = log.usage.claim(intake.count, for: token)
    if granted < intake.count { (intake.count, intake.refusal) = (granted, .quotaExhausted) }
    return intake
  }

  /// The content may come.
  ///
  /// - Parameters:
  ///   - received: how many bytes have come in all.
  ///   - tooSlow: called when these are fewer than they must be.
  ///   - silent: called when nothing was published for so long that a message has to say that the request is at work.
  func watch(
    _ content: RequestSummary.Content, received: @escaping () -> UInt64, tooSlow: @escaping () -> Void,
    silent: @escaping () -> Void
  ) {
    if let minimum = log.options.minimumRate, content.mayHaveBytes {
      rate.watch(minimum: minimum, window: log.options.rateWindow, received: received, tooSlow: tooSlow)
    }
    if silence == nil { watchSilence(silent) }
  }

  private func watchSilence(_ silent: @escaping () -> Void) {
    let limit = log.usage.lifetimes.shortest / 2
    silence = log.loop.schedule(at: lastPublish + limit) { [self] in
      if MonotonicInstant.now - lastPublish >= limit {
        lastPublish = .now
        silent()
      }
      // It may have been the last thing that the request has done.
      if silence != nil { watchSilence(silent) }
    }
  }

  /// A message of the request is stored.
  func published() { lastPublish = .now }

  // MARK: The end

  /// The request is over.
  func leave(_ append: LogAppend) {
    rate.end()
    if let silence { log.loop.cancel(silence) }
    silence = nil
    guard hasEntered else {
      if append.isLast { log.usage.end(token, at: append.storedSequence) }
      return
    }
    hasEntered = false
    log.usage.leave(token, at: append.storedSequence, end: append.durable, isOver: append.isLast)
  }
}

extension RequestSummary.Content {
  /// How many bytes come, as far as the client says.
  fileprivate var claimed: UInt64 { if case .sized(let count) = self { count } else { 0 } }
}
