// Threads: their names, their signals, and their resources.

import CallCounter
import EventLoops
import Glibc
import PropertyTesting
import Testing

@Suite("NamedThread")
struct NamedThreadTests {
  @Test(
    "a thread has its name, truncated to the kernel's 15 bytes without splitting a character",
    arguments: [("capture", "capture"), ("a name that is far too long", "a name that is "), ("ääääääääää", "äääääää")])
  func threadNames(name: String, shown: String) throws {
    let found = Lock("")
    let thread = try NamedThread(name) {
      var bytes = [UInt8](repeating: 0, count: 64)
      let file = open("/proc/thread-self/comm", O_RDONLY)
      let count = read(file, &bytes, bytes.count)
      close(file)
      found.withLock { $0 = String(decoding: bytes.prefix(max(0, count - 1)), as: UTF8.self) }
    }
    thread.join()
    #expect(found.withLock { $0 } == shown)
  }

  @Test("signals stay with the thread that starts another, and its mask stays unchanged")
  func signals() throws {
    // The test's own thread blocks nearly all signals.
    var none = sigset_t()
    var own = sigset_t()
    pthread_sigmask(SIG_SETMASK, &none, &own)
    defer { pthread_sigmask(SIG_SETMASK, &own, nil) }
    let inside = Lock<[Int32]>([])
    let outside = unblockedSignals()
    let thread = try NamedThread("signals") { inside.withLock { $0 = unblockedSignals() } }
    let after = unblockedSignals()
    thread.join()
    // The kernel never blocks the first two. The others report faults of the thread itself, which its handlers receive.
    let found = inside.withLock { $0 }
    #expect(Set(found).isSubset(of: [SIGKILL, SIGSTOP, SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP]))
    #expect(outside == after && outside.contains(SIGTERM))
  }

  @Test("neither a joined nor a detached thread leaks its stack")
  func stacks() throws {
    let before = threadStacks()
    let count = 200
    for number in 0..<count {
      let ended = try EventCounter()
      let descriptor = ended.descriptor
      let thread = try NamedThread("stack") {
        var one: UInt64 = 1
        write(descriptor, &one, 8)
      }
      _ = waitUntilReadable(descriptor)
      if number.isMultiple(of: 2) { thread.join() } else { thread.detach() }
      withExtendedLifetime(ended) {}
    }
    // glibc keeps a few for later threads, and other tests have threads of their own.
    let left = threadStacks() - before
    #expect(left < count / 4, "\(left) more mappings than before")
  }

  @Test(
    "a thread that cannot be started is an error, and leaks nothing",
    .enabled(if: call_counter_works(), "a sanitizer needs memory itself"))
  func refused() async {
    await #expect(processExitsWith: .success) {
      final class Load: Sendable {}
      weak var left: Load?
      let before = unblockedSignals()
      var limits = rlimit()
      getrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limits)
      let enough = limits.rlim_cur
      // Space for a stack, but not for the thread's allocations.
      limits.rlim_cur = rlim_t(addressSpace() + (12 << 20))
      setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limits)
      var code: Int32 = 0
      do {
        let load = Load()
        left = load
        _ = try NamedThread("refused") { withExtendedLifetime(load) {} }
      } catch {
        code = (error as? SystemError)?.code ?? -1
      }
      limits.rlim_cur = enough
      setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limits)
      guard code == ENOMEM else { fatalError("error \(code)") }
      guard left == nil else { fatalError("what the thread was to run stays") }
      guard unblockedSignals() == before else { fatalError("signals stay blocked") }
    }
  }
}

/// The size of the process's address space in use.
private func addressSpace() -> Int {
  guard let file = fopen("/proc/self/statm", "r") else { return 0 }
  defer { fclose(file) }
  var line = [CChar](repeating: 0, count: 128)
  fgets(&line, Int32(line.count), file)
  return atol(line) * Int(getpagesize())
}

/// The signals that reach the calling thread.
private func unblockedSignals() -> [Int32] {
  var mask = sigset_t()
  pthread_sigmask(SIG_BLOCK, nil, &mask)
  // 32 and 33 belong to glibc.
  return (1..<32).filter { sigismember(&mask, $0) == 0 }
}

/// The number of the process's mappings that have the size of a thread's stack.
private func threadStacks() -> Int {
  var limits = rlimit()
  getrlimit(__rlimit_resource_t(RLIMIT_STACK.rawValue), &limits)
  // Without a limit, glibc uses 2 MiB.
  let size = limits.rlim_cur == .max ? 2 << 20 : Int(limits.rlim_cur)
  guard let file = fopen("/proc/self/maps", "r") else { return 0 }
  defer { fclose(file) }
  var count = 0
  var line: UnsafeMutablePointer<CChar>?
  var capacity = 0
  defer { free(line) }
  while getline(&line, &capacity, file) > 0, let line {
    let range = String(cString: line).prefix { $0 != " " }.split(separator: "-").compactMap { UInt($0, radix: 16) }
    if range.count == 2, abs(Int(range[1] - range[0]) - size) < 1 << 16 { count += 1 }
  }
  return count
}
