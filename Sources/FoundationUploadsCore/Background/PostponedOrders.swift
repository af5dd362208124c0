// The orders that an agent could not store because its disk was full, and the time at which they are sent again.

internal import EventLoops

/// Takes answers and times, and returns the orders that are due. Has no I/O and no clock.
struct PostponedOrders {
  /// The first pause before an order that the agent could not store is sent again.
  static let firstPause = Duration.seconds(1)
  static let longestPause = Duration.seconds(30)

  /// The tokens of the orders that wait.
  private var waiting: [Int] = []
  /// Those of the orders that were sent again and have no answer yet.
  private var repeated: Set<Int> = []
  private var repetition: (time: MonotonicInstant, pause: Duration)?

  /// When the waiting orders are due. Nil if none waits.
  var time: MonotonicInstant? { waiting.isEmpty ? nil : repetition?.time }

  mutating func postpone(_ token: Int, now: MonotonicInstant) {
    repeated.remove(token)
    waiting.append(token)
    // Orders refused together are repeated together.
    guard waiting.count == 1 else { return }
    let pause = repetition.map { min($0.pause * 2, Self.longestPause) } ?? Self.firstPause
    repetition = (now + pause, pause)
  }

  /// The waiting orders are sent again now.
  mutating func takeAll() -> [Int] {
    defer { waiting = [] }
    repeated.formUnion(waiting)
    return waiting
  }

  /// An order was answered otherwise. If it had been postponed, there is space again, and the pauses begin anew.
  mutating func answered(_ token: Int) {
    if repeated.remove(token) != nil, waiting.isEmpty { repetition = nil }
  }
}
