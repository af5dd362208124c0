// Responses: redirects, challenges, and the result for the program.

internal import Foundation
internal import FoundationNetworking
internal import HTTPMessages
internal import ResumableUploads
internal import UploadClient

extension Transfer {
  /// The same limit as on Apple's systems.
  private static let redirectLimit = 16
  /// How much of a response is awaited before the program is asked about a redirect or a challenge, in bytes and
  /// seconds. If the response is short, the connection can be used for the next request.
  private static let preludeLimit = (byteCount: 64 << 10, time: 1.0)

  /// The head of a final response.
  func answered(_ response: HTTPResponse) {
    if let reason = incompleteness(response) {
      pending = .refused(URLError(.badServerResponse, request.url, reason))
      askSoon()
    } else if refusesVersion(response) {
      pending = .otherVersion(response)
      askSoon()
    } else if resumption != nil, StreamResumption.isTemporary(status: response.status) {
      pending = .outage(response)
      askSoon()
    } else if let next = redirect(response) {
      pending = .redirect(response, next)
      askSoon()
    } else if response.status == 401, let challenge = BasicChallenge(response) {
      pending = .challenge(response, challenge)
      askSoon()
    } else {
      deliver(response)
    }
  }

  /// Why a success response does not show that the server has the whole body; nil if it does.
  ///
  /// By RFC 9110, section 15.3, a 2xx can mean that the request was received and accepted. A server that has not read a
  /// body to its end has not received it, whatever it answers.
  private func incompleteness(_ response: HTTPResponse) -> String? {
    guard response.isSuccess, let running, let sent else { return nil }
    if running.contentEndedAt == nil {
      return "the server answered \(response.status) before the end of the body, so it has not read the whole body"
    }
    guard sent.tellsCompleteness else { return nil }
    return InteropVersion.completeness(response.fields) == false
      ? "the server answered \(response.status), but reports that the upload is not complete" : nil
  }

  /// The response goes to the program.
  func deliver(_ response: HTTPResponse) {
    guard let url = request.url, let head = HTTPURLResponse.make(response, url) else { return }
    // The server has read the whole body, and the program must learn that first.
    if running?.contentEndedAt != nil { noteAllSent() }
    // The length of an encoded body is not that of the delivered one.
    let length = response["Content-Encoding"] == nil ? response["Content-Length"] : nil
    let expected = length.flatMap { Int64($0) } ?? NSURLSessionTransferSizeUnknown
    task.change {
      $0.response = head
      $0.bytesExpectedToReceive = expected
    }
    if let download {
      guard download.begin(response, hasContent: request.httpMethod != "HEAD") else { return startOver() }
      if let problem = download.problem { return end(problem) }
      if download.isResumed { tellResumed(download, expected) }
      return
    }
    guard let delegate = session.dataDelegate(of: task), let dataTask = task as? URLSessionDataTask else { return }
    pending = .decision(response)
    // The request continues meanwhile and keeps its number. Only the answer is numbered.
    let asked = ObjectIdentifier(head)
    session.call { [self] in
      delegate.urlSession(session, dataTask: dataTask, didReceive: head) { disposition in
        self.onLoop {
          guard !self.isOver, case .decision = self.pending, self.task.response.map(ObjectIdentifier.init) == asked
          else { return }
          self.decided(disposition)
        }
      }
    }
  }

  private func decided(_ disposition: URLSession.ResponseDisposition) {
    pending = .nothing
    guard disposition == .allow else { return end(URLError(.cancelled, request.url)) }
    releaseHeld()
  }

  /// Passes on the bytes that arrived while the program was asked.
  private func releaseHeld() {
    let pieces = held
    dropHeld()
    for piece in pieces { receive(piece) }
    updateReception()
    if let result = heldEnd.take() { finished(result) }
  }

  /// Discards the bytes of a response that is not delivered.
  func dropHeld() {
    _ = intake.take(heldByteCount)
    (held, heldByteCount) = ([], 0)
  }

