// Whether a stream pauses as its policy says, by its own events: no attempt without a pause, none before its pause is
// over, and an end when the time to give up has passed.

import EventLoops
import LiveStreaming

/// Follows the outages of one stream. Every bound is one of the policy itself and needs no margin: pauses that add up
/// to the limit are a time that has passed for certain.
struct PauseCheck: Sendable {
  /// A client asks again at once after some answers: older versions, smaller appends, redirects.
  private static let mostAnswers = 40
  /// As the client has it.
  private static let leastAttempts = 3

  private let policy: RetryPolicy
  /// Failed attempts since the last progress that was reported.
  private var failures = 0
  /// Failed attempts of this outage, and their pauses.
  private var attempts = 0
  private var pauses = Duration.zero
  /// Of those, the refusals in a row.
  private var refusals = 0
  private var refusalPauses = Duration.zero
  /// Final responses since the last pause or progress.
  private var answers = 0
  /// When the pause is over.
  private var due: MonotonicInstant?
  private var lastProgress = MonotonicInstant.now
  /// As far as an answer has shown that the server was.
  private var furthest: UInt64 = 0

  init(_ policy: RetryPolicy) { self.policy = policy }

  /// An answer has acknowledged something. What is lost looks acknowledged, too, and is no progress; neither is what a
  /// server that began anew had before.
  mutating func noteProgress(to offset: UInt64) {
    (attempts, pauses, answers) = (0, .zero, 0)
    guard offset > furthest else { return }
    furthest = offset
    (failures, refusals, refusalPauses) = (0, 0, .zero)
    lastProgress = .now
  }

  /// The server has stored something more, which not every answer shows.
  mutating func noteStored() { (attempts, pauses, answers) = (0, .zero, 0) }

  /// What is wrong with this event, in words; nil for nothing.
  mutating func take(_ event: LiveStreamEvent) -> String? {
    switch event {
    case .response:
      answers += 1
      if answers == Self.mostAnswers { return "asked over and over without a pause: \(answers) answers" }
    case .connecting:
      defer { due = nil }
      if let due, .now < due { return "an attempt before its pause is over" }
    case .streaming(let offset): furthest = max(furthest, offset)
    case .gap(let gap): furthest = max(furthest, gap.offset + gap.length)
    case .outage(let attempt), .attemptFailed(let attempt): return failed(attempt)
    case .ended(let summary): return summary.error.flatMap(ended)
    default: break
    }
    return nil
  }

  private mutating func failed(_ attempt: FailedAttempt) -> String? {
    due = .now + attempt.retryDelay
    answers = 0
    if attempt.cause == .overtaken { return nil }
    if !attempt.isRepeated { (attempts, pauses) = (0, .zero) }
    // What TCP has acknowledged on a plain stream is progress, whatever the response said.
    if attempt.acknowledged > furthest { noteProgress(to: attempt.acknowledged) }
    defer {
      failures += 1
      attempts += 1
      pauses += attempt.retryDelay
      if isRefusal(attempt) {
        refusals += 1
        refusalPauses += attempt.retryDelay
      } else {
        (refusals, refusalPauses) = (0, .zero)
      }
    }
    if policy.giveUpAfter == nil, attempt.retryDelay < policy.initialCeiling / 2 {
      return "a pause below half of its range: \(attempt.retryDelay)"
    }
    if let limit = policy.giveUpAfter, attempts >= Self.leastAttempts, pauses >= limit * 2 {
      return "a stream that had to give up goes on"
    }
    if let limit = policy.giveUpOnRefusalAfter, isRefusal(attempt), refusals >= Self.leastAttempts,
      refusalPauses >= limit * 2
    {
      return "a stream that was refused for too long goes on"
    }
    return nil
  }

  private func isRefusal(_ attempt: FailedAttempt) -> Bool {
    if case .response(let status) = attempt.cause { [401, 403, 407].contains(status) } else { false }
  }

  /// The failure that ends the stream is the last attempt.
  private func ended(_ error: LiveStreamError) -> String? {
    switch error.kind {
    case .unreachable where error.description.hasPrefix("gave up"):
      guard let limit = policy.giveUpAfter else { return "gave up without a limit" }
      // Half of the limit, because the events follow what they are about by some time.
      if failures + 1 < Self.leastAttempts { return "gave up after \(failures + 1) attempts" }
      return .now - lastProgress < limit / 2 ? "gave up before its time" : nil
    case .notPermitted, .notTrusted:
      guard let limit = policy.giveUpOnRefusalAfter else { return nil }
      return failures + 1 < Self.leastAttempts || .now - lastProgress < limit / 2
        ? "gave up on a refusal before its time" : nil
    default: return nil
    }
  }
}
