// A circular buffer over a stretch on disk, with its real thread and a real file system.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import StreamBuffers
import Synchronization
import Testing

@testable import SpooledStreams

@Suite("A circular buffer over a spool")
struct SpooledStretchTests {
  static let pattern = OffsetPattern()

  /// The behaviour of a stream and its consumer.
  private struct Course {
    var overflow = CircularBuffer.Overflow.refuse
    var limit: UInt64 = 64 << 20
    /// The consumer begins when this many bytes are written.
    var readsFrom: UInt64
    /// In percent, after each read.
    var releases: Int
    let total: UInt64 = 2 << 20
    let capacity = 32 << 10
  }

  @Test(
    "each byte is read once, in order, from memory or disk, for any times of reads and releases",
    arguments: Seed.several(6))
  func complete(seed: Seed) throws {
    var random = seed.generator
    let course = Course(
      readsFrom: [0, 64 << 10, 1 << 20, 2 << 20].randomElement(using: &random)!,
      releases: [0, 5, 100].randomElement(using: &random)!)
    let directory = try SpoolDirectory()
    let spool = try directory.open(limit: course.limit)
    let buffer = try spool.begin(description: "test", capacity: course.capacity, overflow: .refuse)
    let lost = try Self.run(course, buffer, seed)
    #expect(lost == 0, "\(seed)")
    try spool.finish(buffer.stretch, isDelivered: true)
    #expect(try directory.stretches() == [], "\(seed)")
    #expect(directory.events.isEmpty, "\(seed): \(directory.events)")
  }

  @Test("bytes that do not fit are evicted, oldest first, and the rest is read in order", arguments: Seed.several(4))
  func evicted(seed: Seed) throws {
    let course = Course(overflow: .dropOldest, limit: 512 << 10, readsFrom: 2 << 20, releases: 5)
    let directory = try SpoolDirectory()
    let spool = try directory.open(limit: course.limit)
    let buffer = try spool.begin(description: "test", capacity: course.capacity, overflow: .dropOldest)
    let lost = try Self.run(course, buffer, seed)
    // The producer does not wait, so the disk may also have fallen behind.
    #expect(lost >= course.total - course.limit - UInt64(course.capacity) - (64 << 10), "\(seed): \(lost)")
    #expect(lost < course.total, "\(seed)")
    try spool.finish(buffer.stretch, isDelivered: true)
  }

  @Test(
    "the next process finds the undelivered bytes and the data for resumption, and no acknowledged bytes",
    arguments: Seed.several(8))
  func reopened(seed: Seed) throws {
    var random = seed.generator
    let directory = try SpoolDirectory()
    let total = UInt64(random.size(upTo: 300_000))
    let acknowledged = UInt64.random(in: 0..<total, using: &random)
    do {
      let spool = try directory.open(limit: 64 << 20)
      let buffer = try spool.begin(description: "whose", capacity: 64 << 10, overflow: .refuse)
      var ends = try buffer.ends()
      while ends.producer.head < total {
        let (head, size) = (ends.producer.head, min(random.size(upTo: 2048), Int(total - ends.producer.head)))
        try ends.producer.waitForSpace(size)
        ends.producer.capture(size)
        ends.consumer.release(upTo: min(head, acknowledged))
      }
      ends.consumer.release(upTo: acknowledged)
      buffer.stretch.note("how", isUrgent: random.chance(50))
      if random.chance(50) { ends.producer.finish() }
      let inMemory = try spool.finish(buffer.stretch, isDelivered: false)
      #expect(inMemory == 0, "\(seed)")
    }
    // A program that only drains has no limit.
    let spool = try directory.open(limit: random.chance(50) ? 64 << 20 : .max)
    let backlog = try #require(try spool.opened(spool.backlog.first), "\(seed)")
    #expect(spool.backlog.count == 1 && backlog.description == "whose" && backlog.resumption == "how", "\(seed)")
    #expect(backlog.kept == acknowledged..<total, "\(seed): \(backlog.kept) of \(total)")
    var consumer = try backlog.consumer()
    #expect(consumer.capacity >= Int(total - acknowledged), "\(seed)")
    var cursor = acknowledged
    while cursor < total {
      try #require(try Self.read(&consumer, &cursor, random.size(upTo: 8192), seed) == 0)
    }
    #expect(consumer.isFinished && consumer.head == total)
    try spool.finish(backlog.stretch, isDelivered: true)
    #expect(try directory.stretches() == [], "\(seed)")
  }

