// One request with a streamed body: what its owner holds.

internal import StreamBuffers
internal import Synchronization

/// An upload in progress: one HTTP request whose body comes from a bound pair's input end.
///
/// Made by ``UploadSession/upload(_:body:handler:)``. Counters may be read from any thread.
public final class UploadTask: Sendable {
  /// What happens to an upload, in order; ``finished(_:)`` is the last.
  public enum Event: Sendable {
    /// The connection stands, the request's head is sent, and libcurl asks for the body.
    case connected
    /// A 1xx response, e.g. 100 or 103.
    case interimResponse(HTTPResponse)
    /// The request is over. A failure carries no response; any status counts as success here.
    case finished(Result<Outcome, UploadError>)
  }

  /// How a request was answered.
  public struct Outcome: Equatable, Sendable {
    public var response: HTTPResponse
    /// The response came before the body's end: the rest of the body was not sent.
    public var isEarly: Bool
  }

  private let sent = Atomic<UInt64>(0)
  private let acknowledged = Atomic<UInt64>(0)
  private let cancelAction: @Sendable () -> Void
  private let updateAction: @Sendable () -> Void

  init(cancel: @escaping @Sendable () -> Void, update: @escaping @Sendable () -> Void) {
    cancelAction = cancel
    updateAction = update
  }

  /// Body bytes handed to libcurl so far.
  public var sentByteCount: UInt64 { sent.load(ordering: .relaxed) }

  /// Body bytes that the peer's TCP is known to have acknowledged: a lower bound, exact on plain HTTP/1.1. Brought up to
  /// date by ``updateAcknowledged()`` and when the request ends.
  public var acknowledgedByteCount: UInt64 { acknowledged.load(ordering: .relaxed) }

  /// Asks the kernel how far the peer has acknowledged and brings ``acknowledgedByteCount`` up to date: one or two system
  /// calls. On the session's thread only.
  package func updateAcknowledged() { updateAction() }

  /// Ends the request at once; it finishes with ``UploadError/Kind/cancelled``. Any thread.
  public func cancel() { cancelAction() }

  func note(sent count: UInt64) { sent.store(count, ordering: .relaxed) }

  func note(acknowledged count: UInt64) {
    if count > acknowledged.load(ordering: .relaxed) { acknowledged.store(count, ordering: .relaxed) }
  }
}
