// What the two ends of a circular buffer share: memory mapped twice, four atomics, two eventfds.
//
// `released` moves by both threads: the consumer gives bytes up, and under `.dropOldest` the producer takes them.
// Before the consumer touches memory it publishes its offset in `pinned` and looks at `released` again; before the
// producer overwrites it moves `released` and looks at `pinned`. Each stores first and loads second, all sequentially
// consistent, so at least one of them sees the other (Dekker's argument), and no byte is overwritten while it is read.

internal import CLinux
internal import EventLoops
internal import Glibc
internal import Synchronization

@usableFromInline
final class CircularStorage: Sendable {
  // Read by both threads, written by none.
  let capacity: Int
  /// What is sure to become free when everything is released.
  let largestMinimum: Int
  let overflow: CircularBuffer.Overflow
  private let memory: CircularBuffer.Memory
  nonisolated(unsafe) private let base: UnsafeMutableRawPointer
  let dataAvailable: EventCounter
  let spaceAvailable: EventCounter
  /// nil where the consumer knows of none.
  private let pauses: PauseRing?

  // Written by the producer, once for each write.
  private let apartFromTheRest = CacheLines()
  let head = Atomic<UInt64>(0)
  let finished = Atomic<Bool>(false)

  // Written by the consumer, for each read and release.
  private let apartFromTheProducer = CacheLines()
  let released = Atomic<UInt64>(0)
  /// The lowest offset that the consumer is using, `nothingPinned` when it is using none.
  private let pinned = Atomic<UInt64>(nothingPinned)

  // Written only when somebody goes to sleep or is woken: looking at them costs a busy thread nothing.
  private let apartFromTheConsumer = CacheLines()
  /// Whether the consumer asked to be woken by the next bytes.
  private let consumerWaits = Atomic<Bool>(false)
  /// How many free bytes the producer asked to be woken for; 0 when it does not wait.
  private let producerWaits = Atomic<Int>(0)

  private static let nothingPinned = UInt64.max
  /// With `.returned`, room is given up and memory goes back to the system in steps of this many bytes.
  private static let returnStep = 64 << 10
  /// The most steps that are kept ready ahead of the head: after a long outage memory goes back, instead of coming
  /// anew.
  private static let preparedSteps = 2

  init(
    capacity requested: Int, overflow: CircularBuffer.Overflow, memory: CircularBuffer.Memory, allowsPauses: Bool
  ) throws(SystemError) {
    pauses = allowsPauses ? PauseRing() : nil
    let unit = memory == .returned ? Self.returnStep : sysconf(Int32(_SC_PAGESIZE))
    // More than can be mapped twice is refused here, before the arithmetic below could overflow.
    guard requested <= Int.max / 4 else {
      throw SystemError(operation: "reserving \(requested) bytes for a circular buffer", code: ENOMEM)
    }
    largestMinimum = (requested + unit - 1) / unit * unit
    // The step in which the released offset stands is not free, so there is one more than was asked for.
    capacity = largestMinimum + (memory == .returned ? unit : 0)
    self.overflow = overflow
    self.memory = memory
    dataAvailable = try EventCounter()
    spaceAvailable = try EventCounter()
    base = try Self.mapTwice(capacity)
    if memory == .returned { preparePages(from: 0, count: Self.preparedSteps) }
  }

  deinit { munmap(base, 2 * capacity) }

