import EventLoops
import PropertyTesting
import ResumableUploads
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The offset at which a stream continues")
struct PlainStreamStateMachineTests {
  private static let lost = Verdict.transient(.connectionLost("reset"), retryAfter: nil, serverOffset: nil)
  private static func refused(_ offset: UInt64? = nil) -> Verdict {
    .transient(.response(503), retryAfter: nil, serverOffset: offset)
  }
  /// The supply of a stream that continues.
  private static func supply(_ oldest: UInt64, _ head: UInt64 = 1000, headroom: UInt64 = 0, isFinished: Bool = false)
    -> Supply
  {
    Supply(oldest: oldest, head: head, isFinished: isFinished, restart: oldest + headroom)
  }
  private static func unconfirmed(_ action: PlainStreamStateMachine.Action) -> UInt64? {
    if case .wait(let attempt) = action { attempt.unconfirmed } else { nil }
  }
  private static func at(_ seconds: Int64) -> MonotonicInstant { .init(nanoseconds: seconds * 1_000_000_000) }

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
          random.chance(50) ? lost : .transient(.response(503), retryAfter: nil, serverOffset: serverOffset)
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

  @Test(
    "a server that refuses repeatedly receives fewer and fewer requests, and the stream gives up, even if TCP acknowledges bytes"
  )
  func refusedForEver() {
    var policy = RetryPolicy()
    policy.giveUpAfter = .seconds(600)
    var (machine, random) = (PlainStreamStateMachine(policy: policy), SplitMix64(state: 7))
    _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    var (now, delays) = (Self.at(0), [Duration]())
    while delays.count < 1_000 {
      machine.connected()
      machine.wrote(upTo: 100)
      machine.acknowledged(bodyCount: 90, now: now)
      let action = machine.requestEnded(Self.refused(), Self.supply(0), sentUpTo: 0, now: now, draw: random.next())
      guard case .wait(let attempt) = action else {
        guard case .end(let error) = action else { break }
        #expect(error?.kind == .unreachable)
        break
      }
      delays.append(attempt.retryDelay)
      now = now + attempt.retryDelay
      _ = machine.retryIsDue(Self.supply(0, 100, headroom: 0))
    }
    #expect(machine.state == .ended)
    // Full jitter up to 15 s: about eighty attempts in ten minutes, not a thousand.
    #expect(delays.count < 150 && delays.contains { $0 > .seconds(5) }, "\(delays.count) attempts")
  }

  @Test(
    "each connection that is lost when all bytes are sent is a separate outage, and attempts in between are not"
  )
  func idleLosses() {
    var stream = PlainStream(
      policy: RetryPolicy(), streamID: "s", target: "http://host/x", isLive: true, method: "POST", mayUsePOST: false)
    let lost = RequestEnd(result: .failure(UploadError(.connectionLost, "reset")), sentUpTo: 100)
    _ = stream.start(Self.supply(0), now: Self.at(0))
    stream.connected()
    stream.wrote(upTo: 100)
    stream.acknowledgedByTransport(bodyCount: 100, now: Self.at(1))
    for number in 1...3 {
      for attempt in 0..<3 {
        _ = stream.requestEnded(lost, Self.supply(0, 100), now: Self.at(Int64(100 * number + attempt)), draw: 0)
        _ = stream.retryIsDue(Self.supply(0, 100))
        #expect(stream.outageCount == number)
      }
      stream.connected()
    }
  }

  @Test("a stream's identifier is 32 random hexadecimal digits")
  func streamIDs() {
    let all = Set((0..<1000).map { _ in LiveStreamConfiguration.randomStreamID() })
    #expect(all.count == 1000)
    #expect(all.allSatisfy { $0.utf8.count == 32 && $0.allSatisfy { "0123456789abcdef".contains($0) } })
  }

