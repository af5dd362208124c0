import EventLoops
import NetworkTesting
import PropertyTesting
import ResumableUploads
import StreamBuffers
import Testing

@testable import LiveStreaming
@testable import UploadClient

/// The rules of a stream whose bytes are all kept, with a clock of its own, and with the test as the server.
private struct Rules {
  static let upload = "http://host/uploads/1"
  var machine: ResumableStream
  var step = StreamStep.none
  var now = MonotonicInstant(nanoseconds: 1_000_000_000)
  var head: UInt64
  var isFinished = false
  /// The server's bytes once it behaves correctly.
  var stored: UInt64 = 200
  /// The latency of every answer.
  var latency = Duration.milliseconds(1)
  var failures: [FailedAttempt] = []
  var connects = 0

  init(_ head: UInt64 = 500, isFile: Bool = false, _ change: (inout RetryPolicy) -> Void = { _ in }) {
    var policy = RetryPolicy()
    change(&policy)
    var configuration = UploadClientStateMachine.Configuration()
    configuration.discovers = false
    configuration.retriesRefusals = policy.retriesRefusals
    (configuration.isOptimistic, isFinished) = (isFile, isFile)
    if isFile { configuration.length = head }
    machine = ResumableStream(configuration, target: "http://host/", policy: policy)
    self.head = head
    let supply = supply
    take(machine.start(supply, now: now))
  }

  /// A stream that has created its upload and sent everything, of which the server has acknowledged this much.
  static func streaming(acknowledged: UInt64, _ change: (inout RetryPolicy) -> Void = { _ in }) -> Rules {
    var rules = Rules(500, change)
    rules.answer(201, ["Location": upload])
    if acknowledged > 0 { rules.interim(["Upload-Offset": "\(acknowledged)"]) }
    return rules
  }

  /// A file that was sent with its creation. A 104 has acknowledged 200 bytes of it.
  static func file(_ change: (inout RetryPolicy) -> Void = { _ in }) -> Rules {
    var rules = Rules(500, isFile: true, change)
    rules.interim(["Location": upload, "Upload-Offset": "200"])
    return rules
  }

  var supply: Supply { Supply(oldest: 0, head: head, isFinished: isFinished) }
  var request: StreamRequest? { if case .request(let request) = step { request } else { nil } }
  var method: String? { request.map { $0.method ?? "CREATE" } }
  var end: LiveStreamError?? { if case .end(let error) = step { .some(error) } else { nil } }

  /// The delay of the present pause.
  var pause: Duration? {
    switch step {
    case .wait(let attempt): attempt.retryDelay
    case .pause(let delay): delay
    default: nil
    }
  }

  mutating func take(_ next: StreamStep) {
    if next != .none { step = next }
    for event in machine.takeEvents() { if case .connecting = event { connects += 1 } }
    if case .wait(let attempt) = next { failures.append(attempt) }
  }

  private func response(_ status: Int, _ fields: [String: String]) -> HTTPResponse {
    var fields = fields
    fields["Upload-Draft-Interop-Version"] = fields["Upload-Draft-Interop-Version"] ?? "8"
    return HTTPResponse(status: status, fields: HeaderFields(received: fields.map { (name: $0.key, value: $0.value) }))
  }

  private var sentUpTo: UInt64 {
    switch request?.content {
    case .bytes(let maximum): min(head, (request?.start ?? 0) + (maximum ?? .max / 2))
    default: request?.start ?? 0
    }
  }

  mutating func interim(_ fields: [String: String]) {
    take(
      machine.received(
        interim: response(104, fields), location: fields["Location"], sentUpTo: sentUpTo, now: now))
  }

  mutating func answer(_ status: Int, _ fields: [String: String] = [:], isBare: Bool = false) {
    now = now + latency
    var response = response(status, fields)
    if isBare { response.fields = response.fields.filter { !$0.hasPrefix("upload-") } }
    let end = RequestEnd(
      result: .success(.init(response: response, isEarly: false)), location: fields["Location"], sentUpTo: sentUpTo)
    take(machine.requestEnded(end, supply, now: now, draw: .max))
  }

  mutating func fail(_ kind: UploadError.Kind = .connectionLost) {
    now = now + latency
    let end = RequestEnd(result: .failure(UploadError(kind, "w")), location: nil, sentUpTo: sentUpTo)
    take(machine.requestEnded(end, supply, now: now, draw: .max))
  }

