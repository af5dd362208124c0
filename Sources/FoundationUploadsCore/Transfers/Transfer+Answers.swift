// Responses: redirects, challenges, and what the program gets.

internal import Foundation
internal import FoundationNetworking
internal import HTTPMessages
internal import ResumableUploads
internal import UploadClient

extension Transfer {
  /// As Apple's systems do.
  private static let redirectLimit = 16

  /// The head of a final response.
  func answered(_ response: HTTPResponse) {
    if let reason = incompleteness(response) {
      pending = .refused(URLError(.badServerResponse, request.url, reason))
    } else if resumption != nil, StreamResumption.isTemporary(status: response.status) {
      pending = .outage(response)
    } else if let next = redirect(response) {
      pending = .redirect(response, next)
    } else if response.status == 401, let realm = Self.basicRealm(response) {
      pending = .challenge(response, realm: realm)
    } else {
      deliver(response)
    }
  }

  /// Why a success response does not say that the server has the whole body; nil where it does.
  ///
  /// RFC 9110, section 15.3, lets a 2xx mean that the request was received and accepted. A server that has not read a
  /// body to its end has not received it, whatever it answers.
  private func incompleteness(_ response: HTTPResponse) -> String? {
    guard response.isSuccess, let running, let sent else { return nil }
    if running.contentEndedAt == nil {
      return "the server answered \(response.status) before the end of the body: it has not read all of it"
    }
    guard sent.fields.contains(where: { $0.name == "Upload-Complete" }) else { return nil }
    let fields = HeaderFields(received: response.fields.lazy.map { (name: $0.name, value: $0.value) })
    return InteropVersion.completeness(fields) == false
      ? "the server answered \(response.status), but says that the upload is not complete" : nil
  }

