// A live stream's requests: what its rules want done, one request after another, and how each ends.

internal import EventLoops
internal import HTTPMessages
internal import ResumableUploads
internal import UploadClient

extension LiveStream {
  // MARK: Steps

  func perform(_ step: StreamStep) {
    var gapEnd: UInt64?
    for event in machine.takeEvents() {
      if case .upload(.nextURL(_, _, let count)) = event { unconfirmed += count }
      guard case .gap(let gap) = event else {
        handler(event)
        continue
      }
      note(gap)
      if gap.cause == .bufferFull { gapEnd = gap.offset.addingSaturated(gap.length) }
    }
    // Once for the part that begins there: a pause divides one loss into two gaps.
    if let gapEnd { writer?.gaveUp(upTo: gapEnd) }
    settleAcknowledged()
    if live?.isSpooled == true, let offset = machine.confirmedSurplus { passPauses(before: offset) }
    noteResumption()
    switch step {
    case .none: break
    case .end(let error): end(error ?? content.fault)
    case _ where isSuspended: heldStep = step
    case .request(let next): send(next)
    case .awaitBytes(let offset):
      if live != nil, offset - min(offset, machine.acknowledged) > content.capacity {
        if let step = machine.cannotKeep(upTo: offset, now: .now, draw: .random(in: .min ... .max)) {
          return perform(step)
        }
        return end(
          LiveStreamError(
            .refused,
            "the server takes nothing below \(offset - machine.acknowledged) bytes, and the buffer holds \(content.capacity): make it larger"
          ))
      }
      awaitedOffset = offset
      if !content.requestWakeUp(at: offset) { dataArrived() }
    case .wait(var dropout):
      // Several attempts fit into the time to finish.
      if let finishLimit { dropout.retryDelay = min(dropout.retryDelay, finishLimit / 8) }
      // Nothing is under way as a rule; what is has to end.
      dropRequest()
      unconfirmed += dropout.unconfirmed
      if case .response(let status) = dropout.cause, let response, response.status == status {
        dropout.reason = response.reason
      }
      handler(dropout.isRepeated ? .attemptFailed(dropout) : .dropout(dropout))
      noteDiscarding()
      retryTimer = loop.schedule(after: dropout.retryDelay) { [unowned self] in retry() }
    case .fallBack(let reason, let method):
      guard configuration.resumable == .auto else {
        return end(
          LiveStreamError(
            .refused,
            "the server does not support resumable uploads: \(reason); a plain upload goes on without them",
            remedy: .plainUpload))
      }
      handler(.upload(.notSupported(reason)))
      beforeFallBack = (machine.dropouts, machine.resent)
      machine = Self.plainRules(configuration, isLive: live != nil, method: method)
      trustsTransport = machine.trustsTransport
      perform(machine.start(content.supply, now: .now))
    }
  }

  /// The pause between two attempts is over.
  func retry() {
    retryTimer = nil
    perform(machine.retryIsDue(content.supply))
  }

  /// There are bytes where there were none, or the stream has ended.
  func dataArrived() {
    guard let offset = awaitedOffset else { return writer?.write() ?? () }
    // In this order: after the producer has finished, the head is final.
    guard content.isFinished || content.head >= offset || !content.requestWakeUp(at: offset) else { return }
    awaitedOffset = nil
    perform(machine.bytesAreReady(content.supply))
  }

  // MARK: One request after another

  func send(_ next: StreamRequest) {
    dropRequest()
    // Nobody can continue the upload of a file that another one has taken the place of.
    if case .bytes = next.content, let fault = content.fault { return perform(machine.abandon(fault)) }
    if next.describesRepresentation {
      content.restartDigest(at: next.start)
      if let lifetimeTimer { loop.cancel(lifetimeTimer) }
      lifetimeTimer = nil
    }
    let number = UInt64.random(in: .min ... .max)
    let header = next.hasHeader ? live?.header ?? [] : []
    do {
      let body: UploadBody =
        switch next.content {
        case .absent: .none
        case .empty: .empty
        case .bytes(let maximum): try content.openBody(header, from: next.start, maximum: maximum)
        }
      renewToken()
      var whole = next.uploadRequest(configuration, token: token)
      if intermediary.needsHTTP1 { whole.httpVersion = .http1 }
      whole.countsChunks = trustsTransport
      let description = describer?.value(at: content.head, now: .now) ?? configuration.sentDescription
      if next.content != .absent, let description {
        whole.fields.append(.init(name: StreamDescription.fieldName, value: description))
        live?.spool?.note(description: description)
      }
      let task = try session.upload(whole, body: body, lane: configuration.lane) { [self] event in
        guard let request, request.number == number else { return }
        handle(event, request)
      }
      request = RunningRequest(
        step: next, whole: whole, token: token, task: task, number: number, headerLength: header.count)
      transport.begin(at: next.start)
      // The body may hold all that there is by now, and nothing more be written for long.
      if let writer, case .bytes = next.content, writer.cursor > next.start { didWrite() }
    } catch {
      content.dropBody()
      let kind: LiveStreamError.Kind = error is SystemError ? .source : .invalidRequest
      perform(machine.stop(LiveStreamError(kind, "\(error)")))
    }
  }

  func dropRequest() {
    guard let request else { return }
    self.request = nil
    brokenOff = request
    request.task.cancel()
    content.dropBody()
    if let rollOverTimer { loop.cancel(rollOverTimer) }
    rollOverTimer = nil
  }