  /// The server itself answers.
  mutating func answerTruly() {
    guard let request else { return }
    switch (method, request.url) {
    case ("HEAD", Self.upload): answer(204, ["Upload-Offset": "\(stored)", "Upload-Complete": "?0"])
    case ("PATCH", Self.upload):
      stored = sentUpTo
      answer(204, ["Upload-Offset": "\(stored)", "Upload-Complete": isFinished && stored == head ? "?1" : "?0"])
    case ("CREATE", _): answer(503)
    default: answer(404)
    }
  }

  mutating func goOn() {
    guard let pause else { return }
    now = now + pause
    let next = machine.retryIsDue(supply)
    // A stream that does not ask, wait or end now would never end.
    #expect(next != .none)
    take(next)
  }
}

@Suite("Waits and the end of a resumable stream") struct ResumableRulesTests {
  private static let failures: [UploadError.Kind] = [
    .unknownHost, .unreachable, .connectionLost, .timedOut, .proxyRefused, .tlsFailed, .certificateNotTrusted,
    .certificateNotYetValid, .badCredentialsFile, .protocolViolation, .http2NotSupported, .cut, .other,
  ]

  /// The same answer to every request, forever.
  private enum Forever: CustomStringConvertible {
    case status(Int, bare: Bool)
    case failure(UploadError.Kind)

    var isRefusal: Bool {
      switch self {
      case .status(let status, _): [401, 403, 407].contains(status)
      case .failure(let kind): [.proxyRefused, .certificateNotTrusted, .badCredentialsFile].contains(kind)
      }
    }
    var description: String {
      switch self {
      case .status(let status, let bare): "\(status)\(bare ? ", bare" : "")"
      case .failure(let kind): "\(kind)"
      }
    }
  }

  @Test("an invalid Upload-Offset is quoted, and a missing one is reported as missing")
  func invalidOffset() {
    for value in ["1000000000000000", "9223372036854775808", "-5", "many", nil] {
      var rules = Rules.streaming(acknowledged: 100)
      rules.fail()
      rules.goOn()
      #expect(rules.method == "HEAD")
      rules.answer(200, value.map { ["Upload-Offset": $0] } ?? [:])
      let words = rules.failures.last?.cause.description ?? ""
      #expect(words.contains(value.map { "invalid Upload-Offset \"\($0)\"" } ?? "without an offset"), "\(words)")
    }
  }

  @Test("the reason of a failed attempt is about its own response, and not about an earlier one")
  func ownReason() {
    var rules = Rules.streaming(acknowledged: 100)
    rules.fail()
    for (offset, words) in [("10000", "beyond the last byte"), (nil, "without an offset")] as [(String?, String)] {
      rules.goOn()
      #expect(rules.method == "HEAD")
      rules.answer(200, offset.map { ["Upload-Offset": $0] } ?? [:])
      let reason = rules.failures.last?.cause.description ?? ""
      #expect(reason.contains(words), "\(reason)")
    }
  }

  @Test("a connection that is lost after the server reported all bytes is a separate outage")
  func idleOutages() {
    var rules = Rules.streaming(acknowledged: 500)
    for _ in 0..<3 {
      rules.fail()
      #expect(rules.machine.outageCount == 1)
      rules.goOn()
    }
    #expect(rules.method == "HEAD")
    rules.answer(204, ["Upload-Offset": "500"])
    // The source ends, and the connection is lost again without a further acknowledgement.
    rules.isFinished = true
    rules.take(rules.machine.bytesAreReady(rules.supply))
    #expect(rules.method == "PATCH")
    rules.fail()
    #expect(rules.machine.outageCount == 2)
  }

