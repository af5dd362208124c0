// One message size: the circular buffer and its rival, pair by pair.

import EventLoops
import Glibc
import StreamBuffers
import Synchronization

/// Moves the same bytes in the same messages through both, on one thread and on two.
struct Contest {
  let settings: Settings
  let messageSize: Int
  private let source: Block
  private let sink: Block

  init(settings: Settings, messageSize: Int) throws {
    self.settings = settings
    self.messageSize = messageSize
    source = Block(messageSize)
    sink = Block(messageSize)
  }

  /// Each message goes in and out on the calling thread.
  func oneThread() throws -> Result {
    try pairs(buffer: bufferOnOneThread, memcpy: memcpyOnOneThread)
  }

  /// One thread puts messages in, the other takes them out; they meet as the two ends of a live stream do.
  func twoThreads() throws -> Result {
    try pairs(buffer: bufferOnTwoThreads, memcpy: memcpyOnTwoThreads)
  }

  // MARK: The circular buffer

  private func bufferOnOneThread() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(settings.capacity))
    var cursor: UInt64 = 0
    while cursor < settings.bytes {
      put(into: &ends.producer)
      cursor = take(from: &ends.consumer, at: cursor)
    }
  }

  private func bufferOnTwoThreads() throws {
    let ends = try CircularBuffer.make(capacity: .bytes(settings.capacity))
    // A thread's closure cannot consume what it captures, so the end is taken out of a lock.
    let handover = Lock<CircularBuffer.Producer?>(ends.producer)
    var consumer = ends.consumer
    let total = UInt64(settings.bytes)
    let (source, messageSize) = (source, messageSize)
    let thread = try NamedThread("producer") {
      guard var producer = handover.withLock({ $0.take() }) else { return }
      while producer.head < total {
        if producer.freeByteCount < messageSize {
          spin(while: { producer.freeByteCount < messageSize })
        }
        Self.put(into: &producer, from: source, messageSize)
      }
    }
    var cursor: UInt64 = 0
    while cursor < total {
      if consumer.head == cursor { spin(while: { consumer.head == cursor }) }
      cursor = take(from: &consumer, at: cursor)
    }
    thread.join()
  }

  private func put(into producer: inout CircularBuffer.Producer) {
    Self.put(into: &producer, from: source, messageSize)
  }

  private static func put(into producer: inout CircularBuffer.Producer, from source: Block, _ messageSize: Int) {
    _ = producer.write(minimum: messageSize, maximum: messageSize) { span in
      span.withUnsafeMutableBytes {
        $0.copyMemory(from: UnsafeRawBufferPointer(start: source.bytes, count: messageSize))
      }
      return messageSize
    }
  }

  private func take(from consumer: inout CircularBuffer.Consumer, at cursor: UInt64) -> UInt64 {
    let read = consumer.read(at: cursor, maximum: messageSize) { span in
      span.withUnsafeBytes { bytes in
        UnsafeMutableRawBufferPointer(start: sink.bytes, count: bytes.count).copyMemory(from: bytes)
        return bytes.count
      }
    }
    guard case .bytes(let count) = read else { return cursor }
    consumer.release(upTo: cursor + UInt64(count))
    return cursor + UInt64(count)
  }

  // MARK: memcpy

  private func memcpyOnOneThread() throws {
    let middle = Block(settings.capacity)
    var place = 0
    var moved = 0
    while moved < settings.bytes {
      memcpy(middle.bytes + place, source.bytes, messageSize)
      memcpy(sink.bytes, middle.bytes + place, messageSize)
      moved += messageSize
      place = place + 2 * messageSize > settings.capacity ? 0 : place + messageSize
    }
  }

  /// The least that two threads can do: two counters, one for each direction, each on a cache line of its own.
  private func memcpyOnTwoThreads() throws {
    let middle = Block(settings.capacity / messageSize * messageSize)
    let counters = Counters()
    let total = settings.bytes
    let (source, messageSize) = (source, messageSize)
    let thread = try NamedThread("producer") {
      var place = 0
      var moved = 0
      while moved < total {
        let full = moved + messageSize - middle.count
        if counters.taken.load(ordering: .acquiring) < full {
          spin(while: { counters.taken.load(ordering: .acquiring) < full })
        }
        memcpy(middle.bytes + place, source.bytes, messageSize)
        moved += messageSize
        counters.put.store(moved, ordering: .releasing)
        place = place + messageSize == middle.count ? 0 : place + messageSize
      }
    }
    var place = 0
    var moved = 0
    while moved < total {
      if counters.put.load(ordering: .acquiring) == moved {
        spin(while: { counters.put.load(ordering: .acquiring) == moved })
      }
      memcpy(sink.bytes, middle.bytes + place, messageSize)
      moved += messageSize
      counters.taken.store(moved, ordering: .releasing)
      place = place + messageSize == middle.count ? 0 : place + messageSize
    }
    thread.join()
  }

  // MARK: Pairs

  struct Result {
    var buffer: Round
    var memcpy: Round
    var ratio: Double
  }

  struct Round {
    var bytes: Int
    var nanoseconds: Int64
    var rate: Double { Double(bytes) / Double(nanoseconds) }
    var gigabytesPerSecond: String { rate.twoDecimals.leftPadded(6) }
  }

  private func pairs(buffer: () throws -> Void, memcpy: () throws -> Void) throws -> Result {
    var buffers: [Round] = []
    var copies: [Round] = []
    for round in 0..<settings.rounds {
      // Who goes first changes: a frequency that falls during the run is nobody's advantage.
      if round % 2 == 0 {
        buffers.append(try timed(buffer))
        copies.append(try timed(memcpy))
      } else {
        copies.append(try timed(memcpy))
        buffers.append(try timed(buffer))
      }
    }
    let ratios = zip(buffers, copies).map { $0.rate / $1.rate }.sorted()
    buffers.sort { $0.rate < $1.rate }
    copies.sort { $0.rate < $1.rate }
    let middle = settings.rounds / 2
    return Result(buffer: buffers[middle], memcpy: copies[middle], ratio: ratios[middle])
  }

  private func timed(_ run: () throws -> Void) rethrows -> Round {
    let begun = MonotonicInstant.now
    try run()
    return Round(bytes: settings.bytes, nanoseconds: (MonotonicInstant.now - begun).nanoseconds)
  }
}

/// Waits as a stream never does, by looking: what is measured is the moving, not the sleeping.
private func spin(while condition: () -> Bool) {
  var looks = 0
  while condition() {
    looks += 1
    // On a machine with other work the thread waited for may need this very core.
    if looks % 1000 == 0 { sched_yield() }
  }
}

/// Memory of a fixed size, touched once so that no page fault is measured.
final class Block: @unchecked Sendable {
  let bytes: UnsafeMutableRawPointer
  let count: Int

  init(_ count: Int) {
    self.count = count
    bytes = .allocate(byteCount: count, alignment: 4096)
    memset(bytes, 0x5A, count)
  }

  deinit { bytes.deallocate() }
}

/// How many bytes each thread has moved.
private final class Counters: Sendable {
  let put = Atomic<Int>(0)
  // Keeps the two on different cache lines.
  private let padding: (Int, Int, Int, Int, Int, Int, Int, Int, Int, Int, Int, Int, Int, Int, Int) =
    (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
  let taken = Atomic<Int>(0)
}
