// The effects of networks and intermediaries on a connection, one fault at a time: which, where and how.

/// One fault, which is applied once, to the first connection that reaches its place.
package struct ChaosFault: Sendable, CustomStringConvertible {
  /// The names for the report's counts and for `--kinds`.
  package enum Kind: String, CaseIterable, Sendable {
    case reset
    case finToServer = "fin-to-server"
    case finToClient = "fin-to-client"
    case blackhole
    case delay
    case truncate
    case doubleFin = "double-fin"
    case replay
    case serverError = "server-error"
    case conflict
    case locked
    case dropResponse = "drop-response"
    case dropInterims = "drop-interims"
    case offsetLower = "offset-lower"
    case offsetHigher = "offset-higher"
    case offsetBeyond = "offset-beyond"
    /// SIGKILL and a restart. The harness itself causes it at a place that the proxy reports, and it is counted and
    /// timed like the others.
    case serverKill = "server-kill"
  }

  /// The place on a connection where it strikes.
  package enum Place: Equatable, Sendable {
    /// A request's head has arrived completely, and none of it has been forwarded.
    case beforeRequest
    /// This number of content bytes has been forwarded since the fault was armed, over all requests and connections.
    case requestBody(after: Int)
    /// The final response has arrived, and none of it has been forwarded.
    case beforeResponse
    /// Half of the final response's head has been forwarded.
    case withinResponse
    /// The final response has been forwarded, and the connection is idle.
    case afterResponse
  }

  package enum Effect: Equatable, Sendable {
    /// The proxy does nothing. The receiver of the event causes a fault elsewhere, and then calls
    /// ``ChaosProxy/awaitRecovery()``.
    case tell
    /// RST to both sides. Bytes in flight are lost.
    case reset
    /// An orderly end towards the server, while the client's bytes are still accepted, and dropped. When the server
    /// closes as well, the client is either notified or not.
    case finToServer(reachesClient: Bool)
    /// An orderly end towards the client, whose later bytes are still forwarded.
    case finToClient
    /// Everything is accepted and dropped for as long as either side continues. The server's side stays open after the
    /// client's.
    case blackhole
    /// Nothing is forwarded or read for this time. Then forwarding continues, even if the client has left.
    case delay(Duration)
    /// This number of further body bytes is accepted from the client and dropped. Then both sides see an orderly end.
    case truncate(Int)
    /// Both sides see an orderly end. After this time, the sockets are closed, even with unread bytes.
    case doubleFin(Duration)
    /// Both sides are reset. This time after the client has sent its next POST or PATCH over another connection, the
    /// recorded bytes of the broken request arrive at the server, over a separate connection.
    case replay(Duration, ends: ReplayEnd)
    /// The proxy answers the client. Before a response, it replaces that response. Elsewhere, the server sees the end
    /// of the connection.
    case answer(Answer)
    /// The server's answer is dropped, and the client's connection is reset.
    case dropResponse
    /// No 104 is forwarded for this time.
    case dropInterims(Duration)
    /// Both sides see an orderly end, and the next answer to HEAD is changed.
    case lie(Lie)

    /// Whether the affected request is over for the client, so that only a later one can be the recovery.
    var endsRequest: Bool {
      switch self {
      case .delay, .dropInterims, .replay: false
      default: true
      }
    }

    /// Whether the fault's place only prepares it: it strikes when its bytes or its lie are sent.
    var strikesLater: Bool {
      switch self {
      case .replay, .lie: true
      default: false
      }
    }
  }

  package enum ReplayEnd: Equatable, Sendable {
    /// Sends the recorded bytes, and then nothing until the server closes.
    case hang
    case reset
  }

  /// The proxy's own answer, without content.
  package struct Answer: Equatable, Sendable {
    package var status: Int
    /// `Retry-After`, in seconds.
    package var retryAfter: Int?
    /// `Upload-Offset`, relative to the request's own. Below zero it becomes zero.
    package var offsetFromRequest: Int?

    package init(status: Int, retryAfter: Int? = nil, offsetFromRequest: Int? = nil) {
      self.status = status
      self.retryAfter = retryAfter
      self.offsetFromRequest = offsetFromRequest
    }
  }

  /// The false `Upload-Offset` in an answer to HEAD. The associated number (0..<1024) selects a value in the range,
  /// which is known only at that time.
  package enum Lie: Equatable, Sendable {
    /// From the acknowledged offset to just below the true one.
    case lower(Int)
    /// Above the true offset and below the sent one.
    case higher(Int)
    /// This number of bytes beyond the sent offset.
    case beyond(Int)
  }

  package var kind: Kind
  package var place: Place
  package var effect: Effect
  /// The methods of the affected requests.
  package var methods: Set<String>
  /// Whether it waits for the request that ends the upload: `Upload-Complete: ?1`.
  package var atCompletion: Bool

  package init(
    _ kind: Kind, _ place: Place, _ effect: Effect, methods: Set<String> = ["POST", "PUT", "PATCH"],
    atCompletion: Bool = false
  ) {
    self.kind = kind
    self.place = place
    self.effect = effect
    self.methods = methods
    self.atCompletion = atCompletion
  }

  package var description: String { "\(kind.rawValue): \(effect), \(place)\(atCompletion ? ", at completion" : "")" }
}