  /// The program's response.
  func deliver(_ response: HTTPResponse) {
    guard let url = request.url, let head = HTTPURLResponse.make(response, url) else { return }
    let expected = response["Content-Length"].flatMap { Int64($0) } ?? NSURLSessionTransferSizeUnknown
    task.change {
      $0.response = head
      $0.bytesExpectedToReceive = expected
    }
    if let download {
      guard download.begin(response, url) else { return startOver() }
      if download.isResumed { tellResumed(download, expected) }
      return
    }
    guard completion.isDelegate, let delegate = taskDelegate as? any URLSessionDataDelegate,
      let dataTask = task as? URLSessionDataTask
    else { return }
    pending = .decision(response)
    // The request goes on meanwhile, and its number stays: only the answer is numbered.
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

  /// Passes on what came while the program was asked.
  private func releaseHeld() {
    let pieces = held
    held = []
    for piece in pieces { receive(piece) }
    if let result = heldEnd.take() { finished(result) }
  }

  /// The next bytes of the response's body.
  func receive(_ bytes: [UInt8]) {
    switch pending {
    case .nothing: break
    case .refused: return
    case .redirect, .challenge, .decision, .outage: return held.append(bytes)
    }
    task.change { $0.bytesReceived += Int64(bytes.count) }
    task.updateProgress()
    if let download { return write(bytes, to: download) }
    let data = Data(bytes)
    guard completion.isDelegate else { return received.append(data) }
    guard let delegate = taskDelegate as? any URLSessionDataDelegate, let dataTask = task as? URLSessionDataTask else {
      return
    }
    session.call { [session] in delegate.urlSession(session, dataTask: dataTask, didReceive: data) }
  }

  // MARK: Redirects

  /// The request that a redirect leads to; nil for another response.
  private func redirect(_ response: HTTPResponse) -> URLRequest? {
    guard [301, 302, 303, 307, 308].contains(response.status), let sent, let base = request.url,
      let location = response["Location"], let target = sent.resolving(location: location),
      // What was asked for encrypted is not sent in clear text.
      !sent.isSecure || UploadRequest(url: target).isSecure,
      let url = URL(string: UploadRequest.withoutCredentials(target), relativeTo: base)?.absoluteURL
    else { return nil }
    var next = request
    next.url = url
    let method = request.httpMethod ?? "GET"
    // RFC 9110, section 15.4: what every client does with 301 and 302 after POST.
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
    _ response: HTTPResponse, _ next: URLRequest, _ result: Result<UploadTask.Outcome, UploadError>
  ) {
    redirects += 1
    guard redirects <= Self.redirectLimit else { return end(URLError(.httpTooManyRedirects, request.url)) }
    pending = .decision(response)
    guard let delegate = taskDelegate, let url = request.url, let head = HTTPURLResponse.make(response, url) else {
      return follow(next)
    }
    ask { [session, task] answer in
      delegate.urlSession(
        session, task: task, willPerformHTTPRedirection: head, newRequest: next, completionHandler: answer)
    } then: { [self] (chosen: URLRequest?) in
      if let chosen { follow(chosen) } else { accept(response, result) }
    }
  }

  private func follow(_ next: URLRequest) {
    if next.httpMethod == "GET", request.httpMethod != "GET" { content = .none }
    if case .givenStream = content { content = .stream }
    if UploadRequest.origin(of: next.url?.absoluteString ?? "")
      != UploadRequest.origin(of: request.url?.absoluteString ?? "")
    {
      isAtOtherOrigin = true
    }
    request = next
    repeatRequest()
  }

  /// The request of the moment once more, or another in its place.
  private func repeatRequest() {
    (pending, held, heldEnd, announced) = (.nothing, [], nil, nil)
    send()
  }

  /// The response is the program's, although it could have led elsewhere.
  func accept(_ response: HTTPResponse, _ result: Result<UploadTask.Outcome, UploadError>) {
    pending = .nothing
    heldEnd = result
    deliver(response)
    if case .nothing = pending { releaseHeld() }
  }

  // MARK: Challenges

  /// The realm of a Basic challenge (RFC 7617); nil for none.
  static func basicRealm(_ response: HTTPResponse) -> String?? {
    guard let challenge = response["WWW-Authenticate"], challenge.lowercased().hasPrefix("basic") else { return nil }
    guard let start = challenge.range(of: "realm=\"", options: .caseInsensitive)?.upperBound else { return .some(nil) }
    return .some(String(challenge[start...].prefix { $0 != "\"" }))
  }

  func askChallenge(
    _ response: HTTPResponse, _ realm: String?, _ result: Result<UploadTask.Outcome, UploadError>
  ) {
    guard let url = request.url else { return }
    pending = .decision(response)
    let isSecure = url.scheme?.lowercased() == "https"
    let space = URLProtectionSpace(
      host: url.host ?? "", port: url.port ?? (isSecure ? 443 : 80),
      protocol: isSecure ? NSURLProtectionSpaceHTTPS : NSURLProtectionSpaceHTTP, realm: realm,
      authenticationMethod: NSURLAuthenticationMethodHTTPBasic)
    let proposed = settings.urlCredentialStorage?.defaultCredential(for: space)
    let challenge = URLAuthenticationChallenge(
      protectionSpace: space, proposedCredential: proposed, previousFailureCount: failedChallenges,
      failureResponse: HTTPURLResponse.make(response, url), error: nil, sender: NoSender())
    failedChallenges += 1
    let byDefault = failedChallenges == 1 ? proposed : nil
    guard let delegate = taskDelegate else { return answer(byDefault, response, result) }
    ask { [session, task] answer in
      delegate.urlSession(session, task: task, didReceive: challenge) { answer(ChallengeAnswer($0, $1)) }
    } then: { [self] (chosen: ChallengeAnswer) in
      switch chosen.disposition {
      case .useCredential: answer(chosen.credential, response, result)
      case .performDefaultHandling: answer(byDefault, response, result)
      case .cancelAuthenticationChallenge: end(URLError(.cancelled, request.url))
      case .rejectProtectionSpace: accept(response, result)
      }
    }
  }

  /// Sends the request again with a credential. Without one, the response is the program's.
  private func answer(
    _ credential: URLCredential?, _ response: HTTPResponse, _ result: Result<UploadTask.Outcome, UploadError>
  ) {
    guard let credential, let user = credential.user, let password = credential.password else {
      return accept(response, result)
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

/// A challenge is answered by the completion handler, and its sender is not asked.
private final class NoSender: NSObject, URLAuthenticationChallengeSender {
  func use(_ credential: URLCredential, for challenge: URLAuthenticationChallenge) {}
  func continueWithoutCredential(for challenge: URLAuthenticationChallenge) {}
  func cancel(_ challenge: URLAuthenticationChallenge) {}
  func performDefaultHandling(for challenge: URLAuthenticationChallenge) {}
  func rejectProtectionSpaceAndContinue(with challenge: URLAuthenticationChallenge) {}
}
