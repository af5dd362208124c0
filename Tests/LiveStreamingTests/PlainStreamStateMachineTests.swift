// Tests at which offset a plain stream continues, and which bytes it reports as a gap.

import EventLoops
import PropertyTesting
import ResumableUploads
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The offset at which a stream continues")
struct PlainStreamStateMachineTests: PlainStreamSuite {
  private static func unconfirmed(_ action: PlainStreamStateMachine.Action) -> UInt64? {
    if case .wait(let attempt) = action { attempt.unconfirmed } else { nil }
  }

  /// A stream with a server, a buffer and a network of random behaviour, within the possible.
  private struct World {
    var machine: PlainStreamStateMachine
    var random: SplitMix64
    var head: UInt64 = 0
    var oldest: UInt64 = 0
    var requestStart: UInt64 = 0
    var cursor: UInt64 = 0
    var now = MonotonicInstant(nanoseconds: 1)
    var gaps: [Gap] = []
    var ends = 0
    var opened: [UInt64] = []
    var waiting = false

    init(_ seed: UInt64, _ policy: RetryPolicy = RetryPolicy()) {
      machine = PlainStreamStateMachine(policy: policy)
      random = SplitMix64(state: seed)
    }

    mutating func perform(_ action: PlainStreamStateMachine.Action) {
      switch action {
      case .none: break
      case .open(let offset, let attempt, let gap):
        opened.append(offset)
        #expect(attempt == opened.count)
        #expect(offset <= head && offset >= min(oldest, head))
        if let gap {
          gaps.append(gap)
          #expect(gap.offset + gap.length == offset && gap.length > 0)
        }
        (requestStart, cursor, waiting) = (offset, offset, false)
      case .wait(let attempt):
        #expect(attempt.retryDelay >= .zero)
        #expect(attempt.acknowledged <= machine.sent)
        waiting = true
      case .pause: waiting = true
      case .end:
        ends += 1
        waiting = false
      }
    }

    mutating func step() {
      now = now + .milliseconds(Int64.random(in: 0...50, using: &random))
      switch Int.random(in: 0..<10, using: &random) {
      case 0...2: head += UInt64.random(in: 0...1000, using: &random)
      case 3: oldest = max(oldest, head > 2000 ? head - 2000 : 0)
      case 4, 5:
        guard case .streaming = machine.state, cursor >= oldest else { return }
        cursor = UInt64.random(in: cursor...max(cursor, head), using: &random)
        machine.wrote(upTo: cursor)
      case 6, 7:
        guard case .streaming = machine.state else { return }
        let before = machine.acknowledged
        machine.acknowledged(bodyCount: UInt64.random(in: 0...(cursor - requestStart), using: &random), now: now)
        #expect(machine.acknowledged >= before)
        // Acknowledged bytes may be released.
        oldest = max(oldest, min(machine.acknowledged, oldest + 500))
      case 8:
        let serverOffset = random.chance(30) ? UInt64.random(in: 0...machine.sent, using: &random) : nil
        let verdict: Verdict =
          random.chance(50)
          ? PlainStreamStateMachineTests.lost
          : .transient(.response(503), retryAfter: nil, serverOffset: serverOffset)
        perform(
          machine.requestEnded(
            verdict, PlainStreamStateMachineTests.supply(oldest), sentUpTo: 0, now: now, draw: random.next()))
      default:
        perform(machine.retryIsDue(PlainStreamStateMachineTests.supply(oldest, head, headroom: 250)))
      }
      #expect(machine.acknowledged <= machine.sent && machine.sent <= head)
    }
  }

