// What a network and the machines along it do to a connection, one fault at a time: which, where and how.

/// One fault, to be applied once, to the first connection on which its place comes.
package struct ChaosFault: Sendable, CustomStringConvertible {
  /// The names that a report counts by and that `--kinds` takes.
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
    /// SIGKILL and a new start: the harness's own, at a place that the proxy tells, counted and timed with the others.
    case serverKill = "server-kill"
  }

  /// Where on a connection it strikes.
  package enum Place: Equatable, Sendable {
    /// A request's head is here whole, and not a byte of it has been passed on.
    case beforeRequest
    /// This number of content bytes has been passed on since the fault was armed, over all requests and
    /// connections.
    case requestBody(after: Int)
    /// The final response has come, and not a byte of it has been passed on.
    case beforeResponse
    /// Half of the final response's head has been passed on.
    case withinResponse
    /// The final response has been passed on; the connection is idle.
    case afterResponse
  }

  package enum Effect: Equatable, Sendable {
    /// Nothing is done here: whoever waits for the event does something elsewhere, and then says
    /// ``ChaosProxy/awaitRecovery()``.
    case tell
    /// RST to both sides; what was under way here is gone.
    case reset
    /// An orderly end towards the server, while the client's bytes are still taken, and dropped. When the server closes
    /// in its turn, the client hears of it or it does not.
    case finToServer(reachesClient: Bool)
    /// An orderly end towards the client; what the client still sends is passed on.
    case finToClient
    /// Everything is taken and dropped for as long as either side wants; the server's side stays open after the
    /// client's.
    case blackhole
    /// Nothing is passed on or read for so long; then it goes on, whether the client is still there or not.
    case delay(Duration)
    /// So many more bytes of the body are taken off the client's hands and dropped; then both sides see an orderly end.
    case truncate(Int)
    /// Both sides see an orderly end, and so much later the sockets are closed, whatever still lies in them.
    case doubleFin(Duration)
    /// Both sides are reset. When the client has sent its next POST or PATCH over another connection, then so much
    /// later what was recorded of the broken request arrives at the server after all, over a connection of its own.
    case replay(Duration, ends: ReplayEnd)
    /// The client is answered here. Before a response, instead of it; elsewhere the server sees the end of the
    /// connection.
    case answer(Answer)
    /// The server's answer is dropped and the client's connection reset.
    case dropResponse
    /// No 104 is passed on for so long.
    case dropInterims(Duration)
    /// Both sides see an orderly end, and the next answer to HEAD is changed.
    case lie(Lie)

    /// Whether the request that it struck is over for the client, so that only a later one can be the recovery.
    var endsRequest: Bool {
      switch self {
      case .delay, .dropInterims, .replay: false
      default: true
      }
    }

    /// Whether what happens at the fault's place is only the preparation: it has struck when its bytes or its lie are
    /// told.
    var strikesLater: Bool {
      switch self {
      case .replay, .lie: true
      default: false
      }
    }
  }

  package enum ReplayEnd: Equatable, Sendable {
    /// The recorded bytes, then nothing until the server closes.
    case hang
    case reset
  }

  /// An answer of the proxy's own, without content.
  package struct Answer: Equatable, Sendable {
    package var status: Int
    /// `Retry-After`, in seconds.
    package var retryAfter: Int?
    /// `Upload-Offset`, counted from the request's own; below zero it is zero.
    package var offsetFromRequest: Int?

    package init(status: Int, retryAfter: Int? = nil, offsetFromRequest: Int? = nil) {
      self.status = status
      self.retryAfter = retryAfter
      self.offsetFromRequest = offsetFromRequest
    }
  }

  /// What `Upload-Offset` says in the answer to HEAD instead of the truth. The associated number (0..<1024) chooses
  /// within the range that is known only then.
  package enum Lie: Equatable, Sendable {
    /// From what the client had been acknowledged to just below the truth.
    case lower(Int)
    /// Above the truth and below what the client had sent.
    case higher(Int)
    /// This number of bytes beyond what the client had sent.
    case beyond(Int)
  }

  package var kind: Kind
  package var place: Place
  package var effect: Effect
  /// The methods of the requests that it strikes.
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
