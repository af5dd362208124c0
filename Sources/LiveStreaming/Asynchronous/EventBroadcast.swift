// Events that several tasks observe: the lock and the continuations around `EventFanOut`.

internal import EventLoops

/// Publishes events from any thread to any number of tasks, with bounded memory for each.
final class EventBroadcast<Event: Sendable>: Sendable {
  private let fanOut: Lock<EventFanOut<Event, UnsafeContinuation<Event?, Never>>>

  init(_ mode: sending EventFanOut<Event, UnsafeContinuation<Event?, Never>>.Mode) {
    fanOut = Lock(EventFanOut(mode))
  }

  var isObserved: Bool { fanOut.withLock { $0.isObserved } }

  /// Never waits for an observer.
  func publish(_ event: Event, isLast: Bool = false) {
    for waiter in fanOut.withLock({ $0.publish(event, isLast: isLast) }) { waiter.resume(returning: event) }
  }

  func subscribe() -> UInt64 { fanOut.withLock { $0.subscribe() } }

  func unsubscribe(_ observer: UInt64) {
    fanOut.withLock { $0.unsubscribe(observer) }?.resume(returning: nil)
  }

  /// The observer's next event. Nil after the last event, and when its task is cancelled.
  func next(_ observer: UInt64) async -> Event? {
    await withTaskCancellationHandler {
      await withUnsafeContinuation { continuation in
        switch fanOut.withLock({ $0.next(observer, continuation) }) {
        case .event(let event): continuation.resume(returning: event)
        case .end: continuation.resume(returning: nil)
        case .wait: break
        }
      }
    } onCancel: {
      unsubscribe(observer)
    }
  }
}
