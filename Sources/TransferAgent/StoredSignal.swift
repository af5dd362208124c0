// Lets a thread wait until the agent's loop has stored something, or has failed to.

internal import Glibc

/// One signal for one waiting thread (sem_wait(3)). It needs no descriptor, so it cannot fail.
final class StoredSignal: @unchecked Sendable {
  // Other threads know its address.
  private let semaphore = UnsafeMutablePointer<sem_t>.allocate(capacity: 1)
  /// Written before the signal, and read after it.
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
