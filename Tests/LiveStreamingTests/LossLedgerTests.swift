import PropertyTesting
import Testing

@testable import LiveStreaming

@Suite("The account of lost, acknowledged and unsent bytes")
struct LossLedgerTests {
  /// A stream of a few hundred bytes, each of which is checked.
  private struct Model {
    var captured: UInt64 = 0
    var oldest: UInt64 = 0
    var acknowledged: UInt64 = 0
    var lost: Set<UInt64> = []

    var lostNow: Set<UInt64> { lost.union(acknowledged < oldest ? Set(acknowledged..<oldest) : []) }
  }

  @Test("captured is acknowledged, lost and unsent together, and no byte is lost twice", arguments: Seed.several(100))
  func sums(_ seed: Seed) {
    var random = seed.generator
    var (model, ledger) = (Model(), LossLedger())
    for _ in 0..<300 {
      switch Int.random(in: 0..<6, using: &random) {
      case 0, 1: model.captured += UInt64.random(in: 0...20, using: &random)
      case 2:
        // The server acknowledges bytes, and they are released.
        model.acknowledged = UInt64.random(
          in: model.acknowledged...max(model.acknowledged, model.captured), using: &random)
        model.oldest = max(model.oldest, min(model.acknowledged, UInt64.random(in: 0...model.captured, using: &random)))
      case 3: model.oldest = UInt64.random(in: model.oldest...model.captured, using: &random)  // the buffer is full
      case 4:
        // The server has less than it had acknowledged.
        model.acknowledged = UInt64.random(in: 0...model.acknowledged, using: &random)
      default:
        // The next request begins after the bytes that are no longer kept.
        guard model.acknowledged < model.oldest else { continue }
        let end = UInt64.random(in: model.oldest...model.captured, using: &random)
        model.lost.formUnion(model.acknowledged..<end)
        ledger.add(model.acknowledged..<end)
        (model.acknowledged, model.oldest) = (end, end)
      }
      let (acknowledged, lost) = ledger.account(
        captured: model.captured, oldest: model.oldest, acknowledgedUpTo: model.acknowledged)
      #expect(lost == UInt64(model.lostNow.count))
      let unsent = Set(model.oldest..<model.captured).subtracting(0..<model.acknowledged).subtracting(model.lost)
      #expect(acknowledged + lost + UInt64(unsent.count) == model.captured)
    }
  }

  @Test("each of many gaps counts, even if their number exceeds the limit")
  func manyGaps() {
    var ledger = LossLedger()
    for index in 0..<10_000 as Range<UInt64> { ledger.add(index * 10..<index * 10 + 3) }
    #expect(ledger.total == 30_000 && ledger.end == 99_993)
    let (acknowledged, lost) = ledger.account(captured: 100_000, oldest: 99_993, acknowledgedUpTo: 100_000)
    #expect(acknowledged == 70_000 && lost == 30_000)
    // Ranges beyond the limit do not count twice either, and one that extends further counts from its new part on.
    for index in 0..<10_000 as Range<UInt64> { ledger.add(index * 10..<index * 10 + 3) }
    #expect(ledger.total == 30_000)
    ledger.add(0..<100_000)
    #expect(ledger.total > 30_000 && ledger.total < 100_000 && ledger.end == 100_000)
  }

  @Test("no offset causes a trap, however large")
  func huge() {
    var ledger = LossLedger()
    ledger.add(0..<UInt64.max)
    ledger.add(UInt64.max - 1..<UInt64.max)
    #expect(ledger.total == .max && ledger.end == .max)
    let (acknowledged, lost) = ledger.account(captured: .max, oldest: 5, acknowledgedUpTo: .max)
    #expect(acknowledged == 0 && lost == .max)
  }
}
