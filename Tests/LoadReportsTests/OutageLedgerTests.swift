// Outages are combined as on a timeline, whatever the order of their reports.

import PropertyTesting
import Testing

@testable import LoadReports

@Suite("The outages of a run")
struct OutageLedgerTests {
  private func outage(_ range: Range<Int64>, _ cause: String = "reset") -> LoadOutage {
    LoadOutage(range, cause: cause)
  }

  @Test(
    "they are the times without progress of at least one stream, in order, and count every interruption",
    arguments: Seed.several(200))
  func model(_ seed: Seed) {
    var random = seed.generator
    var still = Set<Int64>()
    var ledger = OutageLedger()
    var parts = [OutageLedger(), OutageLedger()]
    let count = Int.random(in: 0...40, using: &random)
    for _ in 0..<count {
      let start = Int64.random(in: 0..<500, using: &random)
      let end = start + Int64.random(in: 1...20, using: &random)
      still.formUnion(start...end)
      ledger.add(outage(start..<end))
      parts[Int.random(in: 0...1, using: &random)].add(outage(start..<end))
    }
    let found = ledger.outages
    #expect(found.allSatisfy { outage in (outage.start...outage.end).allSatisfy(still.contains) })
    #expect(found.reduce(0) { $0 + $1.length + 1 } == Int64(still.count))
    #expect(zip(found, found.dropFirst()).allSatisfy { $0.end < $1.start })
    #expect(found.reduce(0) { $0 + $1.streams } == UInt64(count))
    var merged = parts[0]
    merged.merge(parts[1])
    #expect(merged == ledger)
  }

  @Test("if there are too many, the nearest are merged, and no interruption is omitted")
  func limit() {
    var ledger = OutageLedger()
    for number in 0..<Int64(OutageLedger.limit) { ledger.add(outage(number * 1000..<number * 1000 + 10)) }
    ledger.add(outage(50_015..<50_020, "timed-out"))
    #expect(ledger.outages.count == OutageLedger.limit)
    #expect(ledger.longest == outage(50_000..<50_020) || ledger.longest?.length == 20)
    #expect(ledger.outages.reduce(0) { $0 + $1.streams } == UInt64(OutageLedger.limit) + 1)
    #expect(ledger.longest?.length ?? 0 >= 10)
  }
}
