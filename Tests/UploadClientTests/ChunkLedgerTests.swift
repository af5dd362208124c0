import PropertyTesting
import Testing

@testable import UploadClient

@Suite("Which bytes of a chunked body are acknowledged")
struct ChunkLedgerTests {
  /// The body's wire format as a list: for each wire byte, how many body bytes are complete with it.
  struct Model {
    private(set) var bodyCountAfterWire: [UInt64] = [0]
    private var body: UInt64 = 0

    mutating func append(_ count: Int) {
      let framing = String(count, radix: 16).utf8.count + 2
      bodyCountAfterWire += Array(repeating: body, count: framing)
      for _ in 0..<count {
        body += 1
        bodyCountAfterWire.append(body)
      }
      bodyCountAfterWire += [body, body]
    }
  }

  @Test(
    "every count of wire bytes gives exactly the preceding body bytes, unless chunks are merged",
    arguments: Seed.several(20))
  func exact(_ seed: Seed) {
    var random = seed.generator
    var (ledger, model) = (ChunkLedger(), Model())
    var wire = 0
    for _ in 0..<400 {
      if random.chance(60) {
        let count = random.size(upTo: 300)
        ledger.append(count)
        model.append(count)
      } else {
        wire = Int.random(in: wire..<model.bodyCountAfterWire.count, using: &random)
        #expect(ledger.acknowledge(wireCount: UInt64(wire)) == model.bodyCountAfterWire[wire])
      }
    }
    #expect(Int(ledger.wireByteCount) == model.bodyCountAfterWire.count - 1)
    for wire in wire..<model.bodyCountAfterWire.count {
      #expect(ledger.acknowledge(wireCount: UInt64(wire)) == model.bodyCountAfterWire[wire])
    }
  }

  @Test(
    "with any number of outstanding chunks, it never counts a byte too many, and all bytes at the end",
    arguments: Seed.several(10))
  func mergedIsFromBelow(_ seed: Seed) {
    var random = seed.generator
    var (ledger, model) = (ChunkLedger(), Model())
    var (wire, last) = (0, UInt64(0))
    for _ in 0..<6_000 {
      let count = random.size(upTo: 40)
      ledger.append(count)
      model.append(count)
      guard random.chance(5) else { continue }
      wire = Int.random(in: wire...min(wire + 100, model.bodyCountAfterWire.count - 1), using: &random)
      let answer = ledger.acknowledge(wireCount: UInt64(wire))
      #expect(answer <= model.bodyCountAfterWire[wire])
      #expect(answer >= last)
      last = answer
    }
    // Now thousands are outstanding, most of them merged. No count on the way may be too high.
    #expect(model.bodyCountAfterWire.count - wire > 20_000)
    for wire in wire..<model.bodyCountAfterWire.count
    where ledger.acknowledge(wireCount: UInt64(wire)) > model.bodyCountAfterWire[wire] {
      Issue.record("too many at \(wire)")
      break
    }
    #expect(ledger.acknowledge(wireCount: ledger.wireByteCount) == ledger.bodyByteCount)
  }

  @Test("of merged chunks, only the payload is acknowledged as it arrives")
  func mergedLag() {
    var (ledger, model) = (ChunkLedger(), Model())
    for _ in 0..<2_000 {
      ledger.append(300)
      model.append(300)
    }
    // Up to 64 chunks are one entry then, each with 7 bytes that are not payload.
    var most: UInt64 = 0
    for wire in stride(from: 0, to: model.bodyCountAfterWire.count, by: 31) {
      most = max(most, model.bodyCountAfterWire[wire] - ledger.acknowledge(wireCount: UInt64(wire)))
    }
    #expect(most < 64 * 7)
  }

  @Test("chunks with their own record are counted to the byte")
  func unmerged() {
    var (ledger, model) = (ChunkLedger(), Model())
    for _ in 0..<ChunkLedger.maximumEntries {
      ledger.append(300)
      model.append(300)
    }
    for wire in stride(from: 0, to: model.bodyCountAfterWire.count, by: 7) {
      #expect(ledger.acknowledge(wireCount: UInt64(wire)) == model.bodyCountAfterWire[wire])
    }
  }

  @Test("acknowledged chunks need no record, so that those after them stay exact")
  func forgotten() {
    var (ledger, model) = (ChunkLedger(), Model())
    var isExact = true
    for _ in 0..<3 * ChunkLedger.maximumEntries {
      ledger.append(20)
      model.append(20)
      for wire in stride(from: model.bodyCountAfterWire.count - 12, to: model.bodyCountAfterWire.count, by: 3)
      where ledger.acknowledge(wireCount: UInt64(wire)) != model.bodyCountAfterWire[wire] { isExact = false }
      _ = ledger.acknowledge(wireCount: ledger.wireByteCount)
    }
    #expect(isExact)
    let entries = Mirror(reflecting: ledger).children.first { $0.label == "entries" }?.value as? [Any]
    #expect(entries?.count == 0)
  }

  @Test("a decreasing wire count has no effect")
  func neverBack() {
    var ledger = ChunkLedger()
    ledger.append(100)
    #expect(ledger.acknowledge(wireCount: 54) == 50)
    #expect(ledger.acknowledge(wireCount: 10) == 50)
    #expect(ledger.acknowledge(wireCount: 0) == 50)
  }
}
