// The thread that all uploads share, and the way to hand it work.

public import EventLoops

/// One thread, one epoll loop, and libcurl on it: any number of uploads.
///
/// All handlers are called on the session's thread and must not block it. A session ends its thread when nobody refers
/// to it any more and its last request is over. ``close()`` ends it at once.
public final class UploadSession: Sendable {
  /// The session's loop, for those who drive streams on the same thread.
  package let loop: EventLoop
  let lanes: [CurlMulti]
  private let running: Lock<Running>

  /// What there is until the session closes.
  private struct Running {
    var thread: NamedThread?
    /// To be called when it closes.
    var closings: [UInt64: @Sendable () -> Void] = [:]
    var nextClosing: UInt64 = 0
  }

  /// How requests at the same time share connections.
  public enum Connections: Equatable, Sendable {
    /// Each has its own, on HTTP/2 too: what the peer's TCP has acknowledged is known by connection, and a stalled
    /// stream does not hold up others.
    case onePerUpload
    /// On HTTP/2 up to so many share one: fewer where the server wants that, and never without TLS over a libcurl 7.88,
    /// which cannot. What TCP has acknowledged of each is a bound from below, lower by all that the others have under
    /// way.
    case shared(maximumUploads: Int)
  }

  /// Starts the session's thread.
  ///
  /// - Parameters:
  ///   - connections: whether uploads share connections.
  ///   - count: the number of lanes, at least 1. For each request libcurl looks through all connections that it has to
  ///     the same
  ///   host, whether they are in use or not, so that ten thousand streams to one server take a millisecond for each
  ///   request. Requests of different lanes know nothing of each other: some hundred streams in each are few enough.
  /// - Throws: ``EventLoops/SystemError`` when descriptors, memory or threads are refused.
  public init(connections: Connections = .onePerUpload, lanes count: Int = 1) throws(SystemError) {
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
      // libcurl closes connections when a lane goes, which no other thread may do at the same time.
      withExtendedLifetime(all) {}
    }
    running = Lock(Running(thread: thread))
  }

  deinit { stop()?.detach() }

  /// Starts a request.
  ///
  /// Requests to one origin, one after another, go over one connection, whatever their methods and bodies, unless the
  /// server or a failure closed it; whether two at the same time share one is the session's ``Connections``. A
  /// connection that the server closed while it was idle is noticed before it is used. If it is closed just as the
  /// request goes out, a request without body bytes goes out once more, on a new connection. One with a body fails as
  /// ``UploadError/Kind/connectionLost``, always once its first byte was handed over: what the server has of it is for
  /// the body's owner to ask.
  ///
  /// Redirects (3xx) are not followed but returned, and `Expect: 100-continue` is never sent.
  ///
  /// - Parameters:
  ///   - request: where to, and how.
  ///   - body: what the request carries.
  ///   - lane: any number; requests that are to use one connection after another have the same.
  ///   - handler: told what happens, on the session's thread.
  /// - Throws: ``UploadError`` of kind `invalidRequest` when the request cannot be sent as it is.
  public func upload(
    _ request: UploadRequest, body: consuming UploadBody, lane: Int = 0,
    handler: @escaping @Sendable (UploadTask.Event) -> Void
  ) throws(UploadError) -> UploadTask {
    try request.validate()
    try body.validate(method: request.method)
    let transfer = CurlTransfer(request: request, body: body, loop: loop, session: self, handler: handler)
    let multi = lanes[Int(UInt(bitPattern: lane) % UInt(lanes.count))]
    loop.execute { multi.start(transfer) }
    return transfer.task
  }

  /// Ends all uploads as cancelled, and waits for the end of the thread. A second call does nothing. On the session's
  /// own thread it does not wait.
  public func close() {
    guard let thread = stop() else { return }
    if loop.isOnThread { thread.detach() } else { thread.join() }
  }

  /// Has the thread end soon.
  ///
  /// - Returns: the thread, to be joined or detached; nil if it was stopped before.
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
      // Behind what these ends have put off.
      loop.stop()
    }
    return thread
  }

  /// Has `work` called on the session's thread when it closes, before its uploads end.
  ///
  /// - Returns: a number for ``forgetClosing(_:)``; nil when the session is closed.
  package func whenClosing(_ work: @escaping @Sendable () -> Void) -> UInt64? {
    running.withLock { running in
      guard running.thread != nil else { return nil }
      let number = running.nextClosing
      running.nextClosing += 1
      running.closings[number] = work
      return number
    }
  }

  /// Takes back what ``whenClosing(_:)`` asked for.
  package func forgetClosing(_ number: UInt64) { running.withLock { $0.closings[number] = nil } }
}
