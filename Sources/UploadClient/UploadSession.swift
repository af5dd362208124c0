// The thread that all uploads share, and the interface for its work.

public import EventLoops

/// A thread with an epoll loop and libcurl, for any number of uploads.
///
/// All handlers are called on the session's thread and must not block it. A session ends its thread when the last
/// reference to it is dropped and its last request is over. ``close()`` ends it at once.
public final class UploadSession: Sendable {
  /// The session's loop, for code that drives streams on the same thread.
  package let loop: EventLoop
  let lanes: [CurlMulti]
  let responseBlocks = ResponseBlocks()
  let running: Lock<Running>

  /// The state until the session closes.
  struct Running {
    var thread: NamedThread?
    /// Closures to call when it closes.
    var closings: [UInt64: @Sendable () -> Void] = [:]
    var nextClosing: UInt64 = 0
  }

  /// How simultaneous requests share connections.
  public enum Connections: Equatable, Sendable {
    /// Each request has its own connection, even with HTTP/2. The acknowledgements of the peer's TCP are known per
    /// connection, and a stalled stream does not block others.
    case onePerUpload
    /// On HTTP/2, up to this number of uploads share a connection. There are fewer if the server requires it. Without
    /// TLS, libcurl 7.88 cannot share one. The acknowledged bytes of each upload are a lower bound, which does not
    /// count the bytes that the others have in flight.
    case shared(maximumUploads: Int)
  }

  /// Whether uploads share connections.
  package var sharesConnections: Bool { lanes.contains { $0.sharesConnections } }

  /// Starts the session's thread.
  ///
  /// - Parameter connections: whether uploads share connections.
  /// - Throws: ``EventLoops/SystemError`` when descriptors, memory or threads are refused.
  public convenience init(connections: Connections = .onePerUpload) throws(SystemError) {
    try self.init(connections: connections, lanes: 1)
  }

  /// Starts the session's thread, with several lanes.
  ///
  /// - Parameters:
  ///   - connections: whether uploads share connections.
  ///   - count: the number of lanes, at least 1. For each request, libcurl searches all its connections to the same
  ///     host, in use or not. With ten thousand streams to one server, this takes a millisecond per request. Lanes do
  ///     not share connections. A few hundred streams per lane are few enough.
  /// - Throws: ``EventLoops/SystemError`` when descriptors, memory or threads are refused.
  package init(connections: Connections = .onePerUpload, lanes count: Int) throws(SystemError) {
    let loop = try EventLoop()
    self.loop = loop
    var lanes: [CurlMulti] = []
    let sockets = SocketTable()
    let lookups = NameLookups()
    for _ in 0..<max(1, count) {
      lanes.append(try CurlMulti(loop: loop, sockets: sockets, lookups: lookups, connections: connections))
    }
    self.lanes = lanes
    let all = lanes
    let thread = try NamedThread("sluice-network") {
      loop.run()
      // libcurl closes connections when a lane is dropped. No other thread may do this at the same time.
      withExtendedLifetime(all) {}
    }
    running = Lock(Running(thread: thread))
  }

  deinit { stop()?.detach() }

  /// Starts a request.
  ///
  /// Successive requests to one origin use one connection, regardless of their methods and bodies, unless the server or
  /// a failure closed it. After an error of the server (5xx) and most other responses that are no success, the next
  /// request uses another connection, which may lead to another server. The session's ``Connections`` determine whether
  /// two simultaneous requests share one.
  ///
  /// A connection that the server closed while it was idle is detected before use. If it is closed just as the request
  /// is sent, a request without body bytes is sent again on a new connection. A request with a body fails with
  /// ``UploadError/Kind/connectionLost``, always after its first byte was passed to libcurl. The owner of the body must
  /// then ask the server for its offset.
  ///
  /// Redirects (3xx) are returned and not followed. `Expect: 100-continue` is never sent.
  ///
  /// - Parameters:
  ///   - request: the destination and the settings.
  ///   - body: the content of the request.
  ///   - handler: receives all events on the session's thread.
  /// - Throws: ``UploadError`` of kind `invalidRequest` when the request cannot be sent in this form, and of kind
  ///   `cancelled` when the session is closed.
  public func upload(
    _ request: UploadRequest, body: consuming UploadBody, handler: @escaping @Sendable (UploadTask.Event) -> Void
  ) throws(UploadError) -> UploadTask {
    try upload(request, body: body, lane: 0, handler: handler)
  }

  /// The same in one of the session's lanes.
  ///
  /// - Parameters:
  ///   - lane: any number. Requests that reuse one connection must have the same lane.
  ///   - keepsConnection: called with the head of the final response, from within libcurl, so it must not change a
  ///     task. If it returns false, no other request uses the connection.
  package func upload(
    _ request: UploadRequest, body: consuming UploadBody, lane: Int,
    keepsConnection: (@Sendable (HTTPResponse) -> Bool)? = nil,
    handler: @escaping @Sendable (UploadTask.Event) -> Void
  ) throws(UploadError) -> UploadTask {
    try request.validate()
    try body.validate(method: request.method)
    let transfer = CurlTransfer(
      request: request, body: body, loop: loop, session: self, keepsConnection: keepsConnection, handler: handler)
    let multi = lanes[Int(UInt(bitPattern: lane) % UInt(lanes.count))]
    guard execute({ multi.start(transfer) }) else {
      // The task and its transfer refer to each other.
      transfer.task.isOver(nil)
      throw UploadError(.cancelled, "the session is closed")
    }
    return transfer.task
  }

  /// Ends all uploads as cancelled, and waits for the end of the thread. A second call has no effect. On the session's
  /// own thread, it does not wait.
  public func close() {
    guard let thread = stop() else { return }
    if loop.isOnThread { thread.detach() } else { thread.join() }
  }

  /// Makes the thread end soon.
  ///
  /// - Returns: the thread, to be joined or detached. Nil if it was stopped before.
  private func stop() -> NamedThread? {
    let (thread, closings) = running.withLock { running in
      let closings = running.closings.values.map { $0 }
      running.closings = [:]
      return (running.thread.take(), closings)
    }
    guard let thread else { return nil }
    loop.execute { [loop, lanes] in
      for work in closings { work() }
      for multi in lanes { multi.close() }
      // After the work that these ends have deferred.
      loop.stop()
    }
    return thread
  }

  /// Takes back the bytes of ``UploadTask/Event/responseBody(_:)``, whose memory the next ones use. Any thread.
  package func reuse(_ bytes: [UInt8]) { responseBlocks.put(bytes) }

  /// Runs `work` on the session's thread, before the session closes. Any thread.
  ///
  /// - Returns: false if the session is closed. Nothing runs in that case.
  package func execute(_ work: @escaping @Sendable () -> Void) -> Bool {
    running.withLock { running in
      guard running.thread != nil else { return false }
      loop.execute(work)
      return true
    }
  }

  /// Registers `work` to be called on the session's thread when it closes, before its uploads end.
  ///
  /// - Returns: a number for ``forgetClosing(_:)``. Nil if the session is closed.
  package func whenClosing(_ work: @escaping @Sendable () -> Void) -> UInt64? {
    running.withLock { running in
      guard running.thread != nil else { return nil }
      let number = running.nextClosing
      running.nextClosing += 1
      running.closings[number] = work
      return number
    }
  }

  /// Removes the registration of ``whenClosing(_:)``.
  package func forgetClosing(_ number: UInt64) { running.withLock { $0.closings[number] = nil } }
}
