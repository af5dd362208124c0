// The rules for plain servers, in the form that the shell of a stream uses.

internal import EventLoops
internal import HTTPMessages
internal import ResumableUploads
internal import UploadClient

/// A stream to a server that does not support resumable uploads.
struct PlainStream: StreamStateMachine {
  private var machine: PlainStreamStateMachine
  private let streamID: String
  private let target: String
  private let isLive: Bool
  private var method: String
  private let mayUsePOST: Bool
  private let retriesRefusals: Bool
  private var events: [LiveStreamEvent] = []
  private var requestStart: UInt64 = 0

  /// - Parameters:
  ///   - isLive: whether its bytes can be read only once. Other content is sent completely after an outage, unless the
  ///     server itself reports an offset. A server that does not support `Stream-Offset` would treat the last part as
  ///     the whole.
  ///   - acknowledged: the bytes that an earlier process has delivered.
  ///   - mayUsePOST: whether POST may replace the method if the server allows POST and not that method.
  ///   - former: the rules that this stream has followed before. An outage continues.
  init(
    policy: RetryPolicy, streamID: String, target: String, isLive: Bool, method: String, mayUsePOST: Bool,
    acknowledged: UInt64 = 0, after former: (any StreamStateMachine)? = nil
  ) {
    // PUT replaces the resource at the URL. A request must contain all bytes that it may replace, or use another URL.
    machine = PlainStreamStateMachine(
      policy: policy, replaces: isLive && method == "PUT", isLive: isLive, acknowledged: acknowledged,
      clock: former?.clock, outages: former?.outages)
    self.streamID = streamID
    self.target = target
    self.isLive = isLive
    self.method = method
    self.mayUsePOST = mayUsePOST
    retriesRefusals = policy.retriesRefusals
  }

  var isEnded: Bool { machine.state == .ended }
  var acknowledged: UInt64 { machine.acknowledged }
  var releasable: UInt64 { machine.releasable }
  var sent: UInt64 { machine.sent }
  var outages: OutageCount { machine.outages }
  var clock: RetryClock { machine.clock }
  var resent: UInt64 { machine.resent }
  var unconfirmedAtEnd: UInt64 { machine.unconfirmedAtEnd }
  var trustsTransport: Bool { true }
  var base: UInt64 { 0 }
  var resumeData: ResumeData? { nil }

  mutating func takeEvents() -> [LiveStreamEvent] {
    defer { events = [] }
    return events
  }

  mutating func takeTimeToExpiry() -> Duration? { nil }

  mutating func start(_ supply: Supply, now: MonotonicInstant) -> StreamStep { step(machine.start(supply)) }

  mutating func connected() {
    machine.connected()
    events.append(.streaming(offset: requestStart))
  }

  mutating func acknowledgedByTransport(bodyCount: UInt64, now: MonotonicInstant) {
    if isLive { machine.acknowledged(bodyCount: bodyCount, now: now) }
  }

  mutating func wrote(upTo cursor: UInt64) { machine.wrote(upTo: cursor) }

  mutating func received(
    interim response: HTTPResponse, location: String?, sentUpTo: UInt64, now: MonotonicInstant
  ) -> StreamStep { .none }

  mutating func requestEnded(_ end: RequestEnd, _ supply: Supply, now: MonotonicInstant, draw: UInt64) -> StreamStep {
    step(machine.requestEnded(verdict(end, now), supply, sentUpTo: end.sentUpTo, now: now, draw: draw))
  }

  mutating func tokenRenewed(_ end: RequestEnd, _ supply: Supply, now: MonotonicInstant, draw: UInt64) -> StreamStep {
    step(machine.tokenRenewed(verdict(end, now), supply, sentUpTo: end.sentUpTo, now: now, draw: draw))
  }