  @Test(
    "any permanent response: after an acknowledgement, the client waits until a limit, and the pauses follow their rule",
    arguments: [nil, 20] as [Int64?], [nil, 5] as [Int64?])
  func forever(_ giveUp: Int64?, _ onRefusal: Int64?) {
    let answers =
      (200..<600).flatMap { [Forever.status($0, bare: false), .status($0, bare: true)] }
      + Self.failures.map { .failure($0) }
    for answer in answers {
      var rules = Rules.streaming(acknowledged: 200) {
        $0.giveUpAfter = giveUp.map { .seconds($0) }
        $0.giveUpOnRefusalAfter = onRefusal.map { .seconds($0) }
      }
      let start = rules.now
      var (requests, longest) = (0, Duration.zero)
      while rules.end == nil, rules.now - start < .seconds(1000), requests < 20_000 {
        requests += 1
        switch answer {
        // A server that forgets uploads and creates new ones is subject to another rule.
        case .status(let status, let bare):
          rules.answer(rules.method == "CREATE" && status < 300 ? 503 : status, isBare: bare)
        case .failure(let kind): rules.fail(kind)
        }
        if let pause = rules.pause {
          longest = max(longest, pause)
          let allowed = max((rules.now - start) / 4, .milliseconds(250))
          #expect(pause <= min(allowed, .seconds(15)), "\(answer): \(pause) after \(rules.now - start)")
          rules.goOn()
        }
      }
      let lasted = rules.now - start
      // For this server, a complete answer to an append that completes nothing is progress.
      if case .status(let status, bare: false) = answer, status < 300 { continue }
      let limits = [
        giveUp.map { Duration.seconds($0) }, answer.isRefusal ? onRefusal.map { .seconds($0) } ?? .seconds(600) : nil,
      ]
      if let limit = limits.compactMap({ $0 }).min() {
        #expect(rules.end.flatMap { $0 } != nil, "\(answer) is not given up")
        #expect(lasted >= limit && lasted <= limit + .seconds(16), "\(answer): after \(lasted)")
        #expect(rules.failures.count >= 2)
      } else {
        #expect(rules.end == nil, "\(answer) ended it: \(rules.step)")
        #expect(requests < 500 && longest > .seconds(14), "\(answer): \(requests) requests in \(lasted)")
      }
    }
  }

  @Test(
    "a portal answers everything for a while: the stream continues in its upload resource, or ends after its time limit",
    arguments: [200, 201, 204, 302, 404, 409, 410, 413, 503], [nil, "http://host/portal"])
  func portal(_ status: Int, _ location: String?) {
    for isFile in [false, true] {
      for seconds in [1, 3, 8, 60] {
        var rules =
          isFile
          ? Rules.file { $0.giveUpAfter = .seconds(30) }
          : Rules.streaming(acknowledged: 200) { $0.giveUpAfter = .seconds(30) }
        rules.fail()
        let start = rules.now
        var requests = 0
        while rules.end == nil, requests < 1000, !(rules.stored == 500 && rules.request == nil) {
          requests += 1
          if rules.pause != nil {
            rules.goOn()
          } else if rules.now - start < .seconds(Int64(seconds)) {
            rules.answer(status, location.map { ["Location": $0] } ?? [:], isBare: true)
          } else {
            rules.answerTruly()
          }
        }
        let context = "\(isFile ? "file" : "stream"), \(seconds) s: \(rules.step) after \(requests) requests"
        if seconds == 60 {
          #expect(rules.end.flatMap { $0 }?.kind == .unreachable && rules.now - start < .seconds(46), "\(context)")
        } else {
          #expect(rules.end.flatMap { $0 } == nil && rules.stored == 500, "\(context)")
        }
      }
    }
  }

  @Test("before an acknowledgement, a peer that does not use HTTP ends the stream, or counts as a refusal with a limit")
  func notHTTP() {
    for kind in [UploadError.Kind.protocolViolation, .http2NotSupported] {
      for limit in [nil, 0, 5] as [Int64?] {
        var rules = Rules { $0.giveUpOnRefusalAfter = limit.map { .seconds($0) } }
        let start = rules.now
        rules.fail(kind)
        guard limit == 5, kind == .protocolViolation else {
          #expect(rules.end.flatMap { $0 } != nil && rules.now - start < .seconds(1), "\(kind), \(limit ?? -1)")
          continue
        }
        var later = rules
        later.goOn()
        later.answer(201, ["Location": Rules.upload])
        later.interim(["Upload-Offset": "200"])
        #expect(later.end == nil && later.method == "PATCH")
        while rules.end == nil, rules.now - start < .seconds(100) {
          if rules.pause == nil { rules.fail(kind) } else { rules.goOn() }
        }
        #expect(rules.end.flatMap { $0 }?.kind == .protocolBroken)
        #expect(rules.now - start >= .seconds(5) && rules.now - start < .seconds(21) && rules.failures.count >= 2)
      }
    }
  }

