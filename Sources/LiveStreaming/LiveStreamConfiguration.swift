// All settings of a live stream.

public import Digests
public import ResumableUploads
public import StreamBuffers
public import UploadClient

/// The settings of a ``LiveStreamer``.
public struct LiveStreamConfiguration: Sendable {
  /// The destination. `Stream-ID` and `Stream-Offset` are added to its fields.
  public var request: UploadRequest
  /// The name of the stream at the server, which is the same in all of its requests: 1 to 64 characters of
  /// `A–Z a–z 0–9 . _ -`, not beginning with a dot. The default is 128 random bits.
  public var streamID = LiveStreamConfiguration.randomStreamID()
  /// Whether POST may replace the request's method if the server allows POST and not that method.
  public var mayUsePOST = false
  /// The capacity of the circular buffer, which determines how long an outage may last.
  public var buffer = CircularBuffer.Capacity.bytes(16 << 20)
  /// The behaviour when the buffer is full.
  public var overflow = OverflowPolicy.dropOldest
  /// Whether unused memory of the buffer is returned to the system.
  public var memory = CircularBuffer.Memory.returned
  /// Plain uploads only: the number of bytes that stay in the buffer after TCP has acknowledged them, while there is
  /// room. A server that could not store them may request them again. A larger value is reduced to half of the
  /// allocated buffer, which includes these bytes.
  public var retention = 256 << 10
  /// The session's lane for the requests, at least 0. A session has one lane unless it was created with more.
  package var lane = 0
  /// The size of the bound pair's buffer, in bytes. A value below 1 counts as 1.
  public var pairSize = BoundPair.defaultBufferSize
  /// The delays between attempts, and the time to give up.
  public var retry = RetryPolicy()
  /// Whether resumable uploads are used.
  ///
  /// With ``ResumableUse/auto``, the response to the first request decides for the whole stream. A captive portal that
  /// answers in place of the server makes the stream a plain one until it ends. For a server that is known to support
  /// resumable uploads, use ``ResumableUse/always``.
  public var resumable = ResumableUse.auto
  /// The time between two acknowledgements within a request of a resumable upload, in whole seconds. A server that
  /// supports `Stream-Progress-Interval` respects it. Nil for the server's choice. Each acknowledgement wakes the
  /// stream and the server, and the buffer keeps the bytes until then.
  public var acknowledgementInterval: Int?
  /// The limits at which one request of a resumable upload ends and the next begins.
  public var rollOver = RollOver()
  /// Whether to continue at the host of the request, regardless of the host in the server's `Location`. This is for
  /// servers that do not know their own name, for example behind a proxy.
  public var keepsOrigin = false
  /// The digest to request from the server (`Want-Repr-Digest`, RFC 9530) and to compare with the digest of the sent
  /// bytes.
  public var digest: DigestAlgorithm?
  /// The description of the stream for the sidecar of the recording (`Stream-Description`). Nil means none.
  public var description: SourceDescription?
  /// The upload of another process to continue.
  public var resumeData: ResumeData?
  /// For a stream that another process began: the stream offset up to which the server has acknowledged it.
  package var acknowledged: UInt64 = 0
  /// Likewise, the last `Stream-Description` that that process sent.
  package var sentDescription: String?
  /// Called before each request for the current token, so that a renewed token is used. Nil uses the token of
  /// ``request``. If the result is unusable, the previous token is used, because the file may be half written.
  public var bearerToken: (@Sendable () -> String?)?
  /// The interval of ``LiveStreamEvent/progress(_:)``. Nil means never, which costs nothing.
  public var progressInterval: Duration?

  /// Called on the session's thread at the end of each request, with the request and its end, if
  /// ``UploadRequest/isMeasured``.
  package var measured:
    (@Sendable (RequestMeasurements, UploadRequest, Result<UploadTask.Outcome, UploadError>) -> Void)?

  /// Whether resumable uploads are used (draft-ietf-httpbis-resumable-upload).
  public enum ResumableUse: String, CaseIterable, Sendable {
    /// If the response to the first request offers them.
    case auto
    /// Fails if the server does not support resumable uploads. No response makes the stream a plain one.
    case always
    /// Never. The stream consists of plain requests, one after another.
    case never
  }

  /// The size and duration of one request of a resumable upload. Its 2xx acknowledges its bytes, and the next request
  /// uses the same connection.
  public struct RollOver: Equatable, Sendable {
    /// The longest duration, counted from the request's first byte.
    public var after = Duration.seconds(10)
    /// The largest content, in bytes.
    public var size: UInt64 = 256 << 20
    /// The number of bytes of response heads after which a request ends. Most of them are from interim responses.
    /// libcurl fails a request at 300 KiB, and uses two to three bytes of memory for each of them until then
    /// (curl_easy_header(3)).
    public var responseHeadSize = 200_000
    /// Creates the defaults for a live stream.
    public init() {}
  }

  /// Creates the defaults for a live stream with this request.
  public init(request: UploadRequest) { self.request = request }

  /// 128 bits from the system's generator, as 32 hexadecimal digits.
  public static func randomStreamID() -> String {
    (0..<4).map { _ in
      let word = String(UInt32.random(in: .min ... .max), radix: 16)
      return String(repeating: "0", count: 8 - word.count) + word
    }.joined()
  }
}
