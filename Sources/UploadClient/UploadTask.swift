// One request, as its owner sees it.

package import EventLoops
internal import Synchronization

/// An upload in progress: one HTTP request.
///
/// Create it with ``UploadSession/upload(_:body:handler:)``. All members may be used from any thread.
public final class UploadTask: Sendable {
  /// The events of an upload, in order. ``finished(_:)`` is the last one.
  public enum Event: Sendable {
    /// The connection is established. If there is a body, the request's head is on its way, and libcurl asks for the
    /// body's first bytes. `isNew` is false if the connection carried a request before.
    case connected(isNew: Bool)
    /// This machine's TCP has accepted this number of body bytes (by TLS, by HTTP/2's flow control), in order. Reported
    /// only if ``UploadRequest/tellsAccepted`` is set. It is reported from within libcurl, so the handler must not call
    /// methods of a task.
    case accepted(UInt64)
    /// A 1xx response, such as 100 or 103.
    case interimResponse(HTTPResponse)
    /// The head of the final response. Reported only if ``UploadRequest/tellsResponse`` is set.
    case response(HTTPResponse)
    /// The next bytes of the final response's body. Reported only if ``UploadRequest/tellsResponse`` is set.
    case responseBody([UInt8])
    /// The request is over. A failure has no response. Any status counts as success here.
    case finished(Result<Outcome, UploadError>)
  }

  /// The response to a request.
  public struct Outcome: Equatable, Sendable {
    /// The final response, with any status.
    public var response: HTTPResponse
    /// Whether the response arrived before the body's end. The rest of the body was not sent.
    public var isEarly: Bool
    /// The reason why the response's body is incomplete, if it is known. Most callers need only its head.
    public var bodyFailure: UploadError?

    package init(response: HTTPResponse, isEarly: Bool, bodyFailure: UploadError? = nil) {
      (self.response, self.isEarly, self.bodyFailure) = (response, isEarly, bodyFailure)
    }
  }

  private let sent = Atomic<UInt64>(0)
  private let acknowledged = Atomic<UInt64>(0)
  private let passedOn = Atomic<UInt64>(0)
  private let responseHeaders = Atomic<Int>(0)
  /// Nanoseconds of the monotonic clock. 0 until the content has ended.
  private let contentEnd = Atomic<Int64>(0)
  private let suspended = Atomic<Bool>(false)
  private let receptionPaused = Atomic<Bool>(false)
  /// Set when the request is over.
  private let measurements = Lock<RequestMeasurements?>(nil)
  /// Set until the request is over, so that a task that is kept for its counts keeps nothing else. It is not weak,
  /// because that would make every other reference to the transfer slower.
  private let transfer = Lock<CurlTransfer?>(nil)

  init() {}

  func begins(_ transfer: CurlTransfer) { self.transfer.withLock { $0 = transfer } }

  func isOver(_ measured: RequestMeasurements?) {
    if let measured { measurements.withLock { $0 = measured } }
    transfer.withLock { $0 = nil }
  }

  /// The measurements of the request so far, or at its end. Nil unless ``UploadRequest/isMeasured`` is set and the
  /// request has begun. On the session's thread only.
  package func measure() -> RequestMeasurements? {
    transfer.withLock { $0 }?.measure() ?? measurements.withLock { $0 }
  }

  private func order(_ action: @escaping @Sendable (CurlTransfer) -> Void) {
    guard let transfer = transfer.withLock({ $0 }) else { return }
    transfer.loop.execute { action(transfer) }
  }

  /// The number of body bytes passed to libcurl so far.
  public var sentByteCount: UInt64 { sent.load(ordering: .relaxed) }

  /// The number of body bytes that the peer's TCP is known to have acknowledged. This is a lower bound, which is exact
  /// on plain HTTP/1.1. It is up to date when the request ends.
  public var acknowledgedByteCount: UInt64 { acknowledged.load(ordering: .relaxed) }

  /// The number of body bytes that libcurl has passed on to the connection. 0 until the request is over.
  package var passedOnByteCount: UInt64 { passedOn.load(ordering: .relaxed) }

