// Load tests of servers without resumable uploads, and of servers that are killed.

import EventLoops
import Glibc
import LiveStreaming
import NetworkTesting
import Synchronization
import Testing

@testable import LoadReports
@testable import LoadTesting

@Suite("A load test judges any endpoint")
struct OtherEndpointTests {
  @Test("a 200 response acknowledges the bytes of the request, and the report counts each status")
  func plain() throws {
    let carried = Atomic(0)
    let server = try ScriptedServer { connection, number in
      while true {
        let head = try connection.head()
        guard head.line.hasPrefix("POST") else {
          try connection.respond("405 Method Not Allowed", ["Allow: POST"])
          continue
        }
        carried.add(try connection.body().count, ordering: .relaxed)
        try connection.respond("200 OK")
      }
    }
    let report = try loadTest(server.url) {
      $0.streams = 4
      $0.resumable = .auto
    }.run()
    #expect(report.totals.messages.due == 40 && report.totals.messages.acknowledged == 40)
    #expect(report.totals.bytes.acknowledged == UInt64(carried.load(ordering: .relaxed)))
    #expect(report.totals.responses == [200: 4, 405: 4])
    #expect(report.histograms[.response].count == 8 && report.totals.streams.finished == 4)
    #expect(try Threshold("status.200 > 3").failure(in: report) != nil)
    #expect(try Threshold("status.5xx > 0").failure(in: report) == nil)
  }

  @Test("of a message larger than the buffer, only the bytes that the endpoint has received are acknowledged")
  func partOfAMessage() throws {
    let carried = Atomic(0)
    let server = try ScriptedServer { connection, _ in
      while true {
        _ = try connection.head()
        let count = try connection.body().count
        carried.add(count, ordering: .relaxed)
        try connection.respond("200 OK")
      }
    }
    let size = 4_000_000
    let report = try loadTest(server.url) {
      $0.profile.size = .bytes(size...size)
      $0.buffer = 64 << 10
      $0.resumable = .never
    }.run()
    let totals = report.totals
    #expect(totals.bytes.acknowledged == UInt64(carried.load(ordering: .relaxed)))
    #expect(totals.bytes.acknowledged < UInt64(size) && totals.messages.acknowledged == 0 && totals.messages.due == 10)
    #expect(report.histograms[.acknowledged].count == 10, "every message has a delay")
  }

