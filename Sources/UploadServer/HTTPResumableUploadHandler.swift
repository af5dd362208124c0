// SwiftNIO's names for resumable uploads around a server's own handlers, as in Apple's talk.

public import HTTPMessages
public import HTTPServer
public import StreamServing

/// The common settings of a server's resumable uploads.
public struct HTTPResumableUploadContext: Sendable {
  /// The scheme, host and port by which clients reach the server, such as `https://example.com`. The URLs of uploads
  /// begin with it.
  public var origin: String
  /// The directory for unfinished uploads. It is created if it is missing and its parent exists.
  public var directory: String
  /// The limits of uploads.
  public var limits = UploadLimitsConfiguration()

  /// Creates a context with the default limits.
  ///
  /// - Parameters:
  ///   - origin: the scheme, host and port by which clients reach the server. A slash at its end is dropped.
  ///   - directory: the directory for unfinished uploads.
  public init(origin: String, directory: String = "uploads") {
    self.origin = origin.last == "/" ? String(origin.dropLast()) : origin
    self.directory = directory
  }
}

/// Serves custom handlers with resumable uploads (draft-ietf-httpbis-resumable-upload).
///
///     let context = HTTPResumableUploadContext(origin: "https://example.com")
///     let uploads = HTTPResumableUploadHandler(context: context, handlers: [{ head in ExampleHandler(head) }])
///     try await UploadServer(listen: ":8080", uploads).run()
///
/// For each upload, it creates a random URL, announces it with 104, and stores the arriving bytes. A handler receives
/// one ordinary request, regardless of the number of connections. Its interim responses
/// (``HTTPServer/Exchange/sendInterim(_:_:)``: 102, 103) and its final response go to the current connection. Requests
/// without the protocol reach the handlers unchanged.
///
/// SwiftNIO takes channel handlers, and each connection gets its own. This type takes closures that create a handler
/// for a request.
public struct HTTPResumableUploadHandler: Sendable {
  /// Creates the handler of a request. Nil passes the request to the next factory. It must not have side effects,
  /// because it is also called for an upload that continues after a restart, and for OPTIONS to determine the methods.
  public typealias Factory = @Sendable (RequestHead) -> (any RequestHandler)?

  /// The common settings of its uploads.
  public let context: HTTPResumableUploadContext
  /// The factories, called in this order for each request.
  public let handlers: [Factory]

  /// Creates handlers with resumable uploads.
  public init(context: HTTPResumableUploadContext, handlers: [Factory]) {
    (self.context, self.handlers) = (context, handlers)
  }

  /// The first handler that takes the request. A request that no handler takes is answered with 404, and not stored.
  func handler(for head: RequestHead) -> any RequestHandler {
    handlers.lazy.compactMap { $0(head) }.first
      ?? FixedResponseHandler(Response(404, body: "This path does not exist.\n"))
  }
}

extension UploadServer {
  /// Creates a server for these handlers only.
  ///
  /// - Parameters:
  ///   - listen: the address in the format of ``HTTPServer/ListenAddress/init(_:)``: `:8080`, `127.0.0.1:8080`,
  ///     `unix:/run/s.sock`.
  ///   - uploads: the handlers, and the common settings of their uploads.
  ///   - onEvent: called for each event of the server, on the thread where it happens.
  /// - Throws: ``UploadServerError``, whose description names the remedy.
  public convenience init(
    listen: String, _ uploads: HTTPResumableUploadHandler,
    onEvent: @escaping @Sendable (ServerEvent) -> Void = { _ in }
  ) throws(UploadServerError) {
    let address: ListenAddress
    do throws(ListenError) { address = try ListenAddress(listen) } catch { throw .listening(error) }
    var configuration = Configuration(listen: [address], directory: uploads.context.directory, onEvent: onEvent)
    configuration.uploads = uploads.context.limits
    configuration.uploads.publicURL = uploads.context.origin
    configuration.handler = { uploads.handler(for: $0) }
    try self.init(configuration: configuration)
  }
}
