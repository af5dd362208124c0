// The events of one stream on their way to its delegate, by way of run loops.

internal import CRunLoop
internal import Foundation

/// Keeps what the delegate has not been told, and wakes the run loops that the stream is scheduled in.
///
/// Guarded by the lock of the stream's pair, except for ``deliver(from:)``, which calls the delegate without it.
final class StreamEvents: @unchecked Sendable {
  /// Where the stream is scheduled.
  private struct Schedule {
    let loop: RunLoop
    let mode: RunLoop.Mode
    let source: EventSource
  }

  private let monitor: Monitor
  private weak var stream: Stream?
  weak var delegate: (any StreamDelegate)?
  private var schedules: [Schedule] = []
  private var pending: Stream.Event = []
  /// Whether the run loops know that something is pending.
  private var isSignalled = false

  init(monitor: Monitor) { self.monitor = monitor }

  func begin(_ stream: Stream) { self.stream = stream }

  // MARK: With the lock

  func post(_ event: Stream.Event) {
    pending.formUnion(event)
    signal()
  }

  /// Takes back events that are not true any more.
  func withdraw(_ event: Stream.Event) { pending.subtract(event) }

  func withdrawAll() { pending = [] }

  /// Lets the run loops call ``deliver(from:)``, also when they sleep.
  func signal() {
    guard !pending.isEmpty, !isSignalled, !schedules.isEmpty else { return }
    isSignalled = true
    let current = RunLoop.current
    for schedule in schedules {
      schedule.source.signal()
      // A source does not wake a loop that sleeps, nor does `RunLoop.perform`.
      if schedule.loop !== current { wake(schedule) }
    }
  }

  private func wake(_ schedule: Schedule) {
    if let handle = schedule.source.loopHandle {
      CFRunLoopWakeUp(handle)
    } else {
      // Not known before the loop has called the source. A timer wakes it, too, at ten times the cost.
      schedule.loop.add(Timer(timeInterval: 0, repeats: false) { _ in }, forMode: schedule.mode)
    }
  }

  func add(to loop: RunLoop, mode: RunLoop.Mode) {
    guard !schedules.contains(where: { $0.loop === loop && $0.mode == mode }) else { return }
    let source = EventSource { [weak self] in self?.deliver(from: $0) }
    if loop === RunLoop.current { source.loopHandle = CFRunLoopGetCurrent() }
    loop._add(source, forMode: mode)
    schedules.append(Schedule(loop: loop, mode: mode, source: source))
    // The new run loop does not know what the others do.
    isSignalled = false
    signal()
  }

  func remove(from loop: RunLoop, mode: RunLoop.Mode) {
    guard let index = schedules.firstIndex(where: { $0.loop === loop && $0.mode == mode }) else { return }
    retire(schedules.remove(at: index))
    if schedules.isEmpty { isSignalled = false }
  }

  func removeAll() {
    for schedule in schedules { retire(schedule) }
    schedules = []
    isSignalled = false
  }

  private func retire(_ schedule: Schedule) {
    schedule.loop._remove(schedule.source, for: schedule.mode)
    guard schedule.loop !== RunLoop.current else { return }
    // That loop may be calling the source at the moment, which it does not retain. It lets go of it at its next turn.
    nonisolated(unsafe) let source = schedule.source
    schedule.loop.add(
      Timer(timeInterval: 0, repeats: false) { _ in withExtendedLifetime(source) {} }, forMode: schedule.mode)
  }

  // MARK: On a run loop's thread, without the lock

  /// Tells the delegate what is pending, in Foundation's order.
  private func deliver(from source: EventSource) {
    let (stream, delegate) = monitor.withLock {
      isSignalled = false
      source.loopHandle = CFRunLoopGetCurrent()
      return (self.stream, self.delegate)
    }
    // Without a delegate, the events wait for one.
    guard let stream, let delegate else { return }
    for event in Self.order where monitor.withLock({ take(event) }) { delegate.stream(stream, handle: event) }
    monitor.withLock { signal() }
  }

  private static let order: [Stream.Event] = [
    .openCompleted, .hasBytesAvailable, .hasSpaceAvailable, .endEncountered, .errorOccurred,
  ]

  /// Looks again for each event: the delegate may have closed the stream, or removed it from the run loop.
  private func take(_ event: Stream.Event) -> Bool {
    guard !schedules.isEmpty, pending.contains(event) else { return false }
    pending.remove(event)
    return true
  }
}

/// A source of a run loop that calls a closure on the loop's thread.
private final class EventSource: RunLoop._Source {
  private let work: (EventSource) -> Void
  /// What wakes the loop: valid as long as the loop is retained. Guarded by the lock of the stream's pair.
  var loopHandle: UnsafeMutableRawPointer?

  init(_ work: @escaping (EventSource) -> Void) {
    self.work = work
    super.init(order: 0)
  }

  override func perform() { work(self) }
}
