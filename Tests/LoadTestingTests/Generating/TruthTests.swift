// A report agrees with the record of the server that caused the events.

import EventLoops
import Glibc
import LoadReports
import NetworkTesting
import Testing

@testable import LoadTesting

@Suite("The accuracy of a load test's report", .serialized)
struct TruthTests {
  @Test("a server's delay is measured to 2 %, compared with the server's own measurement")
  func delay() throws {
    let server = try AcknowledgingServer(delay: .seconds(2))
    let report = try loadTest(server.url) {
      $0.streams = 8
      $0.duration = .seconds(3)
    }.run()
    let truth = server.all.flatMap { $0.pieces.compactMap(\.delay) }.sorted()
    let measured = report.histograms[.acknowledged]
    #expect(report.totals.messages.due == 8 * 30 && report.totals.messages.acknowledged == 8 * 30)
    #expect(truth.count > 100)
    // The server's own delays differ from two seconds on a loaded machine. The two measurements may differ only by the
    // time on the way and by waits for a processor, which are smallest in the fastest tenth.
    let (said, found) = (truth[truth.count / 10], try #require(measured.quantile(0.1)))
    #expect(abs(found - said) <= said / 50, "the generator's \(found) ns and the server's \(said) ns")
    // An acknowledgement cannot arrive before it was sent, and a byte cannot be sent before it is due.
    #expect(try #require(measured.min) >= truth[0] - truth[0] / 50)
    #expect(report.totals.errorCount == 0 && report.totals.bytes.lost == 0)
  }

  @Test("the generator's processor time covers only the run, and a part contains the machine")
  func generator() throws {
    let server = try AcknowledgingServer()
    let before = ProcessLimits.usage
    let report = try loadTest(server.url) { $0.streams = 2 }.run()
    let after = ProcessLimits.usage
    #expect((0...(after.user - before.user)).contains(report.generator.userTime))
    #expect((0...(after.system - before.system)).contains(report.generator.systemTime))
    var name = [CChar](repeating: 0, count: 256)
    gethostname(&name, 255)
    #expect(
      report.parts.map(\.host) == [
        String(decoding: name.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self)
      ])
  }

  @Test("acknowledged bytes that the server discards are lost, exactly")
  func thrownAway() throws {
    let server = try AcknowledgingServer(fault: (after: 4000, throwsAway: 1500))
    let report = try loadTest(server.url) {
      $0.streams = 1
      $0.duration = .seconds(3)
    }.run()
    let all = server.all
    #expect(all.first?.thrownAway == 1500)
    #expect(report.totals.bytes.lost == 1500)
    #expect(report.totals.bytes.offered == 15000)
    #expect(all.reduce(0) { $0 + $1.length } == 15000 - 1500, "what it has is what was offered, less what was lost")
    // Two errors must be reported: the connection ended, and then the server had less than it had acknowledged.
    let errors = report.totals.errors
    #expect(errors["connection-lost"]?.count == 1 && report.totals.errorCount == 2, "\(errors)")
    #expect(errors["went-back"]?.example.contains("less than it had acknowledged") == true, "\(errors)")
  }

  @Test("the report contains the reason of a server's refusal, with the status")
  func refusalReason() throws {
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        if head["Transfer-Encoding"] == "chunked" { _ = try connection.body() }
        try connection.respond(
          "503 Service Unavailable", ["Content-Type: text/plain", "Retry-After: 0"], body: "the disk is full\n")
      }
    }
    let report = try loadTest(server.url) {
      $0.streams = 1
      ($0.grace, $0.giveUpAfter) = (.milliseconds(100), .seconds(1))
    }.run()
    let example = report.totals.errors["http-503"]?.example
    #expect(example == "the server answered 503: \"the disk is full\"", "\(report.totals.errors)")
  }

  @Test(
    "bytes that a device's buffer lost during an outage are exact, according to the server's own record of gaps")
  func overflow() throws {
    let first = try StreamServer()
    let (directory, address) = (first.directory, String(first.url.dropFirst("http://".count)))
    let server = Lock<StreamServer?>(first)
    var seconds = 0
    // Per second of the run, 50 messages each.
    func secondPassed(_ progress: LoadProgress) {
      seconds += 1
      if seconds == 1 { server.withLock { $0?.stop() } }
      if seconds == 3 { server.withLock { $0 = try? StreamServer(in: directory, listen: address) } }
    }
    let report = try loadTest("http://\(address)/") {
      $0.streams = 3
      $0.profile.chunk = 20_000_000
      $0.buffer = 5000
      $0.duration = .seconds(6)
    }.run(progress: secondPassed)
    server.withLock { $0?.stop() }
    #expect(report.totals.streams.finished == 3)
    #expect(report.totals.bytes.offered == 3 * 6 * 50 * 500)
    let stored = try StoredLoad.all(in: directory.path)
    #expect(Set(stored.map(\.index)) == [0, 1, 2])
    #expect(stored.allSatisfy { $0.missing > 0 }, "an outage longer than the buffer")
    #expect(report.totals.bytes.lost == UInt64(stored.reduce(0) { $0 + $1.missing }))
    for stream in stored {
      #expect(stream.bytes.count == 6 * 50 * 500)
      #expect(stream.isFinished && stream.firstDifference() == nil, "\(stream.name)")
    }
  }
}
