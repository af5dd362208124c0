// Where circular buffers are mapped whose files others can truncate. After that, an access ends the process with
// SIGBUS.

internal import Synchronization

/// The addresses of all circular buffers of this process that have a file with a name.
///
/// A signal handler may ask for them: no call waits or allocates.
package enum SharedMappings {
  /// A range of addresses; empty if it is free.
  private struct Slot: ~Copyable {
    let start = Atomic<UInt>(0)
    let end = Atomic<UInt>(0)
  }

  private static let count = 64
  nonisolated(unsafe) private static let slots = {
    let slots = UnsafeMutablePointer<Slot>.allocate(capacity: count)
    for index in 0..<count { (slots + index).initialize(to: Slot()) }
    return slots
  }()

  /// Whether a circular buffer is there. Call it once before it is used in a signal handler.
  package static func contains(_ address: UInt) -> Bool {
    for index in 0..<count
    where address >= slots[index].start.load(ordering: .acquiring)
      && address < slots[index].end.load(ordering: .acquiring)
    {
      return true
    }
    return false
  }

  /// Adds a range. With more than 64 of them, the later ones are not known.
  static func add(_ start: UnsafeMutableRawPointer, _ byteCount: Int) {
    for index in 0..<count
    where slots[index].start.compareExchange(
      expected: 0, desired: UInt(bitPattern: start), ordering: .acquiringAndReleasing
    ).exchanged {
      return slots[index].end.store(UInt(bitPattern: start + byteCount), ordering: .releasing)
    }
  }

  static func remove(_ start: UnsafeMutableRawPointer) {
    for index in 0..<count where slots[index].start.load(ordering: .acquiring) == UInt(bitPattern: start) {
      // In this order: another range may take the slot as soon as it has no start.
      slots[index].end.store(0, ordering: .releasing)
      return slots[index].start.store(0, ordering: .releasing)
    }
  }
}
