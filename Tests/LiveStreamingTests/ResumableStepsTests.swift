// The requests, delays and events of a stream into an upload resource, one after another.

import EventLoops
import ResumableUploads
import Testing

@testable import LiveStreaming
@testable import UploadClient

/// A live stream of 500 bytes so far, or a file of this size, with the test as the server.
private struct Steps {
  static let upload = "http://host/uploads/1"
  var machine: ResumableStream
  var step = StreamStep.none
  var now = MonotonicInstant(nanoseconds: 1_000_000_000)
  var supply = Supply(oldest: 0, head: 500, isFinished: false)

  /// - Parameters:
  ///   - isFile: whether everything is sent with the creation.
  ///   - data: an upload that another process has left.
  ///   - streamID: its name, with which the server may join its uploads.
  init(
    discovers: Bool = false, isFile: Bool = false, resuming data: ResumeData? = nil, giveUpAfter: Duration? = nil,
    streamID: String? = nil
  ) {
    var policy = RetryPolicy()
    policy.giveUpAfter = giveUpAfter
    var configuration = UploadClientStateMachine.Configuration()
    (configuration.discovers, configuration.isOptimistic, configuration.streamID) = (discovers, isFile, streamID)
    if isFile { configuration.length = 500 }
    supply.isFinished = isFile
    machine = ResumableStream(configuration, target: "http://me:secret@host/", policy: policy, resuming: data)
  }

  mutating func start() { step = machine.start(supply, now: now) }

  /// A stream whose first append is in progress.
  static func appending(giveUpAfter: Duration? = nil) -> Steps {
    var steps = Steps(giveUpAfter: giveUpAfter)
    steps.start()
    steps.answer(201, [("Location", upload)])
    return steps
  }

  private func response(_ status: Int, _ fields: [(String, String)], isBare: Bool) -> HTTPResponse {
    let all = isBare ? fields : fields + [("Upload-Draft-Interop-Version", "8")]
    return HTTPResponse(status: status, fields: HeaderFields(received: all.map { (name: $0.0, value: $0.1) }))
  }

  private func location(_ fields: [(String, String)]) -> String? { fields.first { $0.0 == "Location" }?.1 }

  mutating func interim(_ fields: [(String, String)], sentUpTo: UInt64) {
    let next = machine.received(
      interim: response(104, fields, isBare: false), location: location(fields), sentUpTo: sentUpTo, now: now)
    if next != .none { step = next }
  }

  mutating func answer(
    _ status: Int, _ fields: [(String, String)] = [], sentUpTo: UInt64 = 0, isBare: Bool = false
  ) {
    let end = RequestEnd(
      result: .success(.init(response: response(status, fields, isBare: isBare), isEarly: false)),
      location: location(fields), sentUpTo: sentUpTo)
    step = machine.requestEnded(end, supply, now: now, draw: .max)
  }

  /// The answer to a question for the offset.
  mutating func tell(_ offset: UInt64) { answer(204, [("Upload-Offset", "\(offset)"), ("Upload-Complete", "?0")]) }

  mutating func fail(_ kind: UploadError.Kind = .connectionLost, sentUpTo: UInt64 = 0) {
    let end = RequestEnd(result: .failure(UploadError(kind, "w")), sentUpTo: sentUpTo)
    step = machine.requestEnded(end, supply, now: now, draw: .max)
  }

  mutating func retry() { step = machine.retryIsDue(supply) }

  /// The events since the last call, as text.
  mutating func events() -> [String] { machine.takeEvents().map(\.description) }

  var request: StreamRequest? { if case .request(let request) = step { request } else { nil } }
  var failure: FailedAttempt? { if case .wait(let attempt) = step { attempt } else { nil } }
}

