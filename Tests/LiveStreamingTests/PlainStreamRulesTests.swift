// The rules for plain servers, one situation after another, with exact times and offsets.

import EventLoops
import HTTPMessages
import ResumableUploads
import Testing
import UploadClient

@testable import LiveStreaming

/// A machine with a supply and a time.
private struct Situation {
  var machine: PlainStreamStateMachine
  var supply = Supply(oldest: 0, head: 1000, isFinished: false)
  var action = PlainStreamStateMachine.Action.none

  /// A stream that has begun, and gives up after a minute.
  init(
    replaces: Bool = false, isLive: Bool = true, acknowledged: UInt64 = 0, waitsForConnectivity: Bool = false,
    oldest: UInt64 = 0
  ) {
    var policy = RetryPolicy()
    policy.giveUpAfter = .seconds(60)
    policy.waitsForConnectivity = waitsForConnectivity
    machine = PlainStreamStateMachine(
      policy: policy, replaces: replaces, isLive: isLive, acknowledged: acknowledged)
    supply.oldest = oldest
    supply.restart = oldest
    action = machine.start(supply)
  }

  static func at(_ seconds: Int64) -> MonotonicInstant { .init(nanoseconds: seconds * 1_000_000_000) }

  static let lost = Verdict.transient(.connectionLost("reset"), retryAfter: nil, serverOffset: nil)
  static let late = Verdict.transient(.timedOut("no response"), retryAfter: nil, serverOffset: nil)
  static let error = LiveStreamError(.refused, "no")
  static let odd = Verdict.unexpected(error, .response(404), retryAfter: nil, serverOffset: nil)
  static func busy(_ offset: UInt64? = nil) -> Verdict {
    .transient(.response(503), retryAfter: nil, serverOffset: offset)
  }
  static func denied(_ offset: UInt64? = nil) -> Verdict {
    .refusal(error, .response(401), retryAfter: nil, serverOffset: offset)
  }

  /// The current request sends the bytes up to `offset`.
  mutating func send(upTo offset: UInt64) { machine.wrote(upTo: offset) }

  /// TCP acknowledges these bytes of the current request.
  mutating func acknowledge(_ count: UInt64, at seconds: Int64) {
    machine.acknowledged(bodyCount: count, now: Self.at(seconds))
  }

  /// The current request ends.
  mutating func end(_ verdict: Verdict, at seconds: Int64, sentUpTo: UInt64 = 0) {
    action = machine.requestEnded(verdict, supply, sentUpTo: sentUpTo, now: Self.at(seconds), draw: .max)
  }

  /// The current request was refused, and its token is another one by now.
  mutating func renewToken(_ verdict: Verdict = Situation.denied(), at seconds: Int64, sentUpTo: UInt64 = 0) {
    action = machine.tokenRenewed(verdict, supply, sentUpTo: sentUpTo, now: Self.at(seconds), draw: .max)
  }

  mutating func retry() { action = machine.retryIsDue(supply) }

  /// The buffer has bytes only from here on.
  mutating func discard(upTo offset: UInt64) { (supply.oldest, supply.restart) = (offset, offset) }

  var isWaiting: Bool { if case .wait = action { true } else { false } }
  var hasGivenUp: Bool { if case .end(let error?) = action { error.kind == .unreachable } else { false } }
}

@Suite("The rules of a plain stream")
struct PlainStreamRulesTests {
  @Test("bytes that an earlier process has delivered are not sent again, as far as the stream has any")
  func resumed() {
    #expect(Situation().action == .open(at: 0, attempt: 1, gap: nil))
    for delivered: UInt64 in [1, 300, 1000] {
      let stream = Situation(acknowledged: delivered)
      #expect(stream.action == .open(at: delivered, attempt: 1, gap: nil))
      #expect(stream.machine.sent == delivered && stream.machine.resent == 0)
    }
    let beyond = Situation(acknowledged: 1001)
    #expect(beyond.action == .open(at: 1000, attempt: 1, gap: nil) && beyond.machine.acknowledged == 1000)
    let gap = Gap(offset: 300, length: 100, cause: .bufferFull)
    #expect(Situation(acknowledged: 300, oldest: 400).action == .open(at: 400, attempt: 1, gap: gap))
  }