  @Test("the last bytes of a source that was stopped a moment before the end of its stream are kept")
  func lastBytes() throws {
    let directory = try SpoolDirectory()
    let counted = Lock<UInt64?>(nil)
    do {
      let spool = try directory.open(limit: 1 << 20, sourcePatience: .seconds(60))
      let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
      var ends = try buffer.ends()
      ends.producer.capture(1000)
      try SpoolDirectory.wait(for: "the first bytes") { try directory.newest()?.checkpoint.head == 1000 }
      let done = try EventCounter()
      let descriptor = done.descriptor
      spool.end(buffer.stretch, isDelivered: false) { inMemory in
        counted.withLock { $0 = inMemory }
        done.signal()
      }
      // The spool's thread is after the call above.
      let unknown = SpooledStretch(kept: 0..<0, released: 0, capacity: 1 << 20, load: { _ in }, keep: {})
      try spool.finish(unknown, isDelivered: true)
      ends.producer.capture(500)
      ends.producer.finish()
      try #require(waitUntilReadable(descriptor))
    }
    #expect(counted.withLock { $0 } == 0)
    let head = try directory.newest()?.checkpoint.head
    #expect(head == 1500)
  }

  @Test("a consumer that finds bytes being written to the disk is woken once, when they are written")
  func beingWritten() {
    let stretch = SpooledStretch(kept: 0..<0, released: 0, capacity: 1 << 20, load: { _ in }, keep: {})
    stretch.took(upTo: 100)
    guard case .empty = stretch.read(at: 0, maximum: 10, oldestInMemory: 100) else {
      Issue.record("the bytes were read, or are missing")
      return
    }
    let wakeUps = [stretch.wrote(upTo: 100), stretch.wrote(upTo: 100)]
    #expect(wakeUps == [true, false])
  }

  @Test("a second process on the same spool is refused, and another stream is not")
  func locked() throws {
    let directory = try SpoolDirectory()
    let spool = try directory.open(limit: 1 << 20)
    #expect(throws: SpoolError.self) { _ = try directory.open(limit: 1 << 20, patience: .zero) }
    _ = try directory.open(limit: 1 << 20, stream: "other")
    withExtendedLifetime(spool) {}
  }

  // MARK: Both threads

  /// Streams to the end. Returns how many bytes were lost.
  private static func run(_ course: Course, _ buffer: SpooledBuffer, _ seed: Seed) throws -> UInt64 {
    let ends = try buffer.ends()
    let (producer, consumer) = (Handover(ends.producer), Handover(ends.consumer))
    let lost = Atomic<UInt64>(0)
    let random = seed.generator
    try concurrently(
      {
        var producer = producer.take()
        var random = random
        while producer.head < course.total {
          let (head, size) = (producer.head, min(random.size(upTo: 4096), Int(course.total - producer.head)))
          while course.overflow == .refuse, producer.requestSpace(size) {
            guard waitUntilReadable(producer.spaceDescriptor) else {
              fail("no space at \(head) (\(seed))")
              return producer.finish()
            }
            producer.drainSpaceSignals()
          }
          producer.capture(size)
        }
        producer.finish()
      },
      {
        var consumer = consumer.take()
        var random = SplitMix64(state: seed.value ^ 1)
        while consumer.requestWakeUp(beyond: course.readsFrom) {
          guard waitUntilReadable(consumer.dataDescriptor) else { return fail("no bytes (\(seed))") }
          takeSignals(consumer.dataDescriptor)
        }
        var cursor: UInt64 = 0
        while !(consumer.isFinished && consumer.head == cursor) {
          do {
            lost.wrappingAdd(try read(&consumer, &cursor, random.size(upTo: 8192), seed), ordering: .relaxed)
          } catch {
            return fail("\(error)")
          }
          if random.chance(course.releases) { consumer.release(upTo: cursor) }
        }
      })
    return lost.load(ordering: .relaxed)
  }

  struct Failure: Error { var reason: String }

  /// Reads and compares once if bytes are available. Returns how many bytes were lost before them.
  static func read(
    _ consumer: inout CircularBuffer.Consumer, _ cursor: inout UInt64, _ maximum: Int, _ seed: Seed
  ) throws -> UInt64 {
    while true {
      let start = cursor
      switch consumer.read(
        at: cursor, maximum: maximum, { $0.withUnsafeBytes { pattern.matches($0, at: start) ? $0.count : nil } })
      {
      case .bytes(let count?):
        cursor += UInt64(count)
        return 0
      case .bytes(nil): throw Failure(reason: "wrong bytes at \(cursor) (\(seed))")
      case .overwritten(let oldest):
        guard oldest > cursor else { throw Failure(reason: "overwritten up to \(oldest), at \(cursor) (\(seed))") }
        defer { cursor = oldest }
        return oldest - cursor
      case .empty:
        if !consumer.isBacked(at: cursor), !consumer.requestWakeUp(beyond: cursor) {
          if consumer.isFinished, consumer.head == cursor { return 0 }
          continue
        }
        guard waitUntilReadable(consumer.dataDescriptor) else {
          throw Failure(reason: "the wake-up at \(cursor) of \(consumer.head) was lost (\(seed))")
        }
        takeSignals(consumer.dataDescriptor)
      }
    }
  }

  private static func fail(_ reason: String) { Issue.record(Comment(rawValue: reason)) }
}
