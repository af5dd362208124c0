// The words that the threads of a circular buffer share, in memory of their process. If the buffer's file has a name,
// its first page has a copy. The copy makes the file of a killed process self-describing.

internal import Synchronization

/// The words of a circular buffer. Each group has its own cache lines, so that one thread's writes do not evict the
/// words of another.
struct CircularWords: ~Copyable {
  /// Changes with the meaning or the order of the words.
  static let currentLayout: UInt64 = 0x534c_5549_4345_0002
  static let nothingPinned = UInt64.max
  /// How many pauses may wait for the consumer.
  static let pauseCapacity = 16
  /// How many pauses are kept: those that wait, and as many that the consumer has passed.
  static let pauseSlots = 2 * pauseCapacity

  let layout = CircularWords.currentLayout
  /// In bytes.
  let capacity: UInt64

  // Written by the producer, once per write.
  private let apartFromTheRest = CacheLines()
  let head = Atomic<UInt64>(0)
  let finished = Atomic<Bool>(false)
  // Only in a file: copies of the head, one written before it and one after it, so that damage to one of the three
  // shows. See `leftHead`. Zeros in a file of an earlier version.
  let headBefore = Atomic<UInt64>(0)
  let headAfter = Atomic<UInt64>(0)

  // Written by the consumer, for each read and release. The earlier versions had no copies of the head, and the words
  // have kept their places.
  private let apartFromTheProducer: InlineArray<14, UInt64> = InlineArray(repeating: 0)
  let released = Atomic<UInt64>(0)
  /// The lowest offset that the consumer is using, `nothingPinned` if it is using none.
  let pinned = Atomic<UInt64>(nothingPinned)

  // Only for a file: one more than the offset up to which the consumer has released bytes. `released` also counts those
  // that the producer has taken. 0 in a file of an earlier version.
  let consumed = Atomic<UInt64>(0)

  // Written by the copier, for each copy. The words have kept their places here, too.
  private let apartFromTheConsumer: InlineArray<15, UInt64> = InlineArray(repeating: 0)
  /// Everything before this offset exists elsewhere, so the producer may overwrite it.
  let copied = Atomic<UInt64>(0)
  /// Like `pinned`, for the copier.
  let pinnedByCopier = Atomic<UInt64>(nothingPinned)

  // Written only when a thread goes to sleep or is woken, so checking them costs a busy thread nothing.
  private let apartFromTheCopier = CacheLines()
  /// Whether the consumer asked to be woken by the next bytes.
  let consumerWaits = Atomic<Bool>(false)
  /// How many free bytes the producer asked to be woken for; 0 if it does not wait.
  let producerWaits = Atomic<Int>(0)
  /// The head that the copier asked to be woken at; `UInt64.max` if it does not wait.
  let copierWaits = Atomic<UInt64>(.max)

  private let apartFromTheWaiting = CacheLines()
  let pausesWritten = Atomic<Int>(0)
  let pausesRead = Atomic<Int>(0)
  var pauses = InlineArray<32, PauseRing.Slot>(repeating: PauseRing.Slot())
  /// The total length of the pauses before the first of these, which another process has passed.
  let pausedBefore: UInt64
  /// How often the note was replaced: see ``CircularNote``.
  let noteCount = Atomic<Int>(0)
  /// Zeros in a file of an earlier version.
  var label = CircularBuffer.Label()

  /// - Parameters:
  ///   - capacity: in bytes.
  ///   - end: the offset at which the buffer begins, and up to which everything is released.
  ///   - pausedBefore: the total length of all pauses before it.
  init(capacity: Int, startingAt end: UInt64, pausedBefore: UInt64) {
    self.capacity = UInt64(capacity)
    self.pausedBefore = pausedBefore
    publishHead(end)
    released.store(end, ordering: .relaxed)
    // No stream gets as far as the largest offset.
    consumed.store(end &+ 1, ordering: .relaxed)
    copied.store(end, ordering: .relaxed)
  }

  /// Changes the head in a file. A process that is killed in between leaves two equal words of three.
  func publishHead(_ end: UInt64) {
    headBefore.store(end, ordering: .releasing)
    head.store(end, ordering: .releasing)
    headAfter.store(end, ordering: .releasing)
  }

  /// The head in the file of another process, even if one of the three words was damaged; nil if more were.
  var leftHead: UInt64? {
    let (before, after) = (headBefore.load(ordering: .acquiring), headAfter.load(ordering: .acquiring))
    let head = head.load(ordering: .acquiring)
    if head == before || head == after { return head }
    if before == after { return before == 0 ? head : before }
    return nil
  }

  /// What another process has left in a file, for a process that reads it. Nobody waits there any more.
  ///
  /// - Parameter end: its ``leftHead``.
  init(copying other: UnsafeMutablePointer<CircularWords>, head end: UInt64) {
    capacity = other.pointee.capacity
    pausedBefore = other.pointee.pausedBefore
    pauses = other.pointee.pauses
    label = other.pointee.label
    head.store(end, ordering: .relaxed)
    finished.store(other.pointee.finished.load(ordering: .relaxed), ordering: .relaxed)
    released.store(other.pointee.released.load(ordering: .relaxed), ordering: .relaxed)
    consumed.store(other.pointee.consumed.load(ordering: .relaxed), ordering: .relaxed)
    pausesWritten.store(other.pointee.pausesWritten.load(ordering: .relaxed), ordering: .relaxed)
    pausesRead.store(other.pointee.pausesRead.load(ordering: .relaxed), ordering: .relaxed)
    noteCount.store(other.pointee.noteCount.load(ordering: .relaxed), ordering: .relaxed)
  }
}

/// 128 bytes: x86 fetches lines in pairs, and some ARM cores have lines of this length.
private struct CacheLines {
  private let words: InlineArray<16, UInt64> = InlineArray(repeating: 0)
}
