// One connection, which combines its socket, its parser and its state machine. All of it runs on the loop's thread.

internal import EventLoops
internal import Glibc

/// A connection from its acceptance to its closing. It lives as long as it is in the server's table.
final class HTTPConnection {
  /// How many bytes are read and discarded after an early answer: enough for what a fast client has under way.
  private static let lingerLimit = 256 << 20
  /// The maximum number of bytes that `takeArrived` reads. It exceeds any socket buffer, and limits a client that never
  /// stops.
  private static let arrivedLimit = 64 << 20
  /// How many requests of one connection are begun before other connections get their turn, because one read can
  /// contain thousands.
  private static let requestsPerTurn = 32
  /// Above this number of unsent bytes, interim answers are dropped.
  private static let interimLimit = 16 * 1024

  /// The answer to a request that arrives when the server stops.
  private static let stopping = Response(503, ["retry-after": "2"], body: "The server is stopping.\n")

  let descriptor: Int32
  let peer: String
  var timeoutLink = TimeoutLink()
  var loop: EventLoop { context.loop }

  private let context: ConnectionContext
  private var state = HTTPConnectionState()
  private var parser: RequestParser
  private var handler: (any RequestHandler)?
  /// The handler's view of this connection. It is cut off when its request is over, so that a late answer cannot be
  /// mistaken for that of the next request.
  private var exchange: ConnectionExchange?
  private var output = ConnectionOutput()
  /// Bytes that were read together with earlier ones and must wait for the handler, from `start` on.
  private var unparsed: (bytes: [UInt8], start: Int) = ([], 0)
  /// Whether the waiting bytes are processed in the next turn of the loop.
  private var isPostponed = false
  private var interest: EventLoop.Interest = .readable
  private var timeoutKind: HTTPConnectionState.Timeout?
  private var isProcessing = false
  /// Whether another request takes the bytes that have arrived for this one.
  private var isTakingArrived = false
  /// The method of the last request.
  private var method = ""
  /// Whether a request was ever read here.
  private var hasServed = false
  /// Whether a head was completed since the timeout was last set, so that the next one gets its full time.
  private var restartsTimeout = false
  private var lingered = 0
  /// Whether the rest of the body stays in TCP for now.
  private var isPaused = false
  /// Whether the last read belonged to a bulk upload.
  private var isBulk = false

  init(descriptor: Int32, peer: String, context: ConnectionContext) throws(SystemError) {
    self.descriptor = descriptor
    self.peer = peer
    self.context = context
    parser = RequestParser(limits: context.parserLimits)
    try context.loop.register(descriptor, .readable) { [unowned self] readiness in ready(readiness) }
    context.allowance.connectionOpened()
    // A new client should send at once: its first head gets less time than a pause between requests.
    timeoutKind = .head
    context.timeouts.set(.head, self)
  }

  /// Continues another loop's connection with a request that was read but not begun.
  func goOn(with request: (head: RequestHead, parser: RequestParser, rest: [UInt8])) {
    parser = request.parser
    unparsed = (request.rest, 0)
    isProcessing = true
    begin(request.head)
    isProcessing = false
    resume()
    settle(progress: true)
  }

  // MARK: Events of the loop

  private func ready(_ readiness: EventLoop.Readiness) {
    if readiness.contains(.writable) { flush() }
    if wantsBytes {
      if !readiness.isDisjoint(with: [.readable, .hangUp, .error]) { readOnce() }
    } else if !readiness.isDisjoint(with: [.hangUp, .error]) {
      // No bytes are expected from the socket, so this is the only sign that the client has left.
      lost(.connectionLost("reset by the client"))
    }
    settle(progress: true)
  }

  func timedOut() {
    timeoutKind = nil
    switch state.timedOut() {
    case .close: lost(.idle)
    case .refuseHead: refuse(RequestRefusal(408, "the head of the request took too long"))
    case .abortBody:
      let handler = takeHandler()
      handler?.aborted(.idle)
      refuse(RequestRefusal(408, "no data of the body arrived for too long"))
    }
    settle(progress: false)
  }

  /// The server stops. An active request gets the chance to answer, an idle connection is closed, and a request with an
  /// incomplete head is no longer begun.
  func serverStops() {
    if let handler {
      handler.serverStops()
    } else if state.state == .idle {
      close()
    } else if state.state == .head, state.refused() {
      context.figures.values.responded(method, Self.stopping.status)
      send(Self.stopping.serialized(keepsAlive: false, date: WallClock.now.imfFixdate))
    }
    settle(progress: false)
  }

  /// Whether there is an active request that must end before the server does, because its client could not continue it.
  var isAwaited: Bool { hasOpenRequest && handler?.canBeContinued != true }

