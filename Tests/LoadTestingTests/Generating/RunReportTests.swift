// The report of a whole run, and when a run ends.

import EventLoops
import Glibc
import LiveStreaming
import LoadReports
import NetworkTesting
import Testing
import UploadClient

@testable import LoadTesting

@Suite("The report of a run", .serialized)
struct RunReportTests {
  @Test("it has the machine, the time, and each figure of the run, as do its seconds together")
  func whole() throws {
    let server = try AcknowledgingServer()
    var progress: [LoadProgress] = []
    let before = WallClock.now.iso8601
    let report = try loadTest(server.url + "/a?secret=1") { $0.streams = 2 }.run { progress.append($0) }
    let (totals, histograms) = (report.totals, report.histograms)
    #expect(report.sluiceVersion == UploadClient.sluiceVersion && report.target == server.url + "/a")
    #expect((before...WallClock.now.iso8601).contains(report.startedAt), "\(report.startedAt)")
    #expect(report.measured == 1_000_000_000 && report.plan.streams == 2 && report.plan.profile == "mic")
    let part = try #require(report.parts.first)
    #expect(report.parts.count == 1 && part.index == 1 && part.count == 1 && part.threads == 1 && part.cores >= 1)
    let generator = report.generator
    #expect(generator.userTime + generator.systemTime > 0 && generator.maximumResident > 1 << 20)
    #expect(generator.busiestLoop > 0 && generator.busiestLoop <= 1)

    #expect(totals.messages.due == 20 && totals.messages.sent == 20 && totals.messages.acknowledged == 20)
    #expect(totals.streams.started == 2 && totals.streams.finished == 2 && totals.streams.fewestLiveAtEnd != nil)
    for measure in [LoadMeasure.acknowledged, .accepted, .lateness, .message] {
      #expect(histograms[measure].count == 20, "\(measure)")
    }
    #expect(totals.bytes.accepted == 10_000 && histograms[.connect].count == totals.connects)
    #expect(histograms[.rhythm].count > 0)
    // Each request has a first interim response, and others for its pieces.
    let responses = totals.responses.values.reduce(0, +)
    #expect((2...responses).contains(histograms[.interim].count))
    #expect(totals.interimResponses > histograms[.interim].count)

    let seconds = report.intervals.intervals
    #expect(seconds.reduce(0) { $0 + $1.offered } == totals.bytes.offered)
    #expect(seconds.reduce(0) { $0 + $1.sent } == totals.bytes.sent)
    #expect(seconds.reduce(0) { $0 + $1.acknowledged } == totals.bytes.acknowledged)
    // The run may already be ending at the first of them.
    #expect(progress.last?.isEnding == true && progress.drop { !$0.isEnding }.allSatisfy(\.isEnding))
    #expect(progress.last?.totals == totals && progress.allSatisfy { $0.elapsed > 0 })
  }

  @Test("a run whose messages are acknowledged begins with its streams in time, and ends at once", arguments: [1, 3])
  func quick(threads: Int) throws {
    // On a busy machine, an attempt may take longer.
    for _ in 0..<5 {
      let server = try AcknowledgingServer()
      let start = MonotonicInstant.now
      let report = try loadTest(server.url) {
        ($0.streams, $0.threads) = (2, threads)
        $0.duration = .milliseconds(200)
      }.run()
      let time = MonotonicInstant.now - start
      #expect(report.totals.streams.finished == 2)
      if time < .milliseconds(900), report.histograms[.lateness].max ?? 0 < 90_000_000 { return }
    }
    Issue.record("each run was late, or waited for acknowledgements that it had")
  }

