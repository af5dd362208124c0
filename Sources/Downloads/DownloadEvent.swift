// What a download tells of itself, and what another one needs to continue it.

public import EventLoops
public import LiveStreaming
public import UploadClient

/// The part of a file that an unfinished download has left, and by what the rest is asked for. As secret as its path.
public struct DownloadResumeData: Equatable, Sendable, Codable {
  /// Of the file with the part.
  public var path: String
  /// Of that file: another one that has taken its place is not continued.
  public var inode: UInt64
  /// When that file was made, in milliseconds since 1970, for inodes are used again; nil where the file system does not
  /// say.
  public var birth: Int64?
  /// How many bytes of the file belong to the download.
  public var byteCount: UInt64
  /// The `ETag`, or else the `Last-Modified`, of the response that they are from.
  public var validator: String
  /// Of the whole, in bytes; nil if the server did not say.
  public var length: UInt64?
  /// The `Repr-Digest` that the server has stated (RFC 9530); nil if none.
  public var digest: String?

  /// What an earlier download has left, from values that a program has stored in a form of its own.
  public init(
    path: String, inode: UInt64, birth: Int64? = nil, byteCount: UInt64, validator: String, length: UInt64?,
    digest: String? = nil
  ) {
    (self.path, self.inode, self.birth) = (path, inode, birth)
    (self.byteCount, self.validator, self.length, self.digest) = (byteCount, validator, length, digest)
  }
}

/// Why a download begins again at its first byte.
public enum DownloadRestart: String, Equatable, Sendable, CustomStringConvertible {
  /// The server has another representation than the one that the part is of.
  case changed
  /// The server answered a request for the rest with everything.
  case ignored
  /// The server answered with a range that was not asked for, or has none that could follow.
  case range
  /// The server gives neither a strong `ETag` nor a usable `Last-Modified`.
  case unknown
  /// The server sent a part without an `ETag`, `Last-Modified` or `Repr-Digest` that shows which version it belongs to.
  case unidentified
  /// More came than was announced.
  case excess

  /// Why, in words that follow "because".
  public var description: String {
    switch self {
    case .changed: "the resource has changed"
    case .ignored: "the server does not send parts of it"
    case .range: "the server sent another part than the one that was asked for"
    case .unknown: "the server sends no strong ETag and no usable Last-Modified, by which a part could be continued"
    case .unidentified: "the server sent a part that does not show which version of the resource it belongs to"
    case .excess: "the server sent more than it had announced"
    }
  }
}

/// Something happened to a download. The last event is ``ended(_:)``.
public enum DownloadEvent: Sendable {
  /// The file with this inode, made at that time, is the download's part.
  case opened(path: String, inode: UInt64, birth: Int64?)
  /// A request goes out, for everything from that byte on.
  case connecting(offset: UInt64, attempt: Int)
  /// Content comes, from that byte on. The length is that of the whole, if the server says it.
  case receiving(offset: UInt64, length: UInt64?)
  /// What there was is discarded.
  case startedOver(DownloadRestart, discarded: UInt64)
  /// From now on, another process could continue it with this and what is written by then.
  case resumable(DownloadResumeData)
  /// The request ended before the download, which continues after a delay. The reason is what the server says of its
  /// answer, in one line of at most 200 characters; nil where it says nothing, or did not answer.
  case outage(Dropout.Cause, reason: String?, retryDelay: Duration)
  /// How things stand, if ``FileDownload/Configuration/progressInterval`` asks for it.
  case progress(DownloadProgress)
  /// The last event.
  case ended(DownloadSummary)
}

/// Where a download stands.
public struct DownloadProgress: Equatable, Sendable {
  /// How many bytes are written.
  public var written: UInt64
  /// Of the whole; nil if the server did not say.
  public var length: UInt64?
  /// Since the start of this download.
  public var elapsed: Duration
  /// Whether the request under way has a connection.
  public var isConnected: Bool
  /// How often a request has ended before the download.
  public var outages: Int
}

/// How a download ended.
public struct DownloadSummary: Equatable, Sendable {
  /// nil if everything is there.
  public var error: DownloadError?
  /// Where it stood at its end.
  public var progress: DownloadProgress
  /// What a later download can continue with; nil if there is nothing, or the server cannot.
  public var resumeData: DownloadResumeData?
  /// How many bytes were there already when it began.
  public var resumedFrom: UInt64
  /// The digest by which the bytes were verified; nil if the server sent none.
  public var verified: String?
  /// The last response.
  public var response: HTTPResponse?
}

/// Why a download ended before its last byte.
public struct DownloadError: Error, Equatable, Sendable, CustomStringConvertible {
  /// What a program can act on.
  public enum Kind: String, Equatable, Sendable {
    /// The request cannot be sent as it is configured.
    case invalidRequest
    /// The server rejects the credentials.
    case notPermitted
    /// The server's certificate is not trusted.
    case notTrusted
    /// The server does not give the resource.
    case refused
    /// The server does not follow the protocol.
    case protocolBroken
    /// A redirect leads from https to http.
    case insecureLocation
    /// No byte came for as long as ``LiveStreaming/RetryPolicy/giveUpAfter``.
    case unreachable
    /// The bytes are not those that the server's digest is of.
    case corrupt
    /// The file could not be written, read or named; see ``DownloadError/systemError``.
    case file
    /// There is a file of that name.
    case exists
    /// The program, or the end of its session, cancelled it.
    case cancelled
  }

  /// What a program can act on.
  public var kind: Kind
  /// What failed, why, and what to do, in words for a person.
  public var description: String
  /// Which call of the system failed, and why; nil where none did.
  public var systemError: SystemError?
  /// The setting that helps, for a program that names its own; nil where there is none.
  public var remedy: LiveStreamError.Remedy?

  init(_ kind: Kind, _ description: String, systemError: SystemError? = nil, remedy: LiveStreamError.Remedy? = nil) {
    self.kind = kind
    // It may quote a server.
    self.description = printable(description)
    self.systemError = systemError
    self.remedy = remedy
  }

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
    self.init(kind, error.description, remedy: error.remedy)
  }
}
