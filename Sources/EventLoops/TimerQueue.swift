// Which timer is due next: an indexed heap, so that cancelling leaves nothing behind.
//
// A live stream sets and cancels a libcurl timer for nearly every message; a heap with lazily deleted entries would
// grow by each of them until their deadlines passed.

/// Pending deadlines, earliest first, equal ones in the order in which they were set. A value: no clock, no descriptor;
/// the loop asks it and acts.
struct TimerQueue {
  /// Names one scheduled timer. Stale ones (fired, cancelled) are recognised by their generation.
  struct Token: Equatable {
    let slot: Int
    fileprivate let generation: UInt64
  }

  private struct Slot {
    /// Counts the timers that have left the slot.
    var generation: UInt64 = 0
    var heapIndex = 0
    var work: (() -> Void)?
  }

  /// What the order depends on stands in the heap itself: with thousands of timers each look elsewhere is a cache miss.
  private struct Node {
    var deadline: MonotonicInstant
    /// Counts the timers ever set: of two with one deadline the one set first is due first.
    var number: UInt64
    var slot: Int

    func isEarlier(than other: Node) -> Bool {
      deadline == other.deadline ? number < other.number : deadline < other.deadline
    }
  }

  private var slots: [Slot] = []
  private var freeSlots: [Int] = []
  /// Ordered as a heap, four children a node: half as deep as one with two.
  private var heap: [Node] = []
  private var nextNumber: UInt64 = 0

  private static let childCount = 4

  var count: Int { heap.count }

  /// The earliest deadline, or nil when nothing is scheduled.
  var nextDeadline: MonotonicInstant? { heap.first?.deadline }

  mutating func schedule(at deadline: MonotonicInstant, _ work: @escaping () -> Void) -> Token {
    let slot: Int
    if let free = freeSlots.popLast() {
      slot = free
    } else {
      slot = slots.count
      slots.append(Slot())
    }
    slots[slot].work = work
    let node = Node(deadline: deadline, number: nextNumber, slot: slot)
    nextNumber += 1
    heap.append(node)
    siftUp(node, from: heap.count - 1)
    return Token(slot: slot, generation: slots[slot].generation)
  }

  /// Forgets a timer and returns its work; nil for one that has fired or was cancelled before.
  mutating func cancel(_ token: Token) -> (() -> Void)? {
    guard slots[token.slot].generation == token.generation else { return nil }
    return remove(heapIndex: slots[token.slot].heapIndex)
  }

  /// Forgets all timers and returns their work, in no order.
  mutating func cancelAll() -> [() -> Void] {
    var work: [() -> Void] = []
    while !heap.isEmpty {
      if let last = remove(heapIndex: heap.count - 1) { work.append(last) }
    }
    return work
  }

  /// Takes out the work of the earliest timer that is due at `now`.
  mutating func popDue(at now: MonotonicInstant) -> (() -> Void)? {
    guard let first = heap.first, first.deadline <= now else { return nil }
    return remove(heapIndex: 0)
  }

  private mutating func remove(heapIndex: Int) -> (() -> Void)? {
    let slot = heap[heapIndex].slot
    let last = heap.removeLast()
    if heapIndex < heap.count {
      // It comes from another branch: it may belong further up as well as further down.
      siftUp(last, from: siftDown(last, from: heapIndex))
    }
    let work = slots[slot].work
    slots[slot].work = nil
    slots[slot].generation &+= 1
    freeSlots.append(slot)
    return work
  }

  /// Puts `node` at `index`, or above it.
  private mutating func siftUp(_ node: Node, from start: Int) { Self.siftUp(node, from: start, &heap, &slots) }

  private static func siftUp(_ node: Node, from start: Int, _ heap: inout [Node], _ slots: inout [Slot]) {
    // Spans, here and below: an array asks with each element that is written whether it is the only one.
    var heap = heap.mutableSpan
    var slots = slots.mutableSpan
    var index = start
    while index > 0 {
      let parent = (index - 1) / childCount
      let above = heap[parent]
      guard node.isEarlier(than: above) else { break }
      heap[index] = above
      slots[above.slot].heapIndex = index
      index = parent
    }
    heap[index] = node
    slots[node.slot].heapIndex = index
  }

  /// Moves what is due before `node` up from below `start`, and returns the place that it leaves.
  private mutating func siftDown(_ node: Node, from start: Int) -> Int {
    Self.siftDown(node, from: start, &heap, &slots)
  }

  private static func siftDown(_ node: Node, from start: Int, _ heap: inout [Node], _ slots: inout [Slot]) -> Int {
    var heap = heap.mutableSpan
    var slots = slots.mutableSpan
    var index = start
    while true {
      let first = childCount * index + 1
      guard first < heap.count else { break }
      var child = first
      var smallest = heap[first]
      for other in first + 1..<min(first + childCount, heap.count)
      where heap[other].isEarlier(than: smallest) {
        child = other
        smallest = heap[other]
      }
      guard smallest.isEarlier(than: node) else { break }
      heap[index] = smallest
      slots[smallest.slot].heapIndex = index
      index = child
    }
    return index
  }
}
