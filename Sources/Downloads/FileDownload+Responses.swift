// The responses to a request, and their consequences.

internal import Digests
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import LiveStreaming
internal import UploadClient

extension FileDownload {
  /// How many bytes are read of a response without the download's content: for its explanation, and so that the
  /// connection can be reused.
  private static let otherLimit = 64 << 10

  func happened(_ event: UploadTask.Event) {
    guard !isEnding else { return }
    switch event {
    case .connected:
      (isConnected, lacksConnection) = (true, false)
      clock.noteConnected()
    case .accepted, .interimResponse: break
    case .response(let response): answered(response)
    case .responseBody(let bytes): received(bytes)
    case .finished(let result):
      (running, isConnected) = (nil, false)
      finished(result)
    }
  }

  // MARK: Responses

  private func answered(_ response: HTTPResponse) {
    guard [200, 206].contains(response.status) || machine.count > 0 && [412, 416].contains(response.status) else {
      reception = .other(response)
      return
    }
    // During a download, something else may answer in the server's place.
    guard !machine.isDoubtful(response) else {
      reception = .other(response)
      return
    }
    let before = machine.count
    let answer = machine.answered(response)
    switch answer {
    case .broken(let words):
      stopRequest()
      self.response = response
      refused("the server broke the protocol: \(words)", kind: .protocolBroken)
    case .fail(let words):
      self.response = response
      fail(
        DownloadError(
          .protocolBroken, "the server broke the protocol: \(words). Check the server, or try again later."))
    case .startOver(let reason):
      stopRequest()
      if discard(reason, before) { send(sent) }
    case .complete:
      self.response = response
      contentStart = machine.count
      complete()
    case .content(let offset, let reason):
      if offset == 0, !discard(reason ?? .changed, before) { return }
      begin(response, at: offset)
    }
  }

  private func begin(_ response: HTTPResponse, at offset: UInt64) {
    guard let file else { return }
    (self.response, contentStart, reception) = (response, offset, .content)
    // Otherwise, a file is read when it is complete. For a pipe, a digest must begin before a trailer or a later
    // response names the algorithm, so it uses the requested one.
    if offset == 0 || file.isStream {
      let stated = [machine.digest, response[DigestField.content]].flatMap { $0.map(Self.digests) ?? [] }
      file.beginDigests(
        DigestAlgorithm.allCases.filter { algorithm in
          stated.contains { $0.algorithm == algorithm } || file.isStream && algorithm == .sha256
        })
    }
    handler(.receiving(offset: offset, length: machine.length))
    if let validator = machine.validator, !file.isStream {
      tellResumable(
        DownloadResumeData(
          path: file.path, inode: file.inode, birth: file.birth, byteCount: offset, validator: validator,
          length: machine.length, digest: machine.digest))
    }
    // A continued part is already stored, with the same validator.
    if offset == 0 { record() }
    hold()
  }

  private func received(_ bytes: [UInt8]) {
    switch reception {
    case .nothing: break
    case .other:
      otherBody += bytes.prefix(HTTPResponse.bodyLimit - min(HTTPResponse.bodyLimit, otherBody.count))
      otherCount += bytes.count
      guard otherCount > Self.otherLimit, case .other(var response) = reception else { break }
      response.body = otherBody
      stopRequest()
      judge(response)
    case .content:
      let before = machine.count
      guard machine.received(bytes.count) else {
        stopRequest()
        if discard(.excess, before) { again(.other("\(DownloadRestart.excess)"), nil) }
        return
      }
      file?.write(bytes) { [self, session] bytes, isNews in
        session?.reuse(bytes)
        if isNews { onLoop { $0.written() } }
      }
      recordIfDue()
      if reach.received(upTo: machine.count) {
        clock.noteProgress()
        outages.worked()
      }
      hold()
    }
  }

  /// Pauses the server while the disk is behind.
  private func hold() { if file?.isFull == true { running?.pauseReception() } }

  /// The disk has written bytes, or has refused them.
  func written() {
    guard !isEnding, let file else { return }
    if let error = file.error { return fail(Self.fileError(error)) }
    if !file.isFull { running?.resumeReception() }
  }

  // MARK: The end of a request

  private func finished(_ result: Result<UploadTask.Outcome, UploadError>) {
    switch reception {
    case .content:
      let failure: UploadError? =
        switch result {
        case .success(let outcome): outcome.bodyFailure
        case .failure(let error): error
        }
      if case .success(let outcome) = result { self.response?.trailers = outcome.response.trailers }
      switch machine.ended(isWhole: failure == nil) {
      case .complete: complete()
      case .goOn: send()
      case .broken: broken(failure)
      }
    case .other(var response):
      response.body = otherBody
      judge(response)
    case .nothing:
      guard case .failure(let error) = result else {
        return again(.other("the server sent no response"), nil)
      }
      broken(error)
    }
  }