  @Test(
    "with a wait for the first connection, the time to give up begins with it, whatever follows",
    arguments: [false, true])
  func connectivity(_ isRefused: Bool) {
    var stream = Situation(waitsForConnectivity: true)
    for second: Int64 in [0, 100, 200, 300] {
      stream.end(Situation.lost, at: second)
      #expect(stream.isWaiting)
      stream.retry()
    }
    stream.machine.connected()
    for second: Int64 in [400, 500, 600] {
      stream.end(isRefused ? Situation.busy() : Situation.lost, at: second)
      #expect(stream.isWaiting == (second < 600) && stream.hasGivenUp == (second == 600), "\(second) s")
      stream.retry()
    }
  }

  @Test("a newly acknowledged byte restarts the time to give up")
  func progress() {
    for count: UInt64 in 0...1 {
      var stream = Situation()
      stream.send(upTo: 1000)
      for second: Int64 in [0, 50] {
        stream.end(Situation.lost, at: second)
        stream.retry()
      }
      stream.acknowledge(count, at: 51)
      for second: Int64 in [100, 101] {
        stream.end(Situation.lost, at: second)
        stream.retry()
      }
      #expect((stream.machine.state == .ended) == (count == 0))
    }
  }

  @Test("bytes that the server has lost, or has refused, are progress when they are acknowledged again")
  func lostProgress() {
    for verdict in [Situation.busy(40), Situation.busy()] {
      var stream = Situation()
      stream.send(upTo: 1000)
      stream.acknowledge(90, at: 0)
      stream.end(verdict, at: 1)
      stream.retry()
      stream.end(Situation.lost, at: 50)
      stream.retry()
      stream.acknowledge(10, at: 51)
      for second: Int64 in [100, 101, 102] {
        stream.end(Situation.lost, at: second)
        #expect(stream.isWaiting, "\(second) s")
        stream.retry()
      }
      // Here, an outage began at 100 s.
      stream.end(Situation.lost, at: 160)
      #expect(stream.hasGivenUp)
    }
  }

  @Test("bytes that are gone count as lost at the server only if it has reported fewer bytes than before")
  func causes() {
    for (reported, cause) in [(89, .serverLost), (90, .bufferFull), (91, .bufferFull)] as [(UInt64, Gap.Cause)] {
      var stream = Situation()
      stream.send(upTo: 1000)
      stream.acknowledge(90, at: 0)
      stream.end(Situation.busy(reported), at: 1)
      stream.discard(upTo: 200)
      stream.retry()
      let gap = Gap(offset: reported, length: 200 - reported, cause: cause)
      #expect(stream.action == .open(at: 200, attempt: 2, gap: gap))
      #expect(stream.machine.acknowledged == 200 && stream.machine.sent == 1000 && stream.machine.resent == 800)
      // The next gap has its own cause.
      stream.end(Situation.lost, at: 2)
      stream.discard(upTo: 300)
      stream.retry()
      let next = Gap(offset: 200, length: 100, cause: .bufferFull)
      #expect(stream.action == .open(at: 300, attempt: 3, gap: next))
    }
  }

  @Test("a gap is no progress: the failure before it and the one after it are one outage")
  func gapInOutage() {
    var stream = Situation()
    stream.end(Situation.lost, at: 0)
    stream.discard(upTo: 200)
    stream.retry()
    stream.end(Situation.lost, at: 1)
    guard case .wait(let attempt) = stream.action else {
      Issue.record("\(stream.action)")
      return
    }
    #expect(attempt.isRepeated && attempt.acknowledged == 200 && stream.machine.outageCount == 1)
  }

  @Test("nothing is lost in a pause, if the stream had come up to it and continues right after it")
  func pause() {
    let cases: [(acknowledged: UInt64, pause: Range<UInt64>?, gap: UInt64?)] = [
      (60, nil, 40), (60, 60..<100, nil), (60, 50..<100, nil), (60, 61..<100, 40), (60, 60..<99, 40),
    ]
    for (acknowledged, pause, length) in cases {
      var stream = Situation()
      stream.send(upTo: acknowledged)
      stream.acknowledge(acknowledged, at: 0)
      stream.end(Situation.lost, at: 1)
      stream.discard(upTo: 100)
      stream.supply.pause = pause
      stream.retry()
      let gap = length.map { Gap(offset: acknowledged, length: $0, cause: .bufferFull) }
      #expect(stream.action == .open(at: 100, attempt: 2, gap: gap))
    }
  }

  @Test("what a source delivered before a pause is acknowledged, and the next request follows")
  func passedPause() {
    var stream = Situation()
    stream.send(upTo: 100)
    stream.machine.passedPause(at: 100, now: Situation.at(1))
    #expect(stream.machine.acknowledged == 100)
    stream.retry()
    #expect(stream.action == .open(at: 100, attempt: 2, gap: nil))
    // Only a request that is in progress can pass it.
    stream.end(Situation.lost, at: 2)
    stream.machine.passedPause(at: 500, now: Situation.at(2))
    #expect(stream.machine.acknowledged == 100 && stream.machine.state == .waiting)
  }

