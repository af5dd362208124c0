// The circular buffer with its third end: copied bytes may leave memory before they are released.

import EventLoops
import Glibc
import PropertyTesting
import StreamBuffers
import Synchronization
import Testing

@Suite("CircularBuffer with a copier")
struct CircularBufferCopierTests {
  static let pattern = OffsetPattern()

  @Test(
    "three threads pass megabytes through memory and copy, each byte once", arguments: Seed.several(2),
    [CircularBuffer.Overflow.refuse, .dropOldest])
  func threeThreads(seed: Seed, overflow: CircularBuffer.Overflow) throws {
    let random = seed.generator
    let total: UInt64 = 3 << 20
    let copy = CopyInMemory()
    var settings = CircularBuffer.Settings(capacity: 16 << 10)
    (settings.overflow, settings.hasCopier, settings.backing) = (overflow, true, copy)
    let ends = try CircularBuffer.makeCopied(settings)
    let (producer, consumer, copier) = (Handover(ends.producer), Handover(ends.consumer), Handover(ends.copier))
    let read = Atomic<UInt64>(0)
    let lost = Atomic<UInt64>(0)
    try concurrently(
      {
        var producer = producer.take()
        var random = random
        while producer.head < total {
          let size = min(random.size(upTo: 2048), Int(total - producer.head))
          while overflow == .refuse, producer.requestSpace(size) {
            guard waitUntilReadable(producer.spaceDescriptor) else {
              Issue.record("the producer's wake-up was lost at \(producer.head) (\(seed))")
              return producer.finish()
            }
            producer.drainSpaceSignals()
          }
          let head = producer.head
          _ = producer.write(minimum: size, maximum: size) { span in
            span.withUnsafeMutableBytes { Self.pattern.fill($0, at: head) }
            return size
          }
        }
        producer.finish()
      },
      {
        let copier = copier.take()
        copy.attach(copier.waker)
        var random = SplitMix64(state: seed.value ^ 2)
        var position: UInt64 = 0
        let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 8192, alignment: 8)
        defer { buffer.deallocate() }
        while true {
          let isFinished = copier.isFinished
          let size = random.size(upTo: 8192)
          switch copier.copy(at: position, into: UnsafeMutableRawBufferPointer(rebasing: buffer.prefix(size))) {
          case .bytes(let count):
            let bytes = UnsafeRawBufferPointer(rebasing: buffer.prefix(count))
            guard Self.pattern.matches(bytes, at: position) else {
              return Self.fail("bytes changed while they were copied, at \(position) (\(seed))")
            }
            copy.append(bytes, at: position)
            position += UInt64(count)
            copier.copied(upTo: position)
          case .overwritten(let oldest):
            // Bytes that the consumer has released need no copy.
            guard overflow == .dropOldest || oldest <= copy.oldest else {
              return Self.fail("taken before it was copied (\(seed))")
            }
            position = oldest
          case .empty where isFinished: return
          case .empty:
            if copier.requestWakeUp(atHead: position + UInt64(random.size(upTo: 4096))) {
              guard waitUntilReadable(copier.descriptor) else {
                return Self.fail("the copier's wake-up was lost at \(position) (\(seed))")
              }
              takeSignals(copier.descriptor)
            }
          }
        }
      },
      {
        var consumer = consumer.take()
        var random = SplitMix64(state: seed.value ^ 1)
        var cursor: UInt64 = 0
        // The buffer contains a quarter of that, so the rest is a copy.
        while overflow == .refuse, consumer.requestWakeUp(beyond: 64 << 10) {
          guard waitUntilReadable(consumer.dataDescriptor) else { return Self.fail("the producer stopped (\(seed))") }
          takeSignals(consumer.dataDescriptor)
        }
        while true {
          if consumer.isFinished, cursor == consumer.head { break }
          switch consumer.read(at: cursor, maximum: random.size(upTo: 4096), { Self.check($0, at: cursor) }) {
          case .bytes(let count?):
            cursor += UInt64(count)
            read.add(UInt64(count), ordering: .relaxed)
          case .bytes(nil): return Self.fail("wrong bytes at \(cursor) (\(seed))")
          case .empty where consumer.isBacked(at: cursor): continue
          case .empty:
            while consumer.requestWakeUp(beyond: cursor) {
              guard waitUntilReadable(consumer.dataDescriptor) else {
                return Self.fail("the consumer's wake-up was lost at \(cursor) (\(seed))")
              }
              takeSignals(consumer.dataDescriptor)
            }
          case .overwritten(let oldest):
            guard oldest > cursor, overflow == .dropOldest else {
              return Self.fail("overwritten up to \(oldest), at \(cursor) (\(seed))")
            }
            lost.add(oldest - cursor, ordering: .relaxed)
            cursor = oldest
          }
          // Seldom, so that most bytes are taken from memory before they are released.
          if random.chance(2) { consumer.release(upTo: cursor) }
        }
      })
    #expect(read.load(ordering: .relaxed) + lost.load(ordering: .relaxed) == total)
    #expect(overflow == .dropOldest || lost.load(ordering: .relaxed) == 0)
    #expect(overflow == .dropOldest || copy.byteCountRead > 0, "nothing was read from the copy")
  }

  @Test("the copier wakes when the head reaches its position, at the end, and when the producer needs space")
  func copierWakeUps() throws {
    var settings = CircularBuffer.Settings(capacity: 16 << 10)
    settings.hasCopier = true
    let ends = try CircularBuffer.makeCopied(settings)
    var producer = ends.producer
    let copier = ends.copier
    func write(_ count: Int) { _ = producer.write(minimum: count, maximum: count) { _ in count } }
    func isWoken() -> Bool { waitUntilReadable(copier.descriptor, limit: .zero) && takeSignals(copier.descriptor) > 0 }

    write(100)
    #expect(!copier.requestWakeUp(atHead: 99) && !copier.requestWakeUp(atHead: 100))
    #expect(copier.requestWakeUp(atHead: 102))
    write(1)
    #expect(!isWoken())
    write(1)
    #expect(isWoken())
    // Each wake-up occurs once.
    write(1000)
    #expect(!isWoken())

    write(copier.capacity - 1102)
    #expect(copier.requestWakeUp(atHead: .max))
    #expect(producer.requestSpace(1) && isWoken())
    #expect(!copier.requestWakeUp(atHead: .max), "the producer waits")
    copier.copied(upTo: 1)
    #expect(copier.requestWakeUp(atHead: .max))
    producer.finish()
    #expect(isWoken() && !copier.requestWakeUp(atHead: .max))
  }

  @Test("a consumer's capacity is that of memory and copy together")
  func capacity() throws {
    var settings = CircularBuffer.Settings(capacity: 16 << 10)
    (settings.hasCopier, settings.backing) = (true, CopyInMemory())
    let ends = try CircularBuffer.makeCopied(settings)
    #expect(ends.consumer.capacity == ends.copier.capacity + 1 << 30)
    #expect(ends.copier.capacity == 16 << 10)
  }

  @Test("a consumer that continues without the buffer's memory has the earlier and the coming pauses")
  func finished() throws {
    let pause = CircularBuffer.Pause(position: 70, length: 7)
    let ends = try CircularBuffer.makeFinished(head: 100, pauses: [pause], pausedBefore: 5, backing: NoBacking())
    var consumer = ends.consumer
    #expect(consumer.isFinished && consumer.head == 100 && consumer.pausedByteCount == 5)
    #expect(consumer.nextPause?.position == 70 && consumer.nextPause?.length == 7)
    consumer.passPause()
    #expect(consumer.nextPause == nil && consumer.pausedByteCount == 12)
  }

  @Test("the buffered bytes of a killed process are in the buffer's file", arguments: Seed.several(20))
  func remains(seed: Seed) throws {
    var random = seed.generator
    let path = "/dev/shm/sluice-test-\(getpid())-\(String(seed.value, radix: 16))"
    defer { unlink(path) }
    var settings = CircularBuffer.Settings.inFile(path)
    (settings.overflow, settings.start) = (
      random.chance(50) ? .dropOldest : .refuse, UInt64(random.size(upTo: 1 << 20))
    )
    var ends = try CircularBuffer.makeCopied(settings)
    var (pauses, consumed): ([UInt64], UInt64) = ([], settings.start)
    for _ in 0..<random.size(upTo: 40) {
      let (size, head) = (random.size(upTo: 4096), ends.producer.head)
      _ = ends.producer.write(minimum: size, maximum: size) { span in
        span.withUnsafeMutableBytes { Self.pattern.fill($0, at: head) }
        return size
      }
      if random.chance(10), ends.producer.pause(77) { pauses.append(ends.producer.head) }
      if random.chance(30) { ends.copier.copied(upTo: ends.producer.head) }
      if random.chance(30) {
        consumed = ends.producer.head
        ends.consumer.release(upTo: consumed)
      }
    }
    let finishes = random.chance(50)
    if finishes { ends.producer.finish() }
    let remains = try #require(try CircularBuffer.Remains(path: path), "\(seed)")
    #expect(remains.head == ends.producer.head && remains.oldest == ends.consumer.released, "\(seed)")
    #expect(remains.consumed == consumed, "\(seed)")
    let found = remains.pauses(from: 0)
    #expect(
      remains.isFinished == finishes && found.ahead.map(\.position) == pauses
        && found.ahead.allSatisfy { $0.length == 77 } && found.byteCountBefore == 0, "\(seed)")
    var bytes = [UInt8](repeating: 0, count: Int(remains.head - remains.oldest) + 1)
    let count = bytes.withUnsafeMutableBytes { remains.copy(at: remains.oldest, into: $0) }
    #expect(count == bytes.count - 1, "\(seed)")
    #expect(bytes.withUnsafeBytes { Self.pattern.matches(.init(rebasing: $0.prefix(count)), at: remains.oldest) })
  }

  @Test(
    "a reader of a killed process's buffer has the pauses before and after each position, and the last note",
    arguments: Seed.several(10))
  func pausesAndNote(seed: Seed) throws {
    var random = seed.generator
    let path = "/dev/shm/sluice-test-pauses-\(getpid())-\(String(seed.value, radix: 16))"
    defer { unlink(path) }
    var settings = CircularBuffer.Settings.inFile(path)
    settings.pausedBefore = UInt64(random.size(upTo: 1000))
    var ends = try CircularBuffer.makeCopied(settings)
    var (pauses, passed, note): ([CircularBuffer.Pause], Int, String?) = ([], 0, nil)
    for _ in 0..<random.size(upTo: 400) {
      switch Int.random(in: 0..<4, using: &random) {
      case 0:
        let (position, length) = (ends.producer.head, UInt64(random.size(upTo: 1 << 20)))
        if ends.producer.pause(length) { pauses.append(.init(position: position, length: length)) }
      case 1: _ = ends.producer.write(maximum: 100) { min($0.byteCount, 7) }
      case 2:
        guard let next = ends.consumer.nextPause else { continue }
        ends.consumer.release(upTo: next.position)
        ends.consumer.passPause()
        passed += 1
      default:
        note = String(repeating: "\(random.next())", count: random.size(upTo: 300))
        ends.copier.note.write(note ?? "")
      }
      let remains = try #require(try CircularBuffer.Remains(path: path), "\(seed)")
      #expect(remains.note == note, "\(seed)")
      let all = pauses[..<passed].reduce(settings.pausedBefore) { $0 + $1.length }
      #expect(ends.consumer.pausedByteCount == all, "\(seed)")
      // At the position of the last passed pause, the consumer passes it once more, and so knows which bytes do not
      // exist.
      let position = passed > 0 ? pauses[passed - 1].position : 0
      #expect(remains.passed == position, "\(seed)")
      let first = max(passed - 16, pauses.count - 31, pauses.firstIndex { $0.position >= position } ?? pauses.count)
      let found = remains.pauses(from: position)
      #expect(found.ahead == Array(pauses[first...]), "\(seed)")
      #expect(found.byteCountBefore == pauses[..<first].reduce(settings.pausedBefore) { $0 + $1.length }, "\(seed)")
    }
  }

  @Test("the next process reads the rest of a killed process's buffer, and passes the last pause again")
  func adopted() throws {
    let path = "/dev/shm/sluice-test-adopted-\(getpid())"
    defer { unlink(path) }
    var ends = try CircularBuffer.makeCopied(.inFile(path))
    func write(_ count: Int) {
      let head = ends.producer.head
      _ = ends.producer.write(minimum: count, maximum: count) { span in
        span.withUnsafeMutableBytes { Self.pattern.fill($0, at: head) }
        return count
      }
    }
    write(5000)
    #expect(ends.producer.pause(700) == true)
    write(3000)
    ends.consumer.release(upTo: 5000)
    ends.consumer.passPause()
    let remains = try #require(try CircularBuffer.Remains(path: path))
    var next = try CircularBuffer.makeFinished(remains, from: remains.passed, backing: NoBacking())
    #expect(next.consumer.pausedByteCount == 0)
    #expect(next.consumer.nextPause == CircularBuffer.Pause(position: 5000, length: 700))
    next.consumer.passPause()
    #expect(next.consumer.pausedByteCount == 700)
    #expect(next.consumer.isFinished && next.consumer.head == 8000)
    guard
      case .bytes(true) = next.consumer.read(at: 5000, { $0.withUnsafeBytes { Self.pattern.matches($0, at: 5000) } })
    else {
      Issue.record("other bytes")
      return
    }
    #expect(next.copier.isFinished && next.copier.pauses(from: 5000).ahead.count == 1)
  }

  @Test("the next process has all pauses, including a passed one and the maximum number of waiting ones")
  func adoptedWithPauses() throws {
    let path = "/dev/shm/sluice-test-waiting-\(getpid())"
    defer { unlink(path) }
    var ends = try CircularBuffer.makeCopied(.inFile(path))
    func pause() -> Bool {
      _ = ends.producer.write(minimum: 10, maximum: 10) { _ in 10 }
      return ends.producer.pause(700)
    }
    #expect(pause())
    ends.consumer.release(upTo: 10)
    ends.consumer.passPause()
    var waiting = 0
    while pause() { waiting += 1 }
    #expect(waiting == 16)
    let remains = try #require(try CircularBuffer.Remains(path: path))
    let next = try CircularBuffer.makeFinished(remains, from: remains.passed, backing: NoBacking())
    let found = next.copier.pauses(from: remains.passed)
    #expect(found.byteCountBefore == 0 && found.ahead.count == 17)
  }

  @Test("a file that is not a buffer, is truncated or has another version is refused")
  func noRemains() throws {
    let path = "/dev/shm/sluice-test-none-\(getpid())"
    defer { unlink(path) }
    var settings = CircularBuffer.Settings(capacity: 8192)
    (settings.hasCopier, settings.path) = (true, path)
    let ends = try CircularBuffer.makeCopied(settings)
    #expect(ends.producer.head == 0)
    #expect(throws: SystemError.self) { _ = try CircularBuffer.makeCopied(settings) }
    var status = stat()
    #expect(stat(path, &status) == 0)
    for size in [Int(status.st_size) - 1, Int(status.st_size) - 4096, 8191, 4096, 100, 0] {
      #expect(truncate(path, size) == 0)
      let error = #expect(throws: SystemError.self) { _ = try CircularBuffer.Remains(path: path) }
      #expect(error?.code == ENODATA, "\(size)")
    }
    // A file of zeros, which is large enough for a buffer.
    #expect(truncate(path, 1 << 20) == 0)
    #expect(try CircularBuffer.Remains(path: path) == nil)
    #expect(truncate(path, 0) == 0 && truncate(path, 2 << 20) == 0)
    #expect(try CircularBuffer.Remains(path: path) == nil)
    #expect(throws: SystemError.self) { _ = try CircularBuffer.Remains(path: path + "-missing") }
  }

  private static func fail(_ reason: String) { Issue.record(Comment(rawValue: reason)) }

  private static func check(_ span: RawSpan, at offset: UInt64) -> Int? {
    span.withUnsafeBytes { pattern.matches($0, at: offset) ? $0.count : nil }
  }
}

