// The third end of a circular buffer. It copies bytes to a larger backing. The producer may then reuse their memory
// before the consumer has released them.

package import EventLoops
internal import Synchronization

/// The store of bytes that a circular buffer no longer contains.
///
/// All calls are made on the consumer's thread. None may wait for a disk.
package protocol CircularBacking: AnyObject, Sendable {
  /// The offset of the oldest byte in the backing or in the buffer.
  var oldest: UInt64 { get }
  /// The capacity in bytes.
  var capacity: Int { get }
  /// Up to `maximum` bytes at `offset`, which stay valid until the next call. `empty` means that they are being loaded,
  /// and that the consumer will be woken.
  ///
  /// - Parameter oldestInMemory: the buffer's oldest byte, after `offset`.
  func read(
    at offset: UInt64, maximum: Int, oldestInMemory: UInt64
  ) -> CircularBuffer.Consumer.ReadResult<UnsafeRawBufferPointer>
  /// Whether the byte at `offset` is known to be missing, and others follow.
  func isMissing(at offset: UInt64) -> Bool
  /// Positions whose bytes are lost, in order: the buffer dropped them before the backing had them. A read may find
  /// others. Those that were released since may be among them.
  ///
  /// - Parameter oldestInMemory: the buffer's oldest byte.
  func holes(before oldestInMemory: UInt64) -> [Range<UInt64>]
  /// Releases everything before `offset`.
  func release(upTo offset: UInt64)
}

extension CircularBacking {
  package func holes(before oldestInMemory: UInt64) -> [Range<UInt64>] { [] }
}

extension CircularBuffer {
  /// Two numbers that identify a buffer for another process. This module does not interpret them.
  package struct Label: Equatable, Sendable {
    package var first: UInt64
    package var second: UInt64

    package init(_ first: UInt64 = 0, _ second: UInt64 = 0) { (self.first, self.second) = (first, second) }
  }

  /// The settings of a buffer.
  package struct Settings {
    /// In bytes.
    package var capacity: Int
    package var overflow = Overflow.refuse
    package var memory = Memory.kept
    package var allowsPauses = false
    package var hasCopier = false
    package var backing: (any CircularBacking)?
    /// The offset at which the buffer begins.
    package var start: UInt64 = 0
    /// The total length of all pauses before it.
    package var pausedBefore: UInt64 = 0
    /// For a process that finds the buffer at ``path``.
    package var label = Label()
    /// The path at which another process finds the buffer if this one is killed, in a file system in memory.
    package var path: String?

    package init(capacity: Int) { self.capacity = capacity }
  }

  /// The three ends of a buffer with a copier.
  @frozen
  public struct CopiedEnds: ~Copyable, Sendable {
    /// The end to write to.
    public var producer: Producer
    /// The end to read from.
    public var consumer: Consumer
    /// The end that copies the written bytes.
    public var copier: Copier
  }

  /// Makes a buffer with a third end.
  ///
  /// - Throws: ``SystemError`` if memory or descriptors are refused.
  package static func makeCopied(_ settings: Settings) throws(SystemError) -> CopiedEnds {
    precondition(settings.hasCopier && settings.memory == .kept, "memory is not returned while it is copied")
    let storage = try CircularStorage(settings)
    return CopiedEnds(
      producer: Producer(storage: storage), consumer: Consumer(storage: storage), copier: Copier(storage: storage))
  }

  /// The consumer of a buffer whose producer is gone. Everything is in its backing.
  ///
  /// - Parameters:
  ///   - head: the offset at which it ends.
  ///   - pauses: the ones that the consumer has not passed, at most 16.
  ///   - pausedBefore: the total length of those that it has passed.
  package static func makeFinished(
    head: UInt64, pauses: [Pause], pausedBefore: UInt64, backing: any CircularBacking
  ) throws(SystemError) -> FinishedEnds {
    var settings = Settings(capacity: 1)
    (settings.allowsPauses, settings.backing, settings.start) = (true, backing, head)
    settings.pausedBefore = pausedBefore
    let storage = try CircularStorage(settings)
    for pause in pauses { _ = storage.pauses?.append(pause) }
    storage.finish()
    return FinishedEnds(consumer: Consumer(storage: storage), copier: Copier(storage: storage))
  }