  @Test(
    "in any order of events: no offset beyond the head or the buffer, each gap ends where sending begins, one end",
    arguments: Seed.several(200))
  func anyOrder(_ seed: Seed) {
    var world = World(seed.value)
    world.perform(world.machine.start(Supply(oldest: 0, head: 0, isFinished: false)))
    for _ in 0..<500 { world.step() }
    // Gaps and requests together cover every byte of the stream: each request begins at or before the position reached
    // by then, or directly after a gap that begins there.
    var reached: UInt64 = 0
    var gapByEnd = [UInt64: UInt64]()
    for gap in world.gaps { gapByEnd[gap.offset + gap.length] = gap.offset }
    for start in world.opened {
      #expect(start <= world.machine.sent || gapByEnd[start] != nil)
      if start > reached { #expect(gapByEnd[start] != nil || start <= world.machine.sent) }
      reached = max(reached, start)
    }
    for _ in 0..<3 { world.perform(world.machine.stop(.init(.cancelled, "enough"))) }
    world.perform(
      world.machine.requestEnded(Self.lost, Self.supply(0), sentUpTo: 0, now: world.now, draw: world.random.next()))
    world.perform(world.machine.retryIsDue(Self.supply(0, world.head, headroom: 0)))
    #expect(world.ends == 1 && world.machine.state == .ended)
  }

  @Test("after a lost connection, it continues after the last acknowledged byte, and the rest is sent again")
  func goesOn() {
    var (machine, random) = (PlainStreamStateMachine(policy: RetryPolicy()), SplitMix64(state: 1))
    #expect(machine.start(Supply(oldest: 0, head: 0, isFinished: false)) == .open(at: 0, attempt: 1, gap: nil))
    machine.wrote(upTo: 100)
    machine.acknowledged(bodyCount: 60, now: Self.at(1))
    guard
      case .wait(let attempt) = machine.requestEnded(
        Self.lost, Self.supply(0), sentUpTo: 0, now: Self.at(1), draw: random.next())
    else {
      Issue.record("no outage")
      return
    }
    #expect(attempt.acknowledged == 60)
    #expect(machine.retryIsDue(Self.supply(0, 200, headroom: 10)) == .open(at: 60, attempt: 2, gap: nil))
    #expect(machine.resent == 40)
    machine.wrote(upTo: 200)
    #expect(
      machine.requestEnded(
        .complete(.init(status: 201)), Self.supply(0), sentUpTo: 0, now: Self.at(2), draw: random.next()) == .end(nil))
    #expect(machine.acknowledged == 200)
  }

  @Test("discarded bytes are a gap from the last acknowledged one to slightly after the oldest")
  func overflow() {
    var (machine, random) = (PlainStreamStateMachine(policy: RetryPolicy()), SplitMix64(state: 1))
    _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    machine.wrote(upTo: 100)
    machine.acknowledged(bodyCount: 60, now: Self.at(1))
    _ = machine.requestEnded(Self.lost, Self.supply(0), sentUpTo: 0, now: Self.at(1), draw: random.next())
    let gap = Gap(offset: 60, length: 450, cause: .bufferFull)
    #expect(machine.retryIsDue(Self.supply(500, 1000, headroom: 10)) == .open(at: 510, attempt: 2, gap: gap))
    #expect(machine.acknowledged == 510)
  }

  @Test(
    "if a server reports fewer bytes than TCP acknowledged, the client returns to that offset, and discarded bytes are a gap"
  )
  func serverWentBack() {
    var (machine, random) = (PlainStreamStateMachine(policy: RetryPolicy()), SplitMix64(state: 1))
    _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    machine.wrote(upTo: 100)
    machine.acknowledged(bodyCount: 90, now: Self.at(1))
    _ = machine.requestEnded(Self.refused(40), Self.supply(0), sentUpTo: 0, now: Self.at(1), draw: random.next())
    #expect(machine.retryIsDue(Self.supply(0, 100, headroom: 10)) == .open(at: 40, attempt: 2, gap: nil))
    machine.wrote(upTo: 100)
    machine.acknowledged(bodyCount: 60, now: Self.at(2))
    _ = machine.requestEnded(Self.refused(50), Self.supply(80), sentUpTo: 0, now: Self.at(2), draw: random.next())
    let gap = Gap(offset: 50, length: 40, cause: .serverLost)
    #expect(machine.retryIsDue(Self.supply(80, 100, headroom: 10)) == .open(at: 90, attempt: 3, gap: gap))
  }