  /// Keeps a piece for later.
  private func hold(_ bytes: [UInt8]) {
    held.append(bytes)
    heldByteCount += bytes.count
    if intake.add(bytes.count) { updateReception() }
    if heldByteCount > Self.preludeLimit.byteCount { askNow() }
  }

  /// After a short time, takes the step that follows the end of a response which does not go to the program, unless the
  /// response has ended before.
  private func askSoon() {
    let number = number
    after(Self.preludeLimit.time) { [unowned self] in if self.number == number { askNow() } }
  }

  private func askNow() {
    switch pending {
    case .redirect(let response, let next): askRedirect(response, next, nil)
    case .challenge(let response, let challenge): askChallenge(response, challenge, nil)
    case .outage(let response): outage(response, nil)
    case .otherVersion(let response): otherVersion(response)
    case .refused(let error): refused(error)
    case .nothing, .decision: break
    }
  }

  /// The response reports a temporary state.
  func outage(_ response: HTTPResponse, _ result: Result<UploadTask.Outcome, UploadError>?) {
    retryResumption(retryAfter: response.retryAfter(wallClock: time(nil))) {
      heldEnd = result
      accept(response)
    }
  }

  /// The server supports an older version of the protocol.
  func otherVersion(_ response: HTTPResponse) {
    stepDown(response)
    repeatRequest()
  }

  /// The response is a success, but the upload is not.
  func refused(_ error: URLError) {
    pending = .nothing
    if announced != nil { return continueUpload() }
    retryResumption { fail(error) }
  }

  /// The next bytes of the response's body.
  func receive(_ bytes: [UInt8]) {
    switch pending {
    case .nothing: break
    case .refused, .otherVersion: return
    case .redirect, .challenge, .decision, .outage: return hold(bytes)
    }
    task.change { $0.bytesReceived += Int64(bytes.count) }
    task.updateProgress()
    if let download { return write(bytes, to: download) }
    let data = Data(bytes)
    if task.hasHandler { received.append(data) }
    guard let delegate = session.dataDelegate(of: task), let dataTask = task as? URLSessionDataTask else { return }
    if intake.add(bytes.count) { updateReception() }
    session.call { [self, session] in
      delegate.urlSession(session, dataTask: dataTask, didReceive: data)
      took(data.count)
    }
  }

  // MARK: Redirects

  /// The request that a redirect leads to; nil for another response.
  private func redirect(_ response: HTTPResponse) -> URLRequest? {
    guard [301, 302, 303, 307, 308].contains(response.status), let sent, let base = request.url,
      let location = response["Location"], let target = sent.resolving(location: location),
      // A request that was encrypted must not be repeated unencrypted.
      !sent.isSecure || UploadRequest(url: target).isSecure,
      // With the user and password of this request's URL if the origin is the same.
      let url = URL(string: target)
    else { return nil }
    var next = request
    next.url = url
    let method = request.httpMethod ?? "GET"
    // RFC 9110, section 15.4: every client changes a POST to GET after 301 and 302.
    if response.status == 303 && method != "HEAD" || [301, 302].contains(response.status) && method == "POST" {
      next.httpMethod = "GET"
      next.httpBody = nil
      next.setValue(nil, forHTTPHeaderField: "Content-Type")
    }
    if UploadRequest.origin(of: url.absoluteString) != UploadRequest.origin(of: base.absoluteString) {
      for name in ["Authorization", "Cookie"] { next.setValue(nil, forHTTPHeaderField: name) }
    }
    return next
  }

  func askRedirect(
    _ response: HTTPResponse, _ next: URLRequest, _ result: Result<UploadTask.Outcome, UploadError>?
  ) {
    redirects += 1
    guard redirects <= Self.redirectLimit else { return end(URLError(.httpTooManyRedirects, request.url)) }
    (pending, heldEnd) = (.decision(response), result)
    guard let delegate = taskDelegate, let url = request.url, let head = HTTPURLResponse.make(response, url) else {
      return follow(next)
    }
    ask { [session, task] answer in
      delegate.urlSession(
        session, task: task, willPerformHTTPRedirection: head, newRequest: next, completionHandler: answer)
    } then: { [self] (chosen: URLRequest?) in
      if let chosen { follow(chosen) } else { accept(response) }
    }
  }