@Suite("The steps of a resumable stream")
struct ResumableStepsTests {
  private func expect(
    _ steps: Steps, _ method: String?, _ url: String? = nil, start: UInt64 = 0,
    content: StreamRequest.Content = .absent, minimumEnd: UInt64? = nil, rollsOver: Bool = false,
    isCreation: Bool = false, limit: StreamRequest.AnswerLimit = .usual,
    sourceLocation: SourceLocation = #_sourceLocation
  ) {
    guard let request = steps.request else {
      Issue.record("\(steps.step)", sourceLocation: sourceLocation)
      return
    }
    #expect(request.method == method && request.url == url && request.start == start, sourceLocation: sourceLocation)
    #expect(request.content == content && request.rollsOver == rollsOver, sourceLocation: sourceLocation)
    #expect(request.minimumEnd == minimumEnd ?? start && request.answerLimit == limit, sourceLocation: sourceLocation)
    #expect(request.describesRepresentation == isCreation && !request.hasHeader, sourceLocation: sourceLocation)
  }

  private func expectEvents(
    _ steps: inout Steps, _ expected: [String], sourceLocation: SourceLocation = #_sourceLocation
  ) {
    let events = steps.events()
    #expect(events == expected, sourceLocation: sourceLocation)
  }

  @Test("it asks the server, creates an upload, appends, and after an outage asks for the offset and appends again")
  func life() {
    var steps = Steps(discovers: true)
    steps.start()
    expect(steps, "OPTIONS", limit: .atMost(.seconds(5)))
    expectEvents(&steps, ["connecting, attempt 1, at stream offset 0"])
    // The question has no answer in time, but a connection. A creation shows the rest.
    steps.machine.connected()
    steps.fail(.timedOut)
    expect(steps, nil, content: .empty, isCreation: true)
    steps.answer(201, [("Location", Steps.upload)])
    expect(
      steps, "PATCH", Steps.upload, content: .bytes(maximum: nil), minimumEnd: 1, rollsOver: true)
    #expect(steps.machine.outageCount == 0)
    expectEvents(&steps, ["the server has created an upload resource at stream offset 0"])
    steps.machine.connected()
    steps.machine.connected()
    expectEvents(&steps, ["streaming from stream offset 0"])
    steps.machine.wrote(upTo: 300)
    #expect(steps.machine.sent == 300)
    steps.interim([("Upload-Offset", "200")], sentUpTo: 500)
    #expect(steps.machine.sent == 500 && steps.machine.acknowledged == 200)
    steps.fail(sentUpTo: 500)
    #expect(
      steps.failure
        == FailedAttempt(
          cause: .connectionLost("w"), acknowledged: 200, retryDelay: .milliseconds(25)))
    steps.retry()
    expect(steps, "HEAD", Steps.upload)
    steps.tell(200)
    expect(
      steps, "PATCH", Steps.upload, start: 200, content: .bytes(maximum: nil), minimumEnd: 201, rollsOver: true)
    expectEvents(&steps, ["connecting, attempt 2, at stream offset 200"])
    steps.machine.connected()
    expectEvents(&steps, ["streaming from stream offset 200"])
    // Sent again: first these 200 bytes, and then the ones that the server still lacks.
    steps.fail(sentUpTo: 400)
    #expect(steps.machine.resent == 200 && steps.failure?.isRepeated == true)
    #expect(steps.failure?.retryDelay == .milliseconds(250))
    steps.retry()
    steps.tell(250)
    steps.fail(sentUpTo: 450)
    #expect(steps.machine.resent == 400 && steps.machine.outageCount == 2)
    steps.supply.isFinished = true
    steps.retry()
    steps.tell(450)
    expect(steps, "PATCH", Steps.upload, start: 450, content: .bytes(maximum: 50), minimumEnd: 450)
    steps.answer(204, [("Upload-Offset", "500"), ("Upload-Complete", "?1")], sentUpTo: 500)
    #expect(steps.step == .end(nil) && steps.machine.isEnded && steps.machine.resumeData == nil)
    #expect(steps.machine.resent == 450)
  }

  @Test("a question that fails in another way, or without a connection, is an outage")
  func question() {
    for (kind, isConnected) in [
      (.timedOut, false), (.connectionLost, true), (.connectionLost, false),
    ] as [(UploadError.Kind, Bool)] {
      var steps = Steps(discovers: true)
      steps.start()
      if isConnected { steps.machine.connected() }
      steps.fail(kind)
      #expect(steps.failure?.retryDelay == .milliseconds(25), "\(steps.step)")
      steps.retry()
      expect(steps, "OPTIONS", limit: .atMost(.seconds(5)))
      // The connection of the request before does not count.
      steps.fail(.timedOut)
      #expect(steps.failure != nil, "\(steps.step)")
    }
    // An append that times out is an outage in any case.
    var steps = Steps.appending()
    steps.machine.connected()
    steps.fail(.timedOut)
    #expect(steps.failure?.cause == .timedOut("w"))
  }

  @Test("a server that does not support resumable uploads ends these rules")
  func unsupported() {
    var steps = Steps(discovers: true)
    steps.start()
    // Perhaps asked in older versions, too.
    for _ in 0..<20 where steps.request != nil { steps.answer(405, [("Allow", "GET, POST")], isBare: true) }
    if case .fallBack = steps.step {} else { Issue.record("\(steps.step)") }
    #expect(steps.machine.isEnded)
    let step = steps.machine.stop(LiveStreamError(.cancelled, "enough"))
    #expect(step == .none)
  }

  // MARK: Delays

  @Test("an answer's first failure has the usual delay, a lost connection a short one, also behind a proxy")
  func delays() {
    let cases: [(status: Int, retryAfter: String?, delay: Duration)] = [
      (503, nil, .milliseconds(250)), (502, nil, .milliseconds(25)), (502, "5", .milliseconds(6250)),
      (503, "5", .milliseconds(6250)), (504, nil, .milliseconds(250)),
    ]
    for (status, retryAfter, delay) in cases {
      var steps = Steps.appending()
      steps.interim([("Upload-Offset", "200")], sentUpTo: 500)
      steps.answer(status, retryAfter.map { [("Retry-After", $0)] } ?? [], sentUpTo: 500)
      #expect(steps.failure?.retryDelay == delay && steps.failure?.cause == .response(status), "\(steps.step)")
    }
  }

  @Test("bytes that a 104 acknowledges are progress, so the next failure is a first one again")
  func progress() {
    var steps = Steps.appending(giveUpAfter: .seconds(60))
    for offset: UInt64 in 1...10 {
      steps.fail(sentUpTo: 500)
      #expect(steps.failure?.retryDelay == .milliseconds(25) && steps.failure?.isRepeated == false)
      steps.now = steps.now + .seconds(100)
      steps.retry()
      steps.tell(offset - 1)
      steps.interim([("Upload-Offset", "\(offset)")], sentUpTo: 500)
    }
    #expect(steps.machine.outageCount == 10)
  }

  @Test("a source that overtakes each append continues at once, and at the same offset only after a delay")
  func overtaken() {
    var steps = Steps.appending()
    for offset: UInt64 in [0, 200, 300] {
      if offset > 0 {
        steps.retry()
        steps.tell(offset)
        #expect(steps.request?.start == offset)
      }
      steps.fail(.bodyFailed, sentUpTo: 500)
      #expect(steps.failure?.retryDelay == .zero && steps.failure?.cause == .overtaken, "\(steps.step)")
    }
    steps.retry()
    steps.tell(300)
    steps.fail(.bodyFailed, sentUpTo: 500)
    #expect(steps.failure?.retryDelay == .milliseconds(25))
  }

  @Test("an upload that requires more bytes at a time than the buffer keeps is asked again, if it has accepted any")
  func cannotKeep() {
    var steps = Steps.appending()
    var step = steps.machine.cannotKeep(upTo: 700, now: steps.now, draw: .max)
    #expect(step == nil)
    steps.interim([("Upload-Offset", "200")], sentUpTo: 500)
    step = steps.machine.cannotKeep(upTo: 700, now: steps.now, draw: .max)
    let cause = "the server requires at least 500 bytes per request, and the buffer has fewer"
    #expect(step == .wait(FailedAttempt(cause: .other(cause), acknowledged: 200, retryDelay: .milliseconds(25))))
  }

  // MARK: Planned ends

  @Test("a roll-over is part of the same attempt, and a renewed token begins another one")
  func attempts() {
    for isToken in [false, true] {
      var steps = Steps.appending()
      steps.machine.connected()
      _ = steps.events()
      if isToken {
        let end = RequestEnd(
          result: .success(.init(response: HTTPResponse(status: 401), isEarly: true)), sentUpTo: 120)
        steps.step = steps.machine.tokenRenewed(end, steps.supply, now: steps.now, draw: .max)
      } else {
        steps.step = steps.machine.rolledOver(sentUpTo: 120, now: steps.now, draw: .max)
      }
      #expect(steps.step == .pause(.milliseconds(25)) && steps.machine.outageCount == 0)
      steps.retry()
      expect(steps, "HEAD", Steps.upload)
      expectEvents(&steps, isToken ? ["connecting, attempt 2, at stream offset 0"] : [])
      steps.tell(100)
      steps.machine.connected()
      expectEvents(&steps, ["streaming from stream offset 100"])
      steps.fail(sentUpTo: 300)
      #expect(steps.machine.resent == 20)
    }
  }

  // MARK: A file

  @Test("a creation that carries more than the server accepts ends, and the rest follows in smaller requests")
  func appendSize() {
    var steps = Steps(isFile: true)
    steps.start()
    expect(steps, nil, content: .bytes(maximum: nil), isCreation: true)
    steps.interim([("Location", Steps.upload)], sentUpTo: 100)
    expectEvents(
      &steps,
      [
        "connecting, attempt 1, at stream offset 0", "the server has created an upload resource at stream offset 0",
      ])
    steps.interim([("Location", Steps.upload), ("Upload-Limit", "max-append-size=300")], sentUpTo: 400)
    let cause = "the server accepts at most 300 bytes per request"
    #expect(
      steps.step
        == .wait(
          FailedAttempt(cause: .other(cause), acknowledged: 0, retryDelay: .milliseconds(25), isRepeated: true)))
    #expect(steps.machine.outageCount == 0)
    steps.retry()
    expect(steps, "HEAD", Steps.upload)
    steps.tell(100)
    expect(
      steps, "PATCH", Steps.upload, start: 100, content: .bytes(maximum: 300), minimumEnd: 101, rollsOver: true)
    steps.fail(sentUpTo: 400)
    #expect(steps.machine.resent == 300)
  }

  @Test("a file that the server does not keep whole is deleted there, and its upload ends with the server's limit")
  func tooLarge() {
    var steps = Steps(isFile: true)
    steps.start()
    _ = steps.events()
    steps.interim([("Location", Steps.upload), ("Upload-Limit", "max-size=400")], sentUpTo: 100)
    expect(steps, "DELETE", Steps.upload)
    steps.answer(204)
    #expect(
      steps.step == .end(LiveStreamError(.refused, "it is longer than the server allows (400 bytes)")))
    #expect(steps.machine.isEnded && steps.machine.resumeData == nil)
    expectEvents(&steps, ["the server has created an upload resource at stream offset 0"])
  }

  // MARK: Cancellation and other processes

  @Test("a cancelled stream deletes its upload once, and ends with the reason, whatever the answer is")
  func abandoned() {
    let error = LiveStreamError(.cancelled, "enough")
    for isAnswered in [true, false] {
      var steps = Steps.appending()
      _ = steps.events()
      steps.step = steps.machine.abandon(error)
      expect(steps, "DELETE", Steps.upload)
      let again = steps.machine.abandon(LiveStreamError(.source, "other"))
      #expect(again == .none && !steps.machine.isEnded)
      if isAnswered { steps.answer(204) } else { steps.fail() }
      #expect(steps.step == .end(error) && steps.machine.isEnded && (steps.machine.resumeData == nil) == isAnswered)
      let afterwards = steps.machine.abandon(error)
      #expect(afterwards == .none)
      expectEvents(&steps, [])
    }
    // Without an upload, there is nothing to delete.
    var steps = Steps()
    steps.start()
    steps.step = steps.machine.abandon(error)
    #expect(steps.step == .end(error) && steps.machine.isEnded)
  }

  private func data(length: UInt64? = nil) -> ResumeData {
    ResumeData(
      upload: "http://me:secret@host/uploads/7", target: "http://host/", base: 100, length: length, streamID: nil,
      version: .newest)
  }

  @Test("the upload of another process is asked for its offset, or deleted if the stream is cancelled before")
  func resumed() {
    for isCancelled in [false, true] {
      var steps = Steps(resuming: data())
      var kept = data()
      kept.upload = "http://host/uploads/7"
      #expect(steps.machine.resumeData == kept)
      if isCancelled {
        steps.step = steps.machine.abandon(LiveStreamError(.cancelled, "enough"))
      } else {
        steps.start()
      }
      expect(steps, isCancelled ? "DELETE" : "HEAD", data().upload, start: 100)
      #expect(steps.machine.base == 100 && steps.machine.resumeData == kept)
      expectEvents(&steps, isCancelled ? [] : ["connecting, attempt 1, at stream offset 100"])
    }
  }

  @Test("the upload of another process is not named any more once another one has replaced it")
  func resumedReplaced() {
    var steps = Steps(resuming: data())
    steps.start()
    func insistThatItIsGone() {
      for _ in 0..<10 where steps.request?.method == "HEAD" {
        steps.answer(404)
        if steps.failure != nil { steps.retry() }
      }
      #expect(steps.request?.describesRepresentation == true, "\(steps.step)")
    }
    insistThatItIsGone()
    #expect(steps.machine.resumeData?.upload == "http://host/uploads/7")
    steps.answer(201, [("Location", Steps.upload)])
    #expect(steps.machine.resumeData?.upload == Steps.upload)
    steps.fail()
    steps.retry()
    expect(steps, "HEAD", Steps.upload, start: steps.request?.start ?? 0)
    insistThatItIsGone()
    #expect(steps.machine.resumeData == nil)
  }

  @Test("another process's upload of another length is not continued")
  func otherLength() {
    var steps = Steps(isFile: true, resuming: data(length: 400))
    steps.start()
    let words = "the upload has 400 bytes, and the source has 500, so they do not belong together"
    #expect(steps.step == .end(LiveStreamError(.invalidRequest, words)) && steps.machine.isEnded)
    for length in [nil, 500] as [UInt64?] {
      steps = Steps(isFile: true, resuming: data(length: length))
      steps.start()
      #expect(steps.request?.method == "HEAD")
    }
  }

  @Test("the data for another process names the upload and its target without user and password")
  func resumeData() {
    var steps = Steps()
    steps.start()
    #expect(steps.machine.resumeData == nil)
    steps.answer(201, [("Location", "http://me:secret@host/uploads/1")])
    let data = ResumeData(
      upload: Steps.upload, target: "http://host/", base: 0, length: nil, streamID: nil, version: .newest)
    #expect(steps.machine.resumeData == data)
    expectEvents(
      &steps,
      [
        "connecting, attempt 1, at stream offset 0", "the server has created an upload resource at stream offset 0",
      ])
  }

  // MARK: Odd answers

  @Test("an impossible offset is reported, and asked for again")
  func impossibleOffset() {
    var steps = Steps.appending()
    steps.interim([("Upload-Offset", "100")], sentUpTo: 500)
    steps.fail(sentUpTo: 500)
    steps.retry()
    _ = steps.events()
    steps.tell(501)
    expectEvents(
      &steps,
      ["the server reports offset 501, which is beyond the last byte that was sent. Sluice asks it again."])
    #expect(
      steps.failure?.cause == .other("the server reported offset 501, which is beyond the last byte that was sent"))
  }

  @Test("an invalid offset is quoted with at most 40 characters", arguments: [40, 41])
  func excerpted(_ count: Int) {
    var steps = Steps.appending()
    steps.interim([("Upload-Offset", "100")], sentUpTo: 500)
    steps.fail(sentUpTo: 500)
    steps.retry()
    steps.answer(200, [("Upload-Offset", String(repeating: "x", count: count))])
    let shown = String(repeating: "x", count: 40) + (count > 40 ? "…" : "")
    #expect(
      steps.failure?.cause == .other("the server answered 200 with the invalid Upload-Offset \"\(shown)\""))
  }

  @Test("bytes that the server lacks and the buffer has discarded are a gap, and no progress")
  func gap() {
    var steps = Steps.appending()
    steps.interim([("Upload-Offset", "200")], sentUpTo: 500)
    steps.fail(sentUpTo: 500)
    (steps.supply.oldest, steps.supply.restart) = (300, 300)
    steps.retry()
    _ = steps.events()
    steps.tell(200)
    // The part ends at the last byte that the server has.
    #expect(steps.request?.method == "PATCH" && steps.request?.content == .empty)
    steps.answer(204, [("Upload-Offset", "200"), ("Upload-Complete", "?1")], sentUpTo: 200)
    #expect(steps.request?.describesRepresentation == true && steps.machine.base == 300)
    let loss = "100 bytes lost at stream offset 200: the buffer was full"
    for isCreated in [false, true] {
      if isCreated { steps.answer(201, [("Location", "http://host/uploads/2")]) }
      let events = steps.events()
      #expect(events.contains(loss) == isCreated, "\(events)")
      steps.fail()
      #expect(steps.failure?.isRepeated == true && steps.machine.outageCount == 1)
      steps.retry()
    }
  }

  @Test("a long refusal is one outage, although the next upload moves behind discarded bytes that only HEAD reported")
  func refusedPart() {
    var steps = Steps(streamID: "s")
    steps.start()
    steps.answer(201, [("Location", Steps.upload), ("Stream-ID", "s"), ("Upload-Limit", "max-size=200")])
    steps.interim([("Upload-Offset", "100")], sentUpTo: 200)
    steps.fail(sentUpTo: 200)
    steps.retry()
    // The upload is full.
    steps.tell(200)
    #expect(steps.request?.describesRepresentation == true && steps.machine.base == 100)
    for (oldest, base) in [(120, 120), (150, 150), (250, 260), (300, 310)] as [(UInt64, UInt64)] {
      steps.answer(503)
      #expect(steps.failure?.isRepeated == true, "\(steps.step)")
      (steps.supply.oldest, steps.supply.head, steps.supply.restart) = (oldest, oldest + 400, oldest + 10)
      steps.retry()
      #expect(steps.machine.base == base)
    }
    _ = steps.events()
    steps.answer(201, [("Location", "http://host/uploads/2"), ("Stream-ID", "s")])
    let events = steps.events()
    #expect(events.contains("110 bytes lost at stream offset 200: the buffer was full"), "\(events)")
    #expect(steps.machine.outageCount == 1)
  }
}

@Suite("The longest lifetime of an upload")
struct LongestLifetimeTests {
  @Test("more than a century counts as that")
  func century() {
    var steps = Steps()
    steps.start()
    steps.answer(201, [("Location", Steps.upload), ("Upload-Limit", "max-age=999999999999999")])
    let time = steps.machine.takeTimeToExpiry()
    let century = Duration.seconds(1 << 32)
    #expect(time == century - century / 10)
  }
}
