// Limits of proxies on the way, learned from the failures that they cause. No proxy announces them.

internal import UploadClient

/// The behaviour that the requests of one stream avoid from now on. No I/O, no clock.
struct IntermediaryLimits {
  /// Proxies built on Go's `net/http` before 1.23 abort a request at its sixth interim response, and answer 502.
  private static let goInterimLimit = 5
  /// If HTTP/1.1 has worked before, a failure is more often an outage than a server that does not support it.
  private static let maximumFailuresOfHTTP1 = 3

  /// HTTP/2 does not work. A proxy that treats a 104 as the final response sends a stream that violates the protocol.
  /// Over HTTP/1.1, it passes the bytes unchanged.
  private(set) var needsHTTP1 = false
  /// Whether a response has arrived over HTTP/1.1 since.
  private var hasUsedHTTP1 = false
  /// The number of consecutive requests over HTTP/1.1 that failed without a response.
  private var failuresOfHTTP1 = 0
  /// The number of interim responses after which a request must end. Nil means no limit.
  private var interimLimit: Int?
  private var request: UInt64?
  private var count = 0
  /// The number of consecutive requests that were aborted at exactly this point.
  private var suspicions = 0

  /// Notes an interim response of this request. Returns true if the request must end after it.
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

  /// The end of a request, where the user requires HTTP/2. A violation of HTTP/2 is then no reason to continue over
  /// HTTP/1.1.
  ///
  /// - Parameter hasWorked: whether HTTP/2 has worked before. If so, a single failed stream is an outage.
  static func requiringHTTP2(
    _ result: Result<UploadTask.Outcome, UploadError>, hasWorked: Bool
  ) -> Result<UploadTask.Outcome, UploadError> {
    guard case .failure(let error) = result, error.kind == .http2Violation else { return result }
    guard !hasWorked else { return .failure(UploadError(.connectionLost, error.description)) }
    return .failure(
      UploadError(
        .http2NotSupported,
        "\(error.description): an intermediary breaks HTTP/2. nginx does so after interim responses, so configure the server to send it none"
      ))
  }

  /// Notes the end of the current request.
  mutating func ended(_ result: Result<UploadTask.Outcome, UploadError>) {
    defer { (request, count) = (nil, 0) }
    switch result {
    case .failure(let error):
      if error.kind == .http2Violation {
        (needsHTTP1, hasUsedHTTP1) = (true, false)
      } else if needsHTTP1 {
        noteFailureOfHTTP1()
      }
      // Over HTTP/2, its 502 may be invisible, because the proxy resets the stream.
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

  /// Allows another attempt with HTTP/2. A single failure may have been an accident, and the server may support nothing
  /// else.
  private mutating func noteFailureOfHTTP1() {
    failuresOfHTTP1 += 1
    if failuresOfHTTP1 >= (hasUsedHTTP1 ? Self.maximumFailuresOfHTTP1 : 1) { needsHTTP1 = false }
  }

  private mutating func brokeOff() {
    guard count == Self.goInterimLimit else { return }
    suspicions += 1
    // One occurrence may be coincidence.
    if suspicions == 2 { interimLimit = Self.goInterimLimit - 1 }
  }
}
