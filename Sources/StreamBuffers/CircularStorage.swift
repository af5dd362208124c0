// The state that the ends of a circular buffer share: memory mapped twice, atomics, and eventfds.
//
// Two threads move `released`: the consumer releases bytes, and the producer takes them, under `.dropOldest` or after
// they were copied. Before the consumer or the copier uses memory, it publishes its offset in `pinned` and checks
// `released` again. Before the producer overwrites memory, it moves `released` and checks `pinned`. Each stores first
// and loads second, all sequentially consistent. So at least one of them sees the other (Dekker's argument), and no
// byte is overwritten while it is read.

internal import CLinux
internal import EventLoops
internal import Glibc
internal import Synchronization

@usableFromInline
final class CircularStorage: Sendable {
  // All threads read these, and none writes them.
  let capacity: Int
  /// The number of bytes that is certain to be free after everything is released.
  let largestMinimum: Int
  let overflow: CircularBuffer.Overflow
  let memory: CircularBuffer.Memory
  private let mapping: CircularMemory
  nonisolated(unsafe) let words: UnsafeMutablePointer<CircularWords>
  /// The words in the file, for another process: see ``CircularMemory/published``.
  nonisolated(unsafe) let published: UnsafeMutablePointer<CircularWords>?
  nonisolated(unsafe) private let base: UnsafeMutableRawPointer
  let dataAvailable: EventCounter
  let spaceAvailable: EventCounter
  /// For the copier; nil if there is none.
  let copyDue: EventCounter?
  let copyDescriptor: Int32
  let hasCopier: Bool
  /// Whether the producer takes bytes that the consumer has not released.
  let isTaken: Bool
  private let allowsPauses: Bool
  /// The store of bytes that are no longer here; nil if there is none.
  let backing: (any CircularBacking)?

  /// With `.returned`, space is released and memory returned to the system in steps of this size.
  static let returnStep = 64 << 10
  /// The maximum number of steps that are prepared ahead of the head. More would allocate again the memory that is
  /// returned after a long outage.
  private static let preparedSteps = 2
  /// Memory before this offset was prepared. Only the consumer's thread uses it.
  private let prepared = Atomic<UInt64>(0)

  init(_ settings: CircularBuffer.Settings) throws(SystemError) {
    allowsPauses = settings.allowsPauses
    let unit = settings.memory == .returned ? Self.returnStep : sysconf(Int32(_SC_PAGESIZE))
    let requested = settings.capacity
    // A capacity too large to be mapped twice is refused here, before the arithmetic below could overflow.
    guard requested <= Int.max / 4 else {
      throw SystemError(operation: "reserving \(requested) bytes for a circular buffer", code: ENOMEM)
    }
    largestMinimum = (requested + unit - 1) / unit * unit
    // The step that contains the released offset is not free, so there is one more than requested.
    capacity = largestMinimum + (settings.memory == .returned ? unit : 0)
    overflow = settings.overflow
    memory = settings.memory
    backing = settings.backing
    dataAvailable = try EventCounter()
    spaceAvailable = try EventCounter()
    if settings.hasCopier {
      let counter = try EventCounter()
      copyDescriptor = counter.descriptor
      copyDue = consume counter
    } else {
      copyDescriptor = -1
      copyDue = nil
    }
    hasCopier = settings.hasCopier
    isTaken = settings.overflow == .dropOldest || settings.hasCopier
    mapping = try CircularMemory(
      capacity: capacity, startingAt: settings.start, pausedBefore: settings.pausedBefore, label: settings.label,
      path: settings.path)
    (words, published, base) = (mapping.words, mapping.published, mapping.base)
    if memory == .returned { preparePages(before: UInt64(capacity)) }
  }

  /// The buffer of a killed process, for reading only. Nothing is written any more.
  init(adopting memory: CircularMemory, backing: (any CircularBacking)?) throws(SystemError) {
    (allowsPauses, overflow, self.memory) = (true, .refuse, .kept)
    (capacity, largestMinimum) = (memory.capacity, memory.capacity)
    self.backing = backing
    dataAvailable = try EventCounter()
    spaceAvailable = try EventCounter()
    copyDue = nil
    (copyDescriptor, hasCopier, isTaken) = (-1, false, false)
    mapping = memory
    (words, published, base) = (mapping.words, mapping.published, mapping.base)
    // What that process's threads waited for or read matters only to a producer, and there is none.
    published?.pointee.finished.store(true, ordering: .relaxed)
    words.pointee.finished.store(true, ordering: .sequentiallyConsistent)
  }

  /// The note after the words.
  var note: CircularNote { mapping.note }

  /// nil if the consumer does not support pauses.
  var pauses: PauseRing? { allowsPauses ? mapping.pauses : nil }

  func address(of offset: UInt64) -> UnsafeMutableRawPointer {
    base + Int(offset % UInt64(capacity))
  }

  /// Releases everything before `offset`. On the producer's and the consumer's thread.
  func advanceReleased(to offset: UInt64) {
    // First in the file: the producer may overwrite the bytes at once, and then another process must not use them.
    if let published { Self.advanceReleased(published, to: offset) }
    Self.advanceReleased(words, to: offset)
  }

  private static func advanceReleased(_ words: UnsafeMutablePointer<CircularWords>, to offset: UInt64) {
    var current = words.pointee.released.load(ordering: .relaxed)
    while current < offset {
      let (exchanged, original) = words.pointee.released.compareExchange(
        expected: current, desired: offset, ordering: .sequentiallyConsistent)
      if exchanged { return }
      current = original
    }
  }

  /// The number of bytes that the producer can write without dropping any that exist nowhere else.
  func freeByteCount() -> Int {
    let head = words.pointee.head.load(ordering: .acquiring)
    var kept = words.pointee.released.load(ordering: .sequentiallyConsistent)
    if hasCopier { kept = max(kept, words.pointee.copied.load(ordering: .sequentiallyConsistent)) }
    // Another thread may move `released` beyond an earlier head.
    return capacity - Int(head - min(head, kept))
  }

  /// Wakes the producer if enough is free for it.
  func wakeProducer() {
    let producerWants = words.pointee.producerWaits.load(ordering: .sequentiallyConsistent)
    guard producerWants > 0, freeByteCount() >= producerWants else { return }
    if words.pointee.producerWaits.exchange(0, ordering: .sequentiallyConsistent) > 0 { spaceAvailable.signal() }
  }

  /// Prepares memory where the producer is about to write, so that the capture thread does not stop at a page fault
  /// every few milliseconds. Existing content is unchanged: madvise(2), `MADV_POPULATE_WRITE`. Kernels before 5.14 do
  /// nothing, and the page faults do it.
  ///
  /// - Parameter limit: the offset at which the memory in use begins again.
  func preparePages(before limit: UInt64) {
    let step = UInt64(Self.returnStep)
    let next = (words.pointee.head.load(ordering: .acquiring) + step - 1) / step * step
    let end = min(next + UInt64(Self.preparedSteps) * step, limit)
    for offset in stride(from: max(next, prepared.load(ordering: .relaxed)), to: end, by: Self.returnStep) {
      madvise(address(of: offset), Self.returnStep, SLUICE_MADV_POPULATE_WRITE)
      prepared.store(offset + step, ordering: .relaxed)
    }
  }
}
