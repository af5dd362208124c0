// One request: what its owner holds.

package import EventLoops
internal import Synchronization

/// An upload in progress: one HTTP request.
///
/// Made by ``UploadSession/upload(_:body:lane:handler:)``. Counters may be read, and orders given, from any thread.
public final class UploadTask: Sendable {
  /// What happens to an upload, in order; ``finished(_:)`` is the last.
  public enum Event: Sendable {
    /// The connection stands. If there is a body, the request's head is on its way and libcurl asks for the body's
    /// first bytes. `isNew` unless it has carried a request before.
    case connected(isNew: Bool)
    /// So many body bytes have been taken by this machine's TCP (by TLS, by HTTP/2's flow control), in order; only if
    /// ``UploadRequest/tellsAccepted``. Told from within libcurl: the handler may not give orders to a task.
    case accepted(UInt64)
    /// A 1xx response, e.g. 100 or 103.
    case interimResponse(HTTPResponse)
    /// The head of the final response; only if ``UploadRequest/tellsResponse``.
    case response(HTTPResponse)
    /// The next bytes of the final response's body; only if ``UploadRequest/tellsResponse``.
    case responseBody([UInt8])
    /// The request is over. A failure carries no response; any status counts as success here.
    case finished(Result<Outcome, UploadError>)
  }

  /// How a request was answered.
  public struct Outcome: Equatable, Sendable {
    /// The final response, with any status.
    public var response: HTTPResponse
    /// The response came before the body's end: the rest of the body was not sent.
    public var isEarly: Bool
    /// Why the response's body is not whole, where that is known. Its head is all that most callers need.
    public var bodyFailure: UploadError?

    package init(response: HTTPResponse, isEarly: Bool, bodyFailure: UploadError? = nil) {
      (self.response, self.isEarly, self.bodyFailure) = (response, isEarly, bodyFailure)
    }
  }

  private let sent = Atomic<UInt64>(0)
  private let acknowledged = Atomic<UInt64>(0)
  private let responseHeaders = Atomic<Int>(0)
  /// Nanoseconds of the monotonic clock; 0 while the content goes on.
  private let contentEnd = Atomic<Int64>(0)
  private let suspended = Atomic<Bool>(false)
  private let receptionPaused = Atomic<Bool>(false)
  /// Once the request is over.
  private let measurements = Lock<RequestMeasurements?>(nil)
  /// Until the request is over: who keeps the task for its counts keeps nothing else. Not weak, which would make every
  /// other reference to the transfer slower.
  private let transfer = Lock<CurlTransfer?>(nil)

  init() {}

  func begins(_ transfer: CurlTransfer) { self.transfer.withLock { $0 = transfer } }

  func isOver(_ measured: RequestMeasurements?) {
    if let measured { measurements.withLock { $0 = measured } }
    transfer.withLock { $0 = nil }
  }

  /// What is known of the request by now, or at its end; nil unless it is ``UploadRequest/isMeasured`` and was begun.
  /// On the session's thread only.
  package func measure() -> RequestMeasurements? {
    transfer.withLock { $0 }?.measure() ?? measurements.withLock { $0 }
  }

  private func order(_ action: @escaping @Sendable (CurlTransfer) -> Void) {
    guard let transfer = transfer.withLock({ $0 }) else { return }
    transfer.loop.execute { action(transfer) }
  }

  /// Body bytes handed to libcurl so far.
  public var sentByteCount: UInt64 { sent.load(ordering: .relaxed) }

  /// Body bytes that the peer's TCP is known to have acknowledged: a lower bound, exact on plain HTTP/1.1. Up to date
  /// when the request ends.
  public var acknowledgedByteCount: UInt64 { acknowledged.load(ordering: .relaxed) }

  /// Bytes of all response heads of this request so far, interim ones included. libcurl fails a request when they pass
  /// ``responseHeaderLimit``: a request that is sent many interim responses has to end before that.
  public var responseHeaderByteCount: Int { responseHeaders.load(ordering: .relaxed) }

  /// How many bytes of response heads libcurl takes for one request (`MAX_HTTP_RESP_HEADER_SIZE`, since 8.3 and in
  /// Debian's versions before).
  public static let responseHeaderLimit = 300 * 1024

  /// Asks the kernel how far the peer has acknowledged and brings ``acknowledgedByteCount`` up to date: one or two
  /// system calls. On the session's thread only.
  package func updateAcknowledged() { transfer.withLock { $0 }?.updateAcknowledged() }

  /// Whether libcurl asks for more than it was given, and TCP has delivered all that it passed on. On the session's
  /// thread only.
  package var isDelivered: Bool { transfer.withLock { $0 }?.isDelivered ?? false }

  /// When the request's content was handed over to its last byte; without content, when the head went out. Nil before
  /// that.
  package var contentEndedAt: MonotonicInstant? {
    let time = contentEnd.load(ordering: .relaxed)
    return time == 0 ? nil : MonotonicInstant(nanoseconds: time)
  }

  /// Ends the request at once; it finishes with ``UploadError/Kind/cancelled``. Any thread.
  public func cancel() { order { $0.cancel() } }

  /// Breaks the request's connection off, as a network does that fails: the peer gets a reset, and the request ends
  /// with ``UploadError/Kind/connectionLost``. On a connection that several share, only the request is reset. Any
  /// thread.
  package func cut() { order { $0.cut() } }

  /// Whether the task is suspended at the moment.
  public var isSuspended: Bool { suspended.load(ordering: .acquiring) }

  /// Stops the flow of the body until ``resume()``: no further byte is taken from it, and libcurl sends nothing that it
  /// holds of it. What the kernel has been given goes its way, as does the head of a request that is connecting; a
  /// request that was not begun yet is not begun. The connection stays, and what the server says is heard: a response
  /// ends the request. Suspending twice is suspending once. Any thread.
  public func suspend() {
    if !suspended.exchange(true, ordering: .acquiringAndReleasing) { order { $0.suspensionChanged() } }
  }

  /// Lets the body flow again, or the request begin. One that is not suspended is left alone. Any thread.
  public func resume() {
    if suspended.exchange(false, ordering: .acquiringAndReleasing) { order { $0.suspensionChanged() } }
  }

  /// Whether the response's body rests.
  package var isReceptionPaused: Bool { receptionPaused.load(ordering: .acquiring) }

  /// Takes no more of the response's body until ``resumeReception()``: one more piece may come. The peer's TCP is held
  /// up, and ``UploadRequest/Limits/response`` does not count meanwhile. Any thread, and from within a handler.
  package func pauseReception() { receptionPaused.store(true, ordering: .releasing) }

  /// Lets the response's body come again. Any thread, and from within a handler.
  package func resumeReception() {
    if receptionPaused.exchange(false, ordering: .acquiringAndReleasing) { order { $0.receptionResumes() } }
  }

  func note(responseHeaderBytes count: Int) { responseHeaders.wrappingAdd(count, ordering: .relaxed) }

  func noteContentEnd() { contentEnd.store(MonotonicInstant.now.nanoseconds, ordering: .relaxed) }

  func note(sent count: UInt64) { sent.store(count, ordering: .relaxed) }

  func note(acknowledged count: UInt64) {
    if count > acknowledged.load(ordering: .relaxed) { acknowledged.store(count, ordering: .relaxed) }
  }
}
