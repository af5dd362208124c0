// Where a stream leaves bytes out, on its way from one thread to the other.

internal import Synchronization

/// A few pauses: one thread appends, one takes, nothing is allocated in between.
struct PauseRing {
  let words: UnsafeMutablePointer<CircularWords>

  /// The producer's thread. False when all slots are taken.
  func append(_ pause: CircularBuffer.Pause) -> Bool {
    let index = words.pointee.pausesWritten.load(ordering: .relaxed)
    guard index - words.pointee.pausesRead.load(ordering: .acquiring) < CircularWords.pauseCapacity else {
      return false
    }
    words.pointee.pauses[index % CircularWords.pauseCapacity] = pause
    // Sequentially consistent: what follows looks whether the consumer sleeps, which says so first and then looks here.
    words.pointee.pausesWritten.store(index + 1, ordering: .sequentiallyConsistent)
    return true
  }

  /// The consumer's thread.
  var first: CircularBuffer.Pause? {
    let index = words.pointee.pausesRead.load(ordering: .relaxed)
    guard index != words.pointee.pausesWritten.load(ordering: .sequentiallyConsistent) else { return nil }
    return words.pointee.pauses[index % CircularWords.pauseCapacity]
  }

  /// The consumer's thread.
  func removeFirst() {
    let index = words.pointee.pausesRead.load(ordering: .relaxed)
    guard index != words.pointee.pausesWritten.load(ordering: .acquiring) else { return }
    words.pointee.pausesRead.store(index + 1, ordering: .releasing)
  }

  /// Those that wait for the consumer. Any thread, while fewer than all slots are taken.
  var all: [CircularBuffer.NumberedPause] {
    let written = words.pointee.pausesWritten.load(ordering: .acquiring)
    let read = words.pointee.pausesRead.load(ordering: .acquiring)
    // Not so in a file that somebody else has written.
    guard read >= 0, written >= read, written - read <= CircularWords.pauseCapacity else { return [] }
    return (read..<written).map { number in
      CircularBuffer.NumberedPause(number: number, pause: words.pointee.pauses[number % CircularWords.pauseCapacity])
    }
  }
}
