// The life of an HTTP/1.1 connection as a pure state machine: the permitted reads, the step after a response, and the
// time-outs (RFC 9112, section 9). No socket, no clock.

/// Where a connection stands. Each method takes an event and returns what is to be done.
struct HTTPConnectionState {
  enum State: Equatable {
    /// Between requests, or before the first.
    case idle
    /// Part of a head has come.
    case head
    /// The handler has the head and has not said yet whether it wants the body.
    case deciding
    /// The body is being read.
    case body
    /// The body is complete and the answer is still to come.
    case answering
    /// The final answer is on its way.
    case sending(keepsAlive: Bool)
    /// The answer is out, our side is shut; what still comes is thrown away so that the client can read the answer
    /// before a reset would destroy it (RFC 9112, section 9.6).
    case lingering
    case closed
  }

  /// What a time-out is counted for.
  enum Timeout: Int, CaseIterable {
    case idle, head, body, sending, lingering
  }

  private(set) var state = State.idle
  private var expectsContinue = false
  private var keepsAlive = false
  private var hasBody = false
  private(set) var isHeadMethod = false
  /// Whether the request may be sent interim responses: HTTP/1.0 has none, and whoever speaks it would take the first
  /// one for the answer (RFC 9110, section 15.2). nginx does, to servers behind it, if not told otherwise.
  private(set) var takesInterims = false
  private var wasForwarded = false

  /// Whether the parser may go on.
  var parses: Bool { state == .idle || state == .head || state == .body }

  /// Whether what comes next is a head, or what is missing of one.
  var expectsHead: Bool { state == .idle || state == .head }

  /// Whether bytes are wanted from the socket.
  var reads: Bool { parses || state == .lingering }

  /// Whether a handler is at work that has not answered.
  var hasOpenRequest: Bool { state == .deciding || state == .body || state == .answering }

  /// What the present wait is limited by; nil while it is the handler that takes its time.
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

  /// All bytes at hand are parsed: whether the beginning of a head is among them.
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
  }

  enum AcceptAction: Equatable { case read, sendContinueAndRead, ignore }

  mutating func bodyAccepted() -> AcceptAction {
    guard state == .deciding else { return .ignore }
    state = .body
    return expectsContinue ? .sendContinueAndRead : .read
  }

  /// An interim response goes out. A proxy that takes it for the final response takes everything behind it for its
  /// content, and waits for the end of the connection: it gets that with the answer.
  mutating func interimSent() {
    if wasForwarded { keepsAlive = false }
  }

  /// Whether the handler is to be told that the body is complete.
  mutating func bodyEnded() -> Bool {
    // After an answer that came before the body was asked for, the parser still tells the end of an empty body.
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
      // Before the end of the body: what is left of it cannot be told from the next request without reading it all,
      // and a live stream has no end.
      let keeps = keepsAlive && !hasBody && !serverStops
      state = .sending(keepsAlive: keeps)
      return .send(keepsAlive: keeps)
    case .answering:
      let keeps = keepsAlive && !serverStops
      state = .sending(keepsAlive: keeps)
      return .send(keepsAlive: keeps)
    case .idle, .head, .sending, .lingering, .closed: return .ignore
    }
  }

  /// The bytes cannot be understood, or a head took too long: whether an answer can still be sent.
  mutating func refused() -> Bool {
    switch state {
    case .idle, .head, .deciding, .body, .answering:
      isHeadMethod = false
      state = .sending(keepsAlive: false)
      return true
    case .sending, .lingering, .closed: return false
    }
  }

  enum FlushAction: Equatable { case nothing, nextRequest, linger }

  /// Everything that was to be sent is with the kernel.
  mutating func flushed() -> FlushAction {
    guard case .sending(let keepsAlive) = state else { return .nothing }
    state = keepsAlive ? .idle : .lingering
    return keepsAlive ? .nextRequest : .linger
  }

  /// The server stops: whether the client of an idle connection is to read the end of its last answer.
  mutating func stopped() -> Bool {
    guard state == .idle else { return false }
    state = .lingering
    return true
  }

  enum TimeoutAction: Equatable {
    case close
    /// Answer 408 to a head that took too long.
    case refuseHead
    /// Tell the handler, and answer 408.
    case abortBody
  }

  mutating func timedOut() -> TimeoutAction {
    switch state {
    case .head: .refuseHead
    case .body: .abortBody
    case .idle, .deciding, .answering, .sending, .lingering, .closed: .close
    }
  }

  /// Whether a handler is left that must hear of it.
  mutating func closed() -> Bool {
    let tells = hasOpenRequest
    state = .closed
    return tells
  }
}
