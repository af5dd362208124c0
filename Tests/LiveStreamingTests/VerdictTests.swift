import EventLoops
import Glibc
import Testing

@testable import LiveStreaming
@testable import UploadClient

@Suite("The effect of a request's end on the stream")
struct VerdictTests {
  private func judge(_ status: Int, _ fields: [String: String] = [:], early: Bool = true, body: String = "") -> Verdict
  {
    var response = HTTPResponse(
      status: status, fields: HeaderFields(received: fields.map { (name: $0.key, value: $0.value) }))
    response.body = Array(body.utf8)
    return Verdict(.success(.init(response: response, isEarly: early)), wallClock: 0)
  }

  private enum Kind { case transient, refusal, unexpected, permanent, complete }

  private func kind(_ verdict: Verdict) -> Kind {
    switch verdict {
    case .complete: .complete
    case .transient: .transient
    case .refusal: .refusal
    case .unexpected: .unexpected
    case .permanent: .permanent
    }
  }

  @Test("an error quotes the beginning of a very long Location")
  func longLocation() {
    for long in [String(repeating: "x", count: 70_000), "e" + String(repeating: "\u{301}", count: 70_000)] {
      let error = judge(302, ["Location": "http://elsewhere/\(long)"]).error
      let text = error?.description ?? ""
      #expect(text.unicodeScalars.count < 500 && text.contains("http://elsewhere/") && text.contains("…"))
    }
  }

  @Test(
    "statuses that allow a retry",
    arguments: [408, 421, 423, 425, 429, 500, 502, 503, 504, 507, 508, 520, 599])
  func transient(_ status: Int) {
    for early in [true, false] {
      #expect(judge(status, early: early) == .transient(.response(status), retryAfter: nil, serverOffset: nil))
    }
    let told = judge(status, ["retry-after": "7", "stream-offset": "1234"])
    #expect(told == .transient(.response(status), retryAfter: .seconds(7), serverOffset: 1234))
    #expect(judge(status, ["Stream-Offset": "-1"]) == .transient(.response(status), retryAfter: nil, serverOffset: nil))
  }

  @Test(
    "every other status is an error with its meaning, and only three of them are final in the middle of a stream",
    arguments: Array(300..<600))
  func errors(_ status: Int) {
    let verdict = judge(
      status, ["Location": "http://elsewhere/", "Retry-After": "7", "Stream-Offset": "12"],
      body: "because of the moon\n")
    let expected: Kind =
      switch status {
      case 401, 403, 407: .refusal
      case 409, 410, 413: .permanent
      case 408, 421, 423, 425, 429, 500, 502...504, 506...: .transient
      default: .unexpected
      }
    #expect(kind(verdict) == expected)
    guard let error = verdict.error else { return }
    #expect(error.description.contains("\(status)"))
    // The server's own reason, or the target of its redirect.
    #expect(error.description.contains(status < 400 ? "http://elsewhere/" : "because of the moon"))
    #expect(error.kind == (expected == .refusal ? .notPermitted : .refused))
    if case .unexpected(_, let cause, let retryAfter, let offset) = verdict {
      #expect(cause == .response(status) && retryAfter == .seconds(7) && offset == 12)
    }
  }

  @Test(
    "the error for a 409 asserts nothing that the server has not reported", arguments: ["", "The stream has ended."])
  func conflict(_ reason: String) {
    let text = judge(409, body: reason).error?.description ?? ""
    #expect(text.contains("conflict") && text.contains("(409)") && !text.contains("bytes"), "\(text)")
    #expect(!text.contains("stream's name") && text.contains("The stream has ended") == !reason.isEmpty, "\(text)")
  }

  @Test("a 304 is not a redirect, with or without a Location", arguments: [nil, "http://elsewhere/"])
  func notModified(_ location: String?) {
    let error = judge(304, location.map { ["Location": $0] } ?? [:], early: false).error
    let text = error?.description ?? ""
    #expect(text.contains("304 (Not Modified)") && text.contains("caches") && !text.contains("redirect"), "\(text)")
    #expect(text.contains("http://elsewhere/") == (location != nil))
  }

  @Test("a 2xx is the end, unless it precedes the end of the data")
  func success() {
    #expect(judge(201, early: false) == .complete(HTTPResponse(status: 201)))
    #expect(kind(judge(200, early: true)) == .unexpected && judge(200, early: true).error?.kind == .protocolBroken)
  }

  @Test("a 206 after all data does not confirm it, and every other 2xx does (RFC 9110)", arguments: 200..<300)
  func partial(_ status: Int) {
    let verdict = judge(status, early: false, body: "1 of 2 items accepted\n")
    #expect(kind(verdict) == (status == 206 ? .unexpected : .complete))
    #expect(kind(judge(status, early: true)) == .unexpected)
    guard status == 206 else { return }
    let text = verdict.error?.description ?? ""
    #expect(text.contains("206 (Partial Content)") && text.contains("1 of 2 items accepted"), "\(text)")
    #expect(verdict.error?.kind == .refused)
  }