  func handle(_ event: UploadTask.Event, _ request: RunningRequest) {
    if let brokenOff {
      machine.wrote(upTo: brokenOff.sentUpTo)
      self.brokenOff = nil
    }
    switch event {
    case .connected(let isNew):
      hasConnected = true
      handler(.connected(isNew: isNew, after: .now - request.issued))
      machine.connected()
      perform(.none)
    case .accepted(let count): handler(.accepted(request.step.start + request.streamed(count)))
    // Its requests do not ask for them.
    case .response, .responseBody: break
    case .interimResponse(let response):
      handler(.interimResponse(response))
      let step = machine.received(
        interim: response, location: location(response, request).url, sentUpTo: request.sentUpTo, now: .now)
      noteLifetime()
      perform(step)
      let isLast = intermediary.received(interimOf: request.number)
      if isLast || request.task.responseHeaderByteCount > configuration.rollOver.responseHeadSize { rollOver() }
    case .finished(let result):
      takeCounts()
      if let measured = configuration.measured, let measurements = request.task.measure() {
        measured(measurements, request.whole, result)
      }
      let sentUpTo = request.sentUpTo
      self.request = nil
      content.dropBody()
      if let rollOverTimer { loop.cancel(rollOverTimer) }
      rollOverTimer = nil
      finished(result, request, sentUpTo: sentUpTo)
    }
  }

  func finished(
    _ result: Result<UploadTask.Outcome, UploadError>, _ request: RunningRequest, sentUpTo: UInt64
  ) {
    if case .failure(let error) = result, error.kind == .bodyFailed, live == nil {
      // Nobody can continue the upload of a file that has changed: the server need not keep what it has of it.
      if let fault = content.fault { return perform(machine.abandon(fault)) }
      // A file that cannot be read will not be read the next time.
      return perform(machine.stop(LiveStreamError(.source, error.description)))
    }
    var result = result
    if case .failure(let error) = result, error.kind == .http2Violation, request.whole.httpVersion == .http2 {
      // Going on with HTTP/1.1 is not what was asked for. Where HTTP/2 has got through, one stream that broke is a
      // dropout.
      result = .failure(
        machine.acknowledged > 0
          ? UploadError(.connectionLost, error.description)
          : UploadError(
            .http2NotSupported,
            "\(error.description): what is in between breaks HTTP/2 (nginx does at interim responses: let the server send it none)"
          ))
    }
    intermediary.ended(result)
    var isTokenRenewed = false
    var place: (url: String?, isInsecure: Bool) = (nil, false)
    if case .success(let outcome) = result {
      response = outcome.response
      handler(
        .response(
          status: outcome.response.status,
          after: outcome.isEarly ? nil : request.task.contentEndedAt.map { .now - $0 }))
      place = location(outcome.response, request)
      if [401, 403].contains(outcome.response.status) { isTokenRenewed = renewToken() != request.token }
      compareDigest(outcome.response, sentUpTo: sentUpTo)
    }
    let step = machine.requestEnded(
      RequestEnd(
        result: result, location: place.url, isLocationInsecure: place.isInsecure, sentUpTo: sentUpTo,
        isTokenRenewed: isTokenRenewed, headerLength: request.headerLength),
      content.supply, now: .now, draw: .random(in: .min ... .max))
    noteLifetime()
    perform(step)
  }

  /// Where `Location` leads; nil where that may not be followed.
  func location(_ response: HTTPResponse, _ request: RunningRequest) -> (url: String?, isInsecure: Bool) {
    guard let value = response["Location"] else { return (nil, false) }
    if configuration.keepsOrigin { return (request.whole.keepingOrigin(ofLocation: value), false) }
    let url = request.whole.resolving(location: value)
    // What was asked for encrypted is not sent in clear text because a server, or somebody in between, says so.
    if request.whole.isSecure, let url, !UploadRequest(url: url).isSecure { return (nil, true) }
    return (url, false)
  }

  /// The bearer token to be sent now. A file that is being replaced may be empty for a moment, or half of what it will
  /// be.
  @discardableResult
  func renewToken() -> String? {
    if let new = configuration.bearerToken?(), UploadRequest.canSend(token: new) { token = new }
    return token
  }

  /// The request under way ends where it is, for another to go on.
  func rollOver() {
    if let rollOverTimer { loop.cancel(rollOverTimer) }
    rollOverTimer = nil
    guard let request, request.step.rollsOver else { return }
    if content.endBody(atLeast: request.step.minimumEnd) { return }
    // Its length was announced: it can only be broken off.
    let sentUpTo = request.sentUpTo
    dropRequest()
    finished(
      .failure(UploadError(.connectionLost, "broken off to go on in another request")), request, sentUpTo: sentUpTo)
  }

  /// The upload resource's life is counted anew with each response that tells it.
  func noteLifetime() {
    guard let lifetime = machine.takeLifetime(), !machine.isEnded else { return }
    if let lifetimeTimer { loop.cancel(lifetimeTimer) }
    // Early enough for what is under way to end, and for one more request.
    let margin = max(lifetime / 10, min(.seconds(20), lifetime / 2))
    lifetimeTimer = loop.schedule(after: lifetime - margin) { [unowned self] in
      lifetimeTimer = nil
      guard machine.expiresSoon() else { return }
      if request != nil { return rollOver() }
      if awaitedOffset != nil {
        awaitedOffset = nil
        perform(machine.bytesAreReady(content.supply))
      }
    }
  }
}
