// The rules for plain servers, in the form that the shell uses: its requests, events and verdicts.

import EventLoops
import HTTPMessages
import ResumableUploads
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("A plain stream")
struct PlainStreamTests {
  private static let target = "http://me:secret@host/a.wav?key=secret"

  private static func at(_ seconds: Int64) -> MonotonicInstant { .init(nanoseconds: seconds * 1_000_000_000) }

  private func stream(
    _ method: String = "POST", isLive: Bool = true, mayUsePOST: Bool = false, refusals: Duration? = nil,
    acknowledged: UInt64 = 0, after former: (any StreamStateMachine)? = nil
  ) -> PlainStream {
    var policy = RetryPolicy()
    policy.giveUpOnRefusalAfter = refusals
    return PlainStream(
      policy: policy, streamID: "s", target: Self.target, isLive: isLive, method: method, mayUsePOST: mayUsePOST,
      acknowledged: acknowledged, after: former)
  }

  private func supply(_ oldest: UInt64 = 0, _ head: UInt64 = 1000, isFinished: Bool = false) -> Supply {
    Supply(oldest: oldest, head: head, isFinished: isFinished)
  }

  private func lost(_ sentUpTo: UInt64) -> RequestEnd {
    RequestEnd(result: .failure(UploadError(.connectionLost, "reset")), sentUpTo: sentUpTo)
  }

  private func answer(
    _ status: Int, _ fields: HeaderFields = [:], sentUpTo: UInt64 = 0, header: UInt64 = 0, isEarly: Bool = true
  ) -> RequestEnd {
    RequestEnd(
      result: .success(.init(response: HTTPResponse(status: status, fields: fields), isEarly: isEarly)),
      sentUpTo: sentUpTo, headerLength: header)
  }

  private func request(
    _ start: UInt64, _ method: String = "POST", url: String? = nil, isLive: Bool = true
  ) -> StreamStep {
    .request(
      StreamRequest(
        start: start, method: method, url: url,
        fields: url == nil ? ["Stream-ID": "s", "Stream-Offset": "\(start)"] : [:], content: .bytes(maximum: nil),
        hasHeader: url != nil, answerLimit: isLive ? .usual : .times(20)))
  }

  @Test("before an acknowledged byte, a peer that does not use HTTP is a refusal if the time of refusals is limited")
  func notHTTP() {
    for (refusals, acknowledged, isRetried) in [
      (nil, 0, false), (.zero, 0, false), (.seconds(5), 0, true), (nil, 100, true), (.seconds(5), 100, true),
    ] as [(Duration?, UInt64, Bool)] {
      for kind in [UploadError.Kind.protocolViolation, .http2NotSupported] {
        var stream = stream(refusals: refusals)
        _ = stream.start(supply(), now: Self.at(0))
        stream.wrote(upTo: acknowledged)
        stream.acknowledgedByTransport(bodyCount: acknowledged, now: Self.at(1))
        let end = RequestEnd(result: .failure(UploadError(kind, "")), sentUpTo: acknowledged)
        let step = stream.requestEnded(end, supply(), now: Self.at(60), draw: 0)
        let waits = if case .wait = step { true } else { false }
        let mayWait = isRetried && (kind == .protocolViolation || acknowledged > 0)
        #expect(waits == mayWait, "\(refusals as Any) \(acknowledged) \(kind): \(step)")
      }
    }
  }