  /// How many bytes of a response's content the client has yet to receive; nil if there is none, or it has all.
  var undelivered: UInt64? { output.undelivered(unacknowledged ?? 0) }

  /// Whether the client has read or acknowledged the response to its whole request, and the end of the connection. Its
  /// TCP then has both, so closing the socket destroys nothing (RFC 9112, section 9.6). A client that may still send
  /// the rest of its request would be reset.
  var isDelivered: Bool { state.state == .lingering && !state.isCutShort && unacknowledged == 0 }

  /// How many bytes in the kernel the client's TCP has not acknowledged; nil if that is unknown. They would be lost
  /// with the machine's network, such as a container's.
  private var unacknowledged: UInt64? {
    var queued: Int32 = 0
    return ioctl(descriptor, UInt(TIOCOUTQ), &queued) == 0 ? UInt64(max(0, queued)) : nil
  }

  /// Closes the connection to make room for another one. Only while no request is active.
  func makeRoom() { close() }

  /// The server ends. Notifies the active request.
  func abandon() { lost(.connectionLost("the server stopped")) }

  /// Whether there is an active request without an answer.
  var hasOpenRequest: Bool { state.hasOpenRequest }

  // MARK: Reading

  private var wantsBytes: Bool { !isPostponed && (state.reads && output.isEmpty || state.state == .body) }

  private func readOnce() {
    context.buffers.withBuffer { buffer in
      // One call per wake-up. A short read means that there is no more. After a full one, epoll reports the socket
      // again when the other connections have had their turn.
      let limit = min(context.allowance.limit(expectsHead: state.expectsHead), buffer.bytes.count)
      let count = recv(descriptor, buffer.bytes.baseAddress, limit, 0)
      if count > 0 {
        if state.state == .lingering {
          lingered += count
          if lingered > Self.lingerLimit { close() }
        } else {
          read(UnsafeBufferPointer(rebasing: buffer.bytes[..<count]), buffer)
          turn(bulk: state.state == .body && count >= ReadAllowance.bulkRead)
        }
      } else if count == 0 {
        lost(.peerClosed)
      } else if errno != EAGAIN && errno != EINTR {
        lost(.connectionLost(String(cString: strerror(errno))))
      }
    }
  }

  private func turn(bulk: Bool) {
    guard bulk != isBulk else { return }
    isBulk = bulk
    context.allowance.connectionTurned(bulk: bulk)
  }

  /// Processes bytes from the socket. Those that must wait are copied.
  private func read(_ bytes: UnsafeBufferPointer<UInt8>, _ buffer: ReceiveBuffer) {
    let used = process(bytes.span, buffer)
    if used < bytes.count { unparsed = (Array(bytes[used...]), 0) }
  }

  /// Returns how many bytes were used or need not be kept.
  private func process(_ bytes: Span<UInt8>, _ buffer: ReceiveBuffer) -> Int {
    isProcessing = true
    buffer.pieces.removeAll(keepingCapacity: true)
    var (position, begun) = (0, 0)
    // The next request could take the bytes of a third connection, and so on. A client with many connections would
    // exhaust the stack.
    let allowed = isTakingArrived ? 0 : Self.requestsPerTurn
    parsing: while state.parses && (output.isEmpty || state.state == .body) {
      if begun == allowed && state.expectsHead && position < bytes.count {
        postpone()
        break
      }
      switch parser.next(bytes, &position) {
      case .incomplete: break parsing
      case .head(let head):
        if !context.stops, let other = context.otherLoop(head) {
          leave(for: other, head, bytes.extracting(position..<bytes.count))
          return bytes.count
        }
        begin(head)
        begun += 1
      case .body(let range): buffer.pieces.append(range)
      case .end:
        handOver(bytes, buffer)
        if state.bodyEnded() { handler?.end() }
      case .refused(let refusal):
        handOver(bytes, buffer)
        let handler = takeHandler()
        if state.hasOpenRequest { handler?.aborted(.malformed(refusal.reason)) }
        refuse(refusal)
      }
    }
    handOver(bytes, buffer)
    state.parsed(withinHead: parser.isWithinHead)
    isProcessing = false
    return state.state == .lingering || state.state == .closed ? bytes.count : position
  }

  /// Continues in the next turn of the loop.
  private func postpone() {
    isPostponed = true
    context.loop.schedule(after: .zero) { [self] in
      isPostponed = false
      guard state.state != .closed else { return }
      resume()
      settle(progress: true)
    }
  }

