// The seam between HTTP and what is done with a request. Whoever wants to stand in between (a resumable upload handler
// around any other) is a `RequestHandler` towards the connection and an `Exchange` towards the handler within.

public import EventLoops
public import HTTPMessages

/// One request and the answer to it, from the handler's side. Only on the loop's thread.
public protocol Exchange: AnyObject {
  /// The other end, for people: `192.0.2.7:50312`, `[2001:db8::7]:50312` or `unix`.
  var peer: String { get }
  /// Says that the body is wanted: `100 Continue` goes out if the client waits for it, and reading begins. May be
  /// called in `begin` or any time later; until then nothing is read, and TCP holds the client back.
  func acceptBody()
  /// Sends an interim answer (RFC 9110, section 15.2) at any time before the final one. Dropped if the client reads so
  /// little that answers pile up.
  func sendInterim(_ status: Int, _ fields: HeaderFields)
  /// Sends the final answer. Before the end of the body it also ends the reading: the client is given time to read
  /// the answer, and then the connection is closed. The handler hears nothing more. A second answer is ignored.
  func respond(_ response: Response)
  /// Hands the handler everything that has arrived on the socket by now: TCP has told the client that we have it. Ends
  /// within a bound if the client sends faster than we read.
  func takeArrived()
  /// Hands on no more of the body until ``resumeBody()``: the handler cannot keep up. What waits lies with TCP, or
  /// where the bytes of a resumable upload are kept.
  func pauseBody()
  /// Hands on the body again after ``pauseBody()``.
  func resumeBody()
  /// Closes the connection without an answer. The handler hears nothing more.
  func disconnect()
  /// The loop on whose thread all of this happens. Another thread gets there with ``EventLoops/EventLoop/execute(_:)``.
  var loop: EventLoop { get }
}

/// Why a request ended without its body being complete.
public enum AbortReason: Equatable, Sendable, CustomStringConvertible {
  /// The client closed the connection within the body.
  case peerClosed
  /// The connection failed; the value is the `errno`'s text.
  case connectionLost(String)
  /// No byte came for as long as the server waits.
  case idle
  /// The body broke the rules of HTTP; why, in words.
  case malformed(String)
  /// The upload that the request is was cancelled, or given up, or the server has ended: the next one begins the
  /// upload's handler anew. Why, in words.
  case uploadEnded(String)

  /// The reason, in words.
  public var description: String {
    switch self {
    case .peerClosed: "the client closed the connection within the body"
    case .connectionLost(let reason): "the connection was lost: \(reason)"
    case .idle: "no byte came for too long"
    case .malformed(let reason): "the body is malformed: \(reason)"
    case .uploadEnded(let reason): reason
    }
  }
}

/// Takes one request. All calls come on the loop's thread, in this order: `begin`, any number of `receive`, then `end`
/// or `aborted`. After the handler has answered, or has disconnected, none come.
public protocol RequestHandler: AnyObject {
  /// The head is read. The handler answers, or accepts the body, now or later.
  func begin(_ exchange: any Exchange)
  /// Body bytes: each range of `pieces`, in order, is a part of `bytes`, which is the connection's receive buffer and
  /// valid during the call only.
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>])
  /// The body is complete; the handler answers, now or later.
  func end()
  /// The body will never be complete, or the connection was lost before the answer was sent; no answer can be given.
  func aborted(_ reason: AbortReason)
  /// Whether the client can continue at the next server, from the offset that the answer to ``serverStops()`` tells. A
  /// server that stops waits for all other requests first. False by default.
  var canBeContinued: Bool { get }
  /// The server is about to stop: the last chance to answer.
  func serverStops()
}

extension RequestHandler {
  /// False: the server waits for the request before it stops.
  public var canBeContinued: Bool { false }
}

/// Chooses the handler of a request.
package typealias RequestRouter = (RequestHead) -> any RequestHandler

/// Answers at once, whatever the body.
public final class FixedResponseHandler: RequestHandler {
  private let response: Response
  /// Whether the method is one that the resource knows (RFC 9110, section 15.5.6).
  package var allows: Bool { response.status != 405 && response.status != 501 }
  /// A handler that always answers this.
  public init(_ response: Response) { self.response = response }
  /// Answers.
  public func begin(_ exchange: any Exchange) { exchange.respond(response) }
  /// Does nothing: no body is read.
  public func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  /// Does nothing: no body is read.
  public func end() {}
  /// Does nothing.
  public func aborted(_ reason: AbortReason) {}
  /// Does nothing: the answer was sent.
  public func serverStops() {}
}