  @Test("a live stream states its position in each request, and reports what it does")
  func life() {
    var stream = stream()
    #expect(stream.trustsTransport && stream.base == 0 && stream.resumeData == nil && stream.confirmedSurplus == nil)
    var step = stream.start(supply(), now: Self.at(0))
    #expect(step == request(0))
    var events = stream.takeEvents()
    #expect(events.map(\.description) == ["connecting, attempt 1, at stream offset 0"])
    events = stream.takeEvents()
    #expect(events.isEmpty)
    stream.connected()
    stream.wrote(upTo: 500)
    stream.acknowledgedByTransport(bodyCount: 300, now: Self.at(1))
    #expect(stream.sent == 500 && stream.acknowledged == 300 && stream.resent == 0 && !stream.isEnded)
    step = stream.requestEnded(lost(500), supply(), now: Self.at(2), draw: .max)
    guard case .wait(let attempt) = step else {
      Issue.record("\(step)")
      return
    }
    #expect(attempt.cause == .connectionLost("reset") && attempt.acknowledged == 300 && !attempt.isRepeated)
    #expect(attempt.retryDelay == .milliseconds(250) && stream.outageCount == 1 && !stream.clock.isUntroubled)
    step = stream.retryIsDue(supply(400))
    #expect(step == request(400) && stream.resent == 100)
    stream.connected()
    events = stream.takeEvents()
    #expect(
      events.map(\.description) == [
        "streaming from stream offset 0", "100 bytes lost at stream offset 300: the buffer was full",
        "connecting, attempt 2, at stream offset 400", "streaming from stream offset 400",
      ])
    step = stream.passedPause(at: 600, supply(400), now: Self.at(3))
    #expect(step == request(600) && stream.acknowledged == 600)
    stream.wrote(upTo: 1000)
    let end = answer(201, sentUpTo: 1000, isEarly: false)
    step = stream.requestEnded(end, supply(400, isFinished: true), now: Self.at(4), draw: .max)
    #expect(step == .end(nil) && stream.isEnded && stream.acknowledged == 1000 && stream.unconfirmedAtEnd == 0)
    step = stream.stop(LiveStreamError(.cancelled, "enough"))
    #expect(step == .none)
  }

  @Test("what concerns upload resources has no effect on it")
  func nothingElse() {
    var stream = stream()
    _ = stream.start(supply(), now: Self.at(0))
    let response = HTTPResponse(status: 104, fields: ["Upload-Offset": "5"])
    let steps = [
      stream.received(interim: response, location: nil, sentUpTo: 5, now: Self.at(1)), stream.bytesAreReady(supply()),
      stream.rolledOver(sentUpTo: 5, now: Self.at(1), draw: 0),
    ]
    #expect(steps == [.none, .none, .none] && stream.acknowledged == 0)
    let expiry = stream.takeTimeToExpiry()
    let expires = stream.expiresSoon()
    let kept = stream.cannotKeep(upTo: 5, now: Self.at(1), draw: 0)
    #expect(expiry == nil && !expires && kept == nil)
    let error = LiveStreamError(.cancelled, "enough")
    let step = stream.abandon(error)
    #expect(step == .end(error) && stream.isEnded)
  }

  @Test("a file is sent from its beginning each time, by any method, and its answer may take long")
  func file() {
    for method in ["POST", "PUT"] {
      var stream = stream(method, isLive: false)
      var step = stream.start(supply(0, 500, isFinished: true), now: Self.at(0))
      #expect(step == request(0, method, isLive: false))
      stream.wrote(upTo: 500)
      stream.acknowledgedByTransport(bodyCount: 300, now: Self.at(1))
      #expect(stream.acknowledged == 0)
      _ = stream.requestEnded(lost(500), supply(0, 500, isFinished: true), now: Self.at(2), draw: 0)
      step = stream.retryIsDue(supply(0, 500, isFinished: true))
      #expect(step == request(0, method, isLive: false) && stream.resent == 500)
    }
  }

  @Test("only a live PUT begins again while its beginning is kept, and then continues at another URL with a header")
  func replacing() {
    for method in ["POST", "PUT"] {
      var stream = stream(method)
      _ = stream.start(supply(), now: Self.at(0))
      stream.wrote(upTo: 500)
      stream.acknowledgedByTransport(bodyCount: 300, now: Self.at(1))
      _ = stream.requestEnded(lost(500), supply(), now: Self.at(2), draw: 0)
      var step = stream.retryIsDue(supply())
      #expect(step == request(method == "PUT" ? 0 : 300, method))
      guard method == "PUT" else { continue }
      stream.wrote(upTo: 500)
      stream.acknowledgedByTransport(bodyCount: 300, now: Self.at(3))
      _ = stream.requestEnded(lost(500), supply(), now: Self.at(4), draw: 0)
      _ = stream.takeEvents()
      step = stream.retryIsDue(supply(200))
      #expect(step == request(200, "PUT", url: "http://me:secret@host/a~2.wav?key=secret"))
      let events = stream.takeEvents()
      #expect(
        events.map(\.description) == [
          "the stream continues at http://host/a~2.wav?key=... from stream offset 200; the server did not confirm 200 bytes, which may be lost",
          "connecting, attempt 3, at stream offset 200",
        ])
    }
  }

  @Test("rules that follow others continue their outage, and the stream that another process began")
  func continued() {
    var former = stream()
    _ = former.start(supply(), now: Self.at(0))
    _ = former.requestEnded(lost(0), supply(), now: Self.at(1), draw: 0)
    var next = stream(acknowledged: 700, after: former)
    let step = next.start(supply(), now: Self.at(2))
    #expect(step == request(700) && next.outageCount == 1 && !next.clock.isUntroubled)
    #expect(stream().outageCount == 0 && stream().clock.isUntroubled)
  }

  // MARK: Other methods

  @Test("POST replaces a method that is not allowed, if the server allows POST instead")
  func usesPOST() {
    let cases: [(method: String, status: Int, allow: String?, mayUsePOST: Bool, usesPOST: Bool)] = [
      ("PUT", 405, "POST", true, true), ("PUT", 405, "GET, POST", true, true),
      ("PUT", 405, "GET,POST,HEAD", true, true),
      ("PUT", 405, "POST, PUT", true, false), ("PUT", 405, "GET, HEAD", true, false), ("PUT", 405, nil, true, false),
      ("PUT", 405, "POSTER", true, false), ("PUT", 405, "POST", false, false), ("PUT", 406, "POST", true, false),
      ("PUT", 404, "POST", true, false), ("POST", 405, "POST", true, false), ("POST", 405, "GET, POST", true, false),
      ("PATCH", 405, "POST", true, true),
    ]
    for (method, status, allow, mayUsePOST, usesPOST) in cases {
      var stream = stream(method, mayUsePOST: mayUsePOST)
      _ = stream.start(supply(), now: Self.at(0))
      let fields: HeaderFields = allow.map { ["Allow": $0] } ?? [:]
      var step = stream.requestEnded(answer(status, fields), supply(), now: Self.at(1), draw: 0)
      guard usesPOST else {
        guard case .end(let error?) = step else {
          Issue.record("\(method) \(status) \(allow ?? ""): \(step)")
          continue
        }
        #expect(error.kind == .refused)
        continue
      }
      guard case .wait(let attempt) = step else {
        Issue.record("\(method) \(allow ?? ""): \(step)")
        continue
      }
      #expect(attempt.cause == .response(405) && attempt.acknowledged == 0)
      step = stream.retryIsDue(supply())
      #expect(step == request(0, "POST"))
    }
  }

  // MARK: Refusals

  @Test("after a server has accepted the stream, its 404 is an outage, however long it lasts")
  func acceptedBefore() {
    for isSameRequest in [true, false] {
      for (second, isAccepted) in [(4, false), (5, true)] as [(Int64, Bool)] {
        var stream = stream(refusals: .seconds(1))
        _ = stream.start(supply(), now: Self.at(0))
        stream.wrote(upTo: 100)
        stream.acknowledgedByTransport(bodyCount: 100, now: Self.at(0))
        if !isSameRequest {
          _ = stream.requestEnded(lost(100), supply(), now: Self.at(second), draw: 0)
          _ = stream.retryIsDue(supply())
        }
        var step = StreamStep.none
        for failure: Int64 in 0..<10 {
          step = stream.requestEnded(answer(404), supply(), now: Self.at(second + 100 * failure), draw: 0)
          _ = stream.retryIsDue(supply())
        }
        #expect(stream.isEnded == !isAccepted, "\(step)")
      }
    }
  }

  // MARK: Contradictions

  @Test("a success that reports too few bytes of a later request is an error, and its bytes count from its beginning")
  func denied() {
    let cases: [(fields: HeaderFields, header: UInt64, acknowledged: UInt64, reason: String?)] = [
      (["Upload-Offset": "399"], 0, 499, "reports 399 of 400 bytes"),
      (["Upload-Offset": "400"], 0, 500, nil),
      (["Upload-Offset": "443"], 44, 499, "reports 443 of 444 bytes"),
      (["Upload-Offset": "43"], 44, 100, "reports 43 of 444 bytes"),
      (["Upload-Offset": "444"], 44, 500, nil),
      (["Upload-Offset": "900", "Upload-Complete": "?0"], 44, 500, "reports that the upload is not complete"),
      (["Upload-Complete": "?1"], 0, 500, nil),
    ]
    for (fields, header, acknowledged, reason) in cases {
      var stream = stream(acknowledged: 100)
      _ = stream.start(supply(), now: Self.at(0))
      stream.wrote(upTo: 500)
      let end = answer(201, fields, sentUpTo: 500, header: header, isEarly: false)
      let step = stream.requestEnded(end, supply(0, 500, isFinished: true), now: Self.at(1), draw: 0)
      let error = reason.map {
        LiveStreamError(.protocolBroken, "the server answered 201, but \($0). Check the stored bytes on the server")
      }
      #expect(step == .end(error) && stream.acknowledged == acknowledged, "\(fields)")
    }
  }

  @Test("a success with an unreadable field quotes it")
  func unreadable() {
    for (name, value, shown) in [
      ("Upload-Offset", "some", "some"), ("Upload-Complete", "perhaps", "perhaps"),
    ] {
      var stream = stream()
      _ = stream.start(supply(0, 500, isFinished: true), now: Self.at(0))
      stream.wrote(upTo: 500)
      let fields = HeaderFields(received: [(name: name, value: value)])
      let end = answer(200, fields, sentUpTo: 500, isEarly: false)
      let step = stream.requestEnded(end, supply(0, 500, isFinished: true), now: Self.at(1), draw: 0)
      let error = LiveStreamError(
        .protocolBroken,
        "the server answered 200 with the invalid \(name) \"\(shown)\". Check the stored bytes on the server")
      #expect(step == .end(error) && stream.acknowledged == 0)
    }
  }
}