  @Test("a silent source is not an outage: the give-up time begins when the connection fails")
  func silentIsNoOutage() {
    var policy = RetryPolicy()
    policy.giveUpAfter = .seconds(60)
    var (machine, random) = (PlainStreamStateMachine(policy: policy), SplitMix64(state: 1))
    _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    machine.connected()
    machine.wrote(upTo: 100)
    machine.acknowledged(bodyCount: 100, now: Self.at(1))
    // An hour later, without a byte to send.
    guard
      case .wait = machine.requestEnded(Self.lost, Self.supply(0), sentUpTo: 0, now: Self.at(3600), draw: random.next())
    else {
      Issue.record("given up at the first outage")
      return
    }
    _ = machine.retryIsDue(Self.supply(0, 100, headroom: 0))
    // Reconnected, and silent for another hour.
    machine.connected()
    guard
      case .wait = machine.requestEnded(Self.lost, Self.supply(0), sentUpTo: 0, now: Self.at(7200), draw: random.next())
    else {
      Issue.record("given up at the second outage")
      return
    }
    // But then the server is unreachable for longer than that.
    for second in [7210, 7230, 7250] as [Int64] {
      _ = machine.retryIsDue(Self.supply(0, 100, headroom: 0))
      guard
        case .wait = machine.requestEnded(
          Self.lost, Self.supply(0), sentUpTo: 0, now: Self.at(second), draw: random.next())
      else {
        Issue.record("given up too early")
        return
      }
    }
    _ = machine.retryIsDue(Self.supply(0, 100, headroom: 0))
    guard
      case .end(let error) = machine.requestEnded(
        Self.lost, Self.supply(0), sentUpTo: 0, now: Self.at(7270), draw: random.next())
    else {
      Issue.record("not given up")
      return
    }
    #expect(error?.kind == .unreachable)
  }

  /// Sends some bytes, is then silent, and loses each connection after `lifetime`. Returns the time and the number of
  /// attempts until the stream gives up, or 1000 attempts.
  private func losing(after lifetime: Duration, _ machine: inout PlainStreamStateMachine) -> (Duration, attempts: Int) {
    var random = SplitMix64(state: 1)
    let start = Self.at(1000)
    var (now, attempts) = (start, 0)
    _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    machine.connected()
    machine.wrote(upTo: 100)
    machine.acknowledged(bodyCount: 100, now: now)
    while attempts < 1000 {
      attempts += 1
      let action = machine.requestEnded(
        Self.lost, Self.supply(0, 100), sentUpTo: 100, now: now, draw: random.next())
      guard case .wait(let attempt) = action else { break }
      now = now + attempt.retryDelay
      _ = machine.retryIsDue(Self.supply(0, 100))
      machine.connected()
      now = now + lifetime
    }
    return (now - start, attempts)
  }

  @Test(
    "connections that end soon are one outage, and the stream gives up, even while its source is silent",
    arguments: [Duration.milliseconds(10), .seconds(2), .seconds(9)])
  func briefConnections(_ lifetime: Duration) {
    var policy = RetryPolicy()
    policy.giveUpAfter = .seconds(60)
    var machine = PlainStreamStateMachine(policy: policy)
    let (time, attempts) = losing(after: lifetime, &machine)
    #expect(machine.state == .ended && machine.outageCount == 1)
    #expect(time >= .seconds(60) && time < .seconds(80) && attempts >= 3, "\(time), \(attempts) attempts")
  }

  @Test("a server that ends each connection after an idle minute is no reason to give up, and each end is an outage")
  func idleLimit() {
    var policy = RetryPolicy()
    policy.giveUpAfter = .seconds(60)
    var machine = PlainStreamStateMachine(policy: policy)
    #expect(losing(after: .seconds(60), &machine).attempts == 1000)
    #expect(machine.state != .ended && machine.outageCount == 1000)
  }

  @Test("unacknowledged bytes are an outage from the first interruption on, and not from the last acknowledgement")
  func givesUp() {
    var policy = RetryPolicy()
    policy.giveUpAfter = .seconds(60)
    var (machine, random) = (PlainStreamStateMachine(policy: policy), SplitMix64(state: 1))
    _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    machine.connected()
    machine.wrote(upTo: 100)
    machine.acknowledged(bodyCount: 50, now: Self.at(10))
    var action = machine.requestEnded(Self.lost, Self.supply(0), sentUpTo: 0, now: Self.at(80), draw: random.next())
    for second in [100, 139, 141] as [Int64] {
      guard case .wait = action else {
        Issue.record("given up before \(second) s")
        return
      }
      _ = machine.retryIsDue(Self.supply(0, 100))
      action = machine.requestEnded(Self.lost, Self.supply(0), sentUpTo: 0, now: Self.at(second), draw: random.next())
    }
    guard case .end(let error) = action else {
      Issue.record("not given up")
      return
    }
    #expect(error?.description.contains("60 s") == true)
  }

  // MARK: Odd answers

  private static func odd(_ status: Int = 404) -> Verdict {
    .unexpected(LiveStreamError(.refused, "nothing here"), .response(status), retryAfter: nil, serverOffset: nil)
  }