  /// The consumer of a buffer that a killed process has left in memory. Bytes no longer there are in its backing.
  ///
  /// The bytes in the file stay unchanged, so that another process can do the same.
  ///
  /// - Parameter position: where the consumer continues. It passes the pauses from there on once more.
  /// - Throws: ``SystemError`` if memory or descriptors are refused.
  package static func makeFinished(
    _ remains: Remains, from position: UInt64, backing: any CircularBacking
  ) throws(SystemError) -> FinishedEnds {
    remains.memory.pauses.rewind(to: position)
    let storage = try CircularStorage(adopting: remains.memory, backing: backing)
    storage.advanceReleased(to: remains.oldest)
    return FinishedEnds(consumer: Consumer(storage: storage), copier: Copier(storage: storage))
  }

  /// The remaining ends of a buffer without a producer.
  @frozen
  public struct FinishedEnds: ~Copyable, Sendable {
    /// The end to read from.
    public var consumer: Consumer
    /// The end that copies the written bytes.
    public var copier: Copier
  }

  /// Wakes the consumer from any thread.
  public struct ConsumerWaker: Sendable {
    fileprivate let storage: CircularStorage

    package func wake() { storage.dataAvailable.signal() }
  }

  /// The copying end. One thread at a time uses it.
  public struct Copier: Sendable {
    private let storage: CircularStorage

    init(storage: CircularStorage) { self.storage = storage }

    package var waker: ConsumerWaker { ConsumerWaker(storage: storage) }

    /// Stream offset one past the newest byte.
    package var head: UInt64 { storage.words.pointee.head.load(ordering: .acquiring) }

    /// Offset of the oldest byte in the buffer. Those before it were released, or taken by the producer.
    package var oldest: UInt64 { storage.words.pointee.released.load(ordering: .acquiring) }

    /// Capacity in bytes.
    package var capacity: Int { storage.capacity }

    /// Whether ``head`` is final. Check this first, and ``head`` afterwards.
    package var isFinished: Bool { storage.words.pointee.finished.load(ordering: .acquiring) }

    /// The pauses from `position` on, and the total length of all before.
    package func pauses(from position: UInt64) -> Pauses { storage.pauses?.pauses(from: position) ?? Pauses() }

    /// Where the consumer's thread leaves a text that survives the process, like the buffer.
    package var note: Note { Note(storage: storage) }

    /// Copies the available bytes from `offset` on, at most as many as `target` holds.
    package func copy(
      at offset: UInt64, into target: UnsafeMutableRawBufferPointer
    ) -> Consumer.ReadResult<Int> {
      let words = storage.words
      words.pointee.pinnedByCopier.store(offset, ordering: .sequentiallyConsistent)
      defer { words.pointee.pinnedByCopier.store(CircularWords.nothingPinned, ordering: .releasing) }
      let oldest = words.pointee.released.load(ordering: .sequentiallyConsistent)
      guard offset >= oldest else { return .overwritten(oldest: oldest) }
      let head = head
      guard offset < head else { return .empty }
      let count = min(Int(clamping: head - offset), target.count)
      target.copyMemory(from: UnsafeRawBufferPointer(start: storage.address(of: offset), count: count))
      return .bytes(count)
    }

    /// Everything before `offset` exists elsewhere, so the producer may overwrite it.
    package func copied(upTo offset: UInt64) {
      let before = storage.words.pointee.copied.load(ordering: .relaxed)
      storage.words.pointee.copied.store(max(before, offset), ordering: .sequentiallyConsistent)
      storage.wakeProducer()
    }

    /// An eventfd that is signalled after ``requestWakeUp(atHead:)``. Watch it edge-triggered.
    package var descriptor: Int32 { storage.copyDescriptor }

    /// Requests a wake-up once the head reaches `offset`, the stream has ended, or the producer waits for space.
    /// Returns false if there is nothing to wait for.
    ///
    /// Each request that returned true causes one wake-up. It may be early, and is then used up.
    package func requestWakeUp(atHead offset: UInt64) -> Bool {
      let words = storage.words
      words.pointee.copierWaits.store(min(offset, .max - 1), ordering: .sequentiallyConsistent)
      let isThere =
        words.pointee.head.load(ordering: .sequentiallyConsistent) >= offset
        || words.pointee.finished.load(ordering: .sequentiallyConsistent)
        || words.pointee.producerWaits.load(ordering: .sequentiallyConsistent) > 0
      if !isThere { return true }
      return words.pointee.copierWaits.exchange(.max, ordering: .sequentiallyConsistent) == .max
    }
  }
}