  @Test("before an acknowledgement, a refusal or a meaningless response ends the stream at once")
  func atFirst() {
    for status in [401, 403, 407, 405, 415, 451, 501] {
      var rules = Rules.streaming(acknowledged: 0)
      rules.answer(status)
      #expect(rules.end.flatMap { $0 }?.kind == ([401, 403, 407].contains(status) ? .notPermitted : .refused))
    }
    var rules = Rules()
    rules.fail(.certificateNotTrusted)
    #expect(rules.end.flatMap { $0 }?.kind == .notTrusted)
    rules = Rules()
    rules.fail(.certificateNotYetValid)
    #expect(rules.pause != nil, "the clock will be set")
  }

  @Test("progress that only HEAD shows ends an outage")
  func progressByHEAD() {
    var rules = Rules.streaming(acknowledged: 0) { $0.giveUpAfter = .seconds(1) }
    for offset in 1...100 {
      rules.fail()
      #expect(rules.pause == .milliseconds(25), "a first failure")
      rules.now = rules.now + .seconds(5)
      rules.goOn()
      rules.answer(204, ["Upload-Offset": "\(offset)"])
      #expect(rules.method == "PATCH")
    }
  }

  @Test(
    "pauses grow while a server stores one byte of each request, and its progress keeps the stream alive",
    arguments: [204, 307])
  func oneByteOfEach(_ status: Int) {
    var rules = Rules(100_000) { $0.giveUpAfter = .seconds(30) }
    rules.answer(201, ["Location": Rules.upload])
    rules.stored = 0
    let start = rules.now
    var (requests, longest) = (0, Duration.zero)
    while rules.end == nil, rules.now - start < .seconds(600), requests < 10_000 {
      if let pause = rules.pause {
        longest = max(longest, pause)
        rules.goOn()
      } else {
        requests += 1
        if rules.method == "PATCH" { rules.stored += 1 }
        if rules.method == "PATCH", status == 307 {
          rules.answer(status, ["Location": Rules.upload])
        } else {
          rules.answer(204, ["Upload-Offset": "\(rules.stored)", "Upload-Complete": "?0"])
        }
      }
    }
    #expect(rules.end == nil && requests < 200 && longest > .seconds(14), "\(requests) requests, \(rules.step)")
    #expect(rules.machine.outageCount == 1 && rules.failures.dropFirst().allSatisfy(\.isRepeated))
    let cause = status == 307 ? "the server answered 307" : "only a small part"
    #expect(rules.failures.allSatisfy { $0.cause.description.contains(cause) })
    // The server recovers, and the next failure is the first of another outage.
    for _ in 0..<4 where rules.step != .awaitBytes(upTo: 100_001) {
      if rules.pause == nil { rules.answerTruly() } else { rules.goOn() }
    }
    #expect(rules.step == .awaitBytes(upTo: 100_001))
    rules.head += 1
    rules.take(rules.machine.bytesAreReady(rules.supply))
    rules.fail()
    #expect(rules.pause == .milliseconds(25) && rules.machine.outageCount == 2)
  }

  @Test("if a server has stored everything, the next failure counts as the first")
  func everythingThere() {
    var rules = Rules.streaming(acknowledged: 500)
    rules.answer(204)
    #expect(rules.step == .awaitBytes(upTo: 501))
    for _ in 0..<3 {
      rules.head += 1
      rules.take(rules.machine.bytesAreReady(rules.supply))
      rules.fail()
      #expect(rules.pause == .milliseconds(25))
      rules.goOn()
      // All bytes are there. An append without content, which is refused at first, shows that.
      rules.answer(204, ["Upload-Offset": "\(rules.head)"])
      rules.answer(503)
      rules.goOn()
      rules.answer(204, ["Upload-Offset": "\(rules.head)"])
      rules.answer(204)
      #expect(rules.step == .awaitBytes(upTo: rules.head + 1))
    }
  }

  @Test("an attempt counts once, however many requests it takes")
  func attempts() {
    var rules = Rules.streaming(acknowledged: 200)
    #expect(rules.connects == 1)
    rules.fail()
    rules.goOn()
    #expect(rules.connects == 2 && rules.method == "HEAD")
    rules.answer(307, ["Location": "http://host/elsewhere"])
    #expect(rules.connects == 2 && rules.method == "HEAD")
    rules.answer(204, ["Upload-Offset": "200"])
    #expect(rules.connects == 2 && rules.method == "PATCH")
    // The attempt has succeeded, so a question after it is the next one.
    rules.machine.connected()
    rules.answer(400)
    #expect(rules.connects == 3 && rules.method == "HEAD")
  }

