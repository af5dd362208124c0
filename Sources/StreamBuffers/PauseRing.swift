// The places where a stream omits bytes, passed from one thread to the other.

internal import Synchronization

/// A few pauses. One thread appends and one removes, without allocation. The last removed ones stay, with the sum of
/// all lengths up to each. So a reader that knows one position of the stream, possibly in another process, can
/// determine how many bytes were omitted before it. No other record is necessary.
struct PauseRing {
  /// A pause, and the total up to it.
  struct Slot {
    var position: UInt64 = 0
    var length: UInt64 = 0
    /// The total length of all pauses up to this one.
    var total: UInt64 = 0

    var pause: CircularBuffer.Pause { CircularBuffer.Pause(position: position, length: length) }
  }

  let words: UnsafeMutablePointer<CircularWords>
  /// The words in the buffer's file, for another process; nil if there are none. They are written first.
  let published: UnsafeMutablePointer<CircularWords>?

  private func slot(_ number: Int) -> Slot { words.pointee.pauses[number % CircularWords.pauseSlots] }

  /// The total length of the first `number` pauses, and of those before this buffer began.
  private func total(_ number: Int) -> UInt64 { number > 0 ? slot(number - 1).total : words.pointee.pausedBefore }

  /// On the producer's thread. Returns false if all slots are in use.
  func append(_ pause: CircularBuffer.Pause) -> Bool {
    let index = words.pointee.pausesWritten.load(ordering: .relaxed)
    guard index - words.pointee.pausesRead.load(ordering: .acquiring) < CircularWords.pauseCapacity else {
      return false
    }
    let (sum, overflows) = total(index).addingReportingOverflow(pause.length)
    let slot = Slot(position: pause.position, length: pause.length, total: overflows ? .max : sum)
    if let published {
      published.pointee.pauses[index % CircularWords.pauseSlots] = slot
      published.pointee.pausesWritten.store(index + 1, ordering: .releasing)
    }
    words.pointee.pauses[index % CircularWords.pauseSlots] = slot
    // Sequentially consistent, because the producer then checks whether the consumer sleeps. The consumer declares that
    // it sleeps before it checks here.
    words.pointee.pausesWritten.store(index + 1, ordering: .sequentiallyConsistent)
    return true
  }

  /// On the consumer's thread.
  var first: CircularBuffer.Pause? {
    let index = words.pointee.pausesRead.load(ordering: .relaxed)
    guard index != words.pointee.pausesWritten.load(ordering: .sequentiallyConsistent) else { return nil }
    return slot(index).pause
  }

  /// On the consumer's thread.
  func removeFirst() {
    let index = words.pointee.pausesRead.load(ordering: .relaxed)
    guard index != words.pointee.pausesWritten.load(ordering: .acquiring) else { return }
    published?.pointee.pausesRead.store(index + 1, ordering: .releasing)
    words.pointee.pausesRead.store(index + 1, ordering: .releasing)
  }

  /// The total length of all pauses that the consumer has passed. On its thread.
  var passedByteCount: UInt64 { total(words.pointee.pausesRead.load(ordering: .relaxed)) }

  /// The offset of the last pause that the consumer has passed. On its thread.
  var lastPassed: UInt64? {
    let index = words.pointee.pausesRead.load(ordering: .relaxed)
    return index > 0 ? slot(index - 1).position : nil
  }

  /// The pauses from `position` on, and the total length of all before. Any thread.
  ///
  /// The consumer may have passed some of them. A reader that continues from `position` passes them again. Sixteen
  /// passed pauses are kept, and older ones count as before.
  func pauses(from position: UInt64) -> CircularBuffer.Pauses {
    while true {
      let written = words.pointee.pausesWritten.load(ordering: .acquiring)
      let read = words.pointee.pausesRead.load(ordering: .acquiring)
      // This can be false in a file that another program has written.
      guard read >= 0, written >= read, written - read < CircularWords.pauseSlots else {
        return CircularBuffer.Pauses()
      }
      // The sum of the one before it must be available, too.
      let oldest = max(0, read - CircularWords.pauseCapacity, written - CircularWords.pauseSlots + 1)
      let first = (oldest..<read).first { slot($0).position >= position } ?? read
      var found = CircularBuffer.Pauses()
      found.ahead = (first..<written).map { slot($0).pause }
      // The slot before the oldest is in use again.
      let next = first < written ? slot(first) : Slot(total: total(first))
      found.byteCountBefore = next.total - min(next.total, next.length)
      found.firstNumber = first
      // If the consumer has passed more meanwhile, the producer may have reused the oldest of these slots.
      atomicMemoryFence(ordering: .acquiring)
      if words.pointee.pausesRead.load(ordering: .relaxed) == read { return found }
    }
  }

  /// The consumer continues from `position`, and passes the pauses from there on once more. Before its thread begins.
  func rewind(to position: UInt64) {
    let first = pauses(from: position).firstNumber
    published?.pointee.pausesRead.store(first, ordering: .releasing)
    words.pointee.pausesRead.store(first, ordering: .sequentiallyConsistent)
  }
}

extension CircularBuffer {
  /// The pauses from one position on.
  package struct Pauses: Equatable, Sendable {
    /// The total length of all pauses before that position.
    package var byteCountBefore: UInt64 = 0
    /// In order.
    package var ahead: [Pause] = []
    /// How many pauses of this buffer were before it.
    var firstNumber = 0

    package init() {}
  }
}
