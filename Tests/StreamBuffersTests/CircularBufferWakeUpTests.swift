// How the two ends of the circular buffer wake each other: exactly when requested, and without a lost wake-up.

import EventLoops
import PropertyTesting
import StreamBuffers
import Synchronization
import Testing

// `== true`: the macro would capture an end, which cannot be copied, if the call stood alone.
@Suite("CircularBuffer wakes waiting ends")
struct CircularBufferWakeUpTests {
  @Test("the consumer receives exactly the promised signals, for any timing of the producer")
  func dataSignalsAreWhatWasPromised() throws {
    let ends = try CircularBuffer.make(capacity: .bytes(1 << 20), overflow: .dropOldest)
    let producer = Handover(ends.producer)
    let consumer = Handover(ends.consumer)
    try concurrently(
      {
        // Never waits, so that a write may occur between any two steps of a request.
        var producer = producer.take()
        for _ in 0..<1_000_000 { _ = producer.write(maximum: 1) { _ in 1 } }
        producer.finish()
      },
      {
        var consumer = consumer.take()
        var promised: UInt64 = 0
        var signals: UInt64 = 0
        while !consumer.isFinished {
          if consumer.requestWakeUp(beyond: consumer.head) {
            promised += 1
            guard waitUntilReadable(consumer.dataDescriptor) else { return Self.fail("no signal at \(consumer.head)") }
            signals += takeSignals(consumer.dataDescriptor)
          }
        }
        signals += takeSignals(consumer.dataDescriptor)
        #expect(signals == promised)
        #expect(promised > 0)
      })
  }

  @Test("the producer receives exactly the promised signals, for any timing of the consumer")
  func spaceSignalsAreWhatWasPromised() throws {
    let total = 100_000
    let ends = try CircularBuffer.make(capacity: .bytes(4096))
    let producer = Handover(ends.producer)
    let consumer = Handover(ends.consumer)
    try concurrently(
      {
        var producer = producer.take()
        var promised: UInt64 = 0
        var signals: UInt64 = 0
        while producer.head < total {
          if producer.requestSpace(min(producer.freeByteCount + 1, producer.capacity)) {
            promised += 1
            guard waitUntilReadable(producer.spaceDescriptor) else { return Self.fail("no signal at \(producer.head)") }
            signals += takeSignals(producer.spaceDescriptor)
          }
          _ = producer.write(maximum: 1) { _ in 1 }
        }
        producer.finish()
        signals += takeSignals(producer.spaceDescriptor)
        #expect(signals == promised)
        #expect(promised > 0)
      },
      {
        // Never waits, and releases one byte at a time.
        var consumer = consumer.take()
        while !(consumer.isFinished && consumer.released == consumer.head) {
          if consumer.head > consumer.released { consumer.release(upTo: consumer.released + 1) }
        }
      })
  }

  @Test("an end that does not wait receives no signal")
  func noSignalUnasked() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(4096))
    _ = ends.producer.write(maximum: 100) { _ in 100 }
    ends.consumer.release(upTo: 50)
    ends.producer.finish()
    #expect(takeSignals(ends.consumer.dataDescriptor) == 0)
    #expect(takeSignals(ends.producer.spaceDescriptor) == 0)
  }

  @Test("the consumer wakes once for a burst of writes, and at the end of the stream")
  func oneSignalABurst() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(4096))
    #expect(ends.consumer.requestWakeUp(beyond: 0) == true)
    for _ in 0..<10 { _ = ends.producer.write(maximum: 10) { _ in 10 } }
    #expect(takeSignals(ends.consumer.dataDescriptor) == 1)
    #expect(ends.consumer.requestWakeUp(beyond: 99) == false, "one byte is there")
    #expect(ends.consumer.requestWakeUp(beyond: 100) == true)
    ends.producer.finish()
    #expect(takeSignals(ends.consumer.dataDescriptor) == 1)
    #expect(ends.consumer.requestWakeUp(beyond: 100) == false, "nothing will come")
    #expect(ends.consumer.isFinished == true)
  }

  @Test("the producer wakes only when all requested space is free")
  func spaceInFull() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(4096))
    _ = ends.producer.write(minimum: 4096) { _ in 4096 }
    #expect(ends.producer.requestSpace(1000) == true)
    ends.consumer.release(upTo: 999)
    #expect(takeSignals(ends.producer.spaceDescriptor) == 0)
    ends.consumer.release(upTo: 1000)
    #expect(takeSignals(ends.producer.spaceDescriptor) == 1)
    ends.consumer.release(upTo: 1001)
    #expect(takeSignals(ends.producer.spaceDescriptor) == 0)
  }

  @Test("with returned memory, the largest write fits once everything is released, at any head")
  func spaceWithReturnedMemory() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(256 << 10), memory: .returned)
    let largest = ends.producer.largestMinimum
    #expect(largest >= 256 << 10)
    for _ in 0..<20 {
      _ = ends.producer.write(minimum: 100_003, maximum: 100_003) { _ in 100_003 }
      ends.consumer.release(upTo: ends.consumer.head)
      #expect(ends.producer.requestSpace(largest) == false, "at \(ends.producer.head)")
      #expect(ends.producer.write(minimum: largest) { _ in 0 } == .written(0))
    }
  }

  private static func fail(_ words: String) { Issue.record(Comment(rawValue: words)) }
}
