// A signal for threads that wait for an end.

/// A one-time signal between threads.
package final class EndSignal: @unchecked Sendable {
  private let monitor = Monitor()
  private var isSignalled = false

  package init() {}

  package func signal() {
    monitor.withLock {
      isSignalled = true
      monitor.wakeAll()
    }
  }

  package func wait() {
    monitor.withLock {
      while !isSignalled { monitor.wait() }
    }
  }
}
