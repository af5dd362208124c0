// The life of an HTTP/1.1 connection as a pure state machine: the permitted reads, the step after a response, and the
// timeouts (RFC 9112, section 9). No socket, no clock.

/// The state of a connection. Each method takes an event and returns an action.
struct HTTPConnectionState {
  enum State: Equatable {
    /// Between requests, or before the first.
    case idle
    /// Part of a head has arrived.
    case head
    /// The handler has the head, but has not yet accepted the body.
    case deciding
    /// The body is being read.
    case body
    /// The body is complete and the answer is pending.
    case answering
    /// The final answer is being sent.
    case sending(keepsAlive: Bool)
    /// The answer was sent and our side is shut down. Further bytes are discarded, so that the client can read the
    /// answer before a reset would destroy it (RFC 9112, section 9.6).
    case lingering
    case closed
  }

  /// What a timeout applies to.
  enum Timeout: Int, CaseIterable {
    case idle, head, body, sending, lingering
  }

  private(set) var state = State.idle
  private var expectsContinue = false
  private var keepsAlive = false
  private var hasBody = false
  private(set) var isHeadMethod = false
  /// Whether the request may receive interim responses. HTTP/1.0 has none, and its clients would mistake the first one
  /// for the answer (RFC 9110, section 15.2). By default, nginx uses HTTP/1.0 with the servers behind it.
  private(set) var takesInterims = false
  private var wasForwarded = false
  /// Whether the last request was answered before all of it was read. Its client may still send the rest, which would
  /// cause a reset if the socket were closed.
  private(set) var isCutShort = false

  /// Whether the parser may continue.
  var parses: Bool { state == .idle || state == .head || state == .body }

  /// Whether the next bytes belong to a head.
  var expectsHead: Bool { state == .idle || state == .head }

  /// Whether bytes are expected from the socket.
  var reads: Bool { parses || state == .lingering }

  /// Whether there is an active handler that has not answered.
  var hasOpenRequest: Bool { state == .deciding || state == .body || state == .answering }

  /// The limit of the present wait; nil while the server waits for the handler.
  var timeout: Timeout? {
    switch state {
    case .idle: .idle
    case .head: .head
    case .body: .body
    case .sending: .sending
    case .lingering: .lingering
    case .deciding, .answering, .closed: nil
    }
  }

  /// All available bytes are parsed. The parameter states whether they end within a head.
  mutating func parsed(withinHead: Bool) {
    if state == .idle && withinHead { state = .head }
  }

  mutating func headArrived(_ head: RequestHead) {
    state = .deciding
    expectsContinue = head.expectsContinue
    keepsAlive = head.keepsAlive
    hasBody = head.framing != .absent && head.framing != .sized(0)
    isHeadMethod = head.method == "HEAD"
    takesInterims = head.minorVersion > 0
    wasForwarded = head.wasForwarded
    isCutShort = false
  }

  enum AcceptAction: Equatable { case read, sendContinueAndRead, ignore }

  mutating func bodyAccepted() -> AcceptAction {
    guard state == .deciding else { return .ignore }
    state = .body
    return expectsContinue ? .sendContinueAndRead : .read
  }

  /// An interim response is sent. A proxy that mistakes it for the final response treats everything after it as its
  /// content, and waits for the end of the connection. So the connection ends with the answer.
  mutating func interimSent() {
    if wasForwarded { keepsAlive = false }
  }

  /// Whether to report the end of the body to the handler.
  mutating func bodyEnded() -> Bool {
    // If an answer came before the body was accepted, the parser still reports the end of an empty body.
    guard state == .body else { return false }
    state = .answering
    return true
  }

  enum RespondAction: Equatable {
    case send(keepsAlive: Bool)
    case ignore
  }

  mutating func responded(serverStops: Bool) -> RespondAction {
    switch state {
    case .deciding, .body:
      // Before the end of the body: its rest cannot be distinguished from the next request without reading it all, and
      // a live stream has no end.
      let keeps = keepsAlive && !hasBody && !serverStops
      isCutShort = hasBody
      state = .sending(keepsAlive: keeps)
      return .send(keepsAlive: keeps)
    case .answering:
      let keeps = keepsAlive && !serverStops
      state = .sending(keepsAlive: keeps)
      return .send(keepsAlive: keeps)
    case .idle, .head, .sending, .lingering, .closed: return .ignore
    }
  }

  /// The bytes are invalid, or a head took too long. Returns whether an answer can still be sent.
  mutating func refused() -> Bool {
    switch state {
    case .idle, .head, .deciding, .body, .answering:
      isHeadMethod = false
      isCutShort = true
      state = .sending(keepsAlive: false)
      return true
    case .sending, .lingering, .closed: return false
    }
  }

  enum FlushAction: Equatable { case nothing, nextRequest, linger }

  /// The kernel has accepted everything that was to be sent.
  mutating func flushed() -> FlushAction {
    guard case .sending(let keepsAlive) = state else { return .nothing }
    state = keepsAlive ? .idle : .lingering
    return keepsAlive ? .nextRequest : .linger
  }

  /// The server stops. Returns whether the client of an idle connection gets time to read the end of its last answer.
  mutating func stopped() -> Bool {
    guard state == .idle else { return false }
    state = .lingering
    return true
  }

  enum TimeoutAction: Equatable {
    case close
    /// Answer 408 to a head that took too long.
    case refuseHead
    /// Notify the handler, and answer 408.
    case abortBody
  }

  mutating func timedOut() -> TimeoutAction {
    switch state {
    case .head: .refuseHead
    case .body: .abortBody
    case .idle, .deciding, .answering, .sending, .lingering, .closed: .close
    }
  }

  /// The connection is closed. If ``hasOpenRequest`` was true, the handler must be notified.
  mutating func closed() { state = .closed }
}
