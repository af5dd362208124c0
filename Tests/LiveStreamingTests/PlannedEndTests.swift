// Requests that end although nothing has failed: for a roll-over, and because of a renewed bearer token.

import EventLoops
import ResumableUploads
import Testing

@testable import LiveStreaming
@testable import UploadClient

/// A file of 500 bytes whose appends contain at most 300 bytes, with the test as the server.
private struct FileRules {
  static let upload = "http://host/uploads/1"
  var machine: ResumableStream
  var step = StreamStep.none
  var now = MonotonicInstant(nanoseconds: 1_000_000_000)
  let supply = Supply(oldest: 0, head: 500, isFinished: true)

  init(discovers: Bool = false, _ policy: RetryPolicy = RetryPolicy()) {
    var configuration = UploadClientStateMachine.Configuration()
    (configuration.discovers, configuration.length, configuration.appendSize) = (discovers, 500, 300)
    machine = ResumableStream(configuration, target: "http://host/", policy: policy)
    step = machine.start(supply, now: now)
  }

  /// Its first append is under way.
  static func appending(_ policy: RetryPolicy = RetryPolicy()) -> FileRules {
    var rules = FileRules(policy)
    rules.answer(201, [("Location", upload)])
    return rules
  }

  var request: StreamRequest? { if case .request(let request) = step { request } else { nil } }

  mutating func answer(_ status: Int, _ fields: [(String, String)], sentUpTo: UInt64? = nil) {
    let all = fields + [("Upload-Draft-Interop-Version", "8")]
    let response = HTTPResponse(status: status, fields: HeaderFields(received: all.map { (name: $0.0, value: $0.1) }))
    let end = RequestEnd(
      result: .success(.init(response: response, isEarly: false)),
      location: fields.first { $0.0 == "Location" }?.1, sentUpTo: sentUpTo ?? request?.start ?? 0)
    step = machine.requestEnded(end, supply, now: now, draw: .max)
  }

  mutating func rollOver(sentUpTo: UInt64) { step = machine.rolledOver(sentUpTo: sentUpTo, now: now, draw: .max) }

  mutating func renewToken(_ status: Int = 401, sentUpTo: UInt64 = 0) {
    let end = RequestEnd(
      result: .success(.init(response: HTTPResponse(status: status), isEarly: true)), sentUpTo: sentUpTo)
    step = machine.tokenRenewed(end, supply, now: now, draw: .max)
  }

  mutating func goOn() {
    if case .pause(let delay) = step { now = now + delay }
    step = machine.retryIsDue(supply)
  }
}

@Suite("A request that ends although nothing has failed")
struct PlannedEndTests {
  @Test("after a roll-over, the server is asked for its offset, and no outage is counted")
  func rollOver() {
    var rules = FileRules.appending()
    #expect(rules.request?.rollsOver == true && rules.request?.content == .bytes(maximum: 300))
    rules.rollOver(sentUpTo: 120)
    #expect(rules.step == .pause(.milliseconds(25)))
    rules.goOn()
    #expect(rules.request?.method == "HEAD" && rules.request?.url == FileRules.upload)
    rules.answer(204, [("Upload-Offset", "100"), ("Upload-Complete", "?0")])
    #expect(rules.request?.method == "PATCH" && rules.request?.start == 100)
    #expect(rules.machine.outageCount == 0 && rules.machine.sent == 120)
    // Bytes that the server lacks are sent again.
    rules.rollOver(sentUpTo: 300)
    #expect(rules.machine.resent == 20 && rules.machine.outageCount == 0)
  }

  @Test("an outage after a roll-over is counted as the first one")
  func outageAfterwards() {
    var rules = FileRules.appending()
    rules.rollOver(sentUpTo: 120)
    rules.goOn()
    let end = RequestEnd(result: .failure(UploadError(.connectionLost, "reset")), sentUpTo: 0)
    let step = rules.machine.requestEnded(end, rules.supply, now: rules.now, draw: .max)
    guard case .wait(let attempt) = step else {
      Issue.record("\(step)")
      return
    }
    #expect(!attempt.isRepeated && rules.machine.outageCount == 1)
  }

  @Test("a stream whose requests only roll over, without progress, gives up like after failures")
  func noProgress() {
    var policy = RetryPolicy()
    policy.giveUpAfter = .seconds(60)
    var rules = FileRules.appending(policy)
    for _ in 0..<1000 {
      rules.rollOver(sentUpTo: 100)
      guard case .pause = rules.step else { break }
      rules.goOn()
      rules.answer(204, [("Upload-Offset", "0"), ("Upload-Complete", "?0")])
    }
    guard case .end(let error) = rules.step else {
      Issue.record("\(rules.step)")
      return
    }
    #expect(error?.kind == .unreachable)
  }

