// Tests that a plain stream replaces no stored bytes if it repeats a PUT whose response is lost.

import EventLoops
import PropertyTesting
import ResumableUploads
import Testing

@testable import LiveStreaming

@Suite("A plain stream whose server replaces the earlier request")
struct PlainStreamReplacementTests: PlainStreamSuite {
  @Test(
    "a PUT whose response is lost is sent again as a whole, or not at all, because its end alone would replace it",
    arguments: [true, false])
  func lostAnswerOfPUT(_ isKept: Bool) {
    for isAcknowledged in [true, false] {
      var machine = PlainStreamStateMachine(policy: RetryPolicy(), replaces: true)
      _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
      machine.connected()
      machine.wrote(upTo: 1000)
      machine.acknowledged(bodyCount: isAcknowledged ? 1000 : 900, now: Self.at(1))
      let supply = Self.supply(isKept ? 0 : 700, 1000, isFinished: true)
      let action = machine.requestEnded(Self.lost, supply, sentUpTo: 1000, now: Self.at(2), draw: 0)
      if isKept {
        #expect(machine.retryIsDue(supply) == .open(at: 0, attempt: 2, gap: nil))
      } else {
        guard case .end(let error?) = action else {
          Issue.record("\(action)")
          return
        }
        #expect(error.kind == .unreachable && error.description.contains("PUT"))
      }
    }
  }

  @Test("an interrupted PUT restarts at its beginning while the buffer has it, unless the server reports its offset")
  func brokenPUT() {
    for told in [nil, 300] as [UInt64?] {
      var machine = PlainStreamStateMachine(policy: RetryPolicy(), replaces: true)
      _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
      machine.connected()
      machine.wrote(upTo: 500)
      machine.acknowledged(bodyCount: 400, now: Self.at(1))
      _ = machine.requestEnded(
        told == nil ? Self.lost : Self.refused(told), Self.supply(0), sentUpTo: 500, now: Self.at(2), draw: 0)
      #expect(machine.retryIsDue(Self.supply(0)) == .open(at: told ?? 0, attempt: 2, gap: nil))
    }
  }

  @Test(
    "bytes that a PUT repeats are not progress, and a lost final response is not idleness: the stream gives up",
    arguments: [false, true])
  func givesUpWithoutProgress(_ isWhole: Bool) {
    var policy = RetryPolicy()
    policy.giveUpAfter = .seconds(60)
    var machine = PlainStreamStateMachine(policy: policy, replaces: !isWhole)
    let supply = Self.supply(0, 1000, isFinished: isWhole)
    var action = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    var second: Int64 = 0
    while case .open = action, second < 1000 {
      machine.connected()
      machine.wrote(upTo: 1000)
      machine.acknowledged(bodyCount: isWhole ? (second == 0 ? 1000 : 0) : 900, now: Self.at(second))
      second += 20
      action = machine.requestEnded(Self.lost, supply, sentUpTo: 1000, now: Self.at(second), draw: 0)
      if case .wait = action { action = machine.retryIsDue(supply) }
    }
    guard case .end(let error?) = action else {
      Issue.record("\(action) after \(second) s")
      return
    }
    #expect(error.kind == .unreachable && second == 80)
  }

  /// A success before the end of the content.
  private static let early = Verdict.transient(.response(200), retryAfter: nil, serverOffset: nil)

  /// URLs that keep only the last request, like a plain server with PUT.
  private struct ReplacingServer {
    var machine = PlainStreamStateMachine(policy: RetryPolicy(), replaces: true)
    var random: SplitMix64
    var head: UInt64 = 0
    var oldest: UInt64 = 0
    var start: UInt64 = 0
    /// The offset after the last byte that the current request has sent.
    var end: UInt64 = 0
    /// The bytes that the unrefused requests of each part have sent.
    var stored: [Int: Range<UInt64>] = [:]
    var part = 1
    /// Unconfirmed bytes of the current request.
    var reported: UInt64 = 0

    init(_ seed: Seed) { random = seed.generator }

