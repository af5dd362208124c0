// The part of the limits that one request with content may use, and the messages by which other servers know that it is
// active.

internal import EventLoops
internal import ResumableUploads
internal import StreamServing

/// One request's part of the limits, which is released at its end. Only on the loop's thread.
///
/// A request may be silent for longer than the lifetime of an upload. Other servers see only the log, so the request
/// publishes a message without bytes in time.
final class LogAllowance {
  private let log: UploadLog
  /// The token of the upload. A plain request finds its upload after its beginning.
  private var token: String
  private var hasEntered = false
  /// The epoch of the log in which the request began, or entered.
  private var epoch: UInt64
  private let rate: RateWatch
  private var silence: EventLoop.Timer?
  private var lastPublish = MonotonicInstant.now
  private var authorization = AuthorizationCheck()

  init(_ log: UploadLog, _ token: String) {
    (self.log, self.token, epoch) = (log, token, log.usage.epoch)
    rate = RateWatch(log.loop)
  }

  // MARK: The beginning

  /// Calls `work` when the use of the limits is known.
  ///
  /// - Parameter work: receives the refusal if it is not known in time.
  func whenKnown(isCreation: Bool, _ work: @escaping (UploadRefusal?) -> Void) {
    guard isCreation || log.usage.limitsBytes else { return work(nil) }
    log.usage.whenCurrent(on: log.loop) { isKnown in
      work(isKnown ? nil : .outOfResources("the server does not know yet which uploads are unfinished"))
    }
  }

  /// Admits a request that creates an upload.
  func admit(_ request: UploadTransferRequest, of owner: [UInt8]?) throws(UploadRefusal) {
    let length = try request.indicatedLength()
    epoch = try log.usage.admit(
      token, of: owner, claiming: max(length ?? 0, request.content.claimed), isLive: length == nil)
    hasEntered = true
  }

  /// Admits a request that appends to an upload with that last message.
  func enter(_ request: UploadTransferRequest, _ entry: LogEntry, at sequence: UInt64) throws(UploadRefusal) {
    epoch = try log.usage.enter(token, entry, at: sequence, bringing: request.content.claimed)
    hasEntered = true
  }

  /// Admits a plain request, before its first message.
  ///
  /// - Parameters:
  ///   - last: the last message of its stream, which has that sequence. Nil if the request begins the stream.
  ///   - owner: the owner of the stream that it begins.
  ///   - count: the announced number of bytes of the request. Nil if it is unknown.
  func enter(
    plain token: String, behind last: LogEntry?, at sequence: UInt64, of owner: [UInt8]?, bringing count: UInt64?
  ) throws(UploadRefusal) {
    if hasEntered {
      // The request retries, and meanwhile the stream may have begun again.
      guard token != self.token else { return }
      hasEntered = false
      log.usage.leave(self.token, at: 0, end: 0, isOver: false, epoch: epoch)
    }
    if let last {
      epoch = try log.usage.enter(token, last, at: sequence, bringing: count ?? 0)
    } else {
      epoch = try log.usage.admit(token, of: owner, claiming: count ?? 0, isLive: count == nil)
    }
    (self.token, hasEntered) = (token, true)
  }

  /// Whether the token of the request is valid, or was valid very recently.
  func isStillAuthorized(_ credential: [UInt8]?, within patience: Duration) -> Bool {
    authorization.admits(credential, within: patience, log.context.isValid)
  }

  // MARK: Bytes

  /// The received bytes, limited to the free part of the quotas.
  func limited(_ intake: UploadResourceState.Intake) -> UploadResourceState.Intake {
    guard log.usage.limitsBytes, intake.count > 0 else { return intake }
    var intake = intake
    let granted = log.usage.claim(intake.count, for: token)
    if granted < intake.count { (intake.count, intake.refusal) = (granted, .quotaExhausted) }
    return intake
  }

  /// Watches the rate and the silence of the content.
  ///
  /// - Parameters:
  ///   - received: returns the number of bytes received so far.
  ///   - tooSlow: called when this number is below the minimum.
  ///   - silent: called when the request must publish a message to show that it is active.
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
      // This call may have ended the request.
      if silence != nil { watchSilence(silent) }
    }
  }

  /// Called when a message of the request is stored.
  func published() { lastPublish = .now }

  // MARK: The end

  /// Called at the end of the request.
  func leave(_ append: LogAppend) {
    rate.end()
    if let silence { log.loop.cancel(silence) }
    silence = nil
    guard hasEntered else {
      if append.isLast { log.usage.end(token, at: append.storedSequence, epoch: epoch) }
      return
    }
    hasEntered = false
    log.usage.leave(
      token, at: append.storedSequence, end: append.durable, isOver: append.isLast, epoch: epoch)
  }
}

extension RequestSummary.Content {
  /// The announced number of bytes.
  fileprivate var claimed: UInt64 { if case .sized(let count) = self { count } else { 0 } }
}
