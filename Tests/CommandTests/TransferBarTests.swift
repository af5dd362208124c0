import EventLoops
import PropertyTesting
import Testing

@testable import LiveStreaming
@testable import sluice

@Suite("The bar of an upload of known length")
struct TransferBarTests {
  private func progress(_ milliseconds: Int64, _ sent: UInt64, isConnected: Bool = true, outageCount: Int = 0)
    -> StreamProgress
  {
    StreamProgress(
      elapsed: .milliseconds(milliseconds), captured: 1_000_000, sent: sent, acknowledged: 0, lost: 0, buffered: 0,
      capacity: 0,
      outageCount: outageCount, isConnected: isConnected)
  }

  @Test("it shows the share, the bytes, the rate of the last seconds and the remaining time")
  func line() {
    let bar = TransferBar(total: 1_000_000)
    #expect(bar.line(progress(0, 0), width: 100) == "  0 % ▕\(String(repeating: " ", count: 30))▏ 0 B of 1.00 MB")
    let half = bar.line(progress(1000, 500_000), width: 100)
    #expect(half.hasPrefix(" 50 % ▕\(String(repeating: "█", count: 15))\(String(repeating: " ", count: 15))▏"))
    #expect(half.hasSuffix("500 kB of 1.00 MB  500 kB/s  00:01 left"))
    let whole = bar.line(progress(2000, 1_000_000), width: 100)
    #expect(whole.hasPrefix("100 % ▕\(String(repeating: "█", count: 30))▏") && whole.hasSuffix("00:00 left"))
  }

  @Test("the rate covers the last five seconds: it shows a stall, and forgets a fast start")
  func rate() {
    let bar = TransferBar(total: 1_000_000)
    _ = bar.line(progress(0, 0), width: 100)
    _ = bar.line(progress(1000, 500_000), width: 100)
    _ = bar.line(progress(6000, 500_000), width: 100)
    #expect(!bar.line(progress(7000, 500_000), width: 100).contains("/s"), "nothing moves")
    #expect(bar.line(progress(8000, 500_200), width: 100).contains("100 B/s"))
  }

  @Test("repeated bytes do not reduce the total, and an empty file is complete")
  func ends() {
    #expect(TransferBar(total: 1_000).line(progress(0, 5_000), width: 100).hasPrefix("100 %"))
    #expect(TransferBar(total: 0).line(progress(0, 0), width: 100).hasPrefix("100 %"))
    let lost = TransferBar(total: 1_000).line(progress(0, 10, isConnected: false, outageCount: 3), width: 100)
    #expect(lost.contains("not connected") && lost.contains("outages 3"))
  }

  @Test("it never reaches the last column, whatever its contents", arguments: Seed.several(10))
  func width(_ seed: Seed) {
    var random = seed.generator
    for width in 0..<150 {
      let total = random.next() >> UInt64.random(in: 0...63, using: &random)
      let bar = TransferBar(total: total)
      for step in 0..<4 {
        let sent = total == 0 ? 0 : UInt64.random(in: 0...total, using: &random)
        let line = bar.line(
          progress(Int64(step) * 700, sent, isConnected: random.chance(50), outageCount: random.size(upTo: 100_000)),
          width: width)
        #expect(line.count < max(1, width) && !line.contains { $0.isNewline })
      }
    }
  }
}
