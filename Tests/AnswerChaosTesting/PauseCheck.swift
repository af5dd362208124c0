// Checks by a stream's events that it pauses according to its policy: no attempt without a pause, none before its pause
// is over, and an end after the time to give up.

import EventLoops
import LiveStreaming

/// Follows the outages of one stream. Every limit follows from the policy and needs no margin, because pauses that add
/// up to a limit prove that the time has passed.
struct PauseCheck: Sendable {
  /// A client asks again at once after some answers: older versions, smaller appends, redirects.
  private static let mostAnswers = 40
  /// The same as in the client.
  private static let leastAttempts = 3

  private let policy: RetryPolicy
  /// Failed attempts since the last reported progress.
  private var failures = 0
  /// Attempts since then. A request that rolls over is none of the failures.
  private var connects = 0
  /// Failed attempts of this outage, and their pauses.
  private var attempts = 0
  private var pauses = Duration.zero
  /// The consecutive refusals among them.
  private var refusals = 0
  private var refusalPauses = Duration.zero
  /// Final responses since the last pause or progress.
  private var answers = 0
  /// The end of the pause.
  private var due: MonotonicInstant?
  private var lastProgress = MonotonicInstant.now
  /// The furthest offset that an answer has shown.
  private var furthest: UInt64 = 0

  init(_ policy: RetryPolicy) { self.policy = policy }

  /// An answer has acknowledged bytes. Lost bytes also look acknowledged, but do not count as progress. Nor do bytes
  /// that a restarted server had stored before.
  mutating func noteProgress(to offset: UInt64) {
    (attempts, pauses, answers) = (0, .zero, 0)
    guard offset > furthest else { return }
    furthest = offset
    (failures, connects, refusals, refusalPauses) = (0, 0, 0, .zero)
    lastProgress = .now
  }

  /// The server has stored more bytes, which not every answer shows.
  mutating func noteStored() { (attempts, pauses, answers) = (0, .zero, 0) }

  /// The problem with this event, in words; nil if there is none.
  mutating func take(_ event: LiveStreamEvent) -> String? {
    switch event {
    case .response:
      answers += 1
      if answers == Self.mostAnswers { return "asked over and over without a pause: \(answers) answers" }
    case .connecting:
      defer { due = nil }
      connects += 1
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
    // On a plain stream, TCP's acknowledgements are progress, whatever the response was.
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
      return "a stream that had to give up continues"
    }
    if let limit = policy.giveUpOnRefusalAfter, isRefusal(attempt), refusals >= Self.leastAttempts,
      refusalPauses >= limit * 2
    {
      return "a stream that was refused for too long continues"
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
      // Half of the limit, because events are somewhat later than their causes.
      if max(failures + 1, connects) < Self.leastAttempts { return "gave up after \(failures + 1) attempts" }
      return .now - lastProgress < limit / 2 ? "gave up before its time" : nil
    case .notPermitted, .notTrusted:
      guard let limit = policy.giveUpOnRefusalAfter else { return nil }
      return failures + 1 < Self.leastAttempts || .now - lastProgress < limit / 2
        ? "gave up on a refusal before its time" : nil
    default: return nil
    }
  }
}
