// The classes of errors in a report. A metric may name one: `errors.connection-lost`.

/// A class of the errors that a load test counts. An error response is another class for each status: `http-503`.
package enum ErrorClass: String, CaseIterable {
  case unknownHost = "unknown-host"
  case unreachable
  case connectionLost = "connection-lost"
  case timedOut = "timed-out"
  case tls
  case overtaken
  case gaveUp = "gave-up"
  case unfinished
  case refused
  case notPermitted = "not-permitted"
  case notTrusted = "not-trusted"
  case protocolBroken = "protocol"
  case insecureLocation = "insecure-location"
  case http2
  case invalidRequest = "invalid-request"
  case wentBack = "went-back"
  case overflow
  case source
  case other

  /// What it counts.
  package var meaning: String {
    switch self {
    case .unknownHost: "the name of the host could not be resolved"
    case .unreachable: "no connection could be established"
    case .connectionLost: "the connection ended before the response"
    case .timedOut: "the server did not answer in time"
    case .tls: "TLS could not be negotiated"
    case .overtaken: "the connection was slower than the stream, and bytes were lost"
    case .gaveUp: "a stream made no progress for too long"
    case .unfinished: "the run ended before everything was answered"
    case .refused: "the server refused the stream"
    case .notPermitted: "the server or the proxy refused the credentials"
    case .notTrusted: "the certificate of the server is not trusted"
    case .protocolBroken: "the server violated HTTP or the protocol of resumable uploads"
    case .insecureLocation: "the server directed a stream from https to http"
    case .http2: "the server does not support HTTP/2"
    case .invalidRequest: "the request cannot be sent"
    case .wentBack: "the server lost bytes that it had acknowledged"
    case .overflow: "the buffer of a stream was full"
    case .source: "the body could not be read"
    case .other: "any other failure"
    }
  }

  /// The name of the class of responses with this status.
  package static func http(_ status: Int) -> String { "http-\(status)" }

  /// Whether a load test may count errors of a class with this name.
  static func isKnown(_ name: some StringProtocol) -> Bool {
    if name.hasPrefix("http-"), name.utf8.count == 8, let status = Int(name.dropFirst(5)) {
      return (100...599).contains(status)
    }
    return ErrorClass(rawValue: String(name)) != nil
  }
}
