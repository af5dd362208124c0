// Delivers the events of one stream to its delegate through run loops.

internal import EventLoops
internal import Foundation
internal import Synchronization

/// Keeps the pending events of the delegate, and wakes the run loops that the stream is scheduled in.
///
/// Guarded by the lock of the stream's pair, except where a method states otherwise.
final class StreamEvents: @unchecked Sendable {
  private let monitor: Monitor
  private weak var stream: Stream?
  weak var delegate: (any StreamDelegate)?
  private var sources: [EventSource] = []
  private var pending: Stream.Event = []
  /// Whether something was posted since the last ``takeNews()``.
  private var isNew = false
  /// Whether something was posted since a run loop's thread has looked.
  private let hasNews = Atomic(false)
  /// Whether a run loop's thread looks for news at this moment. It need not be woken then.
  private let isLooking = Atomic(false)

  init(monitor: Monitor) { self.monitor = monitor }

  func begin(_ stream: Stream) { self.stream = stream }

  // MARK: With the lock

  func post(_ event: Stream.Event) {
    pending.formUnion(event)
    signal()
  }

  /// Withdraws events that are no longer true.
  func withdraw(_ event: Stream.Event) { pending.subtract(event) }

  func withdrawAll() { pending = [] }

  /// Notifies the run loops of pending events when the lock is free.
  func signal() { isNew = true }

  /// The events to report to the run loops when the lock is free. A thread that is woken before that would only wait
  /// for the lock.
  func takeNews() -> News? {
    guard isNew else { return nil }
    isNew = false
    return pending.isEmpty || sources.isEmpty ? nil : News(events: self, sources: sources)
  }

  /// Pending events that were not reported to the run loops yet.
  struct News {
    fileprivate let events: StreamEvents
    fileprivate let sources: [EventSource]

    /// Without the lock.
    func tell() { events.tell(sources) }
  }

  func add(to loop: RunLoop, mode: RunLoop.Mode) {
    guard !sources.contains(where: { $0.loop === loop && $0.mode == mode }) else { return }
    let source = EventSource(loop, mode) { [weak self] in self?.deliver(from: $0) }
    loop._add(source, forMode: mode)
    sources.append(source)
    signal()
  }

  func remove(from loop: RunLoop, mode: RunLoop.Mode) {
    guard let index = sources.firstIndex(where: { $0.loop === loop && $0.mode == mode }) else { return }
    sources.remove(at: index).retire()
  }

  func removeAll() {
    for source in sources { source.retire() }
    sources = []
  }

  /// What a run loop's thread is to do.
  private enum Next {
    case call(Stream.Event)
    case wait
    /// The stream is in no run loop any more, or without a delegate, for which the events wait.
    case leave
  }

  /// Checks again for each event: the delegate may have closed the stream, or removed it from the run loop.
  ///
  /// - Returns: also the delegate. Its end may be an order to the pair, and must not come within the lock.
  private func next() -> (Next, (any StreamDelegate)?) {
    let delegate = delegate
    guard !sources.isEmpty, delegate != nil else { return (.leave, delegate) }
    guard let event = Self.order.first(where: { pending.contains($0) }) else { return (.wait, delegate) }
    pending.remove(event)
    return (.call(event), delegate)
  }

  /// Foundation's.
  private static let order: [Stream.Event] = [
    .openCompleted, .hasBytesAvailable, .hasSpaceAvailable, .endEncountered, .errorOccurred,
  ]

  // MARK: Without the lock

  /// In this order, and ``findsNews(_:)`` in the opposite one: either the thread that looks finds the news, or it is
  /// known here that it does not look.
  private func tell(_ sources: [EventSource]) {
    hasNews.store(true, ordering: .sequentiallyConsistent)
    guard !isLooking.load(ordering: .sequentiallyConsistent) else { return }
    for source in sources { source.wake() }
  }

  /// Tells the delegate what is pending, on a run loop's thread.
  private func deliver(from source: EventSource) {
    // Its end is an order to the pair, and must not come within the lock.
    guard let stream = monitor.withLock({ self.stream }) else { return }
    let end = MonotonicInstant.now + Self.turn
    while MonotonicInstant.now < end {
      let (step, delegate) = monitor.withLock { next() }
      switch step {
      case .call(let event): delegate?.stream(stream, handle: event)
      case .wait: guard findsNews(source) else { return }
      case .leave: return
      }
    }
    source.wake()
  }

  /// Looks for news instead of sleeping, for as long as it takes to fall asleep and to be woken. So two threads that
  /// are busy with one pair do not sleep at all, and a vain look costs at most what it could have saved.
  private func findsNews(_ source: EventSource) -> Bool {
    guard source.sleepsBeforeLook == 0 else {
      source.sleepsBeforeLook -= 1
      return false
    }
    isLooking.store(true, ordering: .sequentiallyConsistent)
    let end = MonotonicInstant.now + Self.patience
    // Without sched_yield(2): on a busy machine, it would cost this thread its time slice.
    while !hasNews.load(ordering: .relaxed), MonotonicInstant.now < end {}
    isLooking.store(false, ordering: .sequentiallyConsistent)
    let found = hasNews.exchange(false, ordering: .sequentiallyConsistent)
    if !found { source.sleepsBeforeLook = Self.sleepsAfterVainLook }
    return found
  }

  /// After this time, the other sources and timers of the run loop have their turn.
  private static let turn = Duration.milliseconds(1)
  private static let patience = Duration.microseconds(50)
  /// The number of events during which a stream that is slower than ``patience`` is skipped.
  private static let sleepsAfterVainLook = 64
}