  @Test("discarded bytes are not lost at the server, although it reports the offset before them")
  func discardedBytesReportedAgain() {
    var (machine, random) = (PlainStreamStateMachine(policy: RetryPolicy()), SplitMix64(state: 1))
    _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    machine.wrote(upTo: 100)
    machine.acknowledged(bodyCount: 60, now: Self.at(1))
    _ = machine.requestEnded(Self.lost, Self.supply(0), sentUpTo: 0, now: Self.at(1), draw: random.next())
    _ = machine.retryIsDue(Self.supply(500, 1000, headroom: 0))
    #expect(machine.acknowledged == 500 && machine.releasable == 60, "another process finds the gap again")
    _ = machine.requestEnded(Self.refused(60), Self.supply(500), sentUpTo: 0, now: Self.at(2), draw: random.next())
    let gap = Gap(offset: 60, length: 440, cause: .bufferFull)
    #expect(machine.retryIsDue(Self.supply(500, 1000, headroom: 0)) == .open(at: 500, attempt: 3, gap: gap))
    machine.wrote(upTo: 600)
    machine.acknowledged(bodyCount: 1, now: Self.at(3))
    #expect(machine.acknowledged == 501 && machine.releasable == 501)
  }

  @Test(
    "a refusal without an offset withdraws TCP's acknowledgements of the refused request, as far as the bytes are in the buffer"
  )
  func refusedRequest() {
    var (machine, random) = (PlainStreamStateMachine(policy: RetryPolicy()), SplitMix64(state: 1))
    _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    machine.wrote(upTo: 100)
    machine.acknowledged(bodyCount: 90, now: Self.at(1))
    let kept = machine.requestEnded(Self.refused(), Self.supply(0), sentUpTo: 0, now: Self.at(1), draw: random.next())
    #expect(Self.unconfirmed(kept) == 0)
    #expect(machine.retryIsDue(Self.supply(0, 100, headroom: 10)) == .open(at: 0, attempt: 2, gap: nil))
    machine.wrote(upTo: 100)
    machine.acknowledged(bodyCount: 90, now: Self.at(2))
    // In a long request, most bytes have been released by then. The server had enough time to store them, but that is
    // not known.
    let released = machine.requestEnded(
      Self.refused(), Self.supply(70), sentUpTo: 0, now: Self.at(2), draw: random.next())
    #expect(Self.unconfirmed(released) == 70)
    #expect(machine.retryIsDue(Self.supply(70, 100, headroom: 10)) == .open(at: 70, attempt: 3, gap: nil))
  }

  @Test(
    "a server may have more than TCP had acknowledged; a claim beyond the sent bytes is rejected")
  func serverIsAhead() {
    var (machine, random) = (PlainStreamStateMachine(policy: RetryPolicy()), SplitMix64(state: 1))
    _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    machine.wrote(upTo: 100)
    machine.acknowledged(bodyCount: 60, now: Self.at(1))
    _ = machine.requestEnded(Self.refused(95), Self.supply(0), sentUpTo: 0, now: Self.at(1), draw: random.next())
    #expect(machine.retryIsDue(Self.supply(0, 100, headroom: 10)) == .open(at: 95, attempt: 2, gap: nil))
    _ = machine.requestEnded(Self.refused(1000), Self.supply(0), sentUpTo: 0, now: Self.at(2), draw: random.next())
    #expect(machine.retryIsDue(Self.supply(0, 100, headroom: 10)) == .open(at: 95, attempt: 3, gap: nil))
  }

  @Test("a stream's identifier is 32 random hexadecimal digits")
  func streamIDs() {
    let all = Set((0..<1000).map { _ in LiveStreamConfiguration.randomStreamID() })
    #expect(all.count == 1000)
    #expect(all.allSatisfy { $0.utf8.count == 32 && $0.allSatisfy { "0123456789abcdef".contains($0) } })
  }
}
