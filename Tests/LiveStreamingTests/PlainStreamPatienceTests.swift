// Tests which ends of requests are outages of a plain stream, and when it gives up.

import EventLoops
import PropertyTesting
import ResumableUploads
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The patience of a plain stream")
struct PlainStreamPatienceTests: PlainStreamSuite {
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
}
