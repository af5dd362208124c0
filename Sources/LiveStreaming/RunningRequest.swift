// The request that a stream has under way, and what it is made of.

internal import EventLoops
internal import ResumableUploads
internal import UploadClient

/// A class although nothing of it ever changes: each event of the request looks into it, and a copy would retain all
/// its texts.
final class RunningRequest {
  /// Tells its events from those of another.
  let number: UInt64
  let task: UploadTask
  let issued = MonotonicInstant.now
  let step: StreamRequest
  /// As it was sent.
  let whole: UploadRequest
  /// The bearer token that there was then, whether or not the request may carry it.
  let token: String?

  /// Bytes in front of the stream's.
  let headerLength: UInt64

  init(step: StreamRequest, whole: UploadRequest, token: String?, task: UploadTask, number: UInt64, headerLength: Int) {
    self.step = step
    self.whole = whole
    self.token = token
    self.task = task
    self.number = number
    self.headerLength = UInt64(headerLength)
  }

  /// Stream offset up to which its body was handed over.
  var sentUpTo: UInt64 { step.start + streamed(task.sentByteCount) }

  /// How many of the body's first bytes are the stream's.
  func streamed(_ bodyCount: UInt64) -> UInt64 { bodyCount - min(bodyCount, headerLength) }
}

extension StreamRequest {
  /// The whole request: the user's, with what this one is about.
  func uploadRequest(_ configuration: LiveStreamConfiguration, token: String?) -> UploadRequest {
    var request = configuration.request
    if let token { request.bearerToken = token }
    if let url { request = request.directed(to: url) }
    if let method { request.method = method }
    switch answerLimit {
    case .usual: break
    case .atMost(let limit): request.limits.response = min(limit, request.limits.response)
    case .times(let factor): request.limits.response = request.limits.response * factor
    }
    if !describesRepresentation {
      // What describes the representation went with the creation (section "Upload Creation").
      request.fields.removeAll { $0.name.lowercased().hasPrefix("content-") }
    }
    request.fields += fields
    return request
  }
}
