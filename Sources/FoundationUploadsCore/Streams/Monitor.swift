// A mutex with a condition, for streams whose reads and writes may block.

internal import Glibc

/// A POSIX mutex and condition variable. Not recursive.
final class Monitor: @unchecked Sendable {
  private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
  private let condition = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)

  init() {
    pthread_mutex_init(mutex, nil)
    pthread_cond_init(condition, nil)
  }

  deinit {
    pthread_cond_destroy(condition)
    pthread_mutex_destroy(mutex)
    condition.deallocate()
    mutex.deallocate()
  }

  func withLock<Result>(_ body: () throws -> Result) rethrows -> Result {
    pthread_mutex_lock(mutex)
    defer { pthread_mutex_unlock(mutex) }
    return try body()
  }

  /// Lets the lock go, sleeps until ``wakeAll()``, and takes the lock again. It may return early. Inside of
  /// ``withLock(_:)`` only.
  func wait() { pthread_cond_wait(condition, mutex) }

  /// Wakes all who ``wait()``.
  func wakeAll() { pthread_cond_broadcast(condition) }
}
