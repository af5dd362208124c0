// The circular buffer with a thread at each end, where the order of memory accesses matters. Run it under
// ThreadSanitizer.

import EventLoops
import PropertyTesting
import StreamBuffers
import Synchronization
import Testing

@Suite("CircularBuffer with a thread at each end")
struct CircularBufferThreadTests {
  static let pattern = OffsetPattern()

  @Test(
    "both ends wait for each other over megabytes, and no wake-up is lost",
    arguments: Seed.several(2), [CircularBuffer.Memory.kept, .returned])
  func lossless(seed: Seed, memory: CircularBuffer.Memory) throws {
    let random = seed.generator
    let total: UInt64 = 24 << 20
    let ends = try CircularBuffer.make(capacity: .bytes(4096), overflow: .refuse, memory: memory)
    let producer = Handover(ends.producer)
    let consumer = Handover(ends.consumer)
    try concurrently(
      {
        var producer = producer.take()
        var random = random
        // Requesting up to half keeps both sides waiting for each other.
        while producer.head < total {
          let size = min(random.size(upTo: 2048), Int(total - producer.head))
          while producer.requestSpace(size) {
            guard waitUntilReadable(producer.spaceDescriptor) else {
              Issue.record("the producer's wake-up was lost at \(producer.head) (\(seed))")
              return producer.finish()
            }
            producer.drainSpaceSignals()
          }
          let head = producer.head
          let result = producer.write(minimum: size, maximum: size) { span in
            span.withUnsafeMutableBytes { Self.pattern.fill($0, at: head) }
            return size
          }
          if result != .written(size) { Issue.record("room was signalled, but \(result) (\(seed))") }
        }
        producer.finish()
      },
      {
        var consumer = consumer.take()
        var random = SplitMix64(state: seed.value ^ 1)
        var cursor: UInt64 = 0
        while cursor < total {
          while consumer.requestWakeUp(beyond: cursor) {
            guard waitUntilReadable(consumer.dataDescriptor) else {
              Issue.record("the consumer's wake-up was lost at \(cursor) (\(seed))")
              return
            }
            takeSignals(consumer.dataDescriptor)
          }
          let maximum = random.size(upTo: 4096)
          switch consumer.read(at: cursor, maximum: maximum, { Self.check($0, at: cursor) }) {
          case .bytes(let count?): cursor += UInt64(count)
          case .bytes(nil): return Self.fail("wrong bytes at \(cursor) (\(seed))")
          // Woken by the end before everything was there. The check after the loop reports it.
          case .empty where consumer.isFinished && consumer.head == cursor: return Self.fail("ended at \(cursor)")
          case .empty: Issue.record("woken for nothing at \(cursor) (\(seed))")
          case .overwritten: return Self.fail("overwritten, though nothing may be dropped (\(seed))")
          }
          consumer.release(upTo: cursor)
        }
        #expect(cursor == total)
      })
  }

  @Test(
    "with drop-oldest, each byte is read correctly or reported as lost, and the sums agree",
    arguments: Seed.several(3), [CircularBuffer.Memory.kept, .returned])
  func dropOldest(seed: Seed, memory: CircularBuffer.Memory) throws {
    let random = seed.generator
    let total: UInt64 = 64 << 20
    let ends = try CircularBuffer.make(
      capacity: .bytes(memory == .kept ? 2 * 4096 : 256 << 10), overflow: .dropOldest, memory: memory)
    let producer = Handover(ends.producer)
    let consumer = Handover(ends.consumer)
    let read = Atomic<UInt64>(0)
    let lost = Atomic<UInt64>(0)
    try concurrently(
      {
        var producer = producer.take()
        var random = random
        while producer.head < total {
          let size = min(random.size(upTo: producer.capacity / 2), Int(total - producer.head))
          let head = producer.head
          // Full only while the consumer uses the bytes that would be dropped. Tries again at once, for maximum
          // contention.
          _ = producer.write(minimum: size, maximum: min(size, OffsetPattern.longestRun)) { span in
            span.withUnsafeMutableBytes { span in
              let part = UnsafeMutableRawBufferPointer(rebasing: span.prefix(OffsetPattern.longestRun))
              Self.pattern.fill(part, at: head)
            }
            return min(size, OffsetPattern.longestRun)
          }
        }
        producer.finish()
      },
      {
        var consumer = consumer.take()
        var random = SplitMix64(state: seed.value ^ 1)
        var cursor: UInt64 = 0
        while true {
          // First whether the head is final, and then the head. In the other order, the last bytes could arrive in
          // between.
          if consumer.isFinished, cursor == consumer.head { return }
          switch consumer.read(at: cursor, maximum: random.size(upTo: 8192), { Self.check($0, at: cursor) }) {
          case .bytes(let count?):
            cursor += UInt64(count)
            read.add(UInt64(count), ordering: .relaxed)
          case .bytes(nil): return Self.fail("bytes changed while they were read, at \(cursor) (\(seed))")
          case .empty: continue
          case .overwritten(let oldest):
            guard oldest > cursor else { return Self.fail("overwritten up to \(oldest), behind \(cursor) (\(seed))") }
            lost.add(oldest - cursor, ordering: .relaxed)
            cursor = oldest
          }
          if random.chance(30) { consumer.release(upTo: cursor) }
        }
      })
    #expect(read.load(ordering: .relaxed) + lost.load(ordering: .relaxed) == total)
    #expect(read.load(ordering: .relaxed) > 0)
  }

  @Test("a reader at the oldest byte never reads a newer one in its place", arguments: Seed.several(2))
  func pinnedAtTheOldest(seed: Seed) throws {
    let random = seed.generator
    let ends = try CircularBuffer.make(capacity: .bytes(4096), overflow: .dropOldest)
    let producer = Handover(ends.producer)
    let consumer = Handover(ends.consumer)
    let stop = Atomic<Bool>(false)
    let reads = 200_000
    try concurrently(
      {
        var producer = producer.take()
        var random = random
        while !stop.load(ordering: .relaxed) {
          let size = random.size(upTo: 4096)
          let head = producer.head
          _ = producer.write(minimum: size, maximum: size) { span in
            span.withUnsafeMutableBytes { Self.pattern.fill($0, at: head) }
            return size
          }
        }
      },
      {
        let consumer = consumer.take()
        defer { stop.store(true, ordering: .relaxed) }
        for _ in 0..<reads {
          // The oldest byte is where a write and a read meet.
          let oldest = consumer.released
          if case .bytes(nil) = consumer.read(at: oldest, { Self.check($0, at: oldest) }) {
            return Self.fail("the oldest bytes were overwritten while they were read, at \(oldest) (\(seed))")
          }
        }
      })
  }

  private static func fail(_ words: String) { Issue.record(Comment(rawValue: words)) }

  /// The number of bytes in `span`, or nil if they are not the stream's bytes from `offset` on.
  private static func check(_ span: RawSpan, at offset: UInt64) -> Int? {
    span.withUnsafeBytes { bytes in
      var done = 0
      while done < bytes.count {
        let part = UnsafeRawBufferPointer(rebasing: bytes[done..<min(bytes.count, done + OffsetPattern.longestRun)])
        if !pattern.matches(part, at: offset + UInt64(done)) { return nil }
        done += part.count
      }
      return done
    }
  }
}
