// Timeouts of thousands of connections with one timer. All waits of a kind have the same duration, so the oldest ends
// first: a queue per kind needs no sorting.

internal import EventLoops

/// The waits of one kind, in the order of their beginning. A doubly linked list through the connections themselves, so
/// beginning, renewing or ending a wait takes a few stores and no allocation.
final class TimeoutQueue {
  private let duration: Duration
  // The connections are kept alive by their registration. Each removes itself before it is released.
  private unowned(unsafe) var first: HTTPConnection?
  private unowned(unsafe) var last: HTTPConnection?

  /// Whether waits of this kind are kept in order although they have no limit.
  private let isOrdered: Bool

  /// - Parameter duration: zero for no limit.
  init(duration: Duration, isOrdered: Bool) {
    self.duration = duration
    self.isOrdered = isOrdered
  }

  var isEmpty: Bool { first == nil }
  var nextDeadline: MonotonicInstant? { isLimited ? first?.timeoutLink.deadline : nil }
  /// The connection with the longest wait.
  var longest: HTTPConnection? { first }

  private var isLimited: Bool { duration > .zero }
  /// Whether there are waits of this kind at all.
  var isUsed: Bool { isLimited || isOrdered }

  /// Begins a wait. The connection must not be in any queue.
  func append(_ connection: HTTPConnection) {
    connection.timeoutLink = .init(deadline: .now + duration, queue: self, previous: last, next: nil)
    if let last { last.timeoutLink.next = connection } else { first = connection }
    last = connection
  }

  func remove(_ connection: HTTPConnection) {
    let link = connection.timeoutLink
    guard link.queue === self else { return }
    if let previous = link.previous { previous.timeoutLink.next = link.next } else { first = link.next }
    if let next = link.next { next.timeoutLink.previous = link.previous } else { last = link.previous }
    connection.timeoutLink = .init()
  }

  /// Removes the connection whose wait is over at `now`.
  func popDue(at now: MonotonicInstant) -> HTTPConnection? {
    guard isLimited, let first, first.timeoutLink.deadline <= now else { return nil }
    remove(first)
    return first
  }
}

/// A connection's place in a queue.
struct TimeoutLink {
  var deadline = MonotonicInstant(nanoseconds: 0)
  unowned(unsafe) var queue: TimeoutQueue?
  unowned(unsafe) var previous: HTTPConnection?
  unowned(unsafe) var next: HTTPConnection?
}

/// The queues of all kinds and the one timer for them. Only on the loop's thread.
final class Timeouts {
  private let loop: EventLoop
  private let queues: [TimeoutQueue]
  private var timer: (timer: EventLoop.Timer, deadline: MonotonicInstant)?

  init(loop: EventLoop, durations: (HTTPConnectionState.Timeout) -> Duration) {
    self.loop = loop
    queues = HTTPConnectionState.Timeout.allCases.map {
      TimeoutQueue(duration: durations($0), isOrdered: Self.dispensable.contains($0))
    }
  }

  /// Waits whose connection can be closed to make room for another one, in this order. No request is lost by it.
  private static let dispensable: [HTTPConnectionState.Timeout] = [.idle, .head, .lingering, .sending]

  /// The connection that can be closed at the lowest cost, and among equals the one that has waited longest; nil if all
  /// are active.
  var mostDispensable: HTTPConnection? {
    for kind in Self.dispensable { if let connection = queues[kind.rawValue].longest { return connection } }
    return nil
  }

  /// Sets what the connection waits for from now on; nil for nothing.
  func set(_ kind: HTTPConnectionState.Timeout?, _ connection: HTTPConnection) {
    connection.timeoutLink.queue?.remove(connection)
    guard let kind, queues[kind.rawValue].isUsed else { return }
    queues[kind.rawValue].append(connection)
    arm()
  }

  /// The timer is never moved to a later time. It fires, finds the wait renewed, and is set again. That costs one
  /// wake-up per wait instead of a rescheduling per packet.
  private func arm() {
    guard let deadline = queues.compactMap(\.nextDeadline).min() else { return }
    if let timer {
      if timer.deadline <= deadline { return }
      loop.cancel(timer.timer)
    }
    timer = (loop.schedule(at: deadline) { [unowned self] in fire() }, deadline)
  }

  private func fire() {
    timer = nil
    let now = MonotonicInstant.now
    for queue in queues {
      while let connection = queue.popDue(at: now) { connection.timedOut() }
    }
    arm()
  }

  /// Before the loop ends, after which no timer may fire.
  func cancel() {
    if let timer { loop.cancel(timer.timer) }
    timer = nil
  }
}