  @Test("no byte of another process's upload counts as sent before the server was asked")
  func resumed() {
    let data = ResumeData(
      upload: Rules.upload, target: "http://host/", base: 100, length: 500, streamID: nil, version: .newest)
    var configuration = UploadClientStateMachine.Configuration()
    configuration.length = 500
    var machine = ResumableStream(configuration, target: "http://host/", policy: RetryPolicy(), resuming: data)
    _ = machine.start(Supply(oldest: 0, head: 500, isFinished: true), now: MonotonicInstant(nanoseconds: 0))
    #expect(machine.sent == 100 && machine.acknowledged == 100)
  }

  @Test("a Location that leaves TLS has a separate error")
  func insecureLocation() {
    var rules = Rules()
    let response = HTTPResponse(status: 201, fields: ["Location": "http://host/u"])
    let end = RequestEnd(
      result: .success(.init(response: response, isEarly: false)), location: nil, isLocationInsecure: true, sentUpTo: 0)
    rules.take(rules.machine.requestEnded(end, rules.supply, now: rules.now, draw: 0))
    #expect(rules.end.flatMap { $0 }?.kind == .insecureLocation)
  }

  @Test(
    "the reason of an outage after a success is the number of bytes that the server lacks, or that they are unknown",
    arguments: [
      (0, "200 bytes less"), (199, "1 bytes less"), (200, "answered 204, which is not valid at this point"),
      (201, "answered 204, which is not valid at this point"),
    ] as [(Int, String)])
  func unhelpful(_ offset: Int, _ words: String) {
    let rules = Rules.streaming(acknowledged: 200)
    let response = HTTPResponse(status: 204, fields: ["Upload-Offset": "\(offset)"])
    let reason = rules.machine.unhelpful(ClientAnswer(response, location: nil))
    #expect(reason.contains(words), "\(reason)")
  }
}

@Suite("Requests of a stream to its source") struct SourceDemandTests {
  private final class Counting: RepeatableSource, @unchecked Sendable {
    var head: UInt64 = 100
    var isFinished = false
    var asked: [Int] = []
    func start(on loop: EventLoop, arrived: @escaping () -> Void) {}
    func stop() { isFinished = true }
    func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> Int {
      asked.append(maximum)
      return withUnsafeTemporaryAllocation(byteCount: maximum, alignment: 1) { bytes in
        bytes.initializeMemory(as: UInt8.self, repeating: 0)
        return body(RawSpan(_unsafeBytes: UnsafeRawBufferPointer(bytes)))
      }
    }
  }

  @Test("a repeatable source is never asked for more than it has")
  func atMostWhatIsThere() {
    let source = Counting()
    let bytes = RepeatableBytes(source, capacity: 1000)
    let questions: [(UInt64, Int, Int)] = [(0, 1000, 100), (40, 1000, 60), (40, 10, 10), (99, .max, 1)]
    for (offset, maximum, expected) in questions {
      let result = bytes.read(at: offset, maximum: maximum) { $0.byteCount }
      guard case .bytes(let count) = result else {
        Issue.record("nothing")
        continue
      }
      #expect(count == expected && source.asked.last == expected)
    }
  }

  @Test("a stopped source causes no more wake-ups")
  func stopped() throws {
    try withSession { session throws in
      let source = try PushedSource()
      let calls = try EventLog<Int>()
      let done = try EventLog<Bool>()
      session.loop.execute {
        do {
          let live = try LiveSource(source, LiveStreamConfiguration(request: UploadRequest(url: "http://h/")))
          let context = SourceContext(loop: session.loop, overflow: .dropOldest, report: { _ in }, fail: { _ in })
          try live.start(on: session.loop, context: context, dataArrived: { calls.append(1) })
          _ = live.writer.requestWakeUp(at: 1)
          // Its end is an event like new bytes, so a watcher would be called now.
          live.stop(on: session.loop)
          // All on one thread.
          nonisolated(unsafe) let kept = live
          session.loop.execute { session.loop.execute { withExtendedLifetime(kept) { done.append(true) } } }
        } catch {
          done.append(false)
        }
      }
      #expect(try done.first("the turns behind it") { _ in true })
      #expect(calls.all.isEmpty)
    }
  }
}
