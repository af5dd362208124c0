// A stream to a server that supports resumable uploads: the protocol's rules, and the time of the next attempt.

internal import EventLoops
internal import HTTPMessages
internal import ResumableUploads
internal import UploadClient

/// Asks the protocol's state machine for the next request, and the retry policy for its time.
struct ResumableStream: StreamStateMachine {
  /// The delay between the loss of a connection and the request for the offset. The server may not have noticed the
  /// loss yet.
  private static let firstDelay = Duration.milliseconds(25)
  /// The time after which the upload is created without a response to OPTIONS.
  private static let questionLimit = Duration.seconds(5)

  // The members that each message uses come first and adjacent. See LiveStream.

  var events: [LiveStreamEvent] = []
  private var isStreaming = false
  /// Whether an attempt that was reported is in progress.
  private var isConnecting = false
  /// Whether the current request has a connection.
  private var isConnected = false
  private(set) var isEnded = false
  private(set) var isLeftIncomplete = false
  private(set) var clock: RetryClock
  var upload: UploadClientStateMachine

  private var attempts = 0
  /// The reason for cancelling the upload before the stream ends.
  private var endingError: LiveStreamError?
  /// The offset after the last byte that earlier requests passed to the network.
  private var sentBefore: UInt64 = 0
  private var requestStart: UInt64 = 0
  /// The stream offset at which the last append began.
  private var appendStart: UInt64 = 0
  /// The problem with the last reported offset.
  var lastNote: String?
  var outages = OutageCount()
  private(set) var resent: UInt64 = 0

  private let target: String
  private let configuration: UploadClientStateMachine.Configuration
  /// The data that another process left.
  private let resumed: ResumeData?
  /// The stream offset up to which the server has acknowledged the stream of another process.
  private let acknowledgedBefore: UInt64

  init(
    _ configuration: UploadClientStateMachine.Configuration, target: String, policy: RetryPolicy,
    resuming resumeData: ResumeData? = nil, acknowledged: UInt64 = 0
  ) {
    upload = UploadClientStateMachine(configuration)
    self.configuration = configuration
    self.target = target
    clock = RetryClock(policy: policy)
    (resumed, acknowledgedBefore) = (resumeData, acknowledged)
  }

  var acknowledged: UInt64 { upload.acknowledged }
  var releasable: UInt64 { upload.releasable }
  var sent: UInt64 { upload.sent == .max ? upload.acknowledged : upload.sent }
  var trustsTransport: Bool { false }
  var base: UInt64 { upload.base }
  var confirmedSurplus: UInt64? { upload.confirmedSurplus }
  /// If no other upload resource has replaced it, the resumed one may still exist. The response that reported it as
  /// gone may not be from the server. One that was replaced does not have the bytes that the other one stored.
  var resumeData: ResumeData? {
    if upload.isForgotten { return nil }
    if let url = upload.uploadURL { return resumeData(url: url) }
    guard var data = resumed, !upload.hasCreated else { return nil }
    // The shell has added the user and password of the request.
    data.upload = UploadRequest.withoutCredentials(data.upload)
    return data
  }

  mutating func takeEvents() -> [LiveStreamEvent] {
    defer { events = [] }
    return events
  }

  mutating func takeTimeToExpiry() -> Duration? {
    // A lifetime of more than a century needs no report.
    guard let lifetime = upload.takeLifetime().map({ Duration.seconds(Int64(min($0, 1 << 32))) }) else { return nil }
    // Early enough for the current request to end, and for one more request.
    return lifetime - max(lifetime / 10, min(.seconds(20), lifetime / 2))
  }

  // MARK: Events

  mutating func start(_ supply: Supply, now: MonotonicInstant) -> StreamStep {
    if let data = resumed {
      if let length = data.length, let own = configuration.length, length != own {
        return finish(
          .init(
            .invalidRequest, "the upload has \(length) bytes, and the source has \(own), so they do not belong together"
          ))
      }
      return step(resume(data), supply)
    }
    return step(upload.start(supply, after: acknowledgedBefore), supply)
  }

  private mutating func resume(_ data: ResumeData) -> UploadClientStateMachine.Action {
    upload.resume(
      url: data.upload, base: data.base, version: data.interopVersion, acknowledged: acknowledgedBefore,
      joinsParts: data.joinsParts)
  }

  mutating func connected() {
    isConnected = true
    clock.noteConnected()
    guard case .appending = upload.state, !isStreaming else { return }
    (isStreaming, isConnecting) = (true, false)
    events.append(.streaming(offset: requestStart))
  }

  mutating func acknowledgedByTransport(bodyCount: UInt64, now: MonotonicInstant) {}

  mutating func wrote(upTo cursor: UInt64) { upload.wrote(upTo: cursor) }

