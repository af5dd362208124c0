// Deliberate faults in a load test. They are distinguished from other faults, and cause no loss.

import EventLoops
import LoadReports
import NetworkTesting
import PropertyTesting
import StreamServing
import Testing
import UploadServer

@testable import LoadTesting

@Suite("Intentional faults, and limits", .serialized)
struct LoadFaultTests {
  @Test(
    "interrupted connections are resumed: every byte is stored once, and each interruption is counted",
    arguments: Seed.several(1))
  func drops(_ seed: Seed) throws {
    let server = try StreamServer()
    let report = try loadTest(server.url) {
      $0.streams = 4
      $0.duration = .seconds(3)
      $0.seed = seed.value
      $0.profile.faults.dropEvery = .fixed(700_000_000)
    }.run()
    server.stop()
    let totals = report.totals
    // The first ones and some of those after them. Without a connection there is nothing to cut.
    #expect(totals.interruptions.onPurpose >= 8)
    #expect(totals.interruptions.unplanned == 0 && totals.errorCount == 0, "\(totals.errors)")
    // One new connection for each, except if the request had not been sent yet: its connection serves the next one.
    let connects = totals.connects - 4
    #expect(connects <= totals.interruptions.onPurpose && connects > totals.interruptions.onPurpose / 2)
    // A stream that is cut again before any acknowledgement has not resumed in between.
    let resumed = report.histograms[.resume].count
    #expect(resumed > 0 && resumed <= totals.interruptions.onPurpose)
    // The pause before an attempt is the generator's own, and the attempt is not.
    #expect(report.histograms[.resume].min ?? 0 > 0)
    #expect(report.histograms[.resume].sum <= report.histograms[.outage].sum)
    #expect(totals.streams.finished == 4 && totals.bytes.lost == 0)
    #expect(totals.bytes.offered == 4 * 30 * 500 && totals.bytes.acknowledged == totals.bytes.offered)
    let stored = try StoredLoad.all(in: server.directory.path)
    #expect(stored.map(\.index).sorted() == [0, 1, 2, 3])
    for stream in stored {
      #expect(stream.bytes.count == 30 * 500 && stream.holes.isEmpty, "\(stream.name)")
      #expect(stream.isFinished && stream.firstDifference() == nil, "\(stream.name)")
    }
  }

  @Test("bytes that a stream discarded while its server had no space are lost, and later ones do not acknowledge them")
  func givenUp() throws {
    let server = try StreamServer { $0.uploads.maximumCount = 2 }
    let report = try loadTest(server.url) {
      $0.streams = 5
      $0.duration = .seconds(3)
      // Six messages.
      $0.buffer = 4096
      $0.retryCeiling = .milliseconds(100)
      // Some streams never get their turn.
      ($0.grace, $0.giveUpAfter) = (.seconds(5), .seconds(5))
    }.run()
    server.stop()
    let totals = report.totals
    let stored = try StoredLoad.all(in: server.directory.path)
    let count = stored.reduce(0) { $0 + $1.bytes.count - $1.missing }
    #expect(totals.bytes.lost > 0, "the buffer is too small for the wait")
    #expect(totals.bytes.acknowledged == UInt64(count))
    #expect(totals.bytes.acknowledged + totals.bytes.lost == totals.bytes.offered)
    #expect(totals.messages.acknowledged <= totals.messages.sent)
  }