  @Test(
    "a server that dies is one outage to the end, and its delays are those of the waiting messages",
    arguments: [false, true])
  func death(sendsRequestPerMessage: Bool) throws {
    let server = Lock<StreamServer?>(try StreamServer())
    let url = server.withLock { $0?.url } ?? ""
    var seconds = 0
    let report = try loadTest(url) {
      $0.streams = 5
      $0.duration = .seconds(4)
      // A stream of requests ends when its last message has failed, and a live one never does.
      if !sendsRequestPerMessage { $0.grace = .seconds(1) }
      $0.sendsRequestPerMessage = sendsRequestPerMessage
      if sendsRequestPerMessage { $0.resumable = .never }
    }.run { progress in
      let messages = progress.totals.messages
      // A stream that was never answered would fail. It would have a fifth of the messages.
      if sendsRequestPerMessage, (messages.due - messages.acknowledged + 1) * 5 >= messages.due { return }
      seconds += 1
      if seconds == 1 { server.withLock { $0?.stop() } }
    }
    let totals = report.totals
    let delay = report.histograms[.acknowledged]
    #expect(delay.count == totals.messages.due, "every message has a delay")
    #expect(totals.messages.acknowledged < totals.messages.due)
    #expect(try Threshold("ack.p99 > 500ms").failure(in: report) != nil)
    // Messages that are due in the last half second, and acknowledged ones, may be younger.
    let late = delay.count - delay.count(upTo: 490_000_000)
    #expect(late + totals.messages.acknowledged + 30 >= totals.messages.due, "\(late) are late")
    // A stream of requests continues with its next message, so none of them gives up.
    #expect(totals.streams.failed == (sendsRequestPerMessage ? 0 : 5) && totals.interruptions.unplanned == 5)
    // The end of the run within an outage is not another error. A lost request is always one.
    if !sendsRequestPerMessage { #expect(totals.errorCount == 5, "\(totals.errors)") }
    #expect(totals.interruptions.failedAttempts > 5)
    let outages = totals.outages.outages
    #expect(outages.count == 1 && outages[0].streams == 5, "\(outages)")
    // A busy machine may report the first second late.
    #expect(outages[0].start < report.measured && outages[0].end > report.measured)
    #expect(ReportVerdict(report).sentence.contains("to the end (5 interruptions: "))
  }

  @Test(
    "if nobody listens, nothing is acknowledged, each stream is interrupted once, and every message ages until the end",
    arguments: Way.allCases)
  private func nobody(_ way: Way) throws {
    let closed = try ScriptedServer { _, _ in }
    closed.close()
    let report = try loadTest(closed.url) {
      $0.streams = 2
      $0.grace = .milliseconds(200)
      $0.sendsRequestPerMessage = way != .live
      if way == .arrivals { $0.arrivals = .init(rate: 20) }
      if way != .live { $0.resumable = .never }
    }.run()
    let (totals, delay) = (report.totals, report.histograms[.acknowledged])
    #expect(totals.messages.due == 20 && totals.messages.acknowledged == 0 && totals.connects == 0)
    #expect(totals.interruptions.unplanned == 2 && totals.interruptions.failedAttempts > 2)
    #expect(totals.bytes.lost == totals.bytes.offered && totals.streams.failed == 2)
    #expect(delay.count == 20 && delay.quantile(0.5) ?? 0 > 350_000_000 && delay.max ?? 0 > 850_000_000)
    #expect(report.spread.maximumDelay.min ?? 0 > 850_000_000, "of each stream as well")
    #expect(try Threshold("ack.p99 > 500ms").failure(in: report) != nil)
    #expect(ReportVerdict(report).sentence.contains("; nothing was acknowledged; "))
  }

  @Test(
    "streams that replace failed ones while nobody listens continue the outage, and are not interrupted again",
    arguments: [[], [.init(duration: 100_000_000, streams: 2), .init(duration: 3_900_000_000, streams: 2)]]
      as [[LoadStage]])
  func replaced(stages: [LoadStage]) throws {
    let closed = try ScriptedServer { _, _ in }
    closed.close()
    let report = try loadTest(closed.url) {
      $0.streams = 2
      $0.duration = .seconds(4)
      $0.stages = stages
      $0.grace = .milliseconds(200)
      $0.giveUpAfter = .milliseconds(300)
      $0.retryCeiling = .milliseconds(50)
    }.run()
    let totals = report.totals
    let outages = totals.outages.outages
    // At least 1.3 seconds pass between two streams of a place.
    #expect((3...8).contains(totals.streams.started) && totals.streams.failed > 2)
    #expect(totals.interruptions.unplanned == 2 && report.histograms[.outage].count == 2)
    // Each stream that gives up is an error, and the outage of each place is one.
    let gaveUp = totals.errors["gave-up"]?.count ?? 0
    #expect(gaveUp > 2 && totals.errorCount == gaveUp + 2, "\(totals.errors)")
    // Until a second before the end, a stream that fails is replaced.
    #expect(outages.count == 1 && outages[0].streams == 2 && outages[0].end >= 3_000_000_000, "\(outages)")
  }

  /// How messages are sent.
  private enum Way: CaseIterable { case live, requests, arrivals }
}

@Suite("A load test in stages")
struct StagedLoadTests {
  @Test(
    "streams start and end with the stages, none fails, and the due bytes are acknowledged", arguments: [false, true])
  func stages(sendsRequestPerMessage: Bool) throws {
    let server = try StreamServer()
    let report = try loadTest(server.url) {
      $0.stages = [
        .init(duration: 1_000_000_000, streams: 8), .init(duration: 500_000_000, streams: 8),
        .init(duration: 1_000_000_000, streams: 0),
      ]
      $0.sendsRequestPerMessage = sendsRequestPerMessage
      if sendsRequestPerMessage { $0.resumable = .never }
    }.run()
    #expect(report.plan.streams == 8 && report.measured == 2_500_000_000)
    #expect(report.totals.streams.started == 8 && report.totals.streams.finished == 8)
    #expect(report.totals.messages.due == report.totals.messages.acknowledged && report.totals.errorCount == 0)
    // The eight streams live for 2.5 s, 2.25 s and so on to 0.75 s, with ten messages per second.
    #expect((122...138).contains(report.totals.messages.due), "\(report.totals.messages.due)")
    #expect(ReportVerdict(report).sentence.hasPrefix("up to 8 live streams in 3 stages"))
  }
}

@Suite("A load test with one request per message")
struct RequestPerMessageTests {
  /// Answers each request after reading its content, by calling `answer` with its number on the connection. nil cuts
  /// the connection.
  private func endpoint(_ answer: @escaping @Sendable (Int, Int) -> String?) throws -> (ScriptedServer, EventLog<Int>) {
    let lengths = try EventLog<Int>()
    let server = try ScriptedServer { connection, number in
      var count = 0
      while true {
        let head = try connection.head()
        let length = head["Content-Length"].flatMap { Int($0) } ?? -1
        var missing = length
        while missing > 0, let part = try connection.receive(missing) { missing -= part.count }
        lengths.append(length)
        guard let status = answer(number, count) else { return connection.reset() }
        try connection.respond(status)
        count += 1
      }
    }
    return (server, lengths)
  }

