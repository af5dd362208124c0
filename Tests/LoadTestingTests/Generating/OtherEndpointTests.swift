// Load tests of servers that know nothing of resumable uploads, and of servers that die.

import EventLoops
import LiveStreaming
import NetworkTesting
import Synchronization
import Testing

@testable import LoadTesting

@Suite("A load test judges any endpoint")
struct OtherEndpointTests {
  @Test("an endpoint that simply answers 200 has acknowledged what its request carried, and its statuses are counted")
  func plain() throws {
    let carried = Atomic(0)
    let server = try ScriptedServer { connection, number in
      while true {
        let head = try connection.head()
        guard head.line.hasPrefix("POST") else {
          try connection.respond("405 Method Not Allowed")
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

  @Test(
    "a server that dies and stays away is one outage to the end, and its delays are those of the messages that wait")
  func death() throws {
    let server = Lock<StreamServer?>(try StreamServer())
    let url = server.withLock { $0?.url } ?? ""
    var seconds = 0
    let report = try loadTest(url) {
      $0.streams = 5
      $0.duration = .seconds(4)
      $0.grace = .seconds(1)
    }.run { _ in
      seconds += 1
      if seconds == 1 { server.withLock { $0?.stop() } }
    }
    let delay = report.histograms[.acknowledged]
    #expect(delay.count == report.totals.messages.due, "every message has a delay")
    #expect(report.totals.messages.acknowledged < report.totals.messages.due)
    #expect(try Threshold("ack.p99 > 500ms").failure(in: report) != nil)
    #expect(report.totals.streams.failed == 5 && report.totals.interruptions.unplanned == 5)
    #expect(report.totals.interruptions.failedAttempts > 5)
    let outages = report.totals.outages.outages
    #expect(outages.count == 1 && outages[0].streams == 5, "\(outages)")
    #expect(outages[0].start < 3_000_000_000 && outages[0].end > report.measured)
    #expect(ReportVerdict(report).sentence.contains("to the end (5 streams: "))
  }
}
