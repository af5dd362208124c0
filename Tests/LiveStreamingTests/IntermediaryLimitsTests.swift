// What a stream learns about the proxies on its path.

import Testing

@testable import LiveStreaming
@testable import UploadClient

@Suite("Limits of intermediaries")
struct IntermediaryLimitsTests {
  private func ended(_ status: Int) -> Result<UploadTask.Outcome, UploadError> {
    .success(UploadTask.Outcome(response: HTTPResponse(status: status), isEarly: true))
  }

  private func expectLast(_ isLast: Bool, _ limits: inout IntermediaryLimits, _ request: UInt64) {
    let answer = limits.received(interimOf: request)
    #expect(answer == isLast)
  }

  private static let lost = Result<UploadTask.Outcome, UploadError>.failure(UploadError(.connectionLost, ""))

  @Test("after two requests that failed after exactly five interim responses, the client allows four per request")
  func go() {
    for ends in [[ended(502), ended(502)], [Self.lost, Self.lost], [ended(502), Self.lost]] {
      var limits = IntermediaryLimits()
      for (request, end) in ends.enumerated() {
        for _ in 0..<5 { expectLast(false, &limits, UInt64(request)) }
        limits.ended(end)
        // Requests in between have none, and prove nothing.
        limits.ended(ended(204))
      }
      for request: UInt64 in 2...3 {
        for number in 1...4 { expectLast(number == 4, &limits, request) }
        limits.ended(ended(204))
      }
    }
  }

  @Test("fewer or more interim responses, other responses, one request alone, or a sixth that passed have no effect")
  func others() {
    for (count, end) in [
      (4, ended(502)), (6, ended(502)), (0, ended(502)), (4, Self.lost), (6, Self.lost), (5, ended(503)),
      (5, ended(204)),
      (5, .failure(UploadError(.timedOut, ""))),
    ] {
      var limits = IntermediaryLimits()
      for request: UInt64 in 0..<4 {
        for _ in 0..<count { expectLast(false, &limits, request) }
        limits.ended(end)
      }
      for _ in 0..<1000 { expectLast(false, &limits, 4) }
    }
    var limits = IntermediaryLimits()
    for request: UInt64 in 0..<10 {
      for _ in 0..<5 { expectLast(false, &limits, request) }
      limits.ended(Self.lost)
      for _ in 0..<6 { expectLast(false, &limits, 100 + request) }
      limits.ended(ended(204))
    }
  }

  @Test("the client drops HTTP/2 only for a violation of its rules")
  func http2() {
    var limits = IntermediaryLimits()
    for kind in [UploadError.Kind.connectionLost, .timedOut, .protocolViolation, .unreachable, .other] {
      limits.ended(.failure(UploadError(kind, "")))
      #expect(!limits.needsHTTP1)
    }
    limits.ended(.failure(UploadError(.http2Violation, "")))
    #expect(limits.needsHTTP1)
  }

  @Test("HTTP/2 is tried again after HTTP/1.1 fails: at once, or after three failures if HTTP/1.1 has worked")
  func http2Again() {
    for worked in [false, true] {
      for kind in [UploadError.Kind.connectionLost, .timedOut, .protocolViolation, .tlsFailed, .other] {
        var limits = IntermediaryLimits()
        // As often as necessary, so that a server with only HTTP/2 always stays reachable.
        for request: UInt64 in 0..<5 {
          limits.ended(.failure(UploadError(.http2Violation, "")))
          if worked {
            // Failures before the response do not count, and neither do earlier answers over HTTP/2.
            if request % 2 == 0 { limits.ended(ended(503)) } else { expectLast(false, &limits, request) }
            for _ in 0..<2 {
              limits.ended(.failure(UploadError(kind, "")))
              #expect(limits.needsHTTP1)
            }
            limits.ended(ended(204))
            for _ in 0..<2 { limits.ended(.failure(UploadError(kind, ""))) }
          }
          #expect(limits.needsHTTP1)
          limits.ended(.failure(UploadError(kind, "")))
          #expect(!limits.needsHTTP1, "\(worked) \(kind)")
          limits.ended(ended(204))
          #expect(!limits.needsHTTP1)
        }
      }
    }
  }

  @Test("a request that was dropped without an end does not count towards the next one")
  func dropped() {
    var limits = IntermediaryLimits()
    for request: UInt64 in 0..<2 {
      for _ in 0..<5 { expectLast(false, &limits, request) }
      limits.ended(Self.lost)
    }
    for _ in 0..<3 { expectLast(false, &limits, 2) }
    for number in 1...4 { expectLast(number == 4, &limits, 3) }
  }
}
