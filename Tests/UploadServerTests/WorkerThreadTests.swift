// The thread of a worker. More work for the disk often follows, and a thread for each piece of it costs more than the
// work.

import CallCounter
import DiskFiles
import EventLoops
import Glibc
import NetworkTesting
import Testing

@Suite("The thread of a store's work")
struct WorkerThreadTests {
  /// Says when its thread has ended.
  private final class Witness: Sendable {
    private let ends: EventLog<Int>
    private let number: Int
    init(_ ends: EventLog<Int>, _ number: Int) { (self.ends, self.number) = (ends, number) }
    deinit { ends.append(number) }
  }

  private let key: pthread_key_t

  init() {
    var key = pthread_key_t()
    pthread_key_create(&key) { Unmanaged<Witness>.fromOpaque($0!).release() }
    self.key = key
  }

  /// Work that leaves a witness on its thread if that has none.
  private func work(_ number: Int, _ done: EventLog<Int>, _ ends: EventLog<Int>) -> @Sendable () -> Void {
    let key = key
    return {
      if pthread_getspecific(key) == nil {
        pthread_setspecific(key, Unmanaged.passRetained(Witness(ends, number)).toOpaque())
      }
      done.append(number)
    }
  }

  @Test("work that follows soon runs on the same thread, which ends with its worker")
  func oneThread() throws {
    var worker: BackgroundWorker? = BackgroundWorker(lingering: .seconds(3600))
    let (done, ends) = (try EventLog<Int>(), try EventLog<Int>())
    for number in 1...10 {
      worker?.execute(work(number, done, ends))
      try done.wait("work \(number)") { $0.count == number ? true : nil }
    }
    #expect(ends.all == [])
    worker = nil
    try ends.wait("the end of the thread") { $0.first }
    #expect(ends.all == [1])
  }

  @Test("a thread ends when no more work has come, and later work gets another one")
  func twoThreads() throws {
    let worker = BackgroundWorker(lingering: .milliseconds(1))
    let (done, ends) = (try EventLog<Int>(), try EventLog<Int>())
    for number in 1...3 {
      worker.execute(work(number, done, ends))
      try ends.wait("the end of thread \(number)") { $0.last == number ? true : nil }
    }
    #expect(done.all == [1, 2, 3])
  }

  @Test("a worker that nobody has any more does all that was handed in")
  func abandoned() throws {
    let (done, ends) = (try EventLog<Int>(), try EventLog<Int>())
    for number in 1...100 { BackgroundWorker().execute(work(number, done, ends)) }
    try ends.wait("the end of all threads") { $0.count == 100 ? true : nil }
    #expect(done.all.count == 100)
  }

  @Test(
    "work runs at once if no thread can be started, and on a thread as soon as one can",
    .enabled(if: call_counter_works(), "a sanitizer needs memory itself"))
  func noThread() async {
    // The limit applies to the whole process.
    await #expect(processExitsWith: .success) {
      let worker = BackgroundWorker()
      let test = UInt(pthread_self())
      let threads = Lock<[UInt]>([])
      var limits = rlimit()
      getrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limits)
      let enough = limits.rlim_cur
      // Space for a few objects, but not for a stack, which takes at least 2 MiB. The first number in the file is the
      // size in pages: proc(5).
      let pages = try fileContents("/proc/self/statm").prefix { $0 != 32 }
      let size = (Int(String(decoding: pages, as: UTF8.self)) ?? 0) * Int(sysconf(Int32(_SC_PAGESIZE)))
      limits.rlim_cur = rlim_t(size + (1 << 20))
      setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limits)
      for _ in 0..<2 { worker.execute { threads.withLock { $0.append(UInt(pthread_self())) } } }
      let atOnce = threads.withLock { $0 }
      limits.rlim_cur = enough
      setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limits)
      try require(atOnce == [test, test], "\(atOnce)")
      worker.execute { threads.withLock { $0.append(UInt(pthread_self())) } }
      try waitUntil("a thread does the work") { threads.withLock { $0.count == 3 } }
      try require(threads.withLock { $0[2] } != test, "it has a thread of its own")
    }
  }
}
