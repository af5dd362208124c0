// The rules that a stream follows because of its configuration, before its start.

import EventLoops
import HTTPMessages
import NetworkTesting
import Testing

@testable import LiveStreaming
@testable import ResumableUploads
@testable import UploadClient

@Suite("The rules of a stream that is not started")
struct LiveStreamRulesTests {
  private static func configuration(_ use: LiveStreamConfiguration.ResumableUse) -> LiveStreamConfiguration {
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "http://127.0.0.1:9/x"))
    (configuration.resumable, configuration.streamID) = (use, "s")
    configuration.rollOver.size = 777
    return configuration
  }

  private static func upload(_ configuration: LiveStreamConfiguration) -> UploadClientStateMachine.Configuration? {
    (LiveStream.rules(configuration, .init()) as? ResumableStream)?.upload.configuration
  }

  @Test("a resumable upload follows each setting of the stream")
  func resumable() {
    for use in [LiveStreamConfiguration.ResumableUse.auto, .always] {
      var configuration = Self.configuration(use)
      var expected = UploadClientStateMachine.Configuration()
      (expected.discovers, expected.requiresProtocol) = (use == .auto, use == .always)
      (expected.appendSize, expected.smallestLimit, expected.streamID) = (777, 1000, "s")
      #expect(Self.upload(configuration) == expected)
      configuration.retry.giveUpOnRefusalAfter = .seconds(9)
      expected.retriesRefusals = true
      #expect(Self.upload(configuration) == expected)
      configuration.digest = .sha512
      expected.digestAlgorithm = "sha-512"
      #expect(Self.upload(configuration) == expected)
      configuration.request.fields = ["If-None-Match": "*"]
      expected.hasCondition = true
      #expect(Self.upload(configuration) == expected)
      configuration.mayUsePOST = true
      #expect(Self.upload(configuration) == expected, "the method is POST")
      configuration.request.method = "PUT"
      expected.replaceableMethod = "PUT"
      #expect(Self.upload(configuration) == expected)
      configuration.mayUsePOST = false
      expected.replaceableMethod = nil
      #expect(Self.upload(configuration) == expected)
    }
    #expect(Self.upload(Self.configuration(.never)) == nil)
  }

  @Test("a file of up to 4 MiB is sent with its creation, and a longer one after it")
  func optimistic() throws {
    let directory = try TemporaryDirectory()
    try withSession { session throws in
      for (size, isOptimistic) in [(0, true), (4 << 20, true), (4 << 20 + 1, false)] {
        let file = try UploadFile(path: try directory.write("data", [UInt8](repeating: 1, count: size)))
        let stream = LiveStream(file: file, configuration: Self.configuration(.auto), session: session)
        let upload = try #require((stream.machine as? ResumableStream)?.upload.configuration)
        #expect(upload.isOptimistic == isOptimistic && upload.length == UInt64(size), "\(size)")
        #expect(!stream.trustsTransport && stream.live == nil && stream.writer == nil)
      }
    }
  }

  @Test("bytes that TCP acknowledged count for a live stream, and not for a file, which is sent again from its start")
  func plain() {
    for length in [nil, 1000] as [UInt64?] {
      var chosen = UploadClientStateMachine.Configuration()
      chosen.length = length
      guard var rules = LiveStream.rules(Self.configuration(.never), chosen) as? PlainStream else {
        Issue.record("other rules")
        continue
      }
      let now = MonotonicInstant(nanoseconds: 1)
      _ = rules.start(Supply(oldest: 0, head: 1000, isFinished: true), now: now)
      rules.wrote(upTo: 1000)
      rules.acknowledgedByTransport(bodyCount: 600, now: now)
      #expect(rules.acknowledged == (length == nil ? 600 : 0))
    }
  }

  @Test("only a live stream by PUT keeps the bytes from the start of its request")
  func keepsStart() throws {
    let directory = try TemporaryDirectory()
    try withSession { session throws in
      for method in ["PUT", "POST"] {
        var configuration = Self.configuration(.never)
        (configuration.request.method, configuration.retention) = (method, 0)
        let live = LiveStream(
          try LiveSource(try PushedSource(), configuration), configuration: configuration, session: session)
        let file = LiveStream(
          file: try UploadFile(path: try directory.write("data", [1])), configuration: configuration, session: session)
        for (stream, isKept) in [(live, method == "PUT"), (file, false)] {
          let end = stream.transport.releasable(acknowledged: 10, newest: 20, capacity: 1000)
          #expect(end == (isKept ? 0 : 10), "\(method)")
          #expect(stream.trustsTransport)
        }
      }
    }
  }

  // MARK: A request's parts

  @Test("a Location never leads from https to http, and has the origin of the request if the program chooses so")
  func location() throws {
    try withSession { session throws in
      for (url, keeps, location, expected, isInsecure) in [
        ("https://host/x", false, nil, nil, false), ("https://host/x", false, "/u", "https://host/u", false),
        ("https://host/x", false, "http://host/u", nil, true),
        ("https://host/x", false, "https://other/u", "https://other/u", false),
        ("http://host/x", false, "http://other/u", "http://other/u", false),
        ("http://host/x", false, "https://other/u", "https://other/u", false),
        ("https://host/x", true, nil, nil, false), ("https://host/x", true, "http://other/u", "https://host/u", false),
      ] as [(String, Bool, String?, String?, Bool)] {
        var configuration = Self.configuration(.auto)
        configuration.keepsOrigin = keeps
        let stream = LiveStream(
          try LiveSource(try PushedSource(), configuration), configuration: configuration, session: session)
        let request = try Self.running(session, UploadRequest(url: url))
        var response = HTTPResponse(status: 201)
        if let location { response = HTTPResponse(status: 201, fields: ["Location": location]) }
        let found = stream.location(response, request)
        #expect(found.url == expected && found.isInsecure == isInsecure, "\(url) \(location ?? "")")
      }
    }
  }

  private static func running(
    _ session: UploadSession, _ whole: UploadRequest, start: UInt64 = 0, header: Int = 0
  ) throws -> RunningRequest {
    var question = UploadRequest(url: "http://127.0.0.1:9/")
    question.method = "OPTIONS"
    let task = try session.upload(question, body: .none) { _ in }
    return RunningRequest(
      step: StreamRequest(start: start, fields: [:], content: .empty), whole: whole, token: nil, task: task, number: 1,
      headerLength: header)
  }

  @Test("the bytes of a header do not count as bytes of the stream")
  func header() throws {
    try withSession { session throws in
      let request = try Self.running(session, UploadRequest(url: "http://host/x"), start: 100, header: 3)
      #expect([0, 2, 3, 4, 10].map { request.streamed($0) } == [0, 0, 0, 1, 7] && request.sentUpTo == 100)
    }
  }
}
