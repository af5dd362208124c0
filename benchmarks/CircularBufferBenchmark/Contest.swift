// One message size: the circular buffer and its rival, pair by pair.

import EventLoops
import Glibc
import StreamBuffers
import Synchronization

/// Moves the same bytes in the same messages through both, on one thread and on two.
struct Contest {
  /// The consumer gives bytes up in portions of this many at least.
  private static let acknowledged: UInt64 = 64 << 10

  let settings: Settings
  let messageSize: Int
  /// Bytes of one round, whole messages.
  private let bytes: Int
  private let source: Block
  private let sink: Block

  init(settings: Settings, messageSize: Int) throws {
    self.settings = settings
    self.messageSize = messageSize
    bytes = max(1, settings.bytes / settings.rounds / messageSize) * messageSize
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

  /// A buffer that has been round once: what is measured is the stream, not the page faults of its first lap.
  private func warmBuffer() throws -> CircularBuffer.Ends {
    var ends = try CircularBuffer.make(capacity: .bytes(settings.capacity))
    var cursor: UInt64 = 0
    while cursor < settings.capacity {
      Self.put(into: &ends.producer, from: source, messageSize)
      cursor = take(from: &ends.consumer, at: cursor)
    }
    return ends
  }

  private func bufferOnOneThread() throws -> Int64 {
    var ends = try warmBuffer()
    var cursor = ends.producer.head
    let end = cursor + UInt64(bytes)
    let begun = MonotonicInstant.now
    while cursor < end {
      Self.put(into: &ends.producer, from: source, messageSize)
      cursor = take(from: &ends.consumer, at: cursor)
    }
    return (MonotonicInstant.now - begun).nanoseconds
  }

  private func bufferOnTwoThreads() throws -> Int64 {
    let ends = try warmBuffer()
    var cursor = ends.producer.head
    let end = cursor + UInt64(bytes)
    // A thread's closure cannot consume what it captures, so the end is taken out of a lock.
    let handover = Lock<CircularBuffer.Producer?>(ends.producer)
    var consumer = ends.consumer
    let (source, messageSize) = (source, messageSize)
    let begun = MonotonicInstant.now
    let thread = try NamedThread("producer") {
      guard var producer = handover.withLock({ $0.take() }) else { return }
      while producer.head < end {
        if producer.freeByteCount < messageSize {
          spin(while: { producer.freeByteCount < messageSize })
        }
        Self.put(into: &producer, from: source, messageSize)
      }
    }
    while cursor < end {
      if consumer.head == cursor { spin(while: { consumer.head == cursor }) }
      cursor = take(from: &consumer, at: cursor)
    }
    let spent = MonotonicInstant.now - begun
    thread.join()
    return spent.nanoseconds
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
    let next = cursor + UInt64(count)
    // As acknowledgements come: for many small messages at a time.
    if next - consumer.released >= Self.acknowledged { consumer.release(upTo: next) }
    return next
  }

  // MARK: memcpy

  private func memcpyOnOneThread() -> Int64 {
    let middle = Block(settings.capacity)
    let begun = MonotonicInstant.now
    var place = 0
    var moved = 0
    while moved < bytes {
      memcpy(middle.bytes + place, source.bytes, messageSize)
      memcpy(sink.bytes, middle.bytes + place, messageSize)
      moved += messageSize
      place = place + 2 * messageSize > settings.capacity ? 0 : place + messageSize
    }
    return (MonotonicInstant.now - begun).nanoseconds
  }

  /// The least that two threads can do: two counters, one for each direction, each on a cache line of its own.
  private func memcpyOnTwoThreads() throws -> Int64 {
    let middle = Block(settings.capacity / messageSize * messageSize)
    let counters = Counters()
    let total = bytes
    let (source, messageSize) = (source, messageSize)
    let begun = MonotonicInstant.now
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
    let spent = MonotonicInstant.now - begun
    thread.join()
    return spent.nanoseconds
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

  private func pairs(buffer: () throws -> Int64, memcpy: () throws -> Int64) throws -> Result {
    var buffers: [Round] = []
    var copies: [Round] = []
    for round in 0..<settings.rounds {
      // Who goes first changes: a frequency that falls during the run is nobody's advantage.
      if round % 2 == 0 {
        buffers.append(Round(bytes: bytes, nanoseconds: try buffer()))
        copies.append(Round(bytes: bytes, nanoseconds: try memcpy()))
      } else {
        copies.append(Round(bytes: bytes, nanoseconds: try memcpy()))
        buffers.append(Round(bytes: bytes, nanoseconds: try buffer()))
      }
    }
    let ratios = zip(buffers, copies).map { $0.rate / $1.rate }.sorted()
    buffers.sort { $0.rate < $1.rate }
    copies.sort { $0.rate < $1.rate }
    let middle = settings.rounds / 2
    return Result(buffer: buffers[middle], memcpy: copies[middle], ratio: ratios[middle])
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