  @Test("each message is one request with its length, over at most one connection per stream")
  func messages() throws {
    let (server, lengths) = try endpoint { _, _ in "204 No Content" }
    let report = try loadTest(server.url) {
      $0.streams = 3
      $0.sendsRequestPerMessage = true
      $0.resumable = .never
    }.run()
    #expect(lengths.all == Array(repeating: 500, count: 30))
    #expect(report.totals.messages.due == 30 && report.totals.messages.acknowledged == 30)
    #expect(report.totals.responses == [204: 30] && (1...3).contains(report.totals.connects))
    #expect(report.histograms[.response].count == 30 && report.histograms[.acknowledged].count == 30)
    #expect(report.totals.streams.finished == 3 && report.totals.errorCount == 0)
  }

  @Test("a refusing status is counted, and its message is lost and not repeated")
  func refused() throws {
    let (server, lengths) = try endpoint { _, count in count % 2 == 0 ? "200 OK" : "503 Service Unavailable" }
    let report = try loadTest(server.url) {
      $0.streams = 1
      $0.sendsRequestPerMessage = true
      $0.resumable = .never
    }.run()
    #expect(lengths.all.count == 10 && report.totals.responses == [200: 5, 503: 5])
    #expect(report.totals.messages.acknowledged == 5 && report.totals.bytes.lost == 5 * 500)
    #expect(report.totals.errors["http-503"]?.count == 5)
    #expect(report.histograms[.acknowledged].count == 10, "every message has a delay")
    let note = "accepted: due to TCP's        not measured for requests per message"
    #expect(report.table.contains(note) && report.html.contains("not measured for requests per message"))
  }

  @Test("a 206 (Partial Content) does not acknowledge its message, and another 2xx does")
  func partial() throws {
    let (server, lengths) = try endpoint { _, count in count % 2 == 0 ? "202 Accepted" : "206 Partial Content" }
    let report = try loadTest(server.url) {
      $0.streams = 1
      $0.sendsRequestPerMessage = true
      $0.resumable = .never
    }.run()
    #expect(lengths.all.count == 10 && report.totals.responses == [202: 5, 206: 5])
    #expect(report.totals.messages.acknowledged == 5 && report.totals.bytes.lost == 5 * 500)
    let error = try #require(report.totals.errors["http-206"])
    #expect(error.count == 5 && error.example.contains("does not confirm the message"), "\(error)")
  }