/// The copier's destination, which keeps everything forever.
private final class CopyInMemory: CircularBacking, Sendable {
  private struct State {
    var bytes: [UInt8] = []
    var gaps: [Range<UInt64>] = []
    var released: UInt64 = 0
    var read = 0
    var waker: CircularBuffer.ConsumerWaker?
    nonisolated(unsafe) var lent = UnsafeMutableRawBufferPointer.allocate(byteCount: 8192, alignment: 8)
  }
  private let state = Lock(State())

  deinit { state.withLock { $0.lent.deallocate() } }

  var byteCountRead: Int { state.withLock { $0.read } }
  var oldest: UInt64 { state.withLock { $0.released } }
  var capacity: Int { 1 << 30 }

  func attach(_ waker: CircularBuffer.ConsumerWaker) { state.withLock { $0.waker = waker } }

  func append(_ bytes: UnsafeRawBufferPointer, at position: UInt64) {
    state.withLock { state in
      let end = UInt64(state.bytes.count)
      if position > end {
        state.gaps.append(end..<position)
        state.bytes.append(contentsOf: repeatElement(0, count: Int(position - end)))
      }
      state.bytes.append(contentsOf: bytes)
    }
  }

  func isMissing(at offset: UInt64) -> Bool { false }

  func read(
    at offset: UInt64, maximum: Int, oldestInMemory: UInt64
  ) -> CircularBuffer.Consumer.ReadResult<UnsafeRawBufferPointer> {
    state.withLock { state in
      if let gap = state.gaps.first(where: { $0.contains(offset) }) { return .overwritten(oldest: gap.upperBound) }
      guard offset < UInt64(state.bytes.count) else { return .overwritten(oldest: oldestInMemory) }
      let end = state.gaps.first { $0.lowerBound > offset }?.lowerBound ?? UInt64(state.bytes.count)
      let count = min(Int(end - offset), maximum, 8192)
      state.bytes.withUnsafeBytes {
        state.lent.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[Int(offset)..<Int(offset) + count]))
      }
      state.read += count
      return .bytes(UnsafeRawBufferPointer(rebasing: state.lent.prefix(count)))
    }
  }

  func release(upTo offset: UInt64) { state.withLock { $0.released = max($0.released, offset) } }
}