  mutating func received(
    interim response: HTTPResponse, location: String?, sentUpTo: UInt64, now: MonotonicInstant
  ) -> StreamStep {
    let before = upload.advances
    let failure = upload.received(interim: ClientAnswer(response, location: location), sentUpTo: sentUpTo)
    noteProgress(since: before, now: now)
    takeNotes()
    if failure == nil, upload.exceedsAppendSize, upload.interrupted(sentUpTo: sentUpTo) == .wait {
      noteResent(sentUpTo)
      // This is not an outage, and none is counted.
      return .wait(
        FailedAttempt(
          cause: .other("the server accepts at most \(upload.limits.maximumAppendSize ?? 0) bytes per request"),
          acknowledged: upload.acknowledged, retryDelay: Self.firstDelay, isRepeated: true))
    }
    guard let failure else { return .none }
    // Section "Upload Creation": abort the request, and cancel the upload.
    endingError = error(failure)
    return step(upload.cancel(), nil)
  }

  mutating func requestEnded(_ end: RequestEnd, _ supply: Supply, now: MonotonicInstant, draw: UInt64) -> StreamStep {
    noteResent(end.sentUpTo)
    let before = upload.advances
    switch end.result {
    case .success(let outcome):
      var answer = ClientAnswer(outcome.response, location: end.location, isEarly: outcome.isEarly)
      answer.isLocationInsecure = end.isLocationInsecure
      let action = upload.answered(answer, sentUpTo: end.sentUpTo, supply)
      noteProgress(since: before, now: now)
      // The server has stored everything, and its source is silent.
      if case .awaitBytes = action {
        clock.noteProgress()
        outages.worked()
      }
      switch action {
      case .wait:
        takeNotes()
        var failure = failure(.response(answer.status))
        if answer.isSuccess { failure.cause = .other(lastNote ?? unhelpful(answer)) }
        lastNote = nil
        failure.retryAfter = Verdict.retryAfter(outcome.response)
        failure.refusal = lastingRefusal(answer, end)
        return wait(failure, now: now, draw: draw)
      // The new location of an upload resource is secret, and not a target for a stream.
      case .fail(.refused) where upload.uploadURL == nil || !(300..<400).contains(answer.status):
        if let error = Verdict(end.result, isLocationInsecure: end.isLocationInsecure).error { return finish(error) }
        return step(action, supply)
      default: return step(action, supply)
      }
    case .failure(let error):
      if error.kind == .timedOut, isConnected, upload.state == .discovering {
        return step(upload.questionIsUnanswered(supply), supply)
      }
      let action = error.machineError == nil ? upload.interrupted(sentUpTo: end.sentUpTo) : upload.couldNotSend()
      guard action == .wait else { return step(action, supply) }
      var failure = failure(.other(error.description))
      switch Verdict(.failure(error)) {
      case .complete: return .none  // a failure is not a complete response
      case .permanent(let error, _, _): return finish(endingError ?? error)
      // The server has used HTTP before. Another server answers, or an answer was truncated on its way.
      case .unexpected(let ending, _, _, _):
        let isViolation = error.kind == .protocolViolation
        if !upload.hasAcknowledged, !(isViolation && upload.isVersionSettled) {
          guard isViolation, upload.retriesRefusals else { return finish(endingError ?? ending) }
          failure.refusal = ending
        }
      case .refusal(let error, _, _, _): failure.refusal = error
      case .transient(let cause, _, _): failure.cause = cause
      }
      return wait(failure, now: now, draw: draw)
    }
  }

  mutating func tokenRenewed(_ end: RequestEnd, _ supply: Supply, now: MonotonicInstant, draw: UInt64) -> StreamStep {
    guard let delay = clock.renewedToken(now: now) else { return requestEnded(end, supply, now: now, draw: draw) }
    noteResent(end.sentUpTo)
    let action = upload.interrupted(sentUpTo: end.sentUpTo)
    guard action == .wait else { return step(action, nil) }
    (isStreaming, isConnecting) = (false, false)
    return .pause(delay)
  }

  /// The upload continues as after a lost connection, but no outage is counted. Without progress, the retry policy
  /// lengthens the delay, and ends the stream.
  mutating func rolledOver(sentUpTo: UInt64, now: MonotonicInstant, draw: UInt64) -> StreamStep {
    noteResent(sentUpTo)
    let action = upload.interrupted(sentUpTo: sentUpTo)
    guard action == .wait else { return step(action, nil) }
    // The stream still has its connection.
    isConnecting = true
    do throws(LiveStreamError) {
      let cause = FailedAttempt.Cause.other("the request ended so that another can continue")
      return .pause(try clock.failed(failure(cause), soon: Self.firstDelay, now: now, draw: draw))
    } catch {
      return finish(endingError ?? error)
    }
  }

  private mutating func noteResent(_ sentUpTo: UInt64) {
    let again = min(sentUpTo, sentBefore)
    resent += again - min(again, requestStart)
    sentBefore = max(sentBefore, sentUpTo)
  }

  mutating func retryIsDue(_ supply: Supply) -> StreamStep {
    let before = upload.acknowledged
    let action = upload.goOn(supply)
    // A creation is repeated behind bytes that earlier uploads have and that are no longer kept. No answer has come.
    if upload.acknowledged > before { outages.skipped(to: upload.acknowledged) }
    return step(action, supply)
  }

  mutating func bytesAreReady(_ supply: Supply) -> StreamStep { step(upload.bytesAreReady(supply), supply) }