  private func begin(_ head: RequestHead) {
    state.headArrived(head)
    output.setContent(nil)
    method = head.method
    hasServed = true
    restartsTimeout = true
    let handler = context.stops ? FixedResponseHandler(Self.stopping) : context.router(head)
    self.handler = handler
    let exchange = ConnectionExchange(self)
    self.exchange = exchange
    handler.begin(exchange)
  }

  /// Another loop owns the subject of the request. The connection moves there with the bytes read. It has no unsent
  /// bytes, because otherwise the request would not have been parsed.
  private func leave(for other: Int, _ head: RequestHead, _ rest: Span<UInt8>) {
    let rest = rest.withUnsafeBufferPointer { Array($0) }
    isProcessing = false
    context.figures.values.handedOver += 1
    let handover = ConnectionHandover(descriptor, peer: peer, request: (head, parser, rest))
    letGoOfSocket()
    context.handOver(handover, other)
  }

  /// Passes the body bytes found so far to the handler in one call, so that a file gets them in one write.
  private func handOver(_ bytes: Span<UInt8>, _ buffer: ReceiveBuffer) {
    guard !buffer.pieces.isEmpty else { return }
    // Not after the handler has answered an earlier piece.
    if state.state == .body {
      context.figures.values.receivedBytes += UInt64(buffer.pieces.reduce(0) { $0 + $1.count })
      handler?.receive(bytes, pieces: buffer.pieces)
    }
    buffer.pieces.removeAll(keepingCapacity: true)
  }

  /// Continues with bytes that had to wait, after the handler has accepted the body or an answer was sent.
  private func resume() {
    guard !isProcessing, !isPostponed, state.parses else { return }
    let (bytes, start) = unparsed
    unparsed = ([], 0)
    // Also without any bytes, because the end of an empty body is reported even then.
    let used = context.buffers.withBuffer { process(bytes.span.extracting(start..<bytes.count), $0) }
    // Copied once, rather than again for each request in the bytes.
    if start + used < bytes.count { unparsed = (bytes, start + used) }
  }

  // MARK: The handler's requests through its exchange

  func acceptBody() {
    switch state.bodyAccepted() {
    case .ignore: return
    case .sendContinueAndRead: send(Response.interim(100, [:]))
    case .read: break
    }
    resume()
    settle(progress: true)
  }

  func sendInterim(_ status: Int, _ fields: HeaderFields) {
    guard state.hasOpenRequest, state.takesInterims, output.size < Self.interimLimit else { return }
    guard Response.isInterim(status), fields.isValid else {
      return context.refused(peer, RequestRefusal(500, "cannot send the handler's interim response"))
    }
    state.interimSent()
    context.figures.values.respondedInterim(status)
    send(Response.interim(status, fields))
    settle(progress: false)
  }

  /// - Parameter content: sent instead of the response's body.
  func respond(_ response: Response, _ content: (any ResponseContent)? = nil) {
    let isHead = state.isHeadMethod
    guard case .send(let keepsAlive) = state.responded(serverStops: context.stops) else {
      content?.ended(sent: 0, .peerClosed)
      return
    }
    var (response, content) = (response, content)
    if let flaw = response.flaw(inAnswerTo: method) {
      context.refused(peer, RequestRefusal(500, "cannot send the handler's response: \(flaw)"))
      response = Response(500, body: "The response to this request cannot be sent.\n")
      content?.ended(sent: 0, .connectionLost(flaw))
      content = nil
    }
    context.figures.values.responded(method, response.status)
    letGo()
    let head = response.serialized(
      keepsAlive: keepsAlive, withBody: !isHead, contentLength: content?.length, date: WallClock.now.imfFixdate)
    if isHead || content?.length == 0 {
      content?.ended(sent: 0, nil)
      content = nil
    }
    output.setContent(content)
    send(head)
    settle(progress: true)
    if context.stops { context.answered(descriptor) }
  }

  func takeArrived() {
    guard !isProcessing else { return }
    isTakingArrived = true
    defer { isTakingArrived = false }
    var taken = 0
    context.buffers.withBuffer { buffer in
      // Others wait for this one, and the buffer is a second one.
      let limit = min(ReadAllowance.shared, buffer.bytes.count)
      while state.state == .body, taken < Self.arrivedLimit {
        let count = recv(descriptor, buffer.bytes.baseAddress, limit, 0)
        if count < 0 && errno == EINTR { continue }
        // The caller handles the end of the stream or an error. Either means that nothing more has arrived.
        guard count > 0 else { return }
        taken += count
        read(UnsafeBufferPointer(rebasing: buffer.bytes[..<count]), buffer)
      }
    }
    settle(progress: true)
  }

