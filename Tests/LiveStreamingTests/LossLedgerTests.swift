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

  @Test("adjacent and overlapping ranges are one, in any order, so that many of them do not exceed the limit")
  func merged() {
    let offsets = (0..<600 as Range<UInt64>).map { $0 * 10 }
    for order in [offsets, Array(offsets.reversed())] {
      for length: UInt64 in [10, 11] {
        var ledger = LossLedger()
        for offset in order { ledger.add(offset..<offset + length) }
        var once = LossLedger()
        once.add(0..<5990 + length)
        #expect(ledger == once && ledger.unknown(in: 0..<5990 + length) == [])
      }
    }
    var ledger = LossLedger()
    for range in [10..<20, 30..<40, 50..<60, 15..<55] as [Range<UInt64>] { ledger.add(range) }
    #expect(ledger.total == 50 && ledger.unknown(in: 0..<70) == [0..<10, 60..<70])
  }

  @Test("the ranges of 256 losses are known, and of more only the newest ones")
  func limit() {
    var ledger = LossLedger()
    for index in 0..<256 as Range<UInt64> { ledger.add(index * 10..<index * 10 + 3) }
    #expect(ledger.unknown(in: 0..<3) == [])
    ledger.add(2560..<2563)
    #expect(ledger.unknown(in: 0..<3) == [0..<3] && ledger.unknown(in: 10..<13) == [])
    #expect(ledger.total == 257 * 3 && ledger.end == 2563)
    // A loss before the known ranges does not count again, not even one that ends where they begin.
    for range in [0..<3, 1..<2, 0..<0] as [Range<UInt64>] { ledger.add(range) }
    #expect(ledger.total == 257 * 3)
    ledger.add(2..<5)
    #expect(ledger.total == 257 * 3 + 2)
  }

  @Test("of disjoint ranges, only the bytes within the bounds count")
  func bounds() {
    let ranges: [Range<UInt64>] = [0..<10, 20..<30, 40..<50]
    for (bounds, count) in [(0..<0, 0), (5..<5, 0), (0..<50, 30), (5..<45, 20), (12..<18, 0), (25..<UInt64.max, 15)]
      as [(Range<UInt64>, UInt64)]
    { #expect(LossLedger.byteCount(of: ranges, in: bounds) == count, "\(bounds)") }
  }

  @Test("bytes in a pause are neither lost nor unsent")
  func pause() {
    let cases: [(lost: Range<UInt64>, pause: Range<UInt64>?, expected: [Range<UInt64>])] = [
      (10..<20, nil, [10..<20]), (10..<20, 12..<15, [10..<12, 15..<20]), (10..<20, 10..<15, [15..<20]),
      (10..<20, 15..<20, [10..<15]), (10..<20, 5..<25, []), (10..<20, 30..<40, [10..<20]), (10..<10, 0..<5, []),
    ]
    for (lost, pause, expected) in cases { #expect(LossLedger.lost(lost, pause: pause) == expected) }
    let (acknowledged, lost) = LossLedger().account(captured: 30, oldest: 20, acknowledgedUpTo: 10, pause: 12..<15)
    #expect(acknowledged == 13 && lost == 7)
  }

  @Test("at the oldest byte in the buffer, everything before it is acknowledged")
  func nothingMissing() {
    for offset: UInt64 in [10, 11, 30, 40] {
      let (acknowledged, lost) = LossLedger().account(captured: 30, oldest: 10, acknowledgedUpTo: offset)
      #expect(acknowledged == min(offset, 30) && lost == 0)
    }
  }
}