  @Test("connection failures are retried, and local and certificate errors are not")
  func failures() {
    func verdict(_ kind: UploadError.Kind) -> Verdict { Verdict(.failure(UploadError(kind, "w")), wallClock: 0) }
    let transient: [UploadError.Kind: FailedAttempt.Cause] = [
      .unknownHost: .unknownHost("w"), .unreachable: .unreachable("w"), .connectionLost: .connectionLost("w"),
      .timedOut: .timedOut("w"), .tlsFailed: .other("w"), .other: .other("w"), .bodyFailed: .overtaken,
    ]
    for (kind, cause) in transient { #expect(verdict(kind) == .transient(cause, retryAfter: nil, serverOffset: nil)) }
    let others: [UploadError.Kind: (Kind, LiveStreamError.Kind)] = [
      .invalidRequest: (.permanent, .invalidRequest), .cancelled: (.permanent, .cancelled),
      .badCredentialsFile: (.refusal, .invalidRequest), .certificateNotTrusted: (.refusal, .notTrusted),
      .proxyRefused: (.refusal, .notPermitted), .protocolViolation: (.unexpected, .protocolBroken),
      .http2NotSupported: (.unexpected, .http2NotSupported),
    ]
    for (failure, (expected, error)) in others {
      #expect(kind(verdict(failure)) == expected && verdict(failure).error?.kind == error, "\(failure)")
    }
    #expect(kind(verdict(.certificateNotYetValid)) == .transient, "the clock will be set")
    let refused = SystemError(operation: "cannot open a socket", code: EMFILE)
    let lacking = Verdict(.failure(UploadError(machine: refused)), wallClock: 0)
    #expect(lacking == .transient(.machine(refused), retryAfter: nil, serverOffset: nil))
    let unreadable = Verdict(.failure(UploadError(.bodyFailed, "w", mayPass: true)), wallClock: 0)
    #expect(unreadable == .transient(.other("w"), retryAfter: nil, serverOffset: nil))
    #expect(verdict(.certificateNotTrusted).error?.remedy == .certificateAuthority)
  }

  @Test("an error has a remedy exactly if an option of the user would help", arguments: Array(200..<600))
  func remedies(_ status: Int) {
    let expected: LiveStreamError.Remedy? =
      switch status {
      case 401: .credentials
      case 407: .proxyCredentials
      case 405, 411, 501: .method
      default: nil
      }
    #expect(judge(status).error?.remedy == expected)
  }

  @Test("an error of the connection has a remedy exactly if an option of the user would help")
  func remediesOfFailures() {
    let failures: [UploadError.Kind: LiveStreamError.Remedy] = [
      .proxyRefused: .proxyCredentials, .certificateNotTrusted: .certificateAuthority, .http2NotSupported: .http1,
    ]
    for kind in [UploadError.Kind.proxyRefused, .certificateNotTrusted, .http2NotSupported, .protocolViolation] {
      #expect(Verdict(.failure(UploadError(kind, "w")), wallClock: 0).error?.remedy == failures[kind])
    }
  }

  @Test("a refusal and a final response keep the delay and the offset that the server reports")
  func reported() {
    let fields = ["Retry-After": "7", "Stream-Offset": "12"]
    guard case .refusal(_, let cause, let retryAfter, let offset) = judge(401, fields) else {
      Issue.record("no refusal")
      return
    }
    #expect(cause == .response(401) && retryAfter == .seconds(7) && offset == 12)
    guard case .permanent(_, let end, let last) = judge(410, fields) else {
      Issue.record("not final")
      return
    }
    #expect(end == .response(410) && last == 12)
  }

  @Test("a redirect from https to http is no advice to stream to that URL", arguments: [false, true])
  func insecure(_ isInsecure: Bool) {
    let response = HTTPResponse(status: 301, fields: ["Location": "http://elsewhere/"])
    let verdict = Verdict(
      .success(.init(response: response, isEarly: true)), isLocationInsecure: isInsecure, wallClock: 0)
    let text = verdict.error?.description ?? ""
    #expect(text.contains("clear text") == isInsecure && text.contains("Stream to that URL") == !isInsecure, "\(text)")
  }

  @Test("only a response can be a refusal, and a verdict keeps its error as one")
  func asRefusal() {
    let fields = ["Retry-After": "7", "Stream-Offset": "12"]
    let refusal = judge(403, fields)
    #expect(refusal.asRefusal == refusal && refusal.error?.kind == .notPermitted)
    let error = LiveStreamError(.refused, "no")
    let unexpected = Verdict.unexpected(error, .response(404), retryAfter: .seconds(7), serverOffset: 12)
    #expect(
      unexpected.asRefusal == .refusal(error, .response(404), retryAfter: .seconds(7), serverOffset: 12))
    let end = Verdict.permanent(error, .response(410), serverOffset: 12)
    #expect(end.asRefusal == .refusal(error, .response(410), retryAfter: nil, serverOffset: 12))
    #expect(unexpected.error == error && end.error == error)
    #expect(Verdict.permanent(error).asRefusal == nil && judge(503).asRefusal == nil && judge(503).error == nil)
    #expect(judge(204, early: false).asRefusal == nil && judge(204, early: false).error == nil)
  }
}