  private mutating func verdict(_ end: RequestEnd, _ now: MonotonicInstant) -> Verdict {
    var verdict = Verdict(end.result, isLocationInsecure: end.isLocationInsecure)
    if case .success(let outcome) = end.result, outcome.response.status == 405, mayUsePOST, method != "POST",
      case let allowed = outcome.response["Allow"]?.split(whereSeparator: { $0 == "," || $0 == " " }) ?? [],
      allowed.contains("POST"), !allowed.contains(where: { $0 == method })
    {
      method = "POST"
      // A refusal like any other: the server has stored nothing.
      verdict = .transient(.response(405), retryAfter: nil, serverOffset: nil)
    } else if retriesRefusals, !machine.hasAcknowledged(by: now), isVagueRefusal(end),
      let refusal = verdict.asRefusal
    {
      verdict = refusal
    }
    if case .complete(let response) = verdict, let denial = denial(response, end) { verdict = denial }
    return verdict
  }

  /// Whether a portal may have answered instead of the server, if the verdict is against the stream.
  private func isVagueRefusal(_ end: RequestEnd) -> Bool {
    switch end.result {
    case .success(let outcome):
      let answer = ClientAnswer(outcome.response, location: nil)
      // The verdict on a success is against the stream if it comes early, or does not mean that everything is stored.
      return answer.isVagueRefusal || answer.isSuccess
    case .failure(let error): return error.kind == .protocolViolation
    }
  }

  mutating func retryIsDue(_ supply: Supply) -> StreamStep {
    step(machine.retryIsDue(supply))
  }

  mutating func bytesAreReady(_ supply: Supply) -> StreamStep { .none }

  mutating func passedPause(at offset: UInt64, _ supply: Supply, now: MonotonicInstant) -> StreamStep {
    machine.passedPause(at: offset, now: now)
    return retryIsDue(supply)
  }

  mutating func expiresSoon() -> Bool { false }

  mutating func stop(_ error: LiveStreamError) -> StreamStep { step(machine.stop(error)) }

  mutating func abandon(_ error: LiveStreamError) -> StreamStep { stop(error) }

  /// The verdict for a success response to the whole content whose fields of resumable uploads report missing bytes.
  /// Nil for any other response. A plain server does not send these fields.
  private func denial(_ response: HTTPResponse, _ end: RequestEnd) -> Verdict? {
    let fields = response.fields
    let isComplete = InteropVersion.completeness(fields)
    let count = UploadFields.offset(fields)
    let sent = end.sentUpTo - requestStart + end.headerLength
    let reason: String
    if let name = UploadFields.unreadable(fields) {
      let value = printable(excerpt(fields[name] ?? "", limit: 40))
      reason = "the server answered \(response.status) with the invalid \(name) \"\(value)\""
    } else if let count, count < sent {
      reason = "the server answered \(response.status), but reports \(count) of \(sent) bytes"
    } else if isComplete == false {
      reason = "the server answered \(response.status), but reports that the upload is not complete"
    } else {
      return nil
    }
    // A server may or may not count the bytes before this request.
    let offset = count.map { requestStart + min($0 - min($0, end.headerLength), end.sentUpTo - requestStart) }
    return .permanent(
      LiveStreamError(.protocolBroken, "\(reason). Check the stored bytes on the server"), .response(response.status),
      serverOffset: offset)
  }

  private mutating func step(_ action: PlainStreamStateMachine.Action) -> StreamStep {
    switch action {
    case .none: return .none
    case .open(let offset, let attempt, let gap):
      let url = machine.part > 1 ? UploadRequest.numbered(target, machine.part) : nil
      if let url, let count = machine.takeUnconfirmed() {
        let shown = UploadRequest.withoutSecrets(url)
        events.append(.upload(.nextURL(shown, offset: offset, unconfirmed: count)))
      }
      if let gap { events.append(.gap(gap)) }
      events.append(.connecting(offset: offset, attempt: attempt))
      requestStart = offset
      return .request(
        StreamRequest(
          start: offset, method: method, url: url,
          // At another URL, it is a separate stream.
          fields: url == nil ? ["Stream-ID": streamID, "Stream-Offset": String(offset)] : [:],
          content: .bytes(maximum: nil), hasHeader: url != nil,
          // There is no way to ask whether the file has arrived. A server may take long to process a large one.
          answerLimit: isLive ? .usual : .times(20)))
    case .wait(let attempt): return .wait(attempt)
    case .pause(let delay): return .pause(delay)
    case .end(let error): return .end(error)
    }
  }
}
