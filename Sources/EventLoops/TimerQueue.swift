// Which timer is due next: an indexed binary heap, so that cancelling leaves nothing behind.
//
// A live stream sets and cancels a libcurl timer for nearly every message; a heap with lazily deleted entries would
// grow by each of them until their deadlines passed.

/// Pending deadlines, earliest first, equal ones in the order in which they were set. A value: no clock, no descriptor; the loop asks it and acts.
struct TimerQueue {
  /// Names one scheduled timer. Stale ones (fired, cancelled) are recognised by their generation.
  struct Token: Equatable {
    fileprivate var slot: Int
    fileprivate var generation: UInt32
  }

  private struct Slot {
    var generation: UInt32 = 0
    var heapIndex = -1
    var deadline = MonotonicInstant(nanoseconds: 0)
    /// Counts the timers ever set: of two with one deadline the one set first is due first.
    var number: UInt64 = 0
    var work: (() -> Void)?
  }

  private var slots: [Slot] = []
  private var freeSlots: [Int] = []
  /// Slot numbers, ordered as a binary heap by deadline.
  private var heap: [Int] = []
  private var nextNumber: UInt64 = 0

  var count: Int { heap.count }

  /// The earliest deadline, or nil when nothing is scheduled.
  var nextDeadline: MonotonicInstant? { heap.first.map { slots[$0].deadline } }

  mutating func schedule(at deadline: MonotonicInstant, _ work: @escaping () -> Void) -> Token {
    let slot: Int
    if let free = freeSlots.popLast() {
      slot = free
    } else {
      slot = slots.count
      slots.append(Slot())
    }
    slots[slot].deadline = deadline
    slots[slot].number = nextNumber
    nextNumber += 1
    slots[slot].work = work
    slots[slot].heapIndex = heap.count
    heap.append(slot)
    siftUp(heap.count - 1)
    return Token(slot: slot, generation: slots[slot].generation)
  }

  /// Forgets a timer and returns its work; nil for one that has fired or was cancelled before.
  mutating func cancel(_ token: Token) -> (() -> Void)? {
    guard slots[token.slot].generation == token.generation, slots[token.slot].heapIndex >= 0 else { return nil }
    return remove(heapIndex: slots[token.slot].heapIndex)
  }

  /// Takes out the work of the earliest timer that is due at `now`.
  mutating func popDue(at now: MonotonicInstant) -> (() -> Void)? {
    guard let first = heap.first, slots[first].deadline <= now else { return nil }
    return remove(heapIndex: 0)
  }

  private mutating func remove(heapIndex: Int) -> (() -> Void)? {
    let slot = heap[heapIndex]
    let last = heap.removeLast()
    if last != slot {
      heap[heapIndex] = last
      slots[last].heapIndex = heapIndex
      siftUp(heapIndex)
      siftDown(slots[last].heapIndex)
    }
    let work = slots[slot].work
    slots[slot].work = nil
    slots[slot].heapIndex = -1
    slots[slot].generation &+= 1
    freeSlots.append(slot)
    return work
  }

  private mutating func siftUp(_ start: Int) {
    var child = start
    while child > 0 {
      let parent = (child - 1) / 2
      guard isEarlier(child, than: parent) else { return }
      swapNodes(child, parent)
      child = parent
    }
  }

  private mutating func siftDown(_ start: Int) {
    var parent = start
    while true {
      var smallest = parent
      for child in [2 * parent + 1, 2 * parent + 2] where child < heap.count {
        if isEarlier(child, than: smallest) { smallest = child }
      }
      guard smallest != parent else { return }
      swapNodes(parent, smallest)
      parent = smallest
    }
  }

  private func isEarlier(_ a: Int, than b: Int) -> Bool {
    let (a, b) = (heap[a], heap[b])
    if slots[a].deadline != slots[b].deadline { return slots[a].deadline < slots[b].deadline }
    return slots[a].number < slots[b].number
  }

  private mutating func swapNodes(_ a: Int, _ b: Int) {
    heap.swapAt(a, b)
    slots[heap[a]].heapIndex = a
    slots[heap[b]].heapIndex = b
  }
}