  private func follow(_ next: URLRequest) {
    if next.httpMethod == "GET", request.httpMethod != "GET" { content = .none }
    if case .givenStream = content { content = .stream }
    if UploadRequest.origin(of: next.url?.absoluteString ?? "")
      != UploadRequest.origin(of: request.url?.absoluteString ?? "")
    {
      isAtOtherOrigin = true
      failedChallenges = 0
    }
    request = next
    redirectCount += 1
    repeatRequest()
  }

  /// Sends the current request again, or another in its place.
  func repeatRequest() {
    number += 1
    abortRunning()
    (pending, heldEnd, announced) = (.nothing, nil, nil)
    dropHeld()
    feed?.close(failure: "the request is sent again with another stream")
    feed = nil
    send()
  }

  /// The response goes to the program, although it could have led elsewhere.
  func accept(_ response: HTTPResponse) {
    pending = .nothing
    deliver(response)
    if case .nothing = pending { releaseHeld() }
  }

  // MARK: Challenges

  func askChallenge(
    _ response: HTTPResponse, _ basic: BasicChallenge, _ result: Result<UploadTask.Outcome, UploadError>?
  ) {
    guard let url = request.url else { return }
    (pending, heldEnd) = (.decision(response), result)
    let isSecure = url.scheme?.lowercased() == "https"
    let space = URLProtectionSpace(
      host: url.host ?? "", port: url.port ?? (isSecure ? 443 : 80),
      protocol: isSecure ? NSURLProtectionSpaceHTTPS : NSURLProtectionSpaceHTTP, realm: basic.realm,
      authenticationMethod: NSURLAuthenticationMethodHTTPBasic)
    let proposed = settings.urlCredentialStorage?.defaultCredential(forSpaceLike: space)
    let challenge = URLAuthenticationChallenge(
      protectionSpace: space, proposedCredential: proposed, previousFailureCount: failedChallenges,
      failureResponse: HTTPURLResponse.make(response, url), error: nil, sender: NoSender())
    failedChallenges += 1
    let byDefault = failedChallenges == 1 ? proposed : nil
    guard let delegate = taskDelegate else { return answer(byDefault, response) }
    ask { [session, task] answer in
      delegate.urlSession(session, task: task, didReceive: challenge) { answer(ChallengeAnswer($0, $1)) }
    } then: { [self] (chosen: ChallengeAnswer) in
      switch chosen.disposition {
      case .useCredential: answer(chosen.credential, response)
      case .performDefaultHandling: answer(byDefault, response)
      case .cancelAuthenticationChallenge: end(URLError(.cancelled, request.url))
      case .rejectProtectionSpace: accept(response)
      }
    }
  }

  /// Sends the request again with a credential. Without one, the response goes to the program.
  private func answer(_ credential: URLCredential?, _ response: HTTPResponse) {
    guard let credential, let user = credential.user, let password = credential.password else {
      return accept(response)
    }
    let token = Data("\(user):\(password)".utf8).base64EncodedString()
    request.setValue("Basic \(token)", forHTTPHeaderField: "Authorization")
    if case .givenStream = content { content = .stream }
    repeatRequest()
  }
}

/// A delegate's answer to a challenge.
private struct ChallengeAnswer: @unchecked Sendable {
  let disposition: URLSession.AuthChallengeDisposition
  let credential: URLCredential?

  init(_ disposition: URLSession.AuthChallengeDisposition, _ credential: URLCredential?) {
    (self.disposition, self.credential) = (disposition, credential)
  }
}

/// The completion handler answers a challenge, so its sender is never called.
private final class NoSender: NSObject, URLAuthenticationChallengeSender {
  func use(_ credential: URLCredential, for challenge: URLAuthenticationChallenge) {}
  func continueWithoutCredential(for challenge: URLAuthenticationChallenge) {}
  func cancel(_ challenge: URLAuthenticationChallenge) {}
  func performDefaultHandling(for challenge: URLAuthenticationChallenge) {}
  func rejectProtectionSpaceAndContinue(with challenge: URLAuthenticationChallenge) {}
}