  /// The same `capacity` bytes at two addresses in a row, so that no span ever wraps.
  private static func mapTwice(_ capacity: Int) throws(SystemError) -> UnsafeMutableRawPointer {
    let file = try retryingInterrupts("memfd_create") { memfd_create("sluice-circular-buffer", SLUICE_MFD_CLOEXEC) }
    defer { close(file) }
    try retryingInterrupts("reserving \(capacity) bytes for a circular buffer") { ftruncate(file, capacity) }
    guard let reserved = mmap(nil, 2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), reserved != MAP_FAILED
    else {
      throw .last("mapping \(capacity) bytes for a circular buffer")
    }
    for half in [reserved, reserved + capacity] {
      if mmap(half, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED {
        let error = SystemError.last("mapping \(capacity) bytes for a circular buffer")
        munmap(reserved, 2 * capacity)
        throw error
      }
    }
    return reserved
  }

  func address(of offset: UInt64) -> UnsafeMutableRawPointer {
    base + Int(offset % UInt64(capacity))
  }

  // MARK: The producer's thread

  func freeByteCount() -> Int {
    capacity - Int(head.load(ordering: .relaxed) - released.load(ordering: .acquiring))
  }

  /// Returns how many bytes may be written at the head, at least `count`; nil when they cannot be had.
  ///
  /// - Parameter claimed: the producer's note of what it took from the consumer and may not use yet: the offset up to
  ///   which it moved `released` itself, until it has seen that no read is going on below; 0 when nothing is open.
  private func makeRoom(for count: Int, claimed: inout UInt64) -> Int? {
    let free = freeByteCount()
    if free < count {
      guard overflow == .dropOldest else { return nil }
      let oldest = head.load(ordering: .relaxed) + UInt64(count) - UInt64(capacity)
      // Bytes in use cannot go now: better to try again later than to give them up for nothing.
      guard pinned.load(ordering: .sequentiallyConsistent) >= oldest else { return nil }
      advanceReleased(to: oldest)
      claimed = oldest
    } else if claimed == 0 {
      return free
    }
    // A read that began between the look and the claim keeps the room from being used, in this call and in later ones:
    // that it counts as free by now does not mean that the reader has left it.
    guard pinned.load(ordering: .sequentiallyConsistent) >= claimed else { return nil }
    claimed = 0
    return freeByteCount()
  }

  /// Free memory at the head, from `minimum` to `maximum` bytes; nil when it cannot be had.
  @usableFromInline
  func beginWrite(minimum: Int, maximum: Int, claimed: inout UInt64) -> UnsafeMutableRawBufferPointer? {
    precondition(minimum >= 1 && minimum <= largestMinimum, "this minimum would never be free")
    guard let free = makeRoom(for: minimum, claimed: &claimed) else { return nil }
    let start = address(of: head.load(ordering: .relaxed))
    return UnsafeMutableRawBufferPointer(start: start, count: min(free, max(minimum, maximum)))
  }

  /// Lets the consumer see `count` more bytes, and wakes it if it waits for them.
  ///
  /// Sequentially consistent, here and in ``release(upTo:)``: store, then look whether the other side sleeps, while
  /// that one says that it sleeps and then looks. The barrier waits until the copy before it has left the core, some 10
  /// ns for a message of 4 KiB. Without it the sleeper would have to pay for both, with a membarrier(2) at each sleep:
  /// for live streams, which sleep after nearly every message, a bad bargain.
  @usableFromInline
  func publish(_ count: Int) {
    head.store(head.load(ordering: .relaxed) + UInt64(count), ordering: .sequentiallyConsistent)
    wakeConsumer()
  }

  /// Before any byte behind the pause: who sees such a byte sees the pause.
  func pause(_ length: UInt64) -> Bool {
    let pause = CircularBuffer.Pause(position: head.load(ordering: .relaxed), length: length)
    guard pauses?.append(pause) == true else { return false }
    wakeConsumer()
    return true
  }

  func finish() {
    finished.store(true, ordering: .sequentiallyConsistent)
    wakeConsumer()
  }

  private func wakeConsumer() {
    // The cheap look first: an exchange would take the cache line from the consumer for every write.
    if consumerWaits.load(ordering: .sequentiallyConsistent),
      consumerWaits.exchange(false, ordering: .sequentiallyConsistent)
    {
      dataAvailable.signal()
    }
  }

  func requestSpace(_ count: Int) -> Bool {
    producerWaits.store(count, ordering: .sequentiallyConsistent)
    let free = capacity - Int(head.load(ordering: .relaxed) - released.load(ordering: .sequentiallyConsistent))
    if free < count { return true }
    // Taken back; unless the consumer was quicker: then its signal comes, and has to be waited for like any other.
    return producerWaits.exchange(0, ordering: .sequentiallyConsistent) == 0
  }

  // MARK: The consumer's thread

  /// Finds up to `maximum` bytes at `offset`; when there are some they stay as they are until ``endRead()``.
  @usableFromInline
  func beginRead(
    at offset: UInt64, maximum: Int
  ) -> CircularBuffer.Consumer.ReadResult<UnsafeRawBufferPointer> {
    if let oldest = pin(offset) { return .overwritten(oldest: oldest) }
    let head = head.load(ordering: .acquiring)
    precondition(offset <= head, "reading beyond the head")
    guard offset < head else {
      unpin()
      return .empty
    }
    return .bytes(UnsafeRawBufferPointer(start: address(of: offset), count: min(Int(head - offset), maximum)))
  }

  @usableFromInline
  func endRead() { unpin() }

  /// Keeps the producer from overwriting anything from `offset` on; the oldest offset left when it came too late.
  private func pin(_ offset: UInt64) -> UInt64? {
    guard overflow == .dropOldest else {
      // Nothing is taken from the consumer, which alone moves `released` then: nobody to tell, and nothing to order.
      let oldest = released.load(ordering: .relaxed)
      return offset < oldest ? oldest : nil
    }
    pinned.store(offset, ordering: .sequentiallyConsistent)
    let oldest = released.load(ordering: .sequentiallyConsistent)
    guard offset < oldest else { return nil }
    unpin()
    return oldest
  }

  private func unpin() {
    if overflow == .dropOldest { pinned.store(Self.nothingPinned, ordering: .releasing) }
  }

  func nextPause() -> CircularBuffer.Pause? { pauses?.first }

  func passPause() { pauses?.removeFirst() }

  func release(upTo wanted: UInt64) {
    let start = released.load(ordering: .relaxed)
    precondition(wanted <= head.load(ordering: .acquiring), "releasing bytes that were not written yet")
    let offset = memory == .returned ? wanted / UInt64(Self.returnStep) * UInt64(Self.returnStep) : wanted
    guard offset > start else { return }
    if memory == .returned { returnPages(from: start, to: offset) }
    advanceReleased(to: offset)
    let producerWants = producerWaits.load(ordering: .sequentiallyConsistent)
    guard producerWants > 0 else { return }
    // In this order: with `.dropOldest` a producer that does not wait may take `released` beyond a head seen before.
    let released = released.load(ordering: .relaxed)
    let free = capacity - Int(head.load(ordering: .acquiring) - released)
    if free >= producerWants, producerWaits.exchange(0, ordering: .sequentiallyConsistent) > 0 {
      spaceAvailable.signal()
    }
  }

  func requestWakeUp(beyond offset: UInt64) -> Bool {
    consumerWaits.store(true, ordering: .sequentiallyConsistent)
    let alreadyThere =
      head.load(ordering: .sequentiallyConsistent) > offset || finished.load(ordering: .sequentiallyConsistent)
    if !alreadyThere { return true }
    // Taken back; unless the producer was quicker: then its signal comes, and has to be waited for like any other.
    return !consumerWaits.exchange(false, ordering: .sequentiallyConsistent)
  }

  /// Gives the memory of the whole steps between two offsets back to the system: madvise(2), `MADV_REMOVE`.
  ///
  /// Done under a pin and before `released` moves: afterwards the producer may already be writing there. The step in
  /// which an overflow ended stays, because its first part may already be in use again.
  private func returnPages(from start: UInt64, to end: UInt64) {
    let step = UInt64(Self.returnStep)
    var offset = (start + step - 1) / step * step
    guard offset < end, pin(start) == nil else { return }
    defer { unpin() }
    var count = 0
    while offset < end {
      madvise(address(of: offset), Self.returnStep, MADV_REMOVE)
      offset += step
      count += 1
    }
    preparePages(from: (head.load(ordering: .acquiring) + step - 1) / step * step, count: count)
  }

  /// Has memory ready where the producer is about to write, so that the capture thread
  /// does not stop at a page fault every few milliseconds. What is there stays as it is: madvise(2),
  /// `MADV_POPULATE_WRITE`; on a kernel before 5.14 nothing happens, and the faults do it.
  private func preparePages(from start: UInt64, count: Int) {
    for index in 0..<min(count, Self.preparedSteps) {
      madvise(address(of: start + UInt64(index * Self.returnStep)), Self.returnStep, SLUICE_MADV_POPULATE_WRITE)
    }
  }

  // MARK: Both threads

  private func advanceReleased(to offset: UInt64) {
    var current = released.load(ordering: .relaxed)
    while current < offset {
      let (exchanged, original) = released.compareExchange(
        expected: current, desired: offset, ordering: .sequentiallyConsistent)
      if exchanged { return }
      current = original
    }
  }
}

/// Room that keeps what stands before it and after it on different cache lines, so that a thread's writes to the one do
/// not take the other from the other thread. 128 bytes: x86 fetches lines in pairs, and some ARM cores have lines so
/// long.
private struct CacheLines {
  private let words: InlineArray<16, UInt64> = InlineArray(repeating: 0)
}