  /// A stream of 1,000 bytes so far, of which its server has acknowledged 500, after this number of seconds.
  private func streaming(_ seconds: Int64) -> PlainStreamStateMachine {
    var machine = PlainStreamStateMachine(policy: RetryPolicy())
    _ = machine.start(Supply(oldest: 0, head: 0, isFinished: false))
    machine.connected()
    machine.wrote(upTo: 1000)
    machine.acknowledged(bodyCount: 10, now: Self.at(0))
    machine.acknowledged(bodyCount: 500, now: Self.at(seconds))
    return machine
  }

  @Test("an unexpected response is an error, or an outage if the server has accepted bytes for a few seconds")
  func oddAnswer() {
    for (seconds, goesOn) in [(1, false), (4, false), (5, true), (3600, true)] as [(Int64, Bool)] {
      var machine = streaming(seconds)
      let action = machine.requestEnded(
        Self.odd(), Self.supply(400), sentUpTo: 1000, now: Self.at(seconds), draw: 0)
      if case .wait(let attempt) = action {
        #expect(goesOn && attempt.cause == .response(404) && attempt.acknowledged == 400, "what is kept is sent again")
      } else {
        #expect(!goesOn && action == .end(LiveStreamError(.refused, "nothing here")))
      }
    }
  }

  @Test("a server that had time to refuse has accepted the stream, even if no more bytes came")
  func oddAnswerAfterSilence() {
    for (seconds, goesOn) in [(4, false), (5, true), (600, true)] as [(Int64, Bool)] {
      for isNoticedBefore in [false, true] {
        var machine = streaming(0)
        // The same bytes are reported again, as the kernel's counters are.
        if isNoticedBefore { machine.acknowledged(bodyCount: 500, now: Self.at(seconds)) }
        // An outage in between shows whether the acceptance stays.
        _ = machine.requestEnded(Self.lost, Self.supply(400), sentUpTo: 1000, now: Self.at(seconds), draw: 0)
        _ = machine.retryIsDue(Self.supply(400))
        let action = machine.requestEnded(
          Self.odd(), Self.supply(400), sentUpTo: 1000, now: Self.at(seconds + 1), draw: 0)
        if case .wait = action {
          #expect(goesOn)
        } else {
          #expect(!goesOn && action == .end(LiveStreamError(.refused, "nothing here")))
        }
      }
    }
  }

  @Test("the time for which a server accepts bytes counts within one request, and not across requests")
  func oddAnswerToNextRequest() {
    var machine = streaming(1)
    _ = machine.requestEnded(Self.lost, Self.supply(400), sentUpTo: 1000, now: Self.at(2), draw: 0)
    _ = machine.retryIsDue(Self.supply(400))
    machine.connected()
    machine.acknowledged(bodyCount: 10, now: Self.at(60))
    let action = machine.requestEnded(Self.odd(), Self.supply(400), sentUpTo: 1000, now: Self.at(60), draw: 0)
    #expect(action == .end(LiveStreamError(.refused, "nothing here")))
  }

  @Test("the response to the whole stream is its verdict, even if it is unexpected")
  func oddVerdict() {
    var machine = streaming(60)
    let action = machine.requestEnded(
      Self.odd(), Self.supply(400, 1000, isFinished: true), sentUpTo: 1000, now: Self.at(60), draw: 0)
    #expect(action == .end(LiveStreamError(.refused, "nothing here")))
  }

  @Test("a refusal in the middle of a stream may be temporary, and at its start it is not")
  func refusal() {
    let refusal = Verdict.refusal(LiveStreamError(.notPermitted, "no"), .response(401), retryAfter: nil)
    var machine = streaming(60)
    guard case .wait = machine.requestEnded(refusal, Self.supply(400), sentUpTo: 1000, now: Self.at(60), draw: 0)
    else {
      Issue.record("ended at the first refusal")
      return
    }
    machine = streaming(1)
    #expect(
      machine.requestEnded(refusal, Self.supply(400), sentUpTo: 1000, now: Self.at(1), draw: 0)
        == .end(LiveStreamError(.notPermitted, "no")))
  }

  // MARK: Lost answers

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
      let supply = PlainStreamStateMachineTests.supply(oldest, head, headroom: min(100, head - oldest))
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
        // The server may have received all sent bytes, even if TCP's acknowledgement has not arrived.
        if !isRefused, end > start { stored[part] = start..<max(end, stored[part]?.upperBound ?? 0) }
        perform(
          machine.requestEnded(
            isRefused ? PlainStreamStateMachineTests.refused() : PlainStreamStateMachineTests.lost, supply,
            sentUpTo: end, now: now, draw: random.next()))
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
