// Each loss is reported exactly once.

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
}