  mutating func cannotKeep(upTo offset: UInt64, now: MonotonicInstant, draw: UInt64) -> StreamStep? {
    guard upload.hasAcknowledged else { return nil }
    let size = offset - min(offset, upload.acknowledged)
    guard upload.forgetMinimumAppendSize() == .wait else { return nil }
    return wait(
      failure(.other("the server requires at least \(size) bytes per request, and the buffer has fewer")), now: now,
      draw: draw)
  }

  mutating func expiresSoon() -> Bool { upload.expiresSoon() }

  mutating func stop(_ error: LiveStreamError) -> StreamStep { isEnded ? .none : finish(error) }

  mutating func abandon(_ error: LiveStreamError) -> StreamStep {
    guard !isEnded, endingError == nil else { return .none }
    endingError = error
    if upload.state == .idle, let data = resumed { _ = resume(data) }
    return step(upload.cancel(), nil)
  }

  // MARK: Steps

  private mutating func step(_ action: UploadClientStateMachine.Action, _ supply: Supply?) -> StreamStep {
    takeNotes()
    switch action {
    case .none: return .none
    // Not expected here. But no other event would ever wake a waiting stream.
    case .wait:
      return .wait(
        FailedAttempt(
          cause: .other("the server is asked again"), acknowledged: upload.acknowledged, retryDelay: .seconds(1),
          isRepeated: true))
    case .send(let request): return .request(streamRequest(request))
    case .awaitBytes(let offset): return .awaitBytes(upTo: offset)
    case .unsupported(let reason):
      isEnded = true
      return .fallBack(reason, method: upload.creationMethod)
    case .completed: return finish(endingError)
    case .leftIncomplete:
      isLeftIncomplete = true
      return finish(endingError)
    case .fail(let failure): return finish(endingError ?? error(failure))
    }
  }

  private mutating func finish(_ error: LiveStreamError?) -> StreamStep {
    isEnded = true
    return .end(error)
  }

  private func failure(_ cause: FailedAttempt.Cause) -> RetryClock.Failure {
    // Credentials that were refused from the start are not retried.
    RetryClock.Failure(cause: cause, hasAcknowledged: upload.hasProgressed, start: appendStart)
  }

  private mutating func wait(_ failure: RetryClock.Failure, now: MonotonicInstant, draw: UInt64) -> StreamStep {
    // The server is at the start of an append, even if only a HEAD reported that.
    let offset = max(upload.acknowledged, appendStart)
    // All pauses because of short appends are one outage, until the server stores more of an append.
    if upload.storesLittle, !clock.isUntroubled { outages.skipped(to: offset) }
    let isRepeated = outages.failed(acknowledged: offset)
    (isStreaming, isConnecting) = (false, false)
    var isAnswer = false
    // A 502 reports a connection that failed behind a proxy. Like a connection that failed here, it justifies an early
    // attempt.
    if case .response(let status) = failure.cause { isAnswer = status != 502 || failure.retryAfter != nil }
    do throws(LiveStreamError) {
      let delay = try clock.failed(failure, soon: isAnswer ? nil : Self.firstDelay, now: now, draw: draw)
      return .wait(
        FailedAttempt(
          cause: failure.cause, acknowledged: upload.acknowledged, retryDelay: delay, isRepeated: isRepeated))
    } catch {
      return finish(endingError ?? error)
    }
  }

  private mutating func noteProgress(since before: UInt64, now: MonotonicInstant) {
    guard upload.advances != before else { return }
    if upload.storesLittle { clock.noteSlowProgress(now: now) } else { clock.noteProgress() }
  }

  private mutating func streamRequest(_ request: ClientRequest) -> StreamRequest {
    var start = upload.base
    var content = StreamRequest.Content.absent
    switch request.content {
    case .absent: break
    case .empty: content = .empty
    case .bytes(let from, let maximum):
      start = from
      content = .bytes(maximum: maximum)
    }
    var rollsOver = false
    var minimumEnd = start
    if case .appending(let append) = upload.state {
      start = append.start
      appendStart = start
      rollsOver = !append.completes
      minimumEnd = start + append.minimum
    } else if request.purpose != .cancellation {
      isStreaming = false
      // This is one attempt, regardless of the number of queries.
      if !isConnecting {
        isConnecting = true
        attempts += 1
        events.append(.connecting(offset: upload.acknowledged, attempt: attempts))
      }
    }
    requestStart = start
    isConnected = false
    return StreamRequest(
      start: start, method: request.method, url: request.url, fields: request.fields, content: content,
      describesRepresentation: request.purpose == .creation,
      answerLimit: request.purpose == .discovery ? .atMost(Self.questionLimit) : .usual, rollsOver: rollsOver,
      minimumEnd: minimumEnd)
  }

  func resumeData(url: String) -> ResumeData {
    // The user and password belong to the request, not to the location of the upload.
    ResumeData(
      upload: UploadRequest.withoutCredentials(url), target: UploadRequest.withoutCredentials(target),
      base: upload.base, length: configuration.length, streamID: configuration.streamID,
      version: upload.version, joinsParts: upload.joinsParts)
  }
}
