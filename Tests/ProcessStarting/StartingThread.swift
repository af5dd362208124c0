// The thread that starts programs which the kernel ends when the test process dies.
//
// For the kernel, the parent of a program is the thread that has started it, and PR_SET_PDEATHSIG means the end of that
// thread (prctl(2)). Most threads of a test belong to a pool, which ends them after some idle time. The program would
// then be killed in the middle of the test.

internal import Glibc

/// Runs work on one thread that exists as long as the process. Any thread.
package final class StartingThread: @unchecked Sendable {
  package static let shared = StartingThread()

  private final class Job {
    let work: () -> Void
    var isDone = false

    init(_ work: @escaping () -> Void) { self.work = work }
  }

  private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
  private let changed = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)
  private var jobs: [Job] = []

  private init() {
    pthread_mutex_init(mutex, nil)
    pthread_cond_init(changed, nil)
    var thread = pthread_t()
    // It never ends, and so `self` must not either.
    pthread_create(
      &thread, nil,
      { context in
        Unmanaged<StartingThread>.fromOpaque(context!).takeRetainedValue().work()
        return nil
      }, Unmanaged.passRetained(self).toOpaque())
    pthread_detach(thread)
  }

  private func work() {
    pthread_mutex_lock(mutex)
    while true {
      while jobs.isEmpty { pthread_cond_wait(changed, mutex) }
      let job = jobs.removeFirst()
      job.work()
      job.isDone = true
      pthread_cond_broadcast(changed)
    }
  }

  /// Waits until `work` has run.
  package func run(_ work: () -> Void) {
    withoutActuallyEscaping(work) { work in
      let job = Job(work)
      pthread_mutex_lock(mutex)
      jobs.append(job)
      pthread_cond_broadcast(changed)
      while !job.isDone { pthread_cond_wait(changed, mutex) }
      pthread_mutex_unlock(mutex)
    }
  }
}
