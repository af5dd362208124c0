// Threads with names, so that `top -H` tells which part of a stream is busy.

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
  ///   - name: the characters that fit into 15 bytes are shown, pthread_setname_np(3).
  ///   - body: what it runs. All signals are blocked on it: they belong to the thread that asked for them.
  /// - Throws: ``SystemError`` when the system allows no more threads, or has no memory for the stack of one and what
  ///   it will allocate.
  public init(_ name: String, _ body: @escaping @Sendable () -> Void) throws(SystemError) {
    guard AddressSpace.hasRoom(for: Self.stackSize) else {
      throw SystemError(operation: "starting the thread \(name)", code: ENOMEM)
    }
    let start = Unmanaged.passRetained(Start(name: name, body: body))
    var handle = pthread_t()
    var all = sigset_t()
    var before = sigset_t()
    sigfillset(&all)
    pthread_sigmask(SIG_SETMASK, &all, &before)
    let code = pthread_create(
      &handle, nil,
      { argument in
        // The pointer is the retained Start made above.
        let start = Unmanaged<Start>.fromOpaque(argument!).takeRetainedValue()
        var name = start.name
        // A longer one would be refused as a whole.
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

  /// That of a thread without attributes, in bytes.
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

  /// Lets the thread clean up after itself: nobody will wait for it.
  public func detach() { pthread_detach(thread) }
}