  @Test("passing a pause is progress")
  func pauseIsProgress() {
    var stream = Situation()
    stream.end(Situation.lost, at: 0)
    stream.retry()
    stream.send(upTo: 100)
    stream.machine.passedPause(at: 100, now: Situation.at(50))
    stream.retry()
    for second: Int64 in [100, 150, 155] {
      stream.end(Situation.lost, at: second)
      #expect(stream.isWaiting, "\(second) s")
      stream.retry()
    }
  }

  @Test("a server that has accepted a request for some seconds accepts the stream, over a pause and a renewed token")
  func acceptance() {
    for isToken in [false, true] {
      for (second, isAccepted) in [(4, false), (5, true)] as [(Int64, Bool)] {
        var stream = Situation()
        stream.send(upTo: 100)
        stream.acknowledge(100, at: 0)
        if isToken {
          stream.renewToken(at: second)
          #expect(stream.action == .pause(.milliseconds(25)))
        } else {
          stream.acknowledge(100, at: second)
          stream.machine.passedPause(at: 100, now: Situation.at(second))
        }
        stream.retry()
        #expect(stream.machine.hasAcknowledged == isAccepted)
        stream.end(Situation.odd, at: second + 1)
        #expect(stream.isWaiting == isAccepted, "\(stream.action)")
      }
    }
  }

  // MARK: Renewed tokens

  @Test("a second token that was renewed without progress is a refusal, even if TCP acknowledges bytes each time")
  func secondToken() {
    var stream = Situation()
    for number in 1...2 {
      stream.send(upTo: 400)
      stream.acknowledge(400, at: Int64(number))
      stream.renewToken(at: Int64(number), sentUpTo: 400)
      #expect(stream.action == (number == 1 ? .pause(.milliseconds(25)) : .end(Situation.error)))
      stream.retry()
    }
  }

  @Test("the server's offset counts only if the bytes from there on can be sent")
  func tokenWithOffset() {
    for (offset, isRepeated) in [(299, false), (300, true), (301, true)] as [(UInt64, Bool)] {
      var stream = Situation()
      stream.send(upTo: 400)
      stream.acknowledge(350, at: 0)
      stream.discard(upTo: 300)
      stream.renewToken(Situation.denied(offset), at: 1, sentUpTo: 400)
      if isRepeated {
        #expect(stream.action == .pause(.milliseconds(25)))
        stream.retry()
        #expect(stream.action == .open(at: offset, attempt: 2, gap: nil))
      } else {
        #expect(stream.action == .end(Situation.error))
      }
    }
  }

  @Test("a renewed token repeats a request only if all its bytes can be sent again")
  func tokenWithoutBytes() {
    for (oldest, isRepeated) in [(0, true), (1, false)] as [(UInt64, Bool)] {
      var stream = Situation()
      stream.send(upTo: 400)
      stream.acknowledge(350, at: 0)
      stream.discard(upTo: oldest)
      stream.renewToken(at: 1, sentUpTo: 400)
      #expect(stream.action == (isRepeated ? .pause(.milliseconds(25)) : .end(Situation.error)))
      #expect(stream.machine.unconfirmedAtEnd == (isRepeated ? 0 : oldest))
    }
    // A token has nothing to do with other ends of a request.
    var stream = Situation()
    stream.renewToken(Situation.lost, at: 1)
    #expect(stream.isWaiting)
  }

  // MARK: Ends

  @Test("the end of a stream reports the bytes of its last request that the server has not confirmed")
  func unconfirmedAtEnd() {
    let error = Situation.error
    let ends: [(verdict: Verdict, unconfirmed: UInt64, acknowledged: UInt64)] = [
      (.permanent(error, .response(410)), 200, 300), (.permanent(error, .response(410), serverOffset: 150), 0, 150),
      (.permanent(error, nil), 0, 500), (Situation.odd, 200, 300), (.permanent(error, .overtaken), 0, 500),
    ]
    for (verdict, unconfirmed, acknowledged) in ends {
      var stream = Situation(acknowledged: 100)
      stream.send(upTo: 600)
      stream.acknowledge(400, at: 0)
      stream.discard(upTo: 300)
      stream.end(verdict, at: 1, sentUpTo: 600)
      #expect(stream.action == .end(error) && stream.machine.state == .ended)
      #expect(stream.machine.unconfirmedAtEnd == unconfirmed && stream.machine.acknowledged == acknowledged)
    }
  }

