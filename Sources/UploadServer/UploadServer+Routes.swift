// Handlers of one's own, by method and path, beside what the store keeps; and a server that runs in a task.

internal import EventLoops
public import HTTPMessages
public import HTTPServer

extension UploadServer {
  /// A server with the default configuration.
  ///
  ///     try await UploadServer(listen: ":8080", directory: "uploads").run()
  ///
  /// - Parameters:
  ///   - listen: where to listen, as ``HTTPServer/ListenAddress/init(_:)`` reads it: `:8080`, `127.0.0.1:8080`,
  ///     `unix:/run/s.sock`.
  ///   - directory: where streams and unfinished uploads are stored. It is made if it is missing and its parent exists.
  /// - Throws: ``UploadServerError``, whose description says what to do.
  public convenience init(listen: String, directory: String) throws(UploadServerError) {
    let address: ListenAddress
    do throws(ListenError) { address = try ListenAddress(listen) } catch { throw .listening(error) }
    try self.init(configuration: Configuration(listen: [address], directory: directory))
  }

  /// Serves requests with that method for exactly that path by `work`, behind the resumable protocol: it is called once
  /// for an upload, and reads all of its content, by however many connections it came.
  ///
  /// After a restart of the server it is called again for an upload that goes on, with the content from its beginning.
  /// An error that it throws is answered with 500, and is an event (``StreamServing/ServerEvent/Kind/warning``). Any
  /// thread, but before the server runs: the unfinished uploads of an earlier server look for their handlers then. The
  /// last one for a method and path counts.
  @discardableResult
  public func on(_ method: RequestMethod, _ path: String, _ work: @escaping AsynchronousHandler.Work) -> UploadServer {
    routes.add(method, path, work)
    return self
  }

  /// Serves until the task is cancelled, or ``shutdown(grace:)`` is called. Then requests at work have two seconds to
  /// end. May be called once, and not after ``start()``.
  ///
  /// - Throws: ``UploadServerError/resources(_:)`` if there is no thread to be had.
  public func run() async throws(UploadServerError) {
    let failure = await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        do throws(SystemError) {
          try NamedThread("sluice-server") {
            self.run()
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
