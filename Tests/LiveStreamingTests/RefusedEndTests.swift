import EventLoops
import ResumableUploads
import Testing

@testable import LiveStreaming
@testable import UploadClient

@Suite("A plain stream that a response ends")
struct RefusedEndTests {
  private enum Answer: CaseIterable {
    case permanent, unexpected, refusal
    /// No answer, so TCP's acknowledgement is the best information.
    case none

    func verdict(_ offset: UInt64?) -> Verdict {
      let error = LiveStreamError(.refused, "no")
      return switch self {
      case .permanent: .permanent(error, .response(413), serverOffset: offset)
      case .unexpected: .unexpected(error, .response(302), retryAfter: nil, serverOffset: offset)
      case .refusal: .refusal(error, .response(403), retryAfter: nil, serverOffset: offset)
      case .none: .permanent(error)
      }
    }
  }

  @Test(
    "it counts no byte of the refused request as acknowledged unless the server reports it, and reports the lost ones")
  func acknowledged() {
    for answer in Answer.allCases {
      for serverOffset in [nil, 0, 250, 700] as [UInt64?] {
        for start in [0, 300] as [UInt64] {
          for oldest in [0, 100, 400, 650] as [UInt64] {
            // Its second request begins at the offset that the server has reported.
            var machine = PlainStreamStateMachine(policy: RetryPolicy())
            let now = MonotonicInstant(nanoseconds: 1)
            _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
            machine.wrote(upTo: 500)
            if start > 0 {
              let cut = Verdict.transient(.response(503), retryAfter: nil, serverOffset: start)
              _ = machine.requestEnded(cut, supply(oldest: 0), sentUpTo: 500, now: now, draw: 0)
              _ = machine.retryIsDue(supply(oldest: 0))
            }
            machine.wrote(upTo: 1000)
            machine.acknowledged(bodyCount: 650 - start, now: now)
            #expect(machine.acknowledged == 650)
            let action = machine.requestEnded(
              answer.verdict(serverOffset), supply(oldest: oldest), sentUpTo: 1000, now: now, draw: 0)
            #expect(action == .end(LiveStreamError(.refused, "no")))
            let expected = answer == .none ? 650 : serverOffset ?? max(start, oldest)
            #expect(machine.acknowledged == expected, "\(answer) \(serverOffset ?? .max) \(start) \(oldest)")
            #expect(machine.unconfirmedAtEnd == (answer == .none || serverOffset != nil ? 0 : expected - start))
          }
        }
      }
    }
  }

  private func supply(oldest: UInt64) -> Supply {
    Supply(oldest: oldest, head: 1200, isFinished: false, restart: oldest)
  }
}

@Suite("A contradictory success response to a plain upload")
struct DeniedSuccessTests {
  private static let completeness: [(fields: [(String, String)], isComplete: Bool?)] = [
    ([], nil), ([("Upload-Complete", "?1")], true), ([("Upload-Complete", "?0")], false),
    ([("Upload-Incomplete", "?0")], true), ([("upload-incomplete", "?1")], false),
    ([("Upload-Complete", "?1"), ("Upload-Incomplete", "?1")], false), ([("Upload-Complete", "perhaps")], false),
    ([("Upload-Complete", "?1"), ("Upload-Complete", "?1")], false),
  ]
  private static let offsets: [(value: String?, hasAll: Bool, count: UInt64?)] = [
    (nil, true, nil), ("0", false, 0), ("1", false, 1), ("543", false, 543), ("544", true, 544), ("99999", true, 99999),
    ("-1", false, nil), ("all", false, nil),
  ]

  @Test(
    "it is a failure, and only the bytes that the server reports count as acknowledged", arguments: [true, false],
    [0, 44])
  func denied(isLive: Bool, headerLength: UInt64) {
    for status in [200, 201, 204] {
      for (fields, isComplete) in Self.completeness {
        for (offset, hasAll, count) in Self.offsets {
          var all = fields
          if let offset { all.append(("Upload-Offset", offset)) }
          var stream = PlainStream(
            policy: RetryPolicy(), streamID: "s", target: "http://host/x", isLive: isLive, method: "POST",
            mayUsePOST: false)
          let sent = 544 - headerLength
          let supply = Supply(oldest: 0, head: sent, isFinished: true)
          _ = stream.start(supply, now: MonotonicInstant(nanoseconds: 1))
          stream.wrote(upTo: sent)
          let response = HTTPResponse(
            status: status, fields: HeaderFields(received: all.map { (name: $0.0, value: $0.1) }))
          let end = RequestEnd(
            result: .success(.init(response: response, isEarly: false)), sentUpTo: sent, headerLength: headerLength)
          let step = stream.requestEnded(end, supply, now: MonotonicInstant(nanoseconds: 2), draw: 0)
          guard case .end(let error) = step else {
            Issue.record("\(all): \(step)")
            continue
          }
          let isWhole = hasAll && isComplete != false
          #expect((error == nil) == isWhole, "\(all): \(error.debugDescription)")
          #expect(isWhole || error?.kind == .protocolBroken)
          let expected = isWhole ? sent : min(sent, (count ?? 0) - min(count ?? 0, headerLength))
          #expect(stream.acknowledged == expected, "\(all)")
        }
      }
    }
  }
}

