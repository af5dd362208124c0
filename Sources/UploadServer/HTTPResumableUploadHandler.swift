// The names that SwiftNIO has for resumable uploads around a server's own handlers, as Apple's talk shows them.

public import HTTPMessages
public import HTTPServer
public import StreamServing

/// What the resumable uploads of a server have in common.
public struct HTTPResumableUploadContext: Sendable {
  /// Scheme, host and port by which clients reach the server, as `https://example.com`: what the URLs of uploads begin
  /// with.
  public var origin: String
  /// Where unfinished uploads are kept. It is made if it is missing and its parent exists.
  public var directory: String
  /// What uploads may take.
  public var limits = UploadLimitsConfiguration()

  /// A context with the default limits.
  ///
  /// - Parameters:
  ///   - origin: scheme, host and port by which clients reach the server; a slash at its end is dropped.
  ///   - directory: where unfinished uploads are kept.
  public init(origin: String, directory: String = "uploads") {
    self.origin = origin.last == "/" ? String(origin.dropLast()) : origin
    self.directory = directory
  }
}

/// Handlers of your own behind the procedures of resumable uploads (draft-ietf-httpbis-resumable-upload).
///
///     let context = HTTPResumableUploadContext(origin: "https://example.com")
///     let uploads = HTTPResumableUploadHandler(context: context, handlers: [{ head in ExampleHandler(head) }])
///     try await UploadServer(listen: ":8080", uploads).run()
///
/// For each upload it generates a random URL, announces that with 104, and keeps what arrives. A handler sees one ordinary
/// request, however many connections that took. Its interim responses (``HTTPServer/Exchange/sendInterim(_:_:)``: 102, 103) and its
/// final response go to the connection of the moment. Requests without the protocol get to the handlers as they are.
///
/// Where SwiftNIO takes channel handlers, of which each connection gets its own, this takes closures that make a handler
/// for a request.
public struct HTTPResumableUploadHandler: Sendable {
  /// Makes the handler of a request; nil leaves the request to the next. It must not have effects: it is called for an
  /// upload that goes on after a restart, too, and by OPTIONS to find out which methods there are.
  public typealias Factory = @Sendable (RequestHead) -> (any RequestHandler)?

  /// What its uploads have in common.
  public let context: HTTPResumableUploadContext
  /// They are asked in this order for the handler of a request.
  public let handlers: [Factory]

  /// Handlers behind the procedures of resumable uploads.
  public init(context: HTTPResumableUploadContext, handlers: [Factory]) {
    (self.context, self.handlers) = (context, handlers)
  }

  /// The first handler that takes the request. What none takes is answered with 404, and stored nowhere.
  func handler(for head: RequestHead) -> any RequestHandler {
    handlers.lazy.compactMap { $0(head) }.first
      ?? FixedResponseHandler(Response(404, body: "There is nothing at this path.\n"))
  }
}

extension UploadServer {
  /// A server that serves these handlers, and nothing else.
  ///
  /// - Parameters:
  ///   - listen: where to listen, as ``HTTPServer/ListenAddress/init(_:)`` reads it: `:8080`, `127.0.0.1:8080`,
  ///     `unix:/run/s.sock`.
  ///   - uploads: the handlers, and what their uploads have in common.
  ///   - onEvent: called for each event of the server, on the thread where it happens.
  /// - Throws: ``UploadServerError``, whose description says what to do.
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