  @Test("a stream that gives up reports the unconfirmed bytes of its last request")
  func unconfirmedAfterTime() {
    var stream = Situation(replaces: true)
    stream.send(upTo: 600)
    stream.acknowledge(500, at: 0)
    for second: Int64 in [0, 100] {
      stream.end(Situation.lost, at: second, sentUpTo: 600)
      #expect(stream.isWaiting && stream.machine.unconfirmedAtEnd == 0)
      stream.retry()
    }
    // TCP had acknowledged these before, so they are no progress.
    stream.acknowledge(400, at: 200)
    stream.discard(upTo: 100)
    stream.end(Situation.busy(), at: 200, sentUpTo: 600)
    #expect(stream.hasGivenUp && stream.machine.unconfirmedAtEnd == 100)
  }

  @Test("only consecutive missing answers to a whole file end it")
  func unanswered() {
    // Other ends of the request in between, and whether its whole content was sent.
    let others: [(inout Situation) -> Void] = [
      { $0.end(Situation.lost, at: 3, sentUpTo: 1000) }, { $0.end(Situation.late, at: 3, sentUpTo: 999) },
      { $0.renewToken(at: 3, sentUpTo: 1000) },
    ]
    for other in others {
      var stream = Situation(isLive: false)
      stream.supply.isFinished = true
      for round in 1...2 {
        for _ in 1...2 {
          stream.send(upTo: 1000)
          stream.end(Situation.late, at: 3, sentUpTo: 1000)
          #expect(stream.isWaiting, "round \(round)")
          stream.retry()
        }
        if round == 1 {
          other(&stream)
          stream.retry()
        }
      }
      stream.end(Situation.late, at: 3, sentUpTo: 1000)
      #expect(stream.hasGivenUp)
    }
    // Of a live stream, the rest alone is sent again.
    var stream = Situation()
    stream.supply.isFinished = true
    stream.send(upTo: 1000)
    for _ in 1...5 {
      stream.end(Situation.late, at: 3, sentUpTo: 1000)
      #expect(stream.isWaiting)
      stream.retry()
    }
  }

  // MARK: PUT

  @Test("after a pause, a PUT does not replace what an earlier one may have stored")
  func replacesAfterPause() {
    var stream = Situation(replaces: true)
    stream.send(upTo: 100)
    stream.acknowledge(100, at: 0)
    stream.machine.passedPause(at: 100, now: Situation.at(1))
    stream.discard(upTo: 100)
    stream.retry()
    #expect(stream.action == .open(at: 100, attempt: 2, gap: nil) && stream.machine.part == 2)
    let unconfirmed = stream.machine.takeUnconfirmed()
    let again = stream.machine.takeUnconfirmed()
    #expect(unconfirmed == 100 && again == nil)
  }

  @Test("unconfirmed bytes of a part are reported once, even if a refusal has reported some of them")
  func reportedOnce() {
    var stream = Situation(replaces: true)
    stream.send(upTo: 500)
    stream.acknowledge(400, at: 0)
    stream.end(Situation.lost, at: 1, sentUpTo: 500)
    stream.retry()
    #expect(stream.action == .open(at: 0, attempt: 2, gap: nil))
    stream.acknowledge(400, at: 2)
    stream.discard(upTo: 250)
    stream.end(Situation.busy(), at: 3, sentUpTo: 500)
    guard case .wait(let attempt) = stream.action else {
      Issue.record("\(stream.action)")
      return
    }
    #expect(attempt.unconfirmed == 250 && attempt.acknowledged == 250)
    stream.discard(upTo: 300)
    stream.retry()
    let gap = Gap(offset: 250, length: 50, cause: .bufferFull)
    #expect(stream.action == .open(at: 300, attempt: 3, gap: gap) && stream.machine.part == 2)
    let unreported = stream.machine.takeUnconfirmed()
    #expect(unreported == 0)
  }

  @Test("a later part is another stream for its server, whose offset says nothing about this one")
  func offsetOfPart() {
    var stream = Situation(replaces: true)
    stream.send(upTo: 500)
    stream.acknowledge(400, at: 0)
    stream.discard(upTo: 300)
    stream.end(Situation.lost, at: 1, sentUpTo: 500)
    stream.retry()
    stream.acknowledge(50, at: 2)
    stream.end(Situation.busy(10), at: 3, sentUpTo: 500)
    #expect(stream.machine.part == 2 && stream.machine.acknowledged == 300)
  }
}
