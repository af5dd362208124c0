import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("The ledger of messages")
struct MessageLedgerTests {
  /// All messages so far, and how many of them have reached each state.
  private struct Model {
    var all: [MessageLedger.Message] = []
    var sent = 0
    var accepted = 0
    var acknowledged = 0
    var lostUpTo: UInt64 = 0

    /// How many messages are completely before `offset`.
    func count(before offset: UInt64) -> Int { all.prefix { $0.end <= offset }.count }
  }

  @Test(
    "each message is sent, accepted and acknowledged once, in order, for any order of events",
    arguments: Seed.several(30))
  func model(_ seed: Seed) {
    var random = seed.generator
    var ledger = MessageLedger()
    var model = Model()
    for step in 0..<2000 {
      let offset = UInt64.random(in: 0...(ledger.head + 5), using: &random)
      switch Int.random(in: 0..<6, using: &random) {
      case 0, 1:
        let count = random.size(upTo: 3000)
        ledger.due(count, at: Int64(step))
        model.all.append(.init(end: ledger.head, byteCount: count, due: Int64(step)))
      case 5:
        // Each byte once, as the stream reports it.
        let end = UInt64.random(in: offset...(offset + 4000), using: &random)
        let range = max(offset, model.lostUpTo)..<max(offset, model.lostUpTo, end)
        model.lostUpTo = range.upperBound
        ledger.lost(range)
        for index in model.acknowledged..<model.all.count {
          let message = model.all[index]
          let bytes = (message.end - UInt64(message.byteCount))..<message.end
          model.all[index].lostByteCount += bytes.clamped(to: range).count
        }
      case 2:
        while let message = ledger.nextSent(before: offset) {
          #expect(message == model.all[model.sent])
          model.sent += 1
        }
        #expect(model.sent >= model.count(before: offset))
      case 3:
        while let message = ledger.nextAccepted(before: offset) {
          #expect(message == model.all[model.accepted])
          model.accepted += 1
        }
        #expect(model.accepted >= model.count(before: offset))
      default:
        while let message = ledger.nextAcknowledged(before: offset) {
          #expect(message == model.all[model.acknowledged])
          model.acknowledged += 1
        }
        #expect(model.acknowledged >= model.count(before: offset))
        // Bytes on the server were sent and accepted, whether or not that was noticed.
        model.sent = max(model.sent, model.acknowledged)
        model.accepted = max(model.accepted, model.acknowledged)
      }
      #expect(ledger.isEmpty == (model.acknowledged == model.all.count))
      #expect(model.sent <= model.all.count && model.accepted <= model.all.count)
    }
    #expect(ledger.head == model.all.last?.end ?? 0)
    while ledger.nextAcknowledged(before: ledger.head) != nil { model.acknowledged += 1 }
    #expect(model.acknowledged == model.all.count && ledger.isEmpty)
  }
}
