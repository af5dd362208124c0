// How busy loops were, in any order of their seconds and of the end of the measured time.

import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("The processor time of loops")
struct BusyLoopsTests {
  private static let second: Int64 = 1_000_000_000

  /// A second of a loop, and whether it may arrive before the end of the measured time.
  private struct Report {
    var number: Int64
    var processorTime: Int64
    var isEarly: Bool
  }

  /// The seconds of a loop that is busy for this share of the measured time.
  private func reports(_ share: Double, of measured: Int64, _ random: inout SplitMix64) -> [Report] {
    // A loop ends at once if it reaches a cap. Otherwise, it ends its streams first, which has its own cost.
    let reachesCap = random.chance(30)
    let end = reachesCap ? measured : measured + Int64.random(in: 0...3 * Self.second, using: &random)
    return (1...end / Self.second + 1).map { number in
      let (start, stop) = ((number - 1) * Self.second, number * Self.second)
      let isOver = !reachesCap && number > 1 && stop > measured
      let time = isOver ? Self.second : max(0, min(stop, measured) - start)
      return Report(
        number: number, processorTime: Int64(Double(time) * (isOver ? 1 : share)),
        isEarly: reachesCap || stop <= measured)
    }
  }

  @Test(
    "the busiest loop's share is that of the measured time, whenever the end and the last seconds arrive",
    arguments: Seed.several(20))
  func share(_ seed: Seed) {
    var random = seed.generator
    for _ in 0..<200 {
      let whole = Int64.random(in: 1...10, using: &random) * Self.second
      let measured = random.chance(40) ? whole : Int64.random(in: 1_000_000...whole, using: &random)
      let loopCount = Int.random(in: 1...4, using: &random)
      let shares: [Double] = (0..<loopCount).map { _ in [0, 0.5, 1].randomElement(using: &random) ?? 0 }
      var queues = shares.map { reports($0, of: measured, &random)[...] }
      var busy = BusyLoops(loopCount: loopCount)
      var isEnded = false
      while !isEnded || queues.contains(where: { !$0.isEmpty }) {
        let ready = queues.indices.filter { isEnded ? !queues[$0].isEmpty : queues[$0].first?.isEarly == true }
        let endsNow = !isEnded && random.chance(10)
        guard !endsNow, let loop = ready.randomElement(using: &random) else {
          busy.end(after: measured)
          isEnded = true
          continue
        }
        let report = queues[loop].removeFirst()
        busy.add(processorTime: report.processorTime, ofSecond: report.number, loop: loop)
      }
      let expected = shares.max() ?? 0
      #expect(abs(busy.busiestShare - expected) < 0.001, "\(seed): \(shares) in \(measured) ns")
    }
  }

  @Test("the last second of a busy loop counts if it arrives after the end", arguments: [1, 10] as [Int64])
  func lastSecond(seconds: Int64) {
    var busy = BusyLoops(loopCount: 2)
    for number in 1..<seconds { busy.add(processorTime: Self.second, ofSecond: number, loop: 1) }
    busy.end(after: seconds * Self.second)
    busy.add(processorTime: Self.second, ofSecond: seconds, loop: 1)
    #expect(busy.busiestShare == 1)
  }

  @Test("a run that was stopped before its start has no share, and neither has one without loops")
  func nothing() {
    var busy = BusyLoops(loopCount: 1)
    busy.end(after: -5)
    busy.add(processorTime: 1000, ofSecond: 1, loop: 0)
    #expect(busy.busiestShare == 0)
    #expect(BusyLoops(loopCount: 0).busiestShare == 0)
    #expect(BusyLoops(loopCount: 2).busiestShare == 0)
  }

  @Test("a run of less than a second has the share of its only second, and no loop has more than all of the time")
  func short() {
    var busy = BusyLoops(loopCount: 1)
    busy.end(after: Self.second / 2)
    busy.add(processorTime: Self.second / 4, ofSecond: 1, loop: 0)
    #expect(busy.busiestShare == 0.5)
    var busiest = BusyLoops(loopCount: 1)
    busiest.end(after: Self.second)
    busiest.add(processorTime: 3 * Self.second, ofSecond: 1, loop: 0)
    #expect(busiest.busiestShare == 1)
  }
}