  /// The number of bytes of all response heads of this request so far, including interim ones. libcurl fails a request
  /// when they exceed ``responseHeaderLimit``. A request with many interim responses must end before that.
  public var responseHeaderByteCount: Int { responseHeaders.load(ordering: .relaxed) }

  /// The number of bytes of response heads that libcurl accepts for one request (`MAX_HTTP_RESP_HEADER_SIZE`, since 8.3
  /// and in Debian's earlier versions).
  public static let responseHeaderLimit = 300 * 1024

  /// What the request has moved so far. Nil before its start and after its end. On the session's thread only.
  package var traffic: RequestTraffic? { transfer.withLock { $0 }?.traffic }

  /// Reads the peer's acknowledgements from the kernel, and updates ``acknowledgedByteCount``. It takes one or two
  /// system calls. On the session's thread only.
  package func updateAcknowledged() { transfer.withLock { $0 }?.updateAcknowledged() }

  /// Whether libcurl asks for more bytes, and TCP has delivered all that libcurl passed on. On the session's thread
  /// only.
  package var isDelivered: Bool { transfer.withLock { $0 }?.isDelivered ?? false }

  /// The time when the last byte of the request's content was passed to libcurl, or when the head of a request without
  /// content was sent. Nil before that.
  package var contentEndedAt: MonotonicInstant? {
    let time = contentEnd.load(ordering: .relaxed)
    return time == 0 ? nil : MonotonicInstant(nanoseconds: time)
  }

  /// Ends the request at once with ``UploadError/Kind/cancelled``. Any thread.
  public func cancel() { order { $0.cancel() } }

  /// The same, and no other request uses the connection. HTTP/2 would keep it.
  package func cancelWithConnection() { order { $0.cancelWithConnection() } }

  /// Cuts the request's connection like a network failure. The peer receives a reset, and the request ends with
  /// ``UploadError/Kind/connectionLost``. On a shared connection, only the request is reset. Any thread.
  package func cut() { order { $0.cut() } }

  /// Whether the task is suspended at the moment.
  public var isSuspended: Bool { suspended.load(ordering: .acquiring) }

  /// Pauses the body until ``resume()``. No further byte is taken from it, and libcurl sends none of the bytes that it
  /// retains. Bytes in the kernel are still sent, and so is the head of a request that is connecting. A request that
  /// has not begun does not begin. The connection stays, and responses are received. A response ends the request. A
  /// second call has no effect. Any thread.
  public func suspend() {
    if !suspended.exchange(true, ordering: .acquiringAndReleasing) { order { $0.suspensionChanged() } }
  }

  /// Resumes the body, or starts the request. It has no effect on a task that is not suspended. Any thread.
  public func resume() {
    if suspended.exchange(false, ordering: .acquiringAndReleasing) { order { $0.suspensionChanged() } }
  }

  /// Whether the reception of the response's body is paused.
  package var isReceptionPaused: Bool { receptionPaused.load(ordering: .acquiring) }

  /// Pauses the reception of the response's body until ``resumeReception()``. One more piece may arrive. The peer's TCP
  /// is blocked, and ``UploadRequest/Limits/response`` does not count in the meantime. Any thread, and from within a
  /// handler.
  package func pauseReception() { receptionPaused.store(true, ordering: .releasing) }

  /// Resumes the reception of the response's body. Any thread, and from within a handler.
  package func resumeReception() {
    if receptionPaused.exchange(false, ordering: .acquiringAndReleasing) { order { $0.receptionResumes() } }
  }

  func note(responseHeaderBytes count: Int) { responseHeaders.wrappingAdd(count, ordering: .relaxed) }

  func noteContentEnd() { contentEnd.store(MonotonicInstant.now.nanoseconds, ordering: .relaxed) }

  func note(sent count: UInt64) { sent.store(count, ordering: .relaxed) }

  func note(passedOn count: UInt64) { passedOn.store(count, ordering: .relaxed) }

  func note(acknowledged count: UInt64) {
    if count > acknowledged.load(ordering: .relaxed) { acknowledged.store(count, ordering: .relaxed) }
  }
}
