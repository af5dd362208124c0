// The queue of timers: an indexed heap, from which a cancelled timer is removed at once.
//
// A live stream sets and cancels a libcurl timer for nearly every message. A heap with lazily deleted entries would
// grow by each of them until their deadlines passed.

/// Pending deadlines, earliest first. Equal ones are in the order in which they were set. It is a value without a clock
/// or a descriptor, and the loop acts on its results.
struct TimerQueue {
  /// Names one scheduled timer. Stale tokens (fired, cancelled) are recognized by their generation.
  struct Token: Equatable {
    let slot: Int
    fileprivate let generation: UInt64
  }

  private struct Slot {
    /// The number of timers that have left the slot.
    var generation: UInt64 = 0
    var heapIndex = 0
    var work: (() -> Void)?
  }

  /// The sort key is in the heap itself. With thousands of timers, each access elsewhere would be a cache miss.
  private struct Node {
    var deadline: MonotonicInstant
    /// The number of timers ever set. Of two timers with the same deadline, the one that was set first is due first.
    var number: UInt64
    var slot: Int

    func isEarlier(than other: Node) -> Bool {
      deadline == other.deadline ? number < other.number : deadline < other.deadline
    }
  }

  private var slots: [Slot] = []
  private var freeSlots: [Int] = []
  /// A heap with four children per node, which is half as deep as a binary heap.
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

  /// Removes a timer, and returns its work. Nil if it has fired or was cancelled.
  mutating func cancel(_ token: Token) -> (() -> Void)? {
    guard slots[token.slot].generation == token.generation else { return nil }
    return remove(heapIndex: slots[token.slot].heapIndex)
  }

  /// Removes all timers, and returns their work in any order.
  mutating func cancelAll() -> [() -> Void] {
    var work: [() -> Void] = []
    while !heap.isEmpty {
      if let last = remove(heapIndex: heap.count - 1) { work.append(last) }
    }
    return work
  }

  /// Removes and returns the work of the earliest timer that is due at `now`.
  mutating func popDue(at now: MonotonicInstant) -> (() -> Void)? {
    guard let first = heap.first, first.deadline <= now else { return nil }
    return remove(heapIndex: 0)
  }

  private mutating func remove(heapIndex: Int) -> (() -> Void)? {
    let slot = heap[heapIndex].slot
    let last = heap.removeLast()
    if heapIndex < heap.count {
      // The node comes from another branch, so it may belong further up or further down.
      siftUp(last, from: siftDown(last, from: heapIndex))
    }
    let work = slots[slot].work
    slots[slot].work = nil
    slots[slot].generation &+= 1
    freeSlots.append(slot)
    return work
  }

  /// Moves `node` from `index` up to its place.
  private mutating func siftUp(_ node: Node, from start: Int) { Self.siftUp(node, from: start, &heap, &slots) }

  private static func siftUp(_ node: Node, from start: Int, _ heap: inout [Node], _ slots: inout [Slot]) {
    // Spans, here and below, because an array checks for unique ownership with each write.
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

  /// Moves earlier nodes up from below `start`, and returns the index that becomes free.
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
