// Threads with names, so that `top -H` shows which part of a stream is busy.

internal import CLinux
internal import Glibc

/// A POSIX thread that runs one closure.
public struct NamedThread: @unchecked Sendable {
  private let thread: pthread_t

  private final class Start {
    let name: String
    let body: @Sendable () -> Void
    init(name: String, body: @escaping @Sendable () -> Void) {
      self.name = name
      self.body = body
    }
  }

  /// Starts a thread.
  ///
  /// - Parameters:
  ///   - name: the name of the thread, shortened to 15 bytes (pthread_setname_np(3)).
  ///   - body: the closure to run. All signals are blocked on the thread, so that they reach the thread that handles
  ///     them. Those that its own instructions cause are not: blocked, they would end the process whatever handles
  ///     them.
  /// - Throws: ``SystemError`` when the system allows no more threads, or has no memory for the thread's stack and its
  ///   allocations.
  public init(_ name: String, _ body: @escaping @Sendable () -> Void) throws(SystemError) {
    guard AddressSpace.hasRoom(for: Self.stackSize) else {
      throw SystemError(operation: "starting the thread \(name)", code: ENOMEM)
    }
    let start = Unmanaged.passRetained(Start(name: name, body: body))
    var handle = pthread_t()
    var all = sigset_t()
    var before = sigset_t()
    sigfillset(&all)
    for own in [SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP] { sigdelset(&all, own) }
    pthread_sigmask(SIG_SETMASK, &all, &before)
    let code = pthread_create(
      &handle, nil,
      { argument in
        // The pointer is the retained Start that was created above.
        let start = Unmanaged<Start>.fromOpaque(argument!).takeRetainedValue()
        var name = start.name
        // A longer name would be refused completely.
        while name.utf8.count > 15 { name.removeLast() }
        pthread_setname_np(pthread_self(), name)
        start.body()
        return nil
      }, start.toOpaque())
    pthread_sigmask(SIG_SETMASK, &before, nil)
    guard code == 0 else {
      start.release()
      throw SystemError(operation: "starting the thread \(name)", code: code)
    }
    thread = handle
  }

  /// The stack size of a thread without attributes, in bytes.
  private static var stackSize: Int {
    var attributes = pthread_attr_t()
    var size = 0
    pthread_attr_init(&attributes)
    pthread_attr_getstacksize(&attributes, &size)
    pthread_attr_destroy(&attributes)
    return size
  }

  /// Waits for the thread to end. Call either this or ``detach()``, once.
  public func join() { pthread_join(thread, nil) }

  /// Lets the thread release its resources when it ends, so that no thread has to join it.
  public func detach() { pthread_detach(thread) }
}
