// How a thread waits until the agent's loop has stored something.

internal import Glibc

/// One signal for one thread that waits (sem_wait(3)). It takes no descriptor, so it cannot fail.
final class StoredSignal: @unchecked Sendable {
  // Its address is what other threads know.
  private let semaphore = UnsafeMutablePointer<sem_t>.allocate(capacity: 1)

  init() { sem_init(semaphore, 0, 0) }

  deinit {
    sem_destroy(semaphore)
    semaphore.deallocate()
  }

  func signal() { sem_post(semaphore) }

  func wait() { while sem_wait(semaphore) != 0, errno == EINTR {} }
}
