// The requests of a live stream: the steps that its state machine returns, one request after another, and their ends.

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
    // Once for the part that begins there, because a pause divides one loss into two gaps.
    if let gapEnd { writer?.gaveUp(upTo: gapEnd) }
    settleAcknowledged()
    if live?.isSpooled == true, let offset = machine.confirmedSurplus { passPauses(before: offset) }
    noteResumption()
    switch step {
    case .none: break
    case .end(let error): end(error ?? content.fault)
    // Also during a suspension, because the rules have ended, and an order to stop needs the other ones.
    case .fallBack(let reason, let method):
      guard configuration.resumable == .auto else {
        return end(
          LiveStreamError(
            .refused,
            "the server does not support resumable uploads: \(reason). A plain upload continues without them",
            remedy: .plainUpload))
      }
      handler(.upload(.notSupported(reason)))
      resentBeforeFallBack = machine.resent
      machine = Self.plainRules(configuration, isLive: live != nil, method: method, after: machine)
      trustsTransport = machine.trustsTransport
      writer?.endDigest()
      perform(machine.start(content.supply, now: .now))
    case _ where isSuspended: heldStep = step
    case .request(let next): send(next)
    case .awaitBytes(let offset):
      if live != nil, offset - min(offset, machine.acknowledged) > content.capacity {
        if let step = machine.cannotKeep(upTo: offset, now: .now, draw: .random(in: .min ... .max)) {
          return perform(step)
        }
        let words =
          "the server requires at least \(offset - machine.acknowledged) bytes per request, "
          + "and the buffer has only \(content.capacity). Choose a larger buffer"
        // The rules must know of the end, because an order that comes later would begin another request.
        return perform(machine.stop(LiveStreamError(.refused, words)))
      }
      awaitedOffset = offset
      if !content.requestWakeUp(at: offset) { dataArrived() }
    case .wait(var attempt):
      // Several attempts fit into the time to finish.
      machineError = if case .machine(let error) = attempt.cause { error } else { nil }
      if let finishLimit { attempt.retryDelay = min(attempt.retryDelay, finishLimit / 8) }
      // Usually there is no current request. If there is one, it must end.
      dropRequest()
      unconfirmed += attempt.unconfirmed
      if case .response(let status) = attempt.cause, let response, response.status == status {
        attempt.reason = response.reason
      }
      switch attempt.cause {
      case .unknownHost, .unreachable, .timedOut, .connectionLost: attempt.locationOrigin = locationOrigin
      case .response, .overtaken, .cut, .machine, .other: break
      }
      handler(attempt.isRepeated ? .attemptFailed(attempt) : .outage(attempt))
      noteDiscarding()
      retryTimer = loop.schedule(after: attempt.retryDelay) { [unowned self] in retry() }
    case .pause(let delay):
      dropRequest()
      noteDiscarding()
      retryTimer = loop.schedule(after: finishLimit.map { min(delay, $0 / 8) } ?? delay) { [unowned self] in retry() }
    }
  }

  /// The pause between two attempts is over.
  func retry() {
    retryTimer = nil
    perform(machine.retryIsDue(content.supply))
  }

  /// Bytes have arrived, or the stream has ended.
  func dataArrived() {
    guard let offset = awaitedOffset else { return writer?.write() ?? () }
    // In this order, because the head is final after the producer has finished.
    guard content.isFinished || content.head >= offset || !content.requestWakeUp(at: offset) else { return }
    awaitedOffset = nil
    perform(machine.bytesAreReady(content.supply))
  }

  // MARK: One request after another

  func send(_ next: StreamRequest) {
    dropRequest()
    // The upload of a replaced file can no longer be continued.
    if case .bytes = next.content, let fault = content.fault { return perform(machine.abandon(fault)) }
    if next.describesRepresentation {
      content.restartDigest(at: next.start)
      if let lifetimeTimer { loop.cancel(lifetimeTimer) }
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
      // The other end may be closing the connection of an earlier request. Its TCP would acknowledge bytes that no
      // program reads, and the next request would begin after them.
      whole.usesFreshConnection = trustsTransport && hasOwnConnections
      whole.looksUpAgain = lacksConnection
      if !trustsTransport, case .bytes = next.content, let interval = configuration.acknowledgementInterval {
        whole.fields.append(UploadFields.progressInterval, "\(interval)")
      }
      let description = describer?.value(at: content.head, now: .now) ?? configuration.sentDescription
      if next.content != .absent, let description {
        whole.fields.append(StreamDescription.fieldName, description)
        live?.spool?.note(description: description)
      }
      var keepsConnection: (@Sendable (HTTPResponse) -> Bool)?
      if next.mayBecomePlain, !trustsTransport, hasOwnConnections, configuration.resumable == .auto {
        keepsConnection = { [self] response in !becomesPlain(after: response, number) }
      }
      let task = try session.upload(
        whole, body: body, lane: configuration.lane, keepsConnection: keepsConnection
      ) { [self] event in
        guard let request, request.number == number else { return }
        handle(event, request)
      }
      request = RunningRequest(
        step: next, whole: whole, token: token, task: task, number: number, headerLength: header.count)
      lacksConnection = true
      if trustsTransport { transport.begin(at: next.start) }
      // The body may contain all available bytes, and no write may follow for long.
      if let writer, case .bytes = next.content, writer.cursor > next.start { didWrite() }
    } catch let error as SystemError where error.isTemporary {
      content.dropBody()
      // The next attempt may get what this one lacked, such as a descriptor.
      let failure = UploadError(machine: error)
      perform(
        machine.requestEnded(
          RequestEnd(result: .failure(failure), sentUpTo: next.start), content.supply, now: .now,
          draw: .random(in: .min ... .max)))
    } catch let error as UploadError where error.kind == .cancelled {
      // The session is about to close.
      content.dropBody()
      perform(machine.stop(Self.cancelled))
    } catch {
      content.dropBody()
      let kind: LiveStreamError.Kind = error is SystemError ? .source : .invalidRequest
      perform(machine.stop(LiveStreamError(kind, "\(error)")))
    }
  }

  /// Whether each plain request of this stream has a new connection.
  private var hasOwnConnections: Bool { live != nil && !session.sharesConnections }

  /// Whether the stream continues with plain requests after this response to its current request. None of them uses the
  /// connection, which would stay idle for as long as the stream lasts.
  private func becomesPlain(after response: HTTPResponse, _ number: UInt64) -> Bool {
    guard let request, request.number == number else { return false }
    let place = location(response, request)
    let end = RequestEnd(
      result: .success(UploadTask.Outcome(response: response, isEarly: false)), location: place.url,
      isLocationInsecure: place.isInsecure, sentUpTo: request.sentUpTo)
    // A copy decides, because the request is not over yet.
    var rules = machine
    if case .fallBack = rules.requestEnded(end, content.supply, now: .now, draw: 0) { return true }
    return false
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
      (hasConnected, lacksConnection, machineError) = (true, false, nil)
      handler(.connected(isNew: isNew, after: .now - request.issued))
      machine.connected()
      perform(.none)
    case .accepted(let count): handler(.accepted(request.step.start + request.streamed(count)))
    // The requests do not use these.
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
      // The upload of a changed file can no longer be continued, so the server need not keep its bytes.
      if let fault = content.fault { return perform(machine.abandon(fault)) }
      // Another attempt would not be able to read the file either.
      if !error.mayPass { return perform(machine.stop(LiveStreamError(.source, error.description))) }
    }
    locationOrigin = nil
    if case .failure = result, let origin = UploadRequest.origin(of: request.whole.url),
      origin != UploadRequest.origin(of: configuration.request.url)
    {
      locationOrigin = origin
    }
    var result = result
    if request.whole.httpVersion == .http2 {
      result = IntermediaryLimits.requiringHTTP2(result, hasWorked: machine.acknowledged > 0)
    }
    intermediary.ended(result)
    var isTokenRenewed = false
    var place: (url: String?, isInsecure: Bool) = (nil, false)
    if case .success(let outcome) = result {
      (response, responseFailure) = (outcome.response, outcome.bodyFailure)
      handler(
        .response(
          status: outcome.response.status,
          after: outcome.isEarly ? nil : request.task.contentEndedAt.map { .now - $0 }))
      place = location(outcome.response, request)
      if [401, 403].contains(outcome.response.status) { isTokenRenewed = renewToken() != request.token }
      compareDigest(outcome.response, sentUpTo: sentUpTo)
    }
    let end = RequestEnd(
      result: result, location: place.url, isLocationInsecure: place.isInsecure, sentUpTo: sentUpTo,
      headerLength: request.headerLength)
    let draw = UInt64.random(in: .min ... .max)
    let step =
      isTokenRenewed
      ? machine.tokenRenewed(end, content.supply, now: .now, draw: draw)
      : machine.requestEnded(end, content.supply, now: .now, draw: draw)
    noteLifetime()
    perform(step)
  }

  /// The target of `Location`. Nil if it must not be followed.
  func location(_ response: HTTPResponse, _ request: RunningRequest) -> (url: String?, isInsecure: Bool) {
    guard let value = response["Location"] else { return (nil, false) }
    if configuration.keepsOrigin { return (request.whole.keepingOrigin(ofLocation: value), false) }
    let url = request.whole.resolving(location: value)
    // A stream that was requested over https is never sent in clear text because of a response.
    if request.whole.isSecure, let url, !UploadRequest(url: url).isSecure { return (nil, true) }
    return (url, false)
  }

  /// The current bearer token. A file that is being replaced may be empty or incomplete for a moment.
  @discardableResult
  func renewToken() -> String? {
    if let new = configuration.bearerToken?(), UploadRequest.canSend(token: new) { token = new }
    return token
  }

  /// Ends the current request, so that another can continue.
  func rollOver() {
    if let rollOverTimer { loop.cancel(rollOverTimer) }
    rollOverTimer = nil
    guard let request, request.step.rollsOver else { return }
    if content.endBody(atLeast: request.step.minimumEnd) { return }
    // Its length was announced, so it can only be interrupted.
    let sentUpTo = request.sentUpTo
    dropRequest()
    perform(machine.rolledOver(sentUpTo: sentUpTo, now: .now, draw: .random(in: .min ... .max)))
  }

  /// The shortest use of an upload resource. A server may report that each of them expires at once (`max-age=0`), and
  /// must not get new ones without a pause.
  private static let shortestUse = Duration.milliseconds(500)

  /// The lifetime of the upload resource begins again with each response that reports it.
  func noteLifetime() {
    guard let delay = machine.takeTimeToExpiry(), !machine.isEnded else { return }
    if let lifetimeTimer { loop.cancel(lifetimeTimer) }
    lifetimeTimer = loop.schedule(after: max(delay, Self.shortestUse)) { [unowned self] in
      guard machine.expiresSoon() else { return }
      if request != nil { return rollOver() }
      if awaitedOffset != nil {
        awaitedOffset = nil
        perform(machine.bytesAreReady(content.supply))
      }
    }
  }
}
