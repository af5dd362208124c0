// A signal for threads that wait for an end.

internal import CLinux
internal import Glibc

/// A one-time signal between threads. It uses a condition variable, because a Mutex has none.
package final class EndSignal: @unchecked Sendable {
  private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
  private let condition = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)
  private var isSignalled = false

  package init() {
    pthread_mutex_init(mutex, nil)
    pthread_cond_init(condition, nil)
  }

  deinit {
    pthread_cond_destroy(condition)
    pthread_mutex_destroy(mutex)
    condition.deallocate()
    mutex.deallocate()
  }

  package func signal() {
    pthread_mutex_lock(mutex)
    isSignalled = true
    pthread_cond_broadcast(condition)
    pthread_mutex_unlock(mutex)
  }

  package func wait() {
    pthread_mutex_lock(mutex)
    while !isSignalled { pthread_cond_wait(condition, mutex) }
    pthread_mutex_unlock(mutex)
  }
}
