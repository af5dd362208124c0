import Testing

@testable import LiveStreaming
@testable import UploadClient

@Suite("What the end of a request means for the stream")
struct VerdictTests {
  private func judge(_ status: Int, _ fields: [String: String] = [:], early: Bool = true, body: String = "") -> Verdict
  {
    var response = HTTPResponse(status: status, fields: fields.map { .init(name: $0.key, value: $0.value) })
    response.body = Array(body.utf8)
    return Verdict(.success(.init(response: response, isEarly: early)), wallClock: 0)
  }

  private func kind(_ verdict: Verdict) -> LiveStreamError.Kind? {
    if case .permanent(let error) = verdict { error.kind } else { nil }
  }

  @Test(
    "statuses after which trying again makes sense", arguments: [408, 425, 429, 500, 502, 503, 504, 507, 508, 520, 599])
  func transient(_ status: Int) {
    for early in [true, false] {
      #expect(judge(status, early: early) == .transient(.response(status), retryAfter: nil, serverOffset: nil))
    }
    let told = judge(status, ["retry-after": "7", "stream-offset": "1234"])
    #expect(told == .transient(.response(status), retryAfter: .seconds(7), serverOffset: 1234))
    #expect(judge(status, ["Stream-Offset": "-1"]) == .transient(.response(status), retryAfter: nil, serverOffset: nil))
  }

  @Test(
    "statuses after which it does not, and what they mean",
    arguments: [
      (401, .notPermitted), (403, .notPermitted), (407, .notPermitted), (301, .refused), (308, .refused),
      (400, .refused),
      (404, .refused), (405, .refused), (409, .refused), (410, .refused), (411, .refused), (413, .refused),
      (415, .refused),
      (431, .refused), (501, .refused), (505, .refused),
    ] as [(Int, LiveStreamError.Kind)])
  func permanent(_ status: Int, _ expected: LiveStreamError.Kind) {
    let verdict = judge(status, ["Location": "http://elsewhere/"], body: "because of the moon\n")
    #expect(kind(verdict) == expected)
    guard case .permanent(let error) = verdict else { return }
    #expect(error.description.contains("\(status)"))
    // The server's own reason, or where it sends us.
    #expect(error.description.contains(status < 400 ? "http://elsewhere/" : "because of the moon"))
  }

  @Test("a 2xx is the end, unless it came before the end")
  func success() {
    #expect(judge(201, early: false) == .complete(HTTPResponse(status: 201)))
    #expect(kind(judge(200, early: true)) == .protocolBroken)
  }

  @Test("failures of a connection are tried again, those of this side or of trust are not")
  func failures() {
    func verdict(_ kind: UploadError.Kind) -> Verdict { Verdict(.failure(UploadError(kind, "w")), wallClock: 0) }
    let transient: [UploadError.Kind: Dropout.Cause] = [
      .unknownHost: .unknownHost("w"), .unreachable: .unreachable("w"), .connectionLost: .connectionLost("w"),
      .timedOut: .timedOut("w"), .tlsFailed: .other("w"), .other: .other("w"), .bodyFailed: .overtaken,
    ]
    for (kind, cause) in transient { #expect(verdict(kind) == .transient(cause, retryAfter: nil, serverOffset: nil)) }
    let permanent: [UploadError.Kind: LiveStreamError.Kind] = [
      .invalidRequest: .invalidRequest, .badCredentialsFile: .invalidRequest, .certificateNotTrusted: .notTrusted,
      .protocolViolation: .protocolBroken, .cancelled: .cancelled, .proxyRefused: .notPermitted,
    ]
    for (kind, expected) in permanent { #expect(self.kind(verdict(kind)) == expected) }
    guard case .permanent(let error) = verdict(.certificateNotTrusted) else { return }
    #expect(error.description.contains("--ca-file"))
  }
}