  /// Stops reading the body until ``resumeBody()``. Bytes that have arrived when a connection breaks are still read.
  func pauseBody() {
    isPaused = true
    settle(progress: false)
  }

  func resumeBody() {
    isPaused = false
    settle(progress: true)
  }

  func disconnect() {
    letGo()
    close()
  }

  /// Ends the handler's part in this connection.
  private func letGo() {
    exchange?.cutOff()
    exchange = nil
    isPaused = false
    handler = nil
  }

  /// Like ``letGo()``. Returns the handler, so that the caller can notify it.
  private func takeHandler() -> (any RequestHandler)? {
    defer { letGo() }
    return handler
  }

  // MARK: Writing

  private func refuse(_ refusal: RequestRefusal) {
    guard state.refused() else { return }
    context.figures.values.failed(refusal.status == 408 ? .timeout : .malformed)
    context.figures.values.responded(method, refusal.status)
    context.refused(peer, refusal)
    send(
      Response(refusal.status, body: refusal.reason + "\n")
        .serialized(keepsAlive: false, date: WallClock.now.imfFixdate))
  }

  private func send(_ bytes: [UInt8]) {
    output.append(bytes)
    flush()
  }

  private func flush() {
    switch output.flush(to: descriptor) {
    case .finish: break
    // If the socket has no space, `settle` asks the loop to report when there is some.
    case .waitForSpace, .waitForContent: return
    case .fail(let code): return lost(.connectionLost(String(cString: strerror(code))))
    case .read(let source, let limit): return source.read(atMost: limit) { [weak self] in self?.takeContent($0) }
    case .endContent(let source):
      source.ended(sent: source.length, nil)
      return flush()
    }
    switch state.flushed() {
    case .nothing: break
    case .nextRequest:
      resume()
      // The response was sent before the server stopped, and promised that another may follow.
      if context.stops, unparsed.bytes.isEmpty, state.stopped() { linger() }
    case .linger: linger()
    }
  }

  private func linger() {
    unparsed = ([], 0)
    // The client sees the end of the answer. Its further bytes are read, so that no reset overtakes the answer.
    shutdown(descriptor, Int32(SHUT_WR))
  }

  private func takeContent(_ bytes: [UInt8]?) {
    guard output.isSendingContent else { return }
    guard let bytes, output.appendContent(bytes) else {
      // Without the rest, the client must not mistake its part for the whole.
      lost(.connectionLost("the content can no longer be read"))
      return
    }
    flush()
    settle(progress: true)
  }

  // MARK: Ending

  private func lost(_ reason: AbortReason) {
    if state.hasOpenRequest { context.figures.values.aborted(reason) }
    let handler = takeHandler()
    endContent(reason)
    close()
    handler?.aborted(reason)
  }

  /// The rest of the content is not sent.
  private func endContent(_ reason: AbortReason) {
    guard let (source, sent) = output.dropContent() else { return }
    source.ended(sent: sent, reason)
  }

  /// Closes the socket. Only while no request is active.
  func close() {
    guard state.state != .closed else { return }
    letGoOfSocket { Glibc.close($0) }
  }

  /// - Parameter end: handles the socket before anyone learns that the connection is gone.
  private func letGoOfSocket(_ end: (Int32) -> Void = { _ in }) {
    state.closed()
    endContent(.connectionLost("the server closed the connection"))
    turn(bulk: false)
    context.allowance.connectionClosed()
    context.timeouts.set(nil, self)
    context.loop.deregister(descriptor)
    end(descriptor)
    unparsed = ([], 0)
    output = ConnectionOutput()
    context.closed(descriptor)
  }

  /// Updates the events that the loop watches for, and the timeout, to the state.
  private func settle(progress: Bool) {
    guard state.state != .closed, !isProcessing else { return }
    var wanted: EventLoop.Interest = []
    if !output.isEmpty { wanted.insert(.writable) }
    if !isPaused && wantsBytes { wanted.insert(.readable) }
    if wanted != interest {
      interest = wanted
      do throws(SystemError) {
        try context.loop.modify(descriptor, wanted)
      } catch {
        return lost(.connectionLost(error.description))
      }
    }
    // A paused body is not the client's fault, nor is a response that waits for the disk.
    var kind = isPaused || output.isReadingContent ? nil : state.timeout
    if kind == .idle && !hasServed { kind = .head }
    // A body and content get new time with each piece. A head does not, because one byte now and then would keep it
    // open forever.
    if kind != timeoutKind || restartsTimeout || (progress && (kind == .body || output.isSendingContent)) {
      timeoutKind = kind
      restartsTimeout = false
      context.timeouts.set(kind, self)
    }
  }
}
