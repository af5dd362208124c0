// Each loss is reported exactly once.

import EventLoops
import NetworkTesting
import PropertyTesting
import Testing

@testable import LiveStreaming

@Suite("Known losses")
struct ReportedLossTests {
  @Test("of each range, exactly the offsets are new that no earlier range had", arguments: Seed.several(8))
  func unknown(seed: Seed) {
    var random = seed.generator
    for _ in 0..<200 {
      var ledger = LossLedger()
      var known: Set<UInt64> = []
      for _ in 0..<Int.random(in: 1...12, using: &random) {
        let start = UInt64.random(in: 0...60, using: &random)
        let range = start..<start + UInt64.random(in: 0...15, using: &random)
        let found = ledger.unknown(in: range)
        #expect(Set(found.joined()) == Set(range).subtracting(known), "\(seed): \(range) \(found)")
        #expect(found.allSatisfy { !$0.isEmpty } && found.reduce(0) { $0 + $1.count } == Set(found.joined()).count)
        for range in found { ledger.add(range) }
        known.formUnion(range)
        #expect(ledger.total == UInt64(known.count), "\(seed)")
      }
    }
  }

  @Test("a summary has a loss if and only if one of its counts has")
  func summaries() {
    let whole = StreamSummary(
      progress: StreamProgress(
        elapsed: .seconds(1), captured: 10, sent: 10, acknowledged: 9, lost: 0, buffered: 1, capacity: 10,
        outageCount: 1,
        isConnected: false), gaps: 0, resent: 3, sourceLost: 0, response: nil, missingAtServer: 0, error: nil)
    #expect(!whole.hasLoss)
    let losses: [(inout StreamSummary) -> Void] = [
      { $0.progress.lost = 1 }, { $0.sourceLost = 1 }, { $0.missingAtServer = 1 }, { $0.unconfirmed = 1 },
    ]
    for lose in losses {
      var summary = whole
      lose(&summary)
      #expect(summary.hasLoss, "\(summary)")
    }
  }

  @Test(
    "bytes that may be lost with a request are no loss if the server has confirmed the end and reports what it lacks",
    arguments: [nil, 0, 7] as [Int?])
  func settled(_ missing: Int?) throws {
    let mayRefuse = try EventCounter()
    let refusal = mayRefuse.descriptor
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      if number > 0 {
        _ = try connection.body()
        return try connection.respond("200 OK", missing.map { ["Stream-Missing: \($0)"] } ?? [])
      }
      // Far more than the client keeps of what TCP has acknowledged.
      var count = 0
      while count < 800_000, let bytes = try connection.receive() { count += bytes.count }
      try #require(waitUntilReadable(refusal))
      try connection.respond("502 Bad Gateway", ["Connection: close"])
      _ = connection.readToEnd()
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url) { $0.buffer = .bytes(1 << 20) }
      try source.push([UInt8](repeating: 1, count: 900_000))
      // The client knows by then that TCP has acknowledged more than it keeps.
      let acknowledged = Lock<UInt64>(0)
      try waitUntil("TCP acknowledges the bytes") {
        stream.streamer.withProgress { progress in acknowledged.withLock { $0 = progress.acknowledged } }
        return acknowledged.withLock { $0 } >= 700_000
      }
      mayRefuse.signal()
      try stream.waitForFailure()
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil)
      #expect(stream.failures().contains { $0.unconfirmed > 0 }, "\(stream.failures())")
      #expect((summary.unconfirmed > 0) == (missing == nil))
      #expect(summary.hasLoss == (missing != 0) && summary.progress.lost == UInt64(missing ?? 0))
    }
  }
}