  @Test(
    "an intentionally slow stream has at most its rate, and its delays are separate",
    arguments: Seed.several(1))
  func slow(_ seed: Seed) throws {
    let server = try StreamServer()
    var profile = LoadProfile()
    let report = try loadTest(server.url) {
      $0.streams = 12
      $0.seed = seed.value
      $0.profile.faults.slowFraction = 0.5
      $0.profile.faults.slowRate = 2500
      profile = $0.profile
    }.run()
    let slow = (0..<12).filter { StreamSchedule(profile, seed: seed.value, stream: $0).isSlow }
    #expect(report.histograms[.acknowledged].count == UInt64(12 - slow.count) * 10)
    #expect(report.histograms[.acknowledgedSlow].count == UInt64(slow.count) * 10)
    // The k-th message is due k tenths of a second after the start, and the line cannot have taken it before 2 (k + 1)
    // tenths.
    if let delay = report.histograms[.acknowledgedSlow].min { #expect(delay >= 200_000_000 / 100 * 99) }
    if let delay = report.histograms[.acknowledgedSlow].max { #expect(delay >= 1_100_000_000 / 100 * 99) }
    #expect(report.totals.streams.finished == 12 && report.totals.errorCount == 0)
  }

  @Test("a stream that stalls on purpose sends nothing meanwhile, which is no wait for the server, and then the rest")
  func stalls() throws {
    let server = try AcknowledgingServer()
    let report = try loadTest(server.url) {
      $0.streams = 2
      $0.profile.faults.stalls = .init(every: .fixed(200_000_000), length: .fixed(300_000_000))
    }.run()
    #expect(report.totals.streams.finished == 2 && report.totals.bytes.lost == 0 && report.totals.errorCount == 0)
    #expect(report.totals.bytes.acknowledged == 2 * 10 * 500)
    // The first message that is due in a stall of 300 ms is due within its first 100 ms.
    #expect(report.histograms[.acknowledged].max ?? 0 >= 200_000_000)
    #expect(report.histograms[.stall].max ?? 0 < 200_000_000)
  }

  @Test("the faults of a stream that has ended never come")
  func endedStreams() throws {
    let server = try AcknowledgingServer()
    let report = try loadTest(server.url) {
      $0.streams = 4
      $0.profile.streamLength = .fixed(50_000_000)
      $0.profile.thinkTime = .fixed(100_000_000)
      $0.profile.faults.dropEvery = .fixed(600_000_000)
    }.run()
    let streams = report.totals.streams
    #expect(streams.started > 4 && streams.finished == streams.started && report.totals.bytes.lost == 0)
  }

  @Test("a slow stream that is unfinished at the run's end has not failed, and any other has")
  func unfinished() throws {
    let server = try StreamServer()
    func failed(slow: Double, _ url: String) throws -> UInt64 {
      let report = try loadTest(url) {
        $0.streams = 3
        $0.grace = .milliseconds(100)
        $0.profile.faults.slowFraction = slow
        // A message takes five seconds.
        $0.profile.faults.slowRate = 100
      }.run()
      #expect(report.totals.streams.finished == 0 && report.totals.bytes.acknowledged == 0)
      return report.totals.streams.failed
    }
    #expect(try failed(slow: 1, server.url) == 0)
    let silent = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    #expect(try failed(slow: 0, silent.url) == 3)
  }

  // MARK: Caps

  @Test("the byte limit ends the run at once, even while its observer is busy", arguments: [1, 2])
  func byteCap(threads: Int) throws {
    let server = try StreamServer()
    let test = try loadTest(server.url) {
      $0.streams = 4
      $0.threads = threads
      $0.duration = .seconds(60)
      $0.profile.chunk = 20_000_000
      $0.maximumByteCount = 150_000
    }
    let never = try EventCounter()
    var isFirst = true
    // 100 kB per second: the cap is reached during the first report, and would be exceeded by 200 kB.
    let report = try test.run { _ in
      if isFirst { _ = waitUntilReadable(never.descriptor, limit: .seconds(3)) }
      isFirst = false
    }
    #expect(report.totals.bytes.sent >= 150_000 && report.totals.bytes.sent < 250_000)
    #expect(test.endReason == .byteLimit(150_000))
    #expect(report.totals.streams.failed == 0 && report.totals.bytes.lost == 0, "it was stopped: that is not a fault")
    #expect(report.measured > 0 && report.measured < 60_000_000_000)
  }

  @Test("a connection limit below the number of streams is refused, and reaching it by reconnecting ends the run")
  func connectionCap() throws {
    #expect(throws: LoadError.tooManyConnections(needed: 5, limit: 4)) {
      try loadTest("http://127.0.0.1:9/") {
        $0.streams = 5
        $0.maximumConnectionCount = 4
      }
    }
    let server = try StreamServer()
    let allowed = try loadTest(server.url) {
      $0.streams = 4
      $0.duration = .milliseconds(500)
      $0.maximumConnectionCount = 4
    }
    #expect(try allowed.run().totals.streams.finished == 4)
    #expect(allowed.endReason == nil, "as many as are allowed")
    let test = try loadTest(server.url) {
      $0.streams = 4
      $0.duration = .seconds(60)
      $0.profile.faults.dropEvery = .fixed(500_000_000)
      $0.maximumConnectionCount = 7
    }
    let report = try test.run()
    #expect(test.endReason == .connectionLimit(7))
    // Connections that were being opened at that moment.
    #expect((8..<8 + 4).contains(report.totals.connects))
    #expect(report.totals.streams.failed == 0)
  }
}
