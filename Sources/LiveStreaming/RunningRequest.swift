// The current request of a stream, and its parts.

internal import EventLoops
internal import HTTPMessages
internal import ResumableUploads
internal import UploadClient

/// A class although nothing in it changes. Each event of the request reads it, and a copy would retain all its strings.
final class RunningRequest {
  /// Distinguishes its events from those of another request.
  let number: UInt64
  let task: UploadTask
  let issued = MonotonicInstant.now
  let step: StreamRequest
  /// The request as it was sent.
  let whole: UploadRequest
  /// The bearer token at that time, whether or not the request may carry it.
  let token: String?

  /// The number of bytes before those of the stream.
  let headerLength: UInt64

  init(step: StreamRequest, whole: UploadRequest, token: String?, task: UploadTask, number: UInt64, headerLength: Int) {
    self.step = step
    self.whole = whole
    self.token = token
    self.task = task
    self.number = number
    self.headerLength = UInt64(headerLength)
  }

  /// The stream offset up to which its body was passed to the network.
  var sentUpTo: UInt64 { step.start + streamed(task.sentByteCount) }

  /// The number of the stream's bytes among the first bytes of the body.
  func streamed(_ bodyCount: UInt64) -> UInt64 { bodyCount - min(bodyCount, headerLength) }
}

extension StreamRequest {
  /// The complete request: the user's request with the fields of this one.
  func uploadRequest(_ configuration: LiveStreamConfiguration, token: String?) -> UploadRequest {
    var request = configuration.request
    if let token { request.bearerToken = token }
    if let url { request = request.directed(to: url) }
    if let method { request.method = method }
    switch answerLimit {
    case .usual: break
    case .atMost(let limit): request.limits.response = min(limit, request.limits.response)
    case .times(let factor):
      // A multiplied duration traps on overflow, and a program may set the longest one.
      let limit = request.limits.response.nanoseconds.multipliedSaturated(by: Int64(factor))
      request.limits.response = max(request.limits.response, .nanoseconds(limit))
    }
    if !describesRepresentation {
      // The fields that describe the representation were sent with the creation (section "Upload Creation").
      request.fields = request.fields.filter { !$0.hasPrefix("content-") }
    }
    request.fields.append(contentsOf: fields)
    return request
  }
}
