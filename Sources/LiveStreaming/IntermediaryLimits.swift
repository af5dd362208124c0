// What a proxy on the way turned out to be unable to do. Learned from how it failed, for nobody else would say.

internal import UploadClient

/// What the requests of one stream avoid from now on. No I/O, no clock.
struct IntermediaryLimits {
  /// Proxies built on Go's `net/http` before 1.23 give a request up at its sixth interim response, and answer 502.
  private static let goInterimLimit = 5
  /// Where HTTP/1.1 has worked, a failure is an outage more often than a server that does not speak it.
  private static let maximumFailuresOfHTTP1 = 3

  /// HTTP/2 does not get through: a proxy that takes a 104 for the final response sends a stream that breaks its rules,
  /// while over HTTP/1.1 the bytes come out as they came in.
  private(set) var needsHTTP1 = false
  /// Whether a response has come over HTTP/1.1 since.
  private var hasUsedHTTP1 = false
  /// How many requests over HTTP/1.1 in a row have failed without a response.
  private var failuresOfHTTP1 = 0
  /// How many interim responses a request may have had when it ends; nil for any number.
  private var interimLimit: Int?
  private var request: UInt64?
  private var count = 0
  /// How many requests in a row have broken just there.
  private var suspicions = 0

  /// The request of this number was sent an interim response; true when it should be the last.
  mutating func received(interimOf number: UInt64) -> Bool {
    if request != number {
      request = number
      count = 0
    }
    count += 1
    noteResponse()
    if count > Self.goInterimLimit { suspicions = 0 }
    return count == interimLimit
  }

  /// The request under way is over.
  mutating func ended(_ result: Result<UploadTask.Outcome, UploadError>) {
    defer { (request, count) = (nil, 0) }
    switch result {
    case .failure(let error):
      if error.kind == .http2Violation {
        (needsHTTP1, hasUsedHTTP1, failuresOfHTTP1) = (true, false, 0)
      } else if needsHTTP1 {
        noteFailureOfHTTP1()
      }
      // Over HTTP/2 its 502 may not be seen, for it resets the stream behind it.
      if error.kind == .connectionLost { brokeOff() }
    case .success(let outcome):
      noteResponse()
      if outcome.response.status == 502 { brokeOff() }
    }
  }

  private mutating func noteResponse() {
    failuresOfHTTP1 = 0
    if needsHTTP1 { hasUsedHTTP1 = true }
  }

  /// HTTP/2 gets another try: one stream that broke may have been an accident, and the server may speak nothing else.
  private mutating func noteFailureOfHTTP1() {
    failuresOfHTTP1 += 1
    if failuresOfHTTP1 >= (hasUsedHTTP1 ? Self.maximumFailuresOfHTTP1 : 1) { needsHTTP1 = false }
  }

  private mutating func brokeOff() {
    guard count == Self.goInterimLimit else { return }
    suspicions += 1
    // Once may be chance, as any other number.
    if suspicions == 2 { interimLimit = Self.goInterimLimit - 1 }
  }
}
