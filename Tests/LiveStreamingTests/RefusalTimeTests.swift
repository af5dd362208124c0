// Tests how long refusals are retried before the server has acknowledged a byte.

import EventLoops
import ResumableUploads
import Testing

@testable import LiveStreaming
@testable import UploadClient

@Suite("Refusals before the first acknowledged byte")
struct RefusalTimeTests {
  private static let limit = Duration.seconds(30)
  private static let statuses = [300, 302, 304, 307, 400, 404, 405, 409, 410, 411, 415, 417, 428, 451, 501]

  /// The end of an upload, or nil without an end.
  private struct End {
    var error: LiveStreamError?
    var lasted: Duration
    var requests: Int
  }

  /// A response.
  struct Answer: Sendable {
    var status: Int
    var fields: HeaderFields = [:]
    /// Whether its `Location` leads from https to http.
    var isLocationInsecure = false
    /// Whether it comes before the end of the content.
    var isEarly = false
  }

  /// Uploads a file of 500 bytes. Each request gets the same response, whose `Location` is never followed.
  private func upload(_ use: LiveStreamConfiguration.ResumableUse, _ limit: Duration?, _ answer: Answer) -> End? {
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "http://host/x"))
    configuration.resumable = use
    configuration.retry.giveUpOnRefusalAfter = limit
    var file = UploadClientStateMachine.Configuration()
    (file.isOptimistic, file.length) = (true, 500)
    var machine = LiveStream.rules(configuration, file)
    let supply = Supply(oldest: 0, head: 500, isFinished: true)
    let start = MonotonicInstant(nanoseconds: 1)
    var (now, requests) = (start, 0)
    var step = machine.start(supply, now: now)
    while requests < 1000 {
      switch step {
      case .request(let request):
        requests += 1
        var sentUpTo = request.start
        if case .bytes = request.content { sentUpTo = supply.head }
        let response = HTTPResponse(status: answer.status, fields: answer.fields)
        let end = RequestEnd(
          result: .success(.init(response: response, isEarly: answer.isEarly)),
          isLocationInsecure: answer.isLocationInsecure, sentUpTo: sentUpTo)
        step = machine.requestEnded(end, supply, now: now, draw: .max)
      case .wait(let attempt):
        now = now + attempt.retryDelay
        step = machine.retryIsDue(supply)
      case .fallBack(_, let method) where use == .auto:
        machine = LiveStream.plainRules(configuration, isLive: false, method: method)
        step = machine.start(supply, now: now)
      case .end(let error): return End(error: error, lasted: now - start, requests: requests)
      case .none, .awaitBytes, .pause, .fallBack: return nil
      }
    }
    return nil
  }

  @Test(
    "they are retried for a time that was chosen, and end the upload at once without one", arguments: statuses,
    LiveStreamConfiguration.ResumableUse.allCases)
  func chosen(_ status: Int, _ use: LiveStreamConfiguration.ResumableUse) throws {
    for limit in [nil, .zero] as [Duration?] {
      let end = try #require(upload(use, limit, Answer(status: status)))
      #expect(end.error?.kind == .refused && end.requests == 1 && end.lasted == .zero, "\(end)")
    }
    let end = try #require(upload(use, Self.limit, Answer(status: status)))
    #expect(end.error?.kind == .refused && end.error?.description.contains("\(status)") == true, "\(end)")
    #expect(end.lasted >= Self.limit && end.lasted < .seconds(50) && end.requests < 500, "\(end)")
  }

  typealias Kinds = [LiveStreamConfiguration.ResumableUse: LiveStreamError.Kind]

  /// Successes that do not follow the protocol, and the errors with which they end an upload at once. Without an error,
  /// they complete it.
  private static let successes: [(Answer, Kinds)] = {
    let always: Kinds = [.always: .protocolBroken]
    let insecure: Kinds = [.always: .insecureLocation]
    let partial: Kinds = [.auto: .refused, .always: .refused, .never: .refused]
    let early: Kinds = [.auto: .protocolBroken, .always: .protocolBroken, .never: .protocolBroken]
    return [
      (Answer(status: 200), always), (Answer(status: 201), always), (Answer(status: 202), always),
      (Answer(status: 204), always), (Answer(status: 201, fields: ["Location": "http://"]), always),
      (Answer(status: 201, fields: ["Location": "http://host/u"], isLocationInsecure: true), insecure),
      (Answer(status: 206), partial), (Answer(status: 200, isEarly: true), early),
    ]
  }()

  @Test("so is a success that does not follow the protocol, unless it completes a plain upload", arguments: successes)
  func success(_ answer: Answer, _ kinds: Kinds) throws {
    for use in LiveStreamConfiguration.ResumableUse.allCases {
      for limit in [nil, .zero] as [Duration?] {
        let end = try #require(upload(use, limit, answer))
        #expect(end.error?.kind == kinds[use] && end.requests == 1 && end.lasted == .zero, "\(use): \(end)")
      }
      let end = try #require(upload(use, Self.limit, answer))
      guard kinds[use] != nil else {
        #expect(end.error == nil && end.requests == 1, "\(use): \(end)")
        continue
      }
      #expect(end.error != nil && end.lasted >= Self.limit && end.lasted < .seconds(50), "\(use): \(end)")
      #expect(end.requests < 500, "\(use): \(end)")
    }
  }

  @Test("a creation whose answer speaks the protocol and has no Location is repeated for that time")
  func noLocation() throws {
    let answer = Answer(status: 201, fields: ["Upload-Draft-Interop-Version": "8", "Upload-Complete": "?0"])
    let first = try #require(upload(.always, nil, answer))
    #expect(first.error?.kind == .protocolBroken && first.lasted == .zero, "\(first)")
    let end = try #require(upload(.always, Self.limit, answer))
    #expect(end.error == first.error && end.lasted >= Self.limit && end.lasted < .seconds(50), "\(end)")
  }

  @Test(
    "a definite response ends the upload at once in any case", arguments: LiveStreamConfiguration.ResumableUse.allCases)
  func definite(_ use: LiveStreamConfiguration.ResumableUse) throws {
    for (status, fields) in [
      (409, ["Stream-ID": "s", "Stream-Offset": "0"]), (409, ["Upload-Draft-Interop-Version": "8"]),
      (410, ["Upload-Offset": "0"]), (413, [:]),
    ] as [(Int, HeaderFields)] {
      let end = try #require(upload(use, Self.limit, Answer(status: status, fields: fields)))
      #expect(end.error?.kind == .refused && end.lasted == .zero, "\(status) \(fields): \(end)")
    }
  }
}