  @Test("a renewed token repeats the refused request, and no outage is counted", arguments: [401, 403])
  func token(_ status: Int) {
    // The question, the creation and an append.
    var rules = FileRules(discovers: true)
    rules.renewToken(status)
    #expect(rules.step == .pause(.milliseconds(25)))
    rules.goOn()
    #expect(rules.request?.method == "OPTIONS")
    rules = FileRules()
    rules.renewToken(status)
    rules.goOn()
    #expect(rules.request?.describesRepresentation == true)
    rules = FileRules.appending()
    rules.renewToken(status, sentUpTo: 120)
    rules.goOn()
    #expect(rules.request?.method == "HEAD" && rules.machine.sent == 120 && rules.machine.outageCount == 0)
  }

  @Test(
    "a server that also refuses the renewed token refuses the stream", arguments: [nil, Duration.seconds(600)])
  func refusedAgain(_ limit: Duration?) {
    var policy = RetryPolicy()
    policy.giveUpOnRefusalAfter = limit
    var rules = FileRules(policy)
    rules.renewToken()
    rules.goOn()
    rules.renewToken()
    switch rules.step {
    case .end(let error): #expect(limit == nil && error?.kind == .notPermitted)
    case .wait(let attempt):
      #expect(limit != nil && attempt.cause == .response(401) && rules.machine.outageCount == 1)
    default: Issue.record("\(rules.step)")
    }
    // Progress makes the next renewal the first one.
    rules = FileRules(policy)
    rules.renewToken()
    rules.goOn()
    rules.answer(201, [("Location", FileRules.upload)])
    rules.answer(204, [("Upload-Offset", "300"), ("Upload-Complete", "?0")], sentUpTo: 300)
    rules.renewToken()
    #expect(rules.step == .pause(.milliseconds(25)))
  }

  @Test("a plain stream whose refused bytes are no longer kept reports them with an outage")
  func unconfirmed() {
    var stream = PlainStream(
      policy: RetryPolicy(), streamID: "s", target: "http://host/x", isLive: true, method: "POST", mayUsePOST: false)
    let now = MonotonicInstant(nanoseconds: 1)
    _ = stream.start(Supply(oldest: 0, head: 500, isFinished: false), now: now)
    stream.wrote(upTo: 500)
    stream.acknowledgedByTransport(bodyCount: 400, now: now)
    stream.acknowledgedByTransport(bodyCount: 400, now: now + .seconds(6))
    let end = RequestEnd(result: .success(.init(response: HTTPResponse(status: 401), isEarly: true)), sentUpTo: 500)
    let step = stream.tokenRenewed(
      end, Supply(oldest: 300, head: 500, isFinished: false), now: now + .seconds(6), draw: 0)
    guard case .wait(let attempt) = step else {
      Issue.record("\(step)")
      return
    }
    #expect(attempt.unconfirmed == 300 && stream.outageCount == 1)
  }

  @Test(
    "a plain stream survives any number of renewals whose tokens have worked, and uses the server's offset",
    arguments: [nil, 100_000] as [UInt64?])
  func rotation(_ kept: UInt64?) {
    var stream = PlainStream(
      policy: RetryPolicy(), streamID: "s", target: "http://host/x", isLive: true, method: "POST", mayUsePOST: false)
    var now = MonotonicInstant(nanoseconds: 1)
    var (head, start) = (UInt64(0), UInt64(0))
    _ = stream.start(Supply(oldest: 0, head: 0, isFinished: false), now: now)
    for rotation in 1...20 {
      head += 200_000
      stream.wrote(upTo: head)
      stream.acknowledgedByTransport(bodyCount: 1, now: now)
      now = now + .seconds(900)
      stream.acknowledgedByTransport(bodyCount: head - start, now: now)
      // With `kept`, only this number of bytes is still in the buffer, and the server reports that it has stored all
      // others.
      let supply = Supply(oldest: kept.map { head - $0 } ?? 0, head: head, isFinished: false)
      let fields: HeaderFields = kept.map { ["Stream-Offset": "\(head - $0 / 2)"] } ?? [:]
      let end = RequestEnd(
        result: .success(.init(response: HTTPResponse(status: 401, fields: fields), isEarly: true)), sentUpTo: head)
      guard case .pause = stream.tokenRenewed(end, supply, now: now, draw: 0),
        case .request(let request) = stream.retryIsDue(supply)
      else {
        Issue.record("rotation \(rotation) is an outage or the end")
        return
      }
      start = request.start
      #expect(start == kept.map { head - $0 / 2 } ?? 0)
    }
    #expect(stream.outageCount == 0)
  }