@Suite("A refused attempt of a plain stream")
struct RefusedAttemptTests {
  private enum Refusal: CaseIterable { case renewedToken, renewedTokenForbidden, postOnly, busy }

  @Test(
    "it uses up no number of a URL, and bytes that TCP accepted count as delivered only if they have left the buffer")
  func number() {
    for refusal in Refusal.allCases {
      for advance in [0, 150, 400] as [UInt64] {
        for attempts in 1...3 {
          var policy = RetryPolicy()
          policy.giveUpOnRefusalAfter = .seconds(600)
          var stream = PlainStream(
            policy: policy, streamID: "s", target: "http://host/a.wav", isLive: true, method: "PUT",
            mayUsePOST: refusal == .postOnly)
          var now = MonotonicInstant(nanoseconds: 1)
          var oldest: UInt64 = 0
          func supply(_ oldest: UInt64) -> Supply {
            Supply(oldest: oldest, head: 5000, isFinished: false, restart: oldest)
          }
          _ = stream.start(supply(0), now: now)
          stream.wrote(upTo: 500)
          stream.acknowledgedByTransport(bodyCount: 400, now: now)
          let lost = RequestEnd(result: .failure(UploadError(.connectionLost, "reset")), sentUpTo: 500)
          _ = stream.requestEnded(lost, supply(0), now: now, draw: 0)
          // The beginning is no longer kept, so a second URL follows.
          oldest = 300
          var step = stream.retryIsDue(supply(oldest))
          for _ in 0..<attempts {
            guard case .request(let request) = step else {
              Issue.record("\(refusal): \(step)")
              break
            }
            #expect(request.url == "http://host/a~2.wav", "\(refusal)")
            stream.wrote(upTo: request.start + 200)
            stream.acknowledgedByTransport(bodyCount: 200, now: now)
            now = now + .seconds(1)
            oldest += advance
            let (status, fields): (Int, HeaderFields) =
              switch refusal {
              case .renewedToken: (401, [:])
              case .renewedTokenForbidden: (403, [:])
              case .postOnly: (request.method == "POST" ? 503 : 405, ["Allow": "POST"])
              case .busy: (503, [:])
              }
            let sentUpTo = request.start + 200
            let end = RequestEnd(
              result: .success(.init(response: HTTPResponse(status: status, fields: fields), isEarly: true)),
              sentUpTo: sentUpTo)
            let wait =
              [401, 403].contains(status)
              ? stream.tokenRenewed(end, supply(oldest), now: now, draw: 0)
              : stream.requestEnded(end, supply(oldest), now: now, draw: 0)
            #expect(stream.acknowledged == max(request.start, min(oldest, request.start + 200)), "\(refusal)")
            let unconfirmed: UInt64? =
              switch wait {
              case .wait(let attempt): attempt.unconfirmed
              case .pause: 0
              default: nil
              }
            guard let unconfirmed else {
              Issue.record("\(refusal): \(wait)")
              break
            }
            #expect(unconfirmed == stream.acknowledged - request.start)
            step = stream.retryIsDue(supply(oldest))
          }
          guard case .request(let last) = step else { continue }
          stream.wrote(upTo: last.start + 200)
          _ = stream.requestEnded(
            RequestEnd(result: .failure(UploadError(.connectionLost, "reset")), sentUpTo: last.start + 200),
            supply(oldest + 500), now: now, draw: 0)
          guard case .request(let next) = stream.retryIsDue(supply(oldest + 500)) else { continue }
          #expect(next.url == "http://host/a~3.wav", "what a server may have is not replaced")
        }
      }
    }
  }
}
