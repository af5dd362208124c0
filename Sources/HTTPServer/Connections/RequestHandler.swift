// The interface between HTTP and the handling of requests. An intermediate layer, such as a resumable upload handler
// around another one, is a `RequestHandler` for the connection and an `Exchange` for the inner handler.

public import EventLoops
public import HTTPMessages

/// One request and its response, as the handler sees them. Only on the loop's thread.
public protocol Exchange: AnyObject {
  /// The human-readable address of the peer: `192.0.2.7:50312`, `[2001:db8::7]:50312` or `unix`.
  var peer: String { get }
  /// Accepts the body. `100 Continue` is sent if the client waits for it, and reading begins. Call it in `begin` or at
  /// any later time. Until then, nothing is read, and TCP makes the client wait.
  func acceptBody()
  /// Sends an interim response (RFC 9110, section 15.2) at any time before the final one. It is dropped if the client
  /// reads so slowly that responses accumulate.
  func sendInterim(_ status: Int, _ fields: HeaderFields)
  /// Sends the final response. Before the end of the body, it also ends reading: the client gets time to read the
  /// response, and then the connection is closed. The handler receives no further calls. A second response is ignored.
  func respond(_ response: Response)
  /// Passes all bytes on the socket to the handler, because TCP has acknowledged them to the client. The amount is
  /// bounded if the client sends faster than the server reads.
  func takeArrived()
  /// Pauses the body until ``resumeBody()``, for a handler that cannot keep up. Waiting bytes stay in TCP, or in the
  /// store of a resumable upload.
  func pauseBody()
  /// Resumes the body after ``pauseBody()``.
  func resumeBody()
  /// Closes the connection without a response. The handler receives no further calls.
  func disconnect()
  /// The loop on whose thread all calls happen. Other threads use ``EventLoops/EventLoop/execute(_:)`` to reach it.
  var loop: EventLoop { get }
  /// Sends a response whose content is read while it is sent. Nil if the request has no connection of its own. The
  /// default is nil.
  var contentResponder: ContentResponder? { get }
}

extension Exchange {
  /// Nil. Every response has its content in memory.
  public var contentResponder: ContentResponder? { nil }
}

/// The reason why a request ended before its body was complete.
public enum AbortReason: Equatable, Sendable, CustomStringConvertible {
  /// The client closed the connection within the body.
  case peerClosed
  /// The connection failed. The value is the text of the `errno`.
  case connectionLost(String)
  /// No data arrived within the server's timeout.
  case idle
  /// The body violated HTTP, with details in words.
  case malformed(String)
  /// The upload of the request was cancelled or abandoned, or the server has stopped. The next request begins a new
  /// handler for the upload. A task that reads an incomplete body after the response also receives it. The value is the
  /// reason in words.
  case uploadEnded(String)

  /// The reason, in words.
  public var description: String {
    switch self {
    case .peerClosed: "the client closed the connection within the body"
    case .connectionLost(let reason): "the connection was lost: \(reason)"
    case .idle: "no data arrived for too long"
    case .malformed(let reason): "the body is malformed: \(reason)"
    case .uploadEnded(let reason): reason
    }
  }
}

/// Handles one request. All calls come on the loop's thread, in this order: `begin`, any number of `receive`, then
/// `end` or `aborted`. After the handler has responded or disconnected, there are no further calls.
public protocol RequestHandler: AnyObject {
  /// The head was read. The handler responds or accepts the body, now or later.
  func begin(_ exchange: any Exchange)
  /// Bytes of the body. Each range of `pieces`, in order, is a part of `bytes`. `bytes` is the connection's receive
  /// buffer, which is valid only during the call.
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>])
  /// The body is complete. The handler responds, now or later.
  func end()
  /// The body will never be complete, or the connection was lost before the response was sent. No response can be sent.
  func aborted(_ reason: AbortReason)
  /// Whether the client can continue at the next server, from the offset in the response to ``serverStops()``. A
  /// stopping server waits for all other requests first. The default is false.
  var canBeContinued: Bool { get }
  /// The server is about to stop. This is the last opportunity to respond.
  func serverStops()
  /// The response, if the head alone determines it. Such a handler accepts no body, so the request begins no resumable
  /// upload. The default is nil.
  var knownResponse: Response? { get }
}

extension RequestHandler {
  /// Nil. The handler decides after it has begun.
  public var knownResponse: Response? { nil }
  /// False. The server waits for the request before it stops.
  public var canBeContinued: Bool { false }
}

/// Chooses the handler of a request.
package typealias RequestRouter = (RequestHead) -> any RequestHandler

/// Responds at once, regardless of the body.
public final class FixedResponseHandler: RequestHandler {
  private let response: Response
  /// The response that it sends.
  public var knownResponse: Response? { response }
  /// Creates a handler that always sends this response.
  public init(_ response: Response) { self.response = response }
  /// Sends the response.
  public func begin(_ exchange: any Exchange) { exchange.respond(response) }
  /// Does nothing, because no body is read.
  public func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  /// Does nothing, because no body is read.
  public func end() {}
  /// Does nothing.
  public func aborted(_ reason: AbortReason) {}
  /// Does nothing, because the response was sent.
  public func serverStops() {}
}
