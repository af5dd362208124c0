import EventLoops
import ResumableUploads
import Testing

@testable import LiveStreaming

@Suite("A plain stream that an answer ends")
struct RefusedEndTests {
  private enum Answer: CaseIterable {
    case permanent, unexpected, refusal
    /// No answer: what TCP has acknowledged is the best that is known.
    case none

    func verdict(_ offset: UInt64?) -> Verdict {
      let error = LiveStreamError(.refused, "no")
      return switch self {
      case .permanent: .permanent(error, .response(413), serverOffset: offset)
      case .unexpected: .unexpected(error, .response(302), retryAfter: nil, serverOffset: offset)
      case .refusal: .refusal(error, .response(403), retryAfter: nil)
      case .none: .permanent(error)
      }
    }
  }

  @Test("counts no byte of the refused request as acknowledged that the server does not claim, and says which are gone")
  func acknowledged() {
    for answer in Answer.allCases {
      for serverOffset in [nil, 0, 250, 700] as [UInt64?] {
        for start in [0, 300] as [UInt64] {
          for oldest in [0, 100, 400, 650] as [UInt64] {
            // Its second request begins where the server has said that it has the stream.
            var machine = PlainStreamStateMachine(policy: RetryPolicy())
            let now = MonotonicInstant(nanoseconds: 1)
            _ = machine.start(now: now)
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
            let told = answer == .refusal ? nil : serverOffset
            let expected = answer == .none ? 650 : told ?? max(start, oldest)
            #expect(machine.acknowledged == expected, "\(answer) \(serverOffset ?? .max) \(start) \(oldest)")
            #expect(machine.unconfirmedAtEnd == (answer == .none || told != nil ? 0 : expected - start))
          }
        }
      }
    }
  }

  private func supply(oldest: UInt64) -> Supply {
    Supply(oldest: oldest, head: 1200, isFinished: false, restart: oldest)
  }
}
