// The meaning of a request's end for the stream: done, retry, or give up.

internal import EventLoops
internal import Glibc
internal import HTTPMessages
package import UploadClient

/// The meaning of a request's end.
package enum Verdict: Equatable {
  /// The server has the whole stream.
  case complete(HTTPResponse)
  /// An outage. The stream tries again.
  case transient(FailedAttempt.Cause, retryAfter: Duration?, serverOffset: UInt64?)
  /// The server does not accept this client. That may change. The policy decides how long to wait.
  case refusal(LiveStreamError, FailedAttempt.Cause, retryAfter: Duration?, serverOffset: UInt64? = nil)
  /// A response that the server of a stream does not give in the middle of it. At the start, it is an error. After the
  /// server has acknowledged data, it counts as an outage, because it must come from another server.
  case unexpected(LiveStreamError, FailedAttempt.Cause, retryAfter: Duration?, serverOffset: UInt64?)
  /// Another attempt would not help. The cause is nil if there was no response.
  case permanent(LiveStreamError, FailedAttempt.Cause? = nil, serverOffset: UInt64? = nil)

  package init(
    _ result: Result<UploadTask.Outcome, UploadError>, isLocationInsecure: Bool = false, wallClock: Int = time(nil)
  ) {
    switch result {
    case .success(let outcome): self = Self.judge(outcome, isLocationInsecure, wallClock)
    case .failure(let error): self = Self.judge(error)
    }
  }

  /// The error with which the stream ends if this is not an outage.
  var error: LiveStreamError? {
    switch self {
    case .complete, .transient: nil
    case .refusal(let error, _, _, _), .unexpected(let error, _, _, _), .permanent(let error, _, _): error
    }
  }

  /// The same end as a refusal that may change. Nil for one that is no refusal, or no response.
  var asRefusal: Verdict? {
    switch self {
    case .unexpected(let error, let cause, let retryAfter, let offset):
      .refusal(error, cause, retryAfter: retryAfter, serverOffset: offset)
    case .permanent(let error, let cause?, let offset): .refusal(error, cause, retryAfter: nil, serverOffset: offset)
    case .refusal: self
    case .complete, .transient, .permanent: nil
    }
  }

  /// The delay that a response requests, regardless of its status (RFC 9110, section 10.2.3).
  static func retryAfter(_ response: HTTPResponse, wallClock: Int = time(nil)) -> Duration? {
    response.retryAfter(wallClock: wallClock)
  }

  private static func judge(
    _ outcome: UploadTask.Outcome, _ isLocationInsecure: Bool, _ wallClock: Int
  ) -> Verdict {
    let response = outcome.response
    let status = response.status
    let retryAfter = response.retryAfter(wallClock: wallClock)
    let serverOffset = response["Stream-Offset"].flatMap { UInt64($0) }
    func unexpected(
      _ kind: LiveStreamError.Kind, _ words: String, remedy: LiveStreamError.Remedy? = nil
    ) -> Verdict {
      .unexpected(
        LiveStreamError(kind, words, remedy: remedy), .response(status), retryAfter: retryAfter,
        serverOffset: serverOffset)
    }
    func refusal(_ words: String, remedy: LiveStreamError.Remedy? = nil) -> Verdict {
      .refusal(
        LiveStreamError(.notPermitted, words, remedy: remedy), .response(status), retryAfter: retryAfter,
        serverOffset: serverOffset)
    }
    func permanent(_ words: String) -> Verdict {
      .permanent(LiveStreamError(.refused, words), .response(status), serverOffset: serverOffset)
    }
    // It usually repeats the query of the request.
    let location = response["Location"].map { excerpt(UploadRequest.withoutSecrets($0)) }
    // Another sentence follows it.
    let reason = response.reason.map { ": \($0.last == "." ? String($0.dropLast()) : $0)" } ?? ""
    switch status {
    case 200..<300 where outcome.isEarly:
      return unexpected(
        .protocolBroken,
        "the server answered \(status) before the end of the stream, so it does not read streamed bodies to their end. Try another URL or method"
      )
    case _ where ConfirmingStatus.contains(status):
      return .complete(response)
    case 206:
      return unexpected(
        .refused,
        "the server answered 206 (Partial Content), which does not confirm that it has stored everything\(reason). Check the stored bytes on the server"
      )
    case 304:
      // It should have no Location, but a wrong one may show which server has sent it.
      return unexpected(
        .refused,
        "the server answered 304 (Not Modified)\(location.map { " with the Location \($0)" } ?? ""), which is valid only for a GET or HEAD with a condition. Check the server, and the caches and proxies before it"
      )
    case 300..<400:
      let advice =
        isLocationInsecure
        ? "That would send the stream in clear text. Check the server's configuration" : "Stream to that URL instead"
      return unexpected(
        .refused, "the server redirects\(location.map { " to \($0)" } ?? "") (\(status)). \(advice)")
    case 407:
      return refusal(
        "the proxy requires valid credentials (407)\(reason)",
        remedy: .proxyCredentials)
    case 401:
      return refusal(
        "the server requires valid credentials (\(status))\(reason)",
        remedy: .credentials)
    case 403:
      return refusal("the server does not permit this (403)\(reason). Check the credentials and the URL's path")
    case _ where RetriedStatus.contains(status):
      return .transient(.response(status), retryAfter: retryAfter, serverOffset: serverOffset)
    case 404: return unexpected(.refused, "the URL does not exist (404)\(reason). Check the path")
    case 410: return permanent("the URL no longer exists (410)\(reason). Check the path")
    case 405, 411, 501:
      return unexpected(
        .refused,
        "the server does not accept a streamed body at this URL (\(status))\(reason). Try another method or path",
        remedy: .method)
    case 409:
      return permanent(
        "the server reports a conflict with the current state of this URL (409)\(reason). Check the URL, and what the server has stored there"
      )
    case 413:
      return permanent("the server accepts no more of this stream (413)\(reason). Raise its limit for request bodies")
    default:
      return unexpected(.refused, "the server refused the stream (\(status))\(reason)")
    }
  }

  private static func judge(_ error: UploadError) -> Verdict {
    func retry(_ cause: FailedAttempt.Cause) -> Verdict { .transient(cause, retryAfter: nil, serverOffset: nil) }
    func refusal(
      _ kind: LiveStreamError.Kind, _ words: String, remedy: LiveStreamError.Remedy? = nil
    ) -> Verdict {
      .refusal(LiveStreamError(kind, words, remedy: remedy), .other(error.description), retryAfter: nil)
    }
    func unexpected(
      _ kind: LiveStreamError.Kind, _ words: String, remedy: LiveStreamError.Remedy? = nil
    ) -> Verdict {
      .unexpected(
        LiveStreamError(kind, words, remedy: remedy), .other(error.description), retryAfter: nil, serverOffset: nil)
    }
    if let machineError = error.machineError { return retry(.machine(machineError)) }
    switch error.kind {
    case .unknownHost: return retry(.unknownHost(error.description))
    case .unreachable: return retry(.unreachable(error.description))
    case .connectionLost: return retry(.connectionLost(error.description))
    case .timedOut: return retry(.timedOut(error.description))
    case .cut: return retry(.cut)
    case .http2Violation:
      return retry(.other("\(error.description): an intermediary breaks HTTP/2, trying HTTP/1.1"))
    case .tlsFailed, .other: return retry(.other(error.description))
    case .bodyFailed: return retry(error.mayPass ? .other(error.description) : .overtaken)
    case .certificateNotYetValid:
      return retry(
        .other("the server's certificate is not yet valid (\(error.description)). Check this machine's clock"))
    case .proxyRefused:
      return refusal(
        .notPermitted, "\(error.description). Use its user and password, or check its rules",
        remedy: .proxyCredentials)
    case .cancelled: return .permanent(.init(.cancelled, "cancelled"))
    case .invalidRequest: return .permanent(.init(.invalidRequest, error.description))
    // The file may be about to be replaced.
    case .badCredentialsFile: return refusal(.invalidRequest, error.description)
    case .certificateNotTrusted:
      return refusal(
        .notTrusted,
        "the server's certificate is not trusted (\(error.description)). If the server is yours, name its certificate authority",
        remedy: .certificateAuthority)
    case .http2NotSupported:
      return unexpected(.http2NotSupported, "\(error.description). Use HTTP/1.1", remedy: .http1)
    case .protocolViolation:
      return unexpected(
        .protocolBroken, "the peer does not use HTTP (\(error.description)). Check the port")
    }
  }
}