  @Test("a renewed token does not repeat a cancellation")
  func cancellation() {
    var rules = FileRules.appending()
    let error = LiveStreamError(.cancelled, "stopped")
    rules.step = rules.machine.abandon(error)
    #expect(rules.request?.method == "DELETE")
    rules.renewToken()
    #expect(rules.step == .end(error))
  }

  @Test("a plain stream repeats a request whose token was renewed, and ends if the token is the same")
  func plain() {
    for isRenewed in [true, false] {
      var stream = PlainStream(
        policy: RetryPolicy(), streamID: "s", target: "http://host/x", isLive: true, method: "POST", mayUsePOST: false)
      let now = MonotonicInstant(nanoseconds: 1)
      let supply = Supply(oldest: 0, head: 500, isFinished: false)
      _ = stream.start(supply, now: now)
      stream.wrote(upTo: 500)
      stream.acknowledgedByTransport(bodyCount: 400, now: now)
      let end = RequestEnd(result: .success(.init(response: HTTPResponse(status: 401), isEarly: true)), sentUpTo: 500)
      guard isRenewed else {
        guard case .end(let error) = stream.requestEnded(end, supply, now: now, draw: 0) else {
          Issue.record("it continues")
          continue
        }
        #expect(error?.kind == .notPermitted)
        continue
      }
      guard case .pause = stream.tokenRenewed(end, supply, now: now, draw: 0) else {
        Issue.record("it ends")
        continue
      }
      // For the server, the refused request did not happen.
      #expect(stream.acknowledged == 0 && stream.outageCount == 0)
      guard case .request(let request) = stream.retryIsDue(supply) else {
        Issue.record("no request")
        continue
      }
      #expect(request.start == 0)
    }
  }
}

@Suite("The end of an upload resource's lifetime")
struct TimeToExpiryTests {
  @Test(
    "a stream leaves it a tenth of its lifetime before, but at least 20 s, or half of a short one",
    arguments: [(1000, 900_000), (100, 80_000), (30, 15_000), (2, 1_000), (0, 0)] as [(Int, Int64)])
  func margin(_ lifetime: Int, _ milliseconds: Int64) {
    var rules = FileRules()
    let before = rules.machine.takeTimeToExpiry()
    rules.answer(201, [("Location", FileRules.upload), ("Upload-Limit", "max-age=\(lifetime)")])
    let time = rules.machine.takeTimeToExpiry()
    let again = rules.machine.takeTimeToExpiry()
    #expect(time == .milliseconds(milliseconds))
    #expect(before == nil && again == nil, "each response reports it once")
  }

  @Test("no lifetime is too long")
  func long() {
    var rules = FileRules()
    rules.answer(201, [("Location", FileRules.upload), ("Upload-Limit", "max-age=999999999999999")])
    let time = rules.machine.takeTimeToExpiry()
    #expect(time.map { $0 > .seconds(1 << 31) } == true)
  }
}

@Suite("A violation of HTTP/2 where the user requires HTTP/2")
struct RequiredHTTP2Tests {
  @Test("it is an error before HTTP/2 has worked, and an outage afterwards; other results stay as they are")
  func required() {
    typealias End = Result<UploadTask.Outcome, UploadError>
    func kind(_ end: End, hasWorked: Bool) -> UploadError.Kind? {
      if case .failure(let error) = IntermediaryLimits.requiringHTTP2(end, hasWorked: hasWorked) {
        error.kind
      } else {
        nil
      }
    }
    let violation = End.failure(UploadError(.http2Violation, "w"))
    #expect(kind(violation, hasWorked: false) == .http2NotSupported)
    #expect(kind(violation, hasWorked: true) == .connectionLost)
    for other in [UploadError.Kind.connectionLost, .timedOut, .protocolViolation, .other] {
      #expect(kind(.failure(UploadError(other, "w")), hasWorked: false) == other)
    }
    guard case .failure(let outage) = IntermediaryLimits.requiringHTTP2(violation, hasWorked: true),
      case .failure(let end) = IntermediaryLimits.requiringHTTP2(violation, hasWorked: false)
    else {
      Issue.record("no failures")
      return
    }
    #expect(outage.description == "w" && end.description.hasPrefix("w: an intermediary breaks HTTP/2"))
    let answer = End.success(.init(response: HTTPResponse(status: 200), isEarly: false))
    #expect(kind(answer, hasWorked: false) == nil)
  }
}