    mutating func perform(_ action: PlainStreamStateMachine.Action) {
      switch action {
      case .open(let offset, _, let gap):
        if machine.part > part {
          // Bytes of this part that the next one lacks are reported.
          reported += machine.takeUnconfirmed() ?? 0
          #expect(start + reported + (gap?.length ?? 0) == offset)
        }
        (part, reported) = (machine.part, 0)
        if let before = stored[machine.part] { #expect(offset <= before.lowerBound, "replaces \(before)") }
        #expect(offset >= oldest)
        (start, end) = (offset, offset)
      case .wait(let attempt): reported = attempt.unconfirmed
      case .pause: reported = 0
      case .none, .end: break
      }
    }

    mutating func step(_ now: MonotonicInstant) {
      let supply = PlainStreamReplacementTests.supply(oldest, head, headroom: min(100, head - oldest))
      switch Int.random(in: 0..<6, using: &random) {
      case 0: head += UInt64.random(in: 0...1000, using: &random)
      case 1: oldest = max(oldest, head - min(head, UInt64.random(in: 0...3000, using: &random)))
      case 2, 3:
        guard case .streaming = machine.state, start >= oldest, start < head else { return }
        end = max(end, UInt64.random(in: start...head, using: &random))
        machine.wrote(upTo: end)
        machine.acknowledged(bodyCount: UInt64.random(in: 0...(end - start), using: &random), now: now)
      case 4:
        guard case .streaming = machine.state else { return }
        let isRefused = random.chance(20)
        // The server may have received all sent bytes, even if TCP's acknowledgement has not arrived. After an early
        // success, it may have stored them.
        if !isRefused, end > start { stored[part] = start..<max(end, stored[part]?.upperBound ?? 0) }
        let verdict =
          if isRefused { PlainStreamReplacementTests.refused() } else if random.chance(3) {
            PlainStreamReplacementTests.early
          } else { PlainStreamReplacementTests.lost }
        perform(machine.requestEnded(verdict, supply, sentUpTo: end, now: now, draw: random.next()))
      default: perform(machine.retryIsDue(supply))
      }
    }
  }

  @Test(
    "in any order of events: no PUT replaces bytes unless it repeats them, and skipped ones are reported",
    arguments: Seed.several(200))
  func replacedNowhere(_ seed: Seed) {
    var server = ReplacingServer(seed)
    server.perform(server.machine.start(Supply(oldest: 0, head: 0, isFinished: false)))
    for step in 1...500 { server.step(Self.at(Int64(step))) }
    #expect(server.machine.part > 1)
  }

  @Test(
    "a PUT whose beginning has left the buffer is not replaced: the stream continues at another URL, from the oldest byte"
  )
  func brokenPUTWithoutBeginning() {
    var machine = PlainStreamStateMachine(policy: RetryPolicy(), replaces: true)
    _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    machine.connected()
    machine.wrote(upTo: 500)
    machine.acknowledged(bodyCount: 400, now: Self.at(1))
    _ = machine.requestEnded(Self.lost, Self.supply(300), sentUpTo: 500, now: Self.at(2), draw: 0)
    #expect(machine.retryIsDue(Self.supply(300)) == .open(at: 300, attempt: 2, gap: nil))
    #expect(machine.part == 2)
    let unconfirmed = machine.takeUnconfirmed()
    #expect(unconfirmed == 300)
    // None of this part was sent.
    _ = machine.requestEnded(Self.lost, Self.supply(600), sentUpTo: 300, now: Self.at(3), draw: 0)
    let gap = Gap(offset: 300, length: 310, cause: .bufferFull)
    #expect(machine.retryIsDue(Self.supply(600, headroom: 10)) == .open(at: 610, attempt: 3, gap: gap))
    #expect(machine.part == 2)
  }

  @Test("a file whose response is too late each time is sent three times, and not forever")
  func unansweredFile() {
    var machine = PlainStreamStateMachine(policy: RetryPolicy(), isLive: false)
    let late = Verdict.transient(.timedOut("no response"), retryAfter: nil, serverOffset: nil)
    let supply = Self.supply(0, 1000, isFinished: true)
    var action = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    var sends = 0
    while case .open = action, sends < 10 {
      sends += 1
      machine.wrote(upTo: 1000)
      action = machine.requestEnded(late, supply, sentUpTo: 1000, now: Self.at(Int64(600 * sends)), draw: 0)
      if case .wait = action { action = machine.retryIsDue(supply) }
    }
    #expect(sends == 3)
    guard case .end(let error?) = action else {
      Issue.record("\(action)")
      return
    }
    #expect(error.description.contains("3 times"))
  }
}
