// That a loss is reported once, and none is left out.

import PropertyTesting
import Testing

@testable import LiveStreaming

@Suite("Losses that are known already")
struct ReportedLossTests {
  @Test("of each range exactly the offsets are new that no earlier range had", arguments: Seed.several(8))
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
}
