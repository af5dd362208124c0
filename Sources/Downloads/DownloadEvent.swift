// The events of a download, and the data with which another one continues it.

public import EventLoops
internal import Glibc
public import LiveStreaming
public import UploadClient

/// The part of a file that an unfinished download left, and its validator. Keep it as secret as its path.
public struct DownloadResumeData: Equatable, Sendable, Codable {
  /// The path of the part.
  public var path: String
  /// The inode of the part. A replacement of the file is not continued.
  public var inode: UInt64
  /// The creation time of the part in milliseconds since 1970, because inode numbers are reused. Nil if the file system
  /// does not report it.
  public var birth: Int64?
  /// The number of bytes in the file that belong to the download.
  public var byteCount: UInt64
  /// The `ETag`, or otherwise the `Last-Modified`, of their response.
  public var validator: String
  /// The total length in bytes. Nil if the server did not state it.
  public var length: UInt64?
  /// The `Repr-Digest` that the server stated (RFC 9530), or nil.
  public var digest: String?

  /// Creates resume data from values that a program stored in its own format.
  public init(
    path: String, inode: UInt64, birth: Int64? = nil, byteCount: UInt64, validator: String, length: UInt64?,
    digest: String? = nil
  ) {
    (self.path, self.inode, self.birth) = (path, inode, birth)
    (self.byteCount, self.validator, self.length, self.digest) = (byteCount, validator, length, digest)
  }
}

/// The reason why a download begins again at its first byte.
public enum DownloadRestart: String, Equatable, Sendable, CustomStringConvertible {
  /// The server has a different representation than that of the part.
  case changed
  /// The server answered a request for the rest with the whole representation.
  case ignored
  /// The server answered with a different range than the requested one, or has no further range.
  case range
  /// The server sends neither a strong `ETag` nor a usable `Last-Modified`.
  case unknown
  /// The server sent a range without an `ETag`, `Last-Modified` or `Repr-Digest` that identifies its version.
  case unidentified
  /// The server sent more bytes than it had announced.
  case excess

  /// The reason, in words that can follow "because".
  public var description: String {
    switch self {
    case .changed: "the resource has changed"
    case .ignored: "the server does not support ranges for the resource"
    case .range: "the server did not send the requested range"
    case .unknown: "the server sends neither a strong ETag nor a usable Last-Modified, which are required to resume"
    case .unidentified: "the server sent a range without the version of the resource"
    case .excess: "the server sent more than it had announced"
    }
  }
}

/// An event of a download. The last event is ``ended(_:)``.
public enum DownloadEvent: Sendable {
  /// The file with this inode and creation time is the download's part.
  case opened(path: String, inode: UInt64, birth: Int64?)
  /// A request is sent for all bytes from this offset on.
  case connecting(offset: UInt64, attempt: Int)
  /// Content arrives from this offset on. `length` is the total length, if the server states it.
  case receiving(offset: UInt64, length: UInt64?)
  /// The existing bytes were discarded.
  case startedOver(DownloadRestart, discarded: UInt64)
  /// From now on, another process can continue the download with this data and the bytes written by then.
  case resumable(DownloadResumeData)
  /// An outage begins: the request ended before the download was complete. Another attempt follows after a delay.
  case outage(FailedAttempt)
  /// Another attempt failed in the same outage.
  case attemptFailed(FailedAttempt)
  /// The progress, at the interval of ``FileDownload/Configuration/progressInterval``.
  case progress(DownloadProgress)
  /// The last event.
  case ended(DownloadSummary)
}

/// The progress of a download.
public struct DownloadProgress: Equatable, Sendable {
  /// The number of written bytes.
  public var written: UInt64
  /// The total length. Nil if the server did not state it.
  public var length: UInt64?
  /// The time since the start of this download.
  public var elapsed: Duration
  /// Whether the current request has a connection.
  public var isConnected: Bool
  /// The number of outages so far. An outage with several attempts counts once.
  public var outageCount: Int
}

/// The result of a download.
public struct DownloadSummary: Equatable, Sendable {
  /// Nil if the download is complete.
  public var error: DownloadError?
  /// The progress at its end.
  public var progress: DownloadProgress
  /// The data with which a later download can continue. Nil if there is none, or if the server does not support it.
  public var resumeData: DownloadResumeData?
  /// The number of bytes of an earlier download in the file. 0 if the download has started over.
  public var resumedFrom: UInt64
  /// The algorithm of the digest with which the bytes were verified, or the strongest one of several. Nil if the
  /// server sent none.
  public var verified: String?
  /// The last response.
  public var response: HTTPResponse?
}

/// The reason why a download ended before its last byte.
public struct DownloadError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The classes of errors that a program can handle.
  public enum Kind: String, Equatable, Sendable {
    /// The request cannot be sent as it is configured.
    case invalidRequest
    /// The server rejects the credentials.
    case notPermitted
    /// The server's certificate is not trusted.
    case notTrusted
    /// The server does not provide the resource.
    case refused
    /// The server does not follow the protocol.
    case protocolBroken
    /// A redirect leads from https to http.
    case insecureLocation
    /// No byte arrived for ``LiveStreaming/RetryPolicy/giveUpAfter``.
    case unreachable
    /// The bytes do not match the server's digest.
    case corrupt
    /// The file could not be written, read or renamed. See ``DownloadError/systemError``.
    case file
    /// A file of that name exists.
    case exists
    /// The program or the end of its session cancelled the download.
    case cancelled
  }

  /// The class of the error.
  public var kind: Kind
  /// The failure, its reason and the remedy, as human-readable text.
  public var description: String
  /// The failed system call and the reason. Nil if none failed.
  public var systemError: SystemError?
  /// The setting that may help, for programs with their own names for it. Nil if there is none.
  public var remedy: LiveStreamError.Remedy?

  init(_ kind: Kind, _ description: String, systemError: SystemError? = nil, remedy: LiveStreamError.Remedy? = nil) {
    self.kind = kind
    // It may contain text from a server.
    self.description = printable(description)
    self.systemError = systemError
    self.remedy = remedy
  }

  /// Whether the disk had no space for the file, or a limit allowed no larger one.
  package var isShortage: Bool { systemError.map { [ENOSPC, EDQUOT, EFBIG].contains($0.code) } ?? false }

  init(_ error: LiveStreamError) {
    let kind: Kind =
      switch error.kind {
      case .invalidRequest: .invalidRequest
      case .notPermitted: .notPermitted
      case .notTrusted: .notTrusted
      case .insecureLocation: .insecureLocation
      case .unreachable, .unfinished: .unreachable
      case .cancelled: .cancelled
      case .refused: .refused
      case .protocolBroken, .http2NotSupported, .overflow, .source: .protocolBroken
      }
    self.init(kind, error.description, systemError: error.machineError, remedy: error.remedy)
  }
}
