// The memory of the messages that wait is limited, and a stream that waits can always continue.

import PropertyTesting
import Testing

@testable import LogCollecting

@Suite("The memory of streams that wait")
struct LaneMemoryTests {
  @Test("whatever streams wait, their messages never take more than the limit", arguments: Seed.several(20))
  func limit(_ seed: Seed) {
    var random = seed.generator
    var memory = LaneMemory()
    var lanes = Array(repeating: [Int](), count: 500)
    var largest = 0
    for _ in 0..<20_000 {
      let index = Int.random(in: lanes.indices, using: &random)
      if random.chance(30), !lanes[index].isEmpty {
        memory.release(lanes[index].removeFirst())
      } else {
        let (size, others) = (Int.random(in: 1024...300_000, using: &random), lanes[index].reduce(0, +))
        if memory.reserve(size, behind: lanes[index].isEmpty ? nil : others) { lanes[index].append(size) }
      }
      largest = max(largest, memory.size)
    }
    #expect(largest <= LaneMemory.limit, "\(seed)")
    #expect(memory.size == lanes.joined().reduce(0, +), "\(seed)")
    #expect(lanes.allSatisfy { $0.count <= 1 || $0.reduce(0, +) <= LaneMemory.share }, "\(seed)")
  }

  @Test("many messages of some streams leave memory for the first messages of others")
  func firstMessages() {
    var memory = LaneMemory()
    let size = 64 << 10
    var count = 0
    for _ in 0..<1000 {
      guard memory.reserve(size, behind: nil) else { break }
      var kept = size
      while memory.reserve(size, behind: kept) { kept += size }
      count += 1
    }
    #expect(memory.isFull && memory.size == LaneMemory.limit && count > LaneMemory.limit / 2 / size)
    for _ in 0..<(LaneMemory.limit / 2 / size) { memory.release(size) }
    #expect(!memory.isFull)
    let isKept = memory.reserve(size, behind: nil)
    #expect(isKept)
  }
}