  /// Sends 10 messages of this size, each in a request that the server answers before the message has ended.
  @discardableResult
  private func expectNotAcknowledged(
    by server: ScriptedServer, size: Int, _ change: (inout LoadConfiguration) -> Void = { _ in }
  ) throws -> LoadReport {
    let report = try loadTest(server.url) {
      $0.streams = 1
      $0.profile.size = .bytes(size...size)
      $0.sendsRequestPerMessage = true
      $0.resumable = .never
      change(&$0)
    }.run()
    let totals = report.totals
    #expect(totals.messages.due == 10 && totals.messages.acknowledged == 0 && totals.bytes.acknowledged == 0)
    #expect(totals.responses == [200: 10] && totals.bytes.lost == UInt64(10 * size) && totals.streams.failed == 1)
    let error = try #require(totals.errors["http-200"])
    #expect(error.count == 10 && error.example.contains("before all of the message was sent"), "\(error)")
    return report
  }

  @Test("a 2xx that comes before all of a message was sent does not acknowledge the message")
  func early() throws {
    let server = try ScriptedServer(receiveBuffer: 16_384) { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
      _ = connection.waitForEnd()
    }
    // More than the buffers of both ends.
    let report = try expectNotAcknowledged(by: server, size: 16 << 20)
    #expect(report.histograms[.acknowledged].count == 10, "every message has a delay")
  }

  @Test(
    "a 2xx over HTTP/2 that comes before all of a message was sent does not acknowledge the message",
    arguments: [true, false])
  func earlyOverHTTP2(hasLength: Bool) throws {
    let server = try ScriptedServer { connection, _ in
      let http2 = try HTTP2Connection(connection)
      // The client's window is never enlarged, so it can send only the first 65,535 bytes (RFC 9113, section 6.9.2).
      while true { try http2.respond(200, hasLength ? [("content-length", "0")] : [], to: try http2.request()) }
    }
    try expectNotAcknowledged(by: server, size: 1 << 20) {
      $0.request.httpVersion = .http2
      $0.streamsPerConnection = 1
    }
  }

  @Test("a connection that ends is one interruption, and the next message uses another one")
  func cut() throws {
    let (server, _) = try endpoint { number, count in number == 0 && count == 3 ? nil : "200 OK" }
    let report = try loadTest(server.url) {
      $0.streams = 1
      $0.sendsRequestPerMessage = true
      $0.resumable = .never
    }.run()
    #expect(report.totals.connects == 2 && report.totals.interruptions.unplanned == 1)
    #expect(report.totals.messages.acknowledged == 9 && report.totals.bytes.lost == 500)
    #expect(report.totals.outages.outages.count == 1 && report.totals.streams.finished == 1)
    #expect(report.histograms[.resume].min ?? 0 > 0, "the attempt itself is not a pause")
  }

  @Test("messages wait for a late response, and each delay counts from the due time")
  func late() throws {
    let (server, _) = try endpoint { _, count in
      if count == 2 { poll(nil, 0, 450) }  // not a synchronization: the delay is what is measured
      return "200 OK"
    }
    let report = try loadTest(server.url) {
      $0.streams = 1
      $0.sendsRequestPerMessage = true
      $0.resumable = .never
    }.run()
    let delay = report.histograms[.acknowledged]
    #expect(delay.count == 10)
    // The late one, and those that were due during its delay.
    #expect(delay.count - delay.count(upTo: 140_000_000) >= 4)
    #expect(try #require(delay.max) >= 450_000_000 && report.totals.errorCount == 0)
  }
}
