// Custom handlers by method and path beside the store, and a server that runs in a task.

internal import EventLoops
public import HTTPMessages
public import HTTPServer

extension UploadServer {
  /// Creates a server with the default configuration.
  ///
  ///     try await UploadServer(listen: ":8080", directory: "uploads").run()
  ///
  /// - Parameters:
  ///   - listen: the address in the format of ``HTTPServer/ListenAddress/init(_:)``: `:8080`, `127.0.0.1:8080`,
  ///     `unix:/run/s.sock`.
  ///   - directory: the directory for streams and unfinished uploads. It is created if it is missing and its parent
  ///     exists.
  ///   - onEvent: see ``Configuration/onEvent``. Without it, you do not learn about a handler that fails.
  /// - Throws: ``UploadServerError``, whose description names the remedy.
  public convenience init(
    listen: String, directory: String, onEvent: @escaping @Sendable (ServerEvent) -> Void = { _ in }
  ) throws(UploadServerError) {
    let address: ListenAddress
    do throws(ListenError) { address = try ListenAddress(listen) } catch { throw .listening(error) }
    try self.init(configuration: Configuration(listen: [address], directory: directory, onEvent: onEvent))
  }

  /// Serves requests with that method for exactly that path with `work`, including resumable uploads. `work` is called
  /// once for an upload, and reads all of its content, regardless of the number of connections. Requests with other
  /// methods or paths are served as if it did not exist: a `POST` or `PUT` is stored as a file.
  ///
  /// After a restart of the server, it is called again for an upload that continues, with the content from its
  /// beginning. An error that it throws is answered with 500, and reported as an event
  /// (``StreamServing/ServerEvent/Kind/warning``). Any thread, but call it before the server runs, because the
  /// unfinished uploads of an earlier server look up their handlers then. The last registration for a method and path
  /// counts.
  @discardableResult
  public func on(_ method: RequestMethod, _ path: String, _ work: @escaping AsynchronousHandler.Work) -> UploadServer {
    routes.add(method, path, work)
    return self
  }

  /// Serves until the task is cancelled, or ``shutdown(grace:)`` is called. Then current requests have two seconds to
  /// end. Call it only once, and not after ``start()``.
  ///
  /// - Throws: ``UploadServerError/resources(_:)`` if no thread can be created.
  public func run() async throws(UploadServerError) {
    let failure = await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        do throws(SystemError) {
          try NamedThread("sluice-server") {
            self.serveOnThisThread()
            continuation.resume(returning: UploadServerError?.none)
          }.detach()
        } catch {
          continuation.resume(returning: .resources(error.description))
        }
      }
    } onCancel: {
      shutdown()
    }
    if let failure { throw failure }
  }
}

/// The handlers of a server's owner.
final class Routes: Sendable {
  private struct Key: Hashable {
    var method: RequestMethod
    var path: String
  }

  private let table = Lock<[Key: AsynchronousHandler.Work]>([:])
  private let failed: @Sendable (any Error, RequestHead) -> Void

  init(failed: @escaping @Sendable (any Error, RequestHead) -> Void) { self.failed = failed }

  func add(_ method: RequestMethod, _ path: String, _ work: @escaping AsynchronousHandler.Work) {
    table.withLock { $0[Key(method: method, path: path)] = work }
  }

  /// A new handler for a request; nil if there is no route. Any thread, without effects.
  func handler(for head: RequestHead) -> AsynchronousHandler? {
    let key = Key(method: RequestMethod(head.method), path: head.target.path)
    guard let work = table.withLock({ $0[key] }) else { return nil }
    return AsynchronousHandler(head: head, failed: { [failed] in failed($0, head) }, work)
  }
}
