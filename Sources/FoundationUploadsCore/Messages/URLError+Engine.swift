// Converts errors of the engine to Foundation's errors.

internal import EventLoops
internal import Foundation
internal import Glibc
internal import LiveStreaming
internal import UploadClient

extension UploadError {
  /// Whether the server cannot be reached, without an earlier connection. The reason may be this machine.
  var isUnreachability: Bool { machineError != nil || [.unreachable, .unknownHost, .timedOut].contains(kind) }

  /// Whether another attempt may succeed.
  var isTemporary: Bool {
    switch kind {
    case .unreachable, .unknownHost, .connectionLost, .cut, .timedOut, .tlsFailed, .http2Violation, .other: true
    case .invalidRequest, .proxyRefused, .certificateNotTrusted, .certificateNotYetValid, .badCredentialsFile,
      .protocolViolation, .http2NotSupported, .cancelled, .bodyFailed:
      false
    }
  }
}

extension FailedAttempt.Cause {
  /// Whether the server cannot be reached, without an earlier connection. The reason may be this machine.
  var isUnreachability: Bool {
    switch self {
    case .unreachable, .unknownHost, .timedOut, .machine: true
    default: false
    }
  }
}

extension URLError {
  /// The keys under which an error carries resume data, as on Apple's systems.
  enum ResumeKey {
    static let upload = "NSURLSessionUploadTaskResumeData"
    static let download = "NSURLSessionDownloadTaskResumeData"
  }

  init(_ code: Code, _ url: URL?, _ words: String? = nil) {
    var information: [String: Any] = [:]
    if let url {
      information[NSURLErrorFailingURLErrorKey] = url
      // Foundation sets this key as well. Its constant, NSURLErrorFailingURLStringErrorKey, is deprecated.
      information["NSErrorFailingURLStringKey"] = url.absoluteString
    }
    if let words = words ?? Self.words(for: code) { information[NSLocalizedDescriptionKey] = words }
    self.init(code, userInfo: information)
  }

  /// Foundation's text for errors that need no explanation.
  private static func words(for code: Code) -> String? {
    switch code {
    case .cancelled: "cancelled"
    case .dataLengthExceedsMaximum: "resource exceeds maximum size"
    case .fileIsDirectory: "file is a directory"
    case .httpTooManyRedirects: "too many HTTP redirects"
    case .networkConnectionLost: "The network connection was lost."
    case .requestBodyStreamExhausted: "request body stream exhausted"
    case .unsupportedURL: "unsupported URL"
    default: nil
    }
  }

  init(_ error: UploadError, _ url: URL?) {
    let code: Code = error.machineError == nil ? Self.code(of: error.kind) : .cannotConnectToHost
    self.init(code, url, error.description)
  }

  private static func code(of kind: UploadError.Kind) -> Code {
    switch kind {
    case .invalidRequest: .badURL
    case .unknownHost: .cannotFindHost
    case .unreachable, .proxyRefused: .cannotConnectToHost
    case .connectionLost, .cut: .networkConnectionLost
    case .timedOut: .timedOut
    case .tlsFailed: .secureConnectionFailed
    case .certificateNotTrusted: .serverCertificateUntrusted
    case .certificateNotYetValid: .serverCertificateNotYetValid
    case .badCredentialsFile: .clientCertificateRejected
    case .protocolViolation, .http2Violation, .http2NotSupported: .badServerResponse
    case .cancelled: .cancelled
    case .bodyFailed: .requestBodyStreamExhausted
    case .other: .unknown
    }
  }

  /// - Parameter cause: why the last attempt failed, if the stream has given up.
  init(_ error: LiveStreamError, cause: FailedAttempt.Cause?, _ url: URL?) {
    let code: Code =
      switch error.kind {
      case .invalidRequest: .badURL
      case .notPermitted: .userAuthenticationRequired
      case .notTrusted: .serverCertificateUntrusted
      case .refused, .protocolBroken, .http2NotSupported, .insecureLocation, .overflow: .badServerResponse
      case .source: .requestBodyStreamExhausted
      case .cancelled: .cancelled
      case .unreachable, .unfinished: cause.map(Self.code(of:)) ?? .networkConnectionLost
      }
    self.init(code, url, error.description)
  }

  static func code(of cause: FailedAttempt.Cause) -> Code {
    switch cause {
    case .unknownHost: .cannotFindHost
    case .unreachable, .machine: .cannotConnectToHost
    case .timedOut: .timedOut
    case .connectionLost, .cut, .overtaken, .other: .networkConnectionLost
    case .response: .badServerResponse
    }
  }

  init(_ error: UploadFileError, _ url: URL?) {
    switch error {
    case .unreadable(let error):
      let code: Code = error.code == EACCES || error.code == EPERM ? .noPermissionsToReadFile : .fileDoesNotExist
      self.init(
        error.code == ENOENT || code == .noPermissionsToReadFile ? code : .cannotOpenFile, url, error.description)
    case .directory: self.init(.fileIsDirectory, url)
    case .notRegular, .unknownSize: self.init(.cannotOpenFile, url, "\(error)")
    case .changed(let words): self.init(.cannotOpenFile, url, "the file has changed: \(words)")
    }
  }

  /// With resume data, if there is any.
  func with(_ data: Data?, _ key: String) -> URLError {
    guard let data else { return self }
    return URLError(code, userInfo: userInfo.merging([key: data]) { $1 })
  }
}
