// The public face: bind, run, stop.

internal import EventLoops
internal import Synchronization

/// An HTTP/1.1 server that stores each stream it is sent in a file of a directory, while it comes.
///
/// `POST` and `PUT` to any path store a stream; the answer comes when it has ended. `Stream-ID` and `Stream-Offset` in a
/// request go on with a stream that broke off, and the same fields in an answer say what is stored. One thread serves
/// all connections.
///
///     let server = try UploadServer(configuration: .init(listen: [ListenAddress(":8080")], directory: "recordings"))
///     server.run()
public final class UploadServer: Sendable {
  private let core: ServerCore
  private let loop: EventLoop
  private let started = Mutex(false)
  private let ended = EndSignal()

  /// Where the server listens, with the ports that the kernel chose where 0 was asked for.
  public let localAddresses: [ListenAddress]

  /// Opens and locks the directory and binds every address; from here on connections queue up.
  ///
  /// - Throws: ``UploadServerError``, whose description says what to do.
  public init(configuration: Configuration) throws(UploadServerError) {
    do throws(SystemError) {
      loop = try EventLoop()
    } catch {
      throw .resources(error.description)
    }
    core = try ServerCore(configuration, loop: loop)
    localAddresses = core.listeners.map(\.address)
  }

  /// Serves on the calling thread until ``shutdown(grace:)`` has done its work. May be called once, and not after
  /// ``start()``.
  public func run() {
    let isFirst = started.withLock { started in
      defer { started = true }
      return !started
    }
    precondition(isFirst, "an UploadServer runs once")
    core.start()
    loop.run()
    ended.signal()
  }

  /// Serves on a thread of its own. Throws ``UploadServerError/resources(_:)`` if there is none to be had.
  public func start() throws(UploadServerError) {
    do throws(SystemError) {
      try NamedThread("sluice-server") { self.run() }.detach()
    } catch {
      throw .resources(error.description)
    }
  }

  /// Stops accepting, closes idle connections and lets requests at work end for at most `grace`. Then each stream that
  /// still comes is answered with 503 and the offset up to which it is stored, so that its client goes on exactly there
  /// when a server is back; its `.part` stays. Any thread; returns at once, a second call shortens the grace.
  public func shutdown(grace: Duration = .seconds(2)) {
    loop.execute { self.core.stop(grace: grace) }
  }

  /// Returns when the server has ended. Any thread but the server's.
  public func waitUntilEnded() { ended.wait() }
}
