// Where a stream leaves bytes out, on its way from one thread to the other.

internal import Synchronization

/// A few pauses: one thread appends, one takes, nothing is allocated in between.
final class PauseRing: Sendable {
  static let capacity = 16

  private let written = Atomic<Int>(0)
  private let read = Atomic<Int>(0)
  nonisolated(unsafe) private let slots: UnsafeMutableBufferPointer<CircularBuffer.Pause>

  init() {
    slots = .allocate(capacity: Self.capacity)
    slots.initialize(repeating: CircularBuffer.Pause(position: 0, length: 0))
  }

  deinit { slots.deallocate() }

  /// The producer's thread. False when all slots are taken.
  func append(_ pause: CircularBuffer.Pause) -> Bool {
    let index = written.load(ordering: .relaxed)
    guard index - read.load(ordering: .acquiring) < Self.capacity else { return false }
    slots[index % Self.capacity] = pause
    // Sequentially consistent: what follows looks whether the consumer sleeps, which says so first and then looks here.
    written.store(index + 1, ordering: .sequentiallyConsistent)
    return true
  }

  /// The consumer's thread.
  var first: CircularBuffer.Pause? {
    let index = read.load(ordering: .relaxed)
    return index == written.load(ordering: .sequentiallyConsistent) ? nil : slots[index % Self.capacity]
  }

  func removeFirst() {
    let index = read.load(ordering: .relaxed)
    guard index != written.load(ordering: .acquiring) else { return }
    read.store(index + 1, ordering: .releasing)
  }
}
