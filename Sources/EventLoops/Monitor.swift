// A mutex with a condition, for threads that wait for each other.

internal import Glibc

/// A POSIX mutex and condition variable. Not recursive.
package final class Monitor: @unchecked Sendable {
  private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
  private let condition = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)

  package init() {
    pthread_mutex_init(mutex, nil)
    var attributes = pthread_condattr_t()
    pthread_condattr_init(&attributes)
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
    pthread_cond_init(condition, &attributes)
    pthread_condattr_destroy(&attributes)
  }

  deinit {
    pthread_cond_destroy(condition)
    pthread_mutex_destroy(mutex)
    condition.deallocate()
    mutex.deallocate()
  }

  package func withLock<Result>(_ body: () throws -> Result) rethrows -> Result {
    pthread_mutex_lock(mutex)
    defer { pthread_mutex_unlock(mutex) }
    return try body()
  }

  /// Releases the lock, sleeps until ``wakeAll()``, and acquires the lock again. It may return early. Call it only
  /// within ``withLock(_:)``.
  package func wait() { pthread_cond_wait(condition, mutex) }

  /// The same, for at most `limit`.
  package func wait(atMost limit: Duration) {
    let end = (MonotonicInstant.now + limit).nanoseconds
    var time = timespec(tv_sec: Int(end / 1_000_000_000), tv_nsec: Int(end % 1_000_000_000))
    pthread_cond_timedwait(condition, mutex, &time)
  }

  /// Wakes all threads that are in ``wait()``.
  package func wakeAll() { pthread_cond_broadcast(condition) }
}
