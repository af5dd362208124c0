// A thread for what takes the disk a while: waiting for it on the loop's thread would make every stream wait.

internal import EventLoops

/// Runs work one after another on a thread of its own, which exists only while there is work.
final class BackgroundWorker: Sendable {
  private struct Queue {
    var work: [@Sendable () -> Void] = []
    var isRunning = false
  }

  private let queue = Lock(Queue())

  /// Runs `work` after all that was handed in before. Any thread. If no thread can be started, runs it here and now.
  func execute(_ work: @escaping @Sendable () -> Void) {
    let starts = queue.withLock { queue in
      queue.work.append(work)
      defer { queue.isRunning = true }
      return !queue.isRunning
    }
    guard starts else { return }
    do {
      try NamedThread("sluice-disk") { self.runAll() }.detach()
    } catch {
      runAll()
    }
  }

  private func runAll() {
    while true {
      let work = queue.withLock { queue -> [@Sendable () -> Void] in
        let work = queue.work
        queue.work = []
        if work.isEmpty { queue.isRunning = false }
        return work
      }
      if work.isEmpty { return }
      for item in work { item() }
    }
  }
}
