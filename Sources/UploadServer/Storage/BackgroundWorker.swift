// A thread for what takes the disk a while: waiting for it on the loop's thread would make every stream wait.

internal import CLinux
internal import Glibc
internal import Synchronization

/// Runs work one after another on a thread of its own, which exists only while there is work.
final class BackgroundWorker: Sendable {
  private struct Queue {
    var work: [@Sendable () -> Void] = []
    var isRunning = false
  }

  private let queue = Mutex(Queue())

  /// Runs `work` after all that was handed in before. Any thread. If no thread can be started, runs it here and now.
  func execute(_ work: @escaping @Sendable () -> Void) {
    let starts = queue.withLock { queue in
      queue.work.append(work)
      defer { queue.isRunning = true }
      return !queue.isRunning
    }
    if starts && !DetachedThread.start({ self.runAll() }) { runAll() }
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

/// A POSIX thread that nobody joins.
enum DetachedThread {
  private final class Body {
    let run: @Sendable () -> Void
    init(_ run: @escaping @Sendable () -> Void) { self.run = run }
  }

  /// Starts a thread that runs `body`; false if the system has none left, pthread_create(3).
  static func start(_ body: @escaping @Sendable () -> Void) -> Bool {
    var attributes = pthread_attr_t()
    pthread_attr_init(&attributes)
    defer { pthread_attr_destroy(&attributes) }
    pthread_attr_setdetachstate(&attributes, Int32(PTHREAD_CREATE_DETACHED))
    let context = Unmanaged.passRetained(Body(body))
    var thread = pthread_t()
    let status = pthread_create(
      &thread, &attributes,
      { context in
        // pthread_create hands over what it was given, and that was not nil.
        Unmanaged<Body>.fromOpaque(context!).takeRetainedValue().run()
        return nil
      }, context.toOpaque())
    if status != 0 { context.release() }
    return status == 0
  }
}
