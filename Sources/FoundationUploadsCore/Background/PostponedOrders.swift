// The orders that an agent could not store because its disk was full, and the time at which they are sent again.

internal import EventLoops

/// Takes answers and times, and returns the orders that are due. Has no I/O and no clock.
struct PostponedOrders {
  /// The tokens of the orders that wait.
  private var waiting: [Int] = []
  /// Those of the orders that were sent again and have no answer yet.
  private var repeated: Set<Int> = []
  /// When they are sent again.
  private var repetition: MonotonicInstant?
  private var pauses = RetryPauses(.seconds(1)...(.seconds(30)))

  /// When the waiting orders are due. Nil if none waits.
  var time: MonotonicInstant? { waiting.isEmpty ? nil : repetition }

  mutating func postpone(_ token: Int, now: MonotonicInstant) {
    repeated.remove(token)
    waiting.append(token)
    // Orders refused together are repeated together.
    guard waiting.count == 1 else { return }
    repetition = now + pauses.next()
  }

  /// The waiting orders are sent again now.
  mutating func takeAll() -> [Int] {
    defer { waiting = [] }
    repeated.formUnion(waiting)
    return waiting
  }

  /// An order was answered otherwise. If it had been postponed, there is space again, and the pauses begin anew.
  mutating func answered(_ token: Int) {
    if repeated.remove(token) != nil, waiting.isEmpty { pauses.reset() }
  }
}
