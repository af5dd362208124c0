// The thread that all uploads share, and the way to hand it work.

public import EventLoops
public import StreamBuffers

/// One thread, one epoll loop, one libcurl multi handle: any number of uploads.
///
/// All handlers are called on the session's thread and must not block it.
public final class UploadSession: Sendable {
  /// The session's loop, for those who drive streams on the same thread.
  package let loop: EventLoop
  private let multi: CurlMulti
  private let thread: NamedThread

  /// Starts the session's thread.
  ///
  /// - Throws: ``SystemError`` when descriptors, memory or threads are refused.
  public init() throws(SystemError) {
    let loop = try EventLoop()
    self.loop = loop
    multi = try CurlMulti(loop: loop)
    thread = try NamedThread("sluice-network") { loop.run() }
  }

  /// Starts an upload.
  ///
  /// - Parameters:
  ///   - body: its bytes are the request's body; HTTP/1.1 `Transfer-Encoding: chunked` (RFC 9112, section 7.1), DATA frames
  ///     on HTTP/2. When its writer closes, the body ends; when it fails, the request is broken off.
  ///   - handler: told what happens, on the session's thread.
  /// - Throws: ``UploadError`` of kind `invalidRequest` when the request cannot be sent as it is.
  public func upload(
    _ request: UploadRequest, body: consuming BoundPair.Input, handler: @escaping @Sendable (UploadTask.Event) -> Void
  ) throws(UploadError) -> UploadTask {
    try request.validate()
    let transfer = CurlTransfer(request: request, body: body, loop: loop, handler: handler)
    let multi = multi
    loop.execute { multi.start(transfer) }
    return transfer.task
  }

  /// Ends all uploads as cancelled and joins the thread. Not from the session's thread, and once.
  public func close() {
    let multi = multi
    loop.execute { multi.close() }
    loop.stop()
    thread.join()
  }
}
