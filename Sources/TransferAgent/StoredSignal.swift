// How a thread waits until the agent's loop has stored something, or could not.

internal import Glibc

/// One signal for one thread that waits (sem_wait(3)). It takes no descriptor, so it cannot fail.
final class StoredSignal: @unchecked Sendable {
  // Its address is what other threads know.
  private let semaphore = UnsafeMutablePointer<sem_t>.allocate(capacity: 1)
  /// Written before the signal, and read behind it.
  private var isStored = false

  init() { sem_init(semaphore, 0, 0) }

  deinit {
    sem_destroy(semaphore)
    semaphore.deallocate()
  }

  func signal(_ isStored: Bool) {
    self.isStored = isStored
    sem_post(semaphore)
  }

  /// - Returns: whether it is stored.
  func wait() -> Bool {
    while sem_wait(semaphore) != 0, errno == EINTR {}
    return isStored
  }
}
