// A thread for slow disk operations, which would delay every stream if they ran on the loop's thread.

internal import EventLoops

/// Runs work one after another on a thread of its own, which exists while there is work, and for a moment after that,
/// because more work for the disk often follows.
///
/// Most work has another thread waiting for it. Long work is cut into slices, and after each slice all other work comes
/// first. Slices that nothing waits for come last. So that nothing waits forever on a busy disk, the next slice comes
/// no later than after its ``Patience``.
package final class BackgroundWorker: Sendable {
  /// How long other work may precede the next slice.
  package struct Patience: Sendable {
    var slices = Duration.milliseconds(500)
    /// For slices that nothing waits for.
    var unhurried = Duration.seconds(5)

    package init() {}
    init(slices: Duration, unhurried: Duration) { (self.slices, self.unhurried) = (slices, unhurried) }
  }

  private struct Queue {
    let patience: Patience
    var work: [@Sendable () -> Void] = []
    /// Slices that nothing waits for: the one with the most remaining work first, and among equals the newest.
    private var unhurried: [(remaining: UInt64, slice: @Sendable () -> Void)] = []
    /// Taken from ``nextSlice`` on, so that the cost per slice does not grow with their number.
    var slices: [@Sendable () -> Void] = []
    var nextSlice = 0
    /// When other work began to precede the next slice, and the next slice that nothing waits for.
    private var waiting: (slices: MonotonicInstant?, unhurried: MonotonicInstant?)
    /// Whether there is a thread.
    var isRunning = false
    /// Whether it waits for work.
    var isWaiting = false

    init(_ patience: Patience) { self.patience = patience }

    mutating func appendUnhurried(_ remaining: UInt64, _ slice: @escaping @Sendable () -> Void) {
      var (low, high) = (0, unhurried.count)
      while low < high {
        let middle = (low + high) / 2
        if unhurried[middle].remaining > remaining { low = middle + 1 } else { high = middle }
      }
      unhurried.insert((remaining, slice), at: low)
    }

    /// All work that another thread waits for, or one slice; both if the slice has waited for too long.
    mutating func take() -> [@Sendable () -> Void] {
      var taken = work
      work = []
      if nextSlice < slices.count, taken.isEmpty || Self.isOver(&waiting.slices, patience.slices) {
        taken.append(slices[nextSlice])
        slices[nextSlice] = {}
        nextSlice += 1
        if nextSlice >= 1024 || nextSlice == slices.count {
          slices.removeFirst(nextSlice)
          nextSlice = 0
        }
        waiting.slices = nil
      }
      if !unhurried.isEmpty, taken.isEmpty || Self.isOver(&waiting.unhurried, patience.unhurried) {
        taken.append(unhurried.removeLast().slice)
        waiting.unhurried = nil
      }
      return taken
    }

    private static func isOver(_ start: inout MonotonicInstant?, _ patience: Duration) -> Bool {
      let now = MonotonicInstant.now
      let begun = start ?? now
      start = begun
      return now - begun >= patience
    }
  }

  private let storage: Storage

  /// - Parameter lingering: how long the thread waits for more work. Until then, work costs a wake-up instead of a
  ///   thread.
  package init(lingering: Duration = .seconds(1), patience: Patience = Patience()) {
    storage = Storage(lingering, patience)
  }

  deinit { storage.ownerLeaves() }

  /// Runs `work` after all earlier work. Any thread. If no thread can be started, runs it here and now.
  package func execute(_ work: @escaping @Sendable () -> Void) {
    storage.start { $0.work.append(work) }
  }

  /// Runs a slice of long work, a few milliseconds, after earlier slices, when there is no other work or the
  /// ``Patience`` for it is over. Any thread.
  package func executeSlice(_ slice: @escaping @Sendable () -> Void) {
    storage.start { $0.slices.append(slice) }
  }

  /// Runs a slice of long work that nothing waits for, a few milliseconds, when there is no other work at all or the
  /// ``Patience`` for it is over. Any thread.
  ///
  /// The shortest work comes first, and among equals the earliest. So long work that has begun is continued before its
  /// equals begin, and does not delay anything shorter.
  ///
  /// - Parameter remaining: how many bytes of the work are left, including this slice.
  package func executeUnhurried(remaining: UInt64, _ slice: @escaping @Sendable () -> Void) {
    storage.start { $0.appendUnhurried(remaining, slice) }
  }

  /// What the thread keeps. It does all that was handed in, even without the worker.
  private final class Storage: @unchecked Sendable {
    private let lingering: Duration
    private let monitor = Monitor()
    // With the lock.
    private var queue: Queue
    private var hasOwner = true

    init(_ lingering: Duration, _ patience: Patience) { (self.lingering, queue) = (lingering, Queue(patience)) }

    func start(_ append: (inout Queue) -> Void) {
      let starts = monitor.withLock {
        append(&queue)
        if queue.isWaiting { monitor.wakeAll() }
        defer { queue.isRunning = true }
        return !queue.isRunning
      }
      guard starts else { return }
      do {
        try NamedThread("sluice-disk") { self.run(waits: true) }.detach()
      } catch {
        run(waits: false)
      }
    }

    func ownerLeaves() {
      monitor.withLock {
        hasOwner = false
        if queue.isWaiting { monitor.wakeAll() }
      }
    }

    private func run(waits: Bool) {
      while true {
        let work = monitor.withLock {
          var taken = queue.take()
          guard taken.isEmpty else { return taken }
          if waits, hasOwner {
            queue.isWaiting = true
            monitor.wait(atMost: lingering)
            queue.isWaiting = false
            taken = queue.take()
          }
          queue.isRunning = !taken.isEmpty
          return taken
        }
        if work.isEmpty { return }
        for item in work { item() }
      }
    }
  }
}
