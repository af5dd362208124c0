// The pure part of events that several tasks observe. It decides which observer gets which event.

/// Gives each event to every observer, keeps a bounded number of them for each, and counts those that it discards.
///
/// `Waiter` is the value that the shell resumes, usually a continuation. The last event is never discarded.
struct EventFanOut<Event, Waiter> {
  /// The events that observers get, and the number that is kept for them.
  enum Mode {
    /// All events. The first observer also gets the earlier events. Each other observer gets only later ones.
    ///
    /// - Parameters:
    ///   - limit: the number of events to keep for each observer, at least 1. The oldest are discarded first.
    ///   - missed: makes the event that replaces a number of discarded ones.
    case all(limit: Int, missed: (Int) -> Event)
    /// Only the newest event, even if it is older than the observation.
    case newest
  }

  /// The result for an observer that requests an event.
  enum Next {
    case event(Event)
    /// No event will follow.
    case end
    /// The waiter is kept until there is an event.
    case wait
  }

  private struct Queue {
    var events: [Event] = []
    var missedCount = 0
    var waiter: Waiter?
  }

  private let mode: Mode
  private var observers: [UInt64: Queue] = [:]
  private var nextObserver: UInt64 = 0
  /// The events with which the next new observer begins.
  private var backlog = Queue()
  private var hasEnded = false

  init(_ mode: Mode) { self.mode = mode }

  var isObserved: Bool { !observers.isEmpty }

  /// Publishes an event.
  ///
  /// - Returns: the waiters that the shell resumes with this event.
  mutating func publish(_ event: Event, isLast: Bool = false) -> [Waiter] {
    guard !hasEnded else { return [] }
    hasEnded = isLast
    if keepsBacklog || isLast { add(event, to: &backlog) }
    var waiters: [Waiter] = []
    for observer in observers.keys {
      if let waiter = observers[observer]?.waiter.take() {
        waiters.append(waiter)
      } else {
        add(event, to: &observers[observer, default: Queue()])
      }
    }
    return waiters
  }

  /// Begins an observation.
  mutating func subscribe() -> UInt64 {
    let observer = nextObserver
    nextObserver += 1
    observers[observer] = backlog
    // Each observer after the first gets the last event if there was one, and no earlier events.
    if case .all = mode { backlog = Queue(events: hasEnded ? Array(backlog.events.suffix(1)) : []) }
    return observer
  }

  /// Gives an observer its next event, or keeps `waiter` until there is one.
  mutating func next(_ observer: UInt64, _ waiter: Waiter) -> Next {
    guard var queue = observers.removeValue(forKey: observer) else { return .end }
    defer { observers[observer] = queue }
    if queue.missedCount > 0, case .all(_, let missed) = mode {
      defer { queue.missedCount = 0 }
      return .event(missed(queue.missedCount))
    }
    if !queue.events.isEmpty { return .event(queue.events.removeFirst()) }
    if hasEnded { return .end }
    queue.waiter = waiter
    return .wait
  }

  /// Ends an observation.
  ///
  /// - Returns: the waiter for its next event, which the shell resumes with the end.
  mutating func unsubscribe(_ observer: UInt64) -> Waiter? { observers.removeValue(forKey: observer)?.waiter }

  private var keepsBacklog: Bool {
    switch mode {
    case .all: nextObserver == 0
    case .newest: true
    }
  }

  private func add(_ event: Event, to queue: inout Queue) {
    let limit = if case .all(let limit, _) = mode { limit } else { 1 }
    if queue.events.count >= limit {
      queue.events.removeFirst()
      queue.missedCount += 1
    }
    queue.events.append(event)
  }
}
