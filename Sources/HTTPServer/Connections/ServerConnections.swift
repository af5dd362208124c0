// The connections of one loop of a server. After `start`, everything here runs on the loop's thread.

package import EventLoops
internal import Glibc

/// The table of a loop's connections, and how it ends. Owned by the server.
package final class ServerConnections {
  /// How long the server waits for a connection; zero for no limit.
  package struct TimeLimits: Sendable {
    /// From the connection, or the head's first byte, to the head's end.
    package var head: Duration
    /// Between two pieces of a body.
    package var body: Duration
    /// Between two requests.
    package var keepAlive: Duration
    /// For reading an answer that was sent before the end of the body.
    package var linger: Duration

    package init(head: Duration, body: Duration, keepAlive: Duration, linger: Duration) {
      (self.head, self.body, self.keepAlive, self.linger) = (head, body, keepAlive, linger)
    }

    func limit(of kind: HTTPConnectionState.Timeout) -> Duration {
      switch kind {
      case .idle: keepAlive
      // An unread answer gets as much time as an unsent head.
      case .head, .sending: head
      case .body: body
      case .lingering: linger
      }
    }
  }

  private enum Phase { case serving, finishing, lingering, ended }

  private let loop: EventLoop
  private let context: ConnectionContext
  private var linger: Duration
  private let refused: (_ peer: String?, RequestRefusal?, _ reason: String) -> Void
  private var connections: [Int32: HTTPConnection] = [:]
  private var phase = Phase.serving
  private var stopTimer: EventLoop.Timer?
  /// While the server stops: connections with requests that must end first.
  private var awaited: Set<Int32> = []
  /// While the server stops: when downloads are ended. Nil gives them only the time that others have to read their
  /// answers.
  private var downloadsEnd: MonotonicInstant?
  /// How often a stopping server checks its downloads, and which clients have their answers.
  private static let checkPause = Duration.milliseconds(100)
  private var haveRequestsEnded = false

  /// Called when a connection has ended and its descriptor is free.
  var descriptorFreed: () -> Void = {}
  /// The loop that owns a request, if it is not this one.
  package var otherLoop: (RequestHead) -> Int? {
    get { context.otherLoop }
    set { context.otherLoop = newValue }
  }
  /// Moves a connection to another loop.
  package var handOver: (ConnectionHandover, Int) -> Void {
    get { context.handOver }
    set { context.handOver = newValue }
  }
  /// Called once when the server stops and waits for no further request of these connections.
  package var drained: () -> Void = {}
  /// Called once, before ``ended``, when no active request brings anything any more, and none will follow.
  package var requestsEnded: () -> Void = {}
  /// Called when the last connection has ended, and no other will follow.
  package var ended: () -> Void = {}

  /// - Parameters:
  ///   - router: chooses the handler of each request.
  ///   - refused: called for each request that no handler received, with its refusal, and for each connection that is
  ///     not served, without one.
  package init(
    loop: EventLoop, timeLimits: TimeLimits, parserLimits: RequestParser.Limits, router: @escaping RequestRouter,
    refused: @escaping (_ peer: String?, RequestRefusal?, _ reason: String) -> Void
  ) {
    self.loop = loop
    self.refused = refused
    linger = timeLimits.linger
    context = ConnectionContext(
      loop: loop, timeouts: Timeouts(loop: loop) { timeLimits.limit(of: $0) }, parserLimits: parserLimits,
      router: router, refused: { refused($0, $1, $1.reason) })
  }

  /// The figures of the connections.
  package var figures: ConnectionFigures { context.figures.values }

  /// Call it before the first connection.
  package func start() {
    context.closed = { [unowned self] descriptor in
      connections[descriptor] = nil
      context.figures.values.open = connections.count
      descriptorFreed()
      isOver(descriptor)
      endIfDone()
    }
    context.answered = { [unowned self] descriptor in isOver(descriptor) }
  }

  // MARK: Connections

  /// Adds a connection that this loop or another has accepted, or that another loop has begun to serve.
  package func take(_ handover: ConnectionHandover) {
    // A connection that arrives when the server stops is closed, unless it has sent a request.
    guard phase == .serving || phase != .ended && handover.request != nil else { return }
    let descriptor = handover.take()
    if handover.request == nil { context.figures.values.accepted += 1 }
    do throws(SystemError) {
      let connection = try HTTPConnection(descriptor: descriptor, peer: handover.peer, context: context)
      connections[descriptor] = connection
      context.figures.values.open = connections.count
      if let request = handover.request { connection.goOn(with: request) }
      // It has missed the notification that all others received.
      if phase == .lingering { connection.serverStops() }
    } catch {
      close(descriptor)
      context.figures.values.refused += 1
      refused(handover.peer, nil, error.description)
    }
  }

  /// The listeners cannot accept connections for now.
  func exhausted(_ reason: String) {
    context.figures.values.failed(.descriptors)
    refused(nil, nil, "cannot accept connections: \(reason)")
  }

  /// The listener turns a connection away, because there is no descriptor for it.
  func turnedAway() {
    context.figures.values.refused += 1
    context.figures.values.failed(.descriptors)
  }

  /// Closes a connection without an active request, if there is one.
  func closeDispensable() -> Bool {
    guard let connection = context.timeouts.mostDispensable else { return false }
    connection.makeRoom()
    return true
  }

  // MARK: Stopping

  /// Begins no more requests, and lets active ones finish for at most `grace`. Those that their clients can continue
  /// are served until ``turnAway()``. A second call with a grace of zero waits for none.
  ///
  /// - Parameters:
  ///   - linger: how long clients then have to read their answers; nil for the usual time.
  ///   - downloads: how long downloads continue from now on, if their clients receive something at least once in that
  ///     time; nil if they get no more time than other answers.
  package func stop(grace: Duration, linger: Duration? = nil, downloads: Duration? = nil) {
    switch phase {
    case .serving:
      phase = .finishing
      context.stops = true
      if let linger { self.linger = min(self.linger, linger) }
      downloadsEnd = downloads.map { .now + $0 }
      for connection in connections.values where connection.isAwaited { awaited.insert(connection.descriptor) }
      if awaited.isEmpty { drained() }
      for connection in connections.values where !connection.hasOpenRequest { connection.serverStops() }
    case .finishing, .lingering:
      guard grace == .zero else { return }
      // A second stop does not wait. The answers are in the sockets.
      if phase == .finishing { for connection in connections.values { connection.serverStops() } }
      return end()
    case .ended: return
    }
    endIfDone()
    if phase == .finishing { stopTimer = loop.schedule(after: grace) { [unowned self] in turnAway() } }
  }

  /// The request on that connection is over.
  private func isOver(_ descriptor: Int32) {
    if awaited.remove(descriptor) != nil, awaited.isEmpty { drained() }
  }

  /// Nothing is left to wait for, or the grace is over. Clients that are still sending receive their offset, and time
  /// to read it.
  package func turnAway() {
    guard phase == .finishing else { return }
    phase = .lingering
    if let stopTimer { loop.cancel(stopTimer) }
    stopTimer = nil
    for connection in connections.values { connection.serverStops() }
    endIfDone()
    guard phase == .lingering else { return }
    let now = MonotonicInstant.now
    var downloads = DrainingDownloads(patience: linger)
    for connection in connections.values { _ = look(at: connection, &downloads, now) }
    let deadline = now + linger
    // Not in this turn, whatever the deadline is, because answers are being sent.
    stopTimer = loop.schedule(after: .zero) { [unowned self, downloads] in watch(downloads, until: deadline) }
  }

  private func look(
    at connection: HTTPConnection, _ downloads: inout DrainingDownloads, _ now: MonotonicInstant
  ) -> Bool {
    downloads.isAlive(connection.descriptor, undelivered: connection.undelivered, now: now)
  }

  /// Closes each connection whose client has its answer, and disconnects all others at `deadline`, except downloads
  /// whose clients still receive bytes.
  private func watch(_ downloads: DrainingDownloads, until deadline: MonotonicInstant) {
    var downloads = downloads
    let now = MonotonicInstant.now
    let isOver = now >= max(deadline, downloadsEnd ?? deadline)
    for connection in connections.values {
      if connection.isDelivered {
        connection.close()
        continue
      }
      let isAlive = look(at: connection, &downloads, now)
      if now >= deadline, !isAlive || isOver { connection.abandon() }
    }
    guard phase == .lingering else { return }
    if now >= deadline { endRequests() }
    let next = now + Self.checkPause
    stopTimer = loop.schedule(at: now < deadline ? min(next, deadline) : next) { [unowned self, downloads] in
      watch(downloads, until: deadline)
    }
  }

  private func endRequests() {
    guard !haveRequestsEnded else { return }
    haveRequestsEnded = true
    requestsEnded()
  }

  private func endIfDone() {
    if (phase == .finishing || phase == .lingering) && connections.isEmpty { end() }
  }

  private func end() {
    guard phase != .ended else { return }
    phase = .ended
    if let stopTimer { loop.cancel(stopTimer) }
    for connection in connections.values { connection.abandon() }
    context.timeouts.cancel()
    endRequests()
    ended()
  }
}