  /// Some or all bytes are missing.
  private func broken(_ error: UploadError?) {
    guard let error else {
      return again(.connectionLost("the response ended before the last byte of its content"), nil)
    }
    switch Verdict(.failure(error)) {
    case .complete: break
    case .transient(let cause, let retryAfter, _): again(cause, retryAfter)
    case .refusal(let refusal, let cause, let retryAfter, _): again(cause, retryAfter, refusal)
    case .unexpected(let refusal, let cause, let retryAfter, _):
      // During a download, something else answers in the server's place.
      if reach.furthest > 0 { again(cause, retryAfter) } else { fail(DownloadError(refusal)) }
    case .permanent(let refusal, _, _): fail(DownloadError(refusal))
    }
  }

  /// A response without content of the download.
  private func judge(_ response: HTTPResponse) {
    self.response = response
    let status = response.status
    let words = response.reason.map { ": \($0.last == "." ? String($0.dropLast()) : $0)" } ?? ""
    let retryAfter = response.retryAfter(wallClock: time(nil))
    switch status {
    case 301, 302, 303, 307, 308: follow(response)
    case 304:
      refused(
        "the server answered 304 (Not Modified) instead of sending the file, although the request did not ask whether a copy is current. Check the server, and the caches and proxies before it.",
        retryAfter)
    case 401, 407:
      again(
        .response(status), retryAfter,
        LiveStreamError(
          .notPermitted, "the \(status == 407 ? "proxy" : "server") requires valid credentials (\(status))\(words)",
          remedy: status == 407 ? .proxyCredentials : .credentials))
    case 403:
      again(
        .response(status), retryAfter,
        LiveStreamError(
          .notPermitted, "the server does not permit this (403)\(words). Check the credentials and the URL's path."))
    case _ where RetriedStatus.contains(status): again(.response(status), retryAfter)
    case 404, 410:
      let advice = response.reason == Self.receivesOnly ? "" : ". Check the path."
      refused("the URL does not exist (\(status))\(words)\(advice)", retryAfter)
    case 200:
      refused("the server answered with a different resource than before: its response (200) has no ETag", retryAfter)
    default: refused("the server refused the download (\(status))\(words)", retryAfter)
    }
  }

  /// The response of a server of this package that does not allow downloads.
  package static let receivesOnly = "This server receives streams. It does not offer downloads."

  /// A response that ends a download which has not begun. Once some bytes are there, it counts as an outage, because a
  /// portal or a server that is being reconfigured may have sent it.
  private func refused(
    _ words: String, _ retryAfter: Duration? = nil, kind: LiveStreamError.Kind = .refused
  ) {
    again(response.map { .response($0.status) } ?? .other(words), retryAfter, LiveStreamError(kind, words))
  }

  private func follow(_ response: HTTPResponse) {
    redirects += 1
    guard redirects <= Self.redirectLimit, let location = response["Location"],
      let target = sent.resolving(location: location)
    else {
      return refused("the server redirects to an invalid URL, or too many times (\(response.status))")
    }
    guard !sent.isSecure || UploadRequest(url: target).isSecure else {
      return refused(
        "the server redirects from https to http. Check its configuration.", kind: .insecureLocation)
    }
    send(sent.directed(to: target))
  }

  /// Tries again after a delay, or gives up.
  func again(_ cause: FailedAttempt.Cause, _ retryAfter: Duration?, _ refusal: LiveStreamError? = nil) {
    guard let loop = session?.loop else { return }
    // A pipe's output could be continued, but not restarted. The next answer decides.
    let delay: Duration
    do throws(LiveStreamError) {
      delay = try clock.failed(
        .init(cause: cause, retryAfter: retryAfter, refusal: refusal, hasAcknowledged: reach.furthest > 0), now: .now,
        draw: .random(in: .min ... .max))
    } catch {
      return fail(DownloadError(error))
    }
    var attempt = FailedAttempt(
      cause: cause, acknowledged: machine.count, retryDelay: delay,
      isRepeated: outages.failed(acknowledged: reach.furthest))
    if case .response(let status) = cause, let response, response.status == status { attempt.reason = response.reason }
    handler(attempt.isRepeated ? .attemptFailed(attempt) : .outage(attempt))
    retryTimer = loop.schedule(after: delay) { [self] in
      retryTimer = nil
      send()
    }
  }

  /// All digests in a field whose algorithm is supported, at most one per algorithm.
  static func digests(_ text: String) -> [Digest] {
    guard let parsed = DigestField(parsing: text) else { return [] }
    return DigestAlgorithm.allCases.compactMap { algorithm in
      parsed[algorithm.name].flatMap { Digest(algorithm, bytes: $0) }
    }
  }
}
