// Pauses, where the producer omits bytes, and how the consumer learns of them.

import PropertyTesting
import Testing

@testable import StreamBuffers

@Suite("Pauses of CircularBuffer")
struct PauseTests {
  /// The buffer's maximum.
  private static let most = 16

  @Test(
    "pauses reach the consumer in order, each at its position, at most sixteen at a time", arguments: Seed.several(10))
  func inOrder(seed: Seed) throws {
    var random = seed.generator
    var ends = try CircularBuffer.make(capacity: .bytes(1 << 20), allowsPauses: true)
    var expected: [CircularBuffer.Pause] = []
    for _ in 0..<2000 {
      switch Int.random(in: 0..<5, using: &random) {
      case 0, 1:
        let length = random.next()
        let isTaken = ends.producer.pause(length)
        #expect(isTaken == (expected.count < Self.most))
        if isTaken { expected.append(CircularBuffer.Pause(position: ends.producer.head, length: length)) }
      case 2: _ = ends.producer.write(maximum: 1) { _ in 1 }
      default:
        // Without a pause, nothing happens.
        ends.consumer.passPause()
        if !expected.isEmpty { expected.removeFirst() }
      }
      try #require(ends.consumer.nextPause == expected.first)
    }
  }

  @Test("a buffer whose consumer does not support pauses accepts none")
  func notAllowed() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(1))
    let isTaken = ends.producer.pause(1)
    #expect(!isTaken && ends.consumer.nextPause == nil)
    ends.consumer.passPause()
    #expect(ends.consumer.nextPause == nil)
  }

  @Test("a pause wakes a consumer that waits for bytes, and a refused one does not")
  func wakes() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(1), allowsPauses: true)
    for _ in 0..<Self.most {
      #expect(ends.consumer.requestWakeUp(beyond: 0) == true)
      #expect(ends.producer.pause(1) == true)
      #expect(takeSignals(ends.consumer.dataDescriptor) == 1)
    }
    #expect(ends.consumer.requestWakeUp(beyond: 0) == true)
    #expect(ends.producer.pause(1) == false)
    #expect(takeSignals(ends.consumer.dataDescriptor) == 0)
  }
}