  /// A server of resumable uploads that acknowledges bytes only at the end of a request.
  private static func quietServer() throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        let version = head["Upload-Draft-Interop-Version"].map { ["Upload-Draft-Interop-Version: \($0)"] } ?? []
        let complete = "Upload-Complete: \(head["Upload-Complete"] ?? "?0")"
        switch head.line.prefix(while: { $0 != " " }) {
        case "POST":
          let place = version + ["Location: /uploads/1"]
          try connection.send(
            "HTTP/1.1 104 Upload Resumption Supported\r\n" + place.map { "\($0)\r\n" }.joined() + "\r\n")
          if head["Transfer-Encoding"] == "chunked" { _ = try connection.body() }
          try connection.respond("201 Created", place + [complete])
        case "PATCH":
          if head["Transfer-Encoding"] == "chunked" { _ = try connection.body() }
          try connection.respond("204 No Content", version + [complete])
        default: try connection.respond("200 OK", version + ["Upload-Limit: min-size=0"])
        }
      }
    }
  }

  @Test(
    "a server that acknowledges only the end of a request is asked for it in half of the time limit",
    arguments: [false, true])
  func asked(inStages: Bool) throws {
    for _ in 0..<5 {
      let server = try Self.quietServer()
      let report = try loadTest(server.url) {
        $0.duration = .milliseconds(300)
        if inStages {
          $0.stages = [
            .init(duration: 100_000_000, streams: 1), .init(duration: 100_000_000, streams: 1),
            .init(duration: 100_000_000, streams: 0), .init(duration: 900_000_000, streams: 0),
          ]
        }
        $0.grace = .milliseconds(800)
      }.run()
      let totals = report.totals
      #expect(totals.streams.started == 1)
      if totals.streams.finished == 1, totals.messages.acknowledged == totals.messages.due { return }
    }
    Issue.record("the stream failed each time")
  }

  @Test("streams that end with a stage fail if nothing is acknowledged within the time limit")
  func silentStages() throws {
    let silent = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    let report = try loadTest(silent.url) {
      $0.stages = [
        .init(duration: 100_000_000, streams: 2), .init(duration: 100_000_000, streams: 0),
        .init(duration: 500_000_000, streams: 0),
      ]
      $0.grace = .milliseconds(100)
    }.run()
    let totals = report.totals
    #expect(totals.streams.started == 2 && totals.streams.failed == 2 && totals.bytes.offered > 0)
    #expect(totals.bytes.lost == totals.bytes.offered && totals.messages.acknowledged == 0)
  }

  @Test("requests without an answer fail at the end of the time limit, with each message that waited for them")
  func unanswered() throws {
    let silent = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    let report = try loadTest(silent.url) {
      ($0.streams, $0.duration, $0.grace) = (2, .milliseconds(300), .milliseconds(100))
      ($0.sendsRequestPerMessage, $0.resumable) = (true, .never)
    }.run()
    let totals = report.totals
    #expect(totals.messages.due == 6 && totals.messages.sent == 2 && totals.messages.acknowledged == 0)
    #expect(totals.bytes.lost == 6 * 500 && totals.streams.failed == 2)
    #expect(totals.errors["unfinished"]?.count == 2 && totals.errorCount == 2, "\(totals.errors)")
    #expect(report.histograms[.acknowledged].count == 6, "every message has a delay")
  }

  @Test("a run that is stopped loses nothing, and none of its streams has failed", arguments: [false, true])
  func stopped(sendsRequestPerMessage: Bool) throws {
    let silent = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    let test = try loadTest(silent.url) {
      ($0.streams, $0.duration) = (2, .seconds(600))
      $0.sendsRequestPerMessage = sendsRequestPerMessage
      if sendsRequestPerMessage { $0.resumable = .never }
    }
    let report = try test.run { _ in test.stop() }
    let totals = report.totals
    #expect(test.endReason == .stopped && report.measured > 0 && report.measured < 600_000_000_000)
    #expect(totals.bytes.lost == 0 && totals.errorCount == 0 && totals.messages.due > 2)
    #expect(totals.streams.started == 2 && totals.streams.failed == 0 && totals.streams.finished == 0)
    #expect(report.histograms[.acknowledged].count == totals.messages.due, "every message has a delay")
  }

  @Test("the time of a connection counts from its request, and not from the start of the run")
  func lateConnection() throws {
    let server = try ScriptedServer { connection, _ in
      while true {
        var missing = try connection.head()["Content-Length"].flatMap { Int($0) } ?? 0
        while missing > 0, let part = try connection.receive(missing) { missing -= part.count }
        try connection.respond("200 OK")
      }
    }
    let report = try loadTest(server.url) {
      $0.stages = [
        .init(duration: 200_000_000, streams: 0), .init(duration: 1_000_000, streams: 1),
        .init(duration: 200_000_000, streams: 1),
      ]
      ($0.sendsRequestPerMessage, $0.resumable) = (true, .never)
    }.run()
    let (connects, delays) = (report.histograms[.connect], report.histograms[.acknowledged])
    #expect(report.totals.connects == 1 && connects.count == 1 && delays.count == report.totals.messages.due)
    // Each request had to wait for its own connection at most.
    #expect(connects.max ?? .max <= delays.max ?? 0)
  }

  @Test("a server that cuts each connection gets at most ten requests per second and stream")
  func pauses() throws {
    let requests = try EventLog<Int>()
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      requests.append(number)
      connection.reset()
    }
    let start = MonotonicInstant.now
    let report = try loadTest(server.url) {
      ($0.duration, $0.grace) = (.milliseconds(500), .milliseconds(100))
      $0.profile.chunk = 10_000_000
      ($0.sendsRequestPerMessage, $0.resumable) = (true, .never)
    }.run()
    let time = MonotonicInstant.now - start
    let count = requests.all.count
    #expect(count >= 2 && Int64(count) <= time.nanoseconds / 100_000_000 + 1)
    let totals = report.totals
    #expect(totals.messages.due == 50 && totals.messages.acknowledged == 0 && totals.bytes.lost == 50 * 500)
    #expect(totals.interruptions.unplanned == 1 && totals.streams.failed == 1)
  }

  @Test("the answer of a plain server acknowledges the bytes of its request, and none of an earlier one")
  func interruptedPlain() throws {
    let carried = try EventLog<Int>()
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      if number == 0 {
        for _ in 0..<3 { _ = try connection.chunk() }
        return connection.reset()
      }
      carried.append(try connection.body().count)
      try connection.respond("200 OK")
    }
    let report = try loadTest(server.url) { $0.resumable = .never }.run()
    let totals = report.totals
    #expect(totals.messages.due == 10 && report.histograms[.acknowledged].count == 10, "every message has a delay")
    #expect(totals.bytes.acknowledged == UInt64(carried.all.reduce(0, +)) && totals.messages.acknowledged < 10)
    #expect(totals.streams.finished == 1 && totals.interruptions.unplanned == 1 && totals.connects == 2)
  }

  @Test("messages wait for space while a server does not read, and this is measured")
  func waits() throws {
    let server = try ScriptedServer(receiveBuffer: 16_384) { connection, _ in
      _ = try connection.head()
      poll(nil, 0, 400)  // not a synchronization: the delay is what is measured
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    // More than the buffers of both ends.
    let size = 5_000_000
    let report = try loadTest(server.url) {
      $0.profile.size = .bytes(size...size)
      ($0.duration, $0.buffer, $0.resumable) = (.milliseconds(300), 64 << 20, .never)
    }.run()
    #expect(report.totals.messages.due == 3 && report.totals.streams.finished == 1)
    #expect(report.histograms[.stall].count > 0)
  }
}
