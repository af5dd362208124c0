// Where a stream leaves bytes out, on its way from one thread to the other.

internal import Synchronization

/// A few pauses: one thread appends, one takes, nothing is allocated in between. Those that were taken last stay, with
/// the sum of all lengths up to each. So whoever knows one position of the stream, another process among them, knows
/// how many bytes were left out before it, and nobody has to keep that anywhere else.
struct PauseRing {
  /// A pause, and all before it.
  struct Slot {
    var position: UInt64 = 0
    var length: UInt64 = 0
    /// The lengths of all pauses up to this one.
    var total: UInt64 = 0

    var pause: CircularBuffer.Pause { CircularBuffer.Pause(position: position, length: length) }
  }

  let words: UnsafeMutablePointer<CircularWords>

  private func slot(_ number: Int) -> Slot { words.pointee.pauses[number % CircularWords.pauseSlots] }

  /// The lengths of the first `number` pauses, and of those before this buffer began.
  private func total(_ number: Int) -> UInt64 { number > 0 ? slot(number - 1).total : words.pointee.pausedBefore }

  /// The producer's thread. False when all slots are taken.
  func append(_ pause: CircularBuffer.Pause) -> Bool {
    let index = words.pointee.pausesWritten.load(ordering: .relaxed)
    guard index - words.pointee.pausesRead.load(ordering: .acquiring) < CircularWords.pauseCapacity else {
      return false
    }
    let (sum, overflows) = total(index).addingReportingOverflow(pause.length)
    words.pointee.pauses[index % CircularWords.pauseSlots] = Slot(
      position: pause.position, length: pause.length, total: overflows ? .max : sum)
    // Sequentially consistent: what follows looks whether the consumer sleeps, which says so first and then looks here.
    words.pointee.pausesWritten.store(index + 1, ordering: .sequentiallyConsistent)
    return true
  }

  /// The consumer's thread.
  var first: CircularBuffer.Pause? {
    let index = words.pointee.pausesRead.load(ordering: .relaxed)
    guard index != words.pointee.pausesWritten.load(ordering: .sequentiallyConsistent) else { return nil }
    return slot(index).pause
  }

  /// The consumer's thread.
  func removeFirst() {
    let index = words.pointee.pausesRead.load(ordering: .relaxed)
    guard index != words.pointee.pausesWritten.load(ordering: .acquiring) else { return }
    words.pointee.pausesRead.store(index + 1, ordering: .releasing)
  }

  /// The lengths of all pauses that the consumer has passed. Its thread.
  var passedByteCount: UInt64 { total(words.pointee.pausesRead.load(ordering: .relaxed)) }

  /// Where the pause was that the consumer has passed last. Its thread.
  var lastPassed: UInt64? {
    let index = words.pointee.pausesRead.load(ordering: .relaxed)
    return index > 0 ? slot(index - 1).position : nil
  }

  /// The pauses from `position` on, and the lengths of all before. Any thread.
  ///
  /// The consumer may have passed some of them: whoever goes on from `position` passes them again. Sixteen that were
  /// passed are remembered; what is older counts as before.
  func pauses(from position: UInt64) -> CircularBuffer.Pauses {
    while true {
      let written = words.pointee.pausesWritten.load(ordering: .acquiring)
      let read = words.pointee.pausesRead.load(ordering: .acquiring)
      // Not so in a file that somebody else has written.
      guard read >= 0, written >= read, written - read < CircularWords.pauseSlots else {
        return CircularBuffer.Pauses()
      }
      // Of the one before it, the sum must be there, too.
      let oldest = max(0, read - CircularWords.pauseCapacity, written - CircularWords.pauseSlots + 1)
      let first = (oldest..<read).first { slot($0).position >= position } ?? read
      var found = CircularBuffer.Pauses()
      found.ahead = (first..<written).map { slot($0).pause }
      // The slot before the oldest is in use again.
      let next = first < written ? slot(first) : Slot(total: total(first))
      found.byteCountBefore = next.total - min(next.total, next.length)
      found.firstNumber = first
      // If the consumer has passed more meanwhile, the producer may have taken the oldest of these slots.
      atomicMemoryFence(ordering: .acquiring)
      if words.pointee.pausesRead.load(ordering: .relaxed) == read { return found }
    }
  }

  /// The consumer goes on from `position`, and passes the pauses from there on once more. Before its thread begins.
  func rewind(to position: UInt64) {
    words.pointee.pausesRead.store(pauses(from: position).firstNumber, ordering: .sequentiallyConsistent)
  }
}

extension CircularBuffer {
  /// The pauses from one position on.
  package struct Pauses: Equatable, Sendable {
    /// The lengths of all pauses before that position.
    package var byteCountBefore: UInt64 = 0
    /// In order.
    package var ahead: [Pause] = []
    /// How many pauses of this buffer were before it.
    var firstNumber = 0

    package init() {}
  }
}
