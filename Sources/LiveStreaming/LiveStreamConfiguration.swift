// Everything that can be chosen about a live stream.

public import Digests
public import ResumableUploads
public import StreamBuffers
public import UploadClient

/// How a ``LiveStreamer`` works.
public struct LiveStreamConfiguration: Sendable {
  /// Where to; `Stream-ID` and `Stream-Offset` are added to its fields.
  public var request: UploadRequest
  /// Names the stream at the server, through all of its requests: 1–64 of `A–Z a–z 0–9 . _ -`. 128 random bits by
  /// default.
  public var streamID = LiveStreamConfiguration.randomStreamID()
  /// Whether POST may take the place of the request's method where the server names it and not that one.
  public var mayUsePOST = false
  /// How much an outage may last: what the circular buffer holds.
  public var buffer = CircularBuffer.Capacity.bytes(16 << 20)
  /// What happens when the buffer is full.
  public var overflow = OverflowPolicy.dropOldest
  /// Whether the buffer's unused memory goes back to the system.
  public var memory = CircularBuffer.Memory.returned
  /// Plain uploads only: bytes that TCP has acknowledged and that are kept all the same while there is room, for a
  /// server that says it could not keep them; in bytes, at most half the buffer.
  public var retention = 256 << 10
  /// The session's lane that its requests take, at least 0: see
  /// ``UploadClient/UploadSession/init(connections:lanes:)``.
  public var lane = 0
  /// The bound pair's buffer, in bytes.
  public var pairSize = BoundPair.defaultBufferSize
  /// When a failed attempt is followed by the next, and when by none.
  public var retry = RetryPolicy()
  /// Whether resumable uploads are used.
  public var resumable = ResumableUse.auto
  /// When one request of a resumable upload ends and the next begins.
  public var rollOver = RollOver()
  /// Goes on at the host that was asked, whatever host the server's `Location` names: for servers that do not know
  /// their own name, as behind a proxy.
  public var keepsOrigin = false
  /// Asks the server for a digest of what it has (`Want-Repr-Digest`, RFC 9530) and compares it with one of what was
  /// sent.
  public var digest: DigestAlgorithm?
  /// What the server is told about the stream (`Stream-Description`), for the sidecar of the recording; nil for
  /// nothing.
  public var description: SourceDescription?
  /// Goes on with an upload that another process began.
  public var resumeData: ResumeData?
  /// Of a stream that another process began at a plain server: the stream offset up to which that server has it, as far
  /// as is known.
  package var acknowledged: UInt64 = 0
  /// Likewise, `Stream-Description` as that process sent it last.
  package var sentDescription: String?
  /// Asked before each request for the token to send, so that one that was renewed is used; nil leaves it to
  /// ``request``. If it returns nothing usable, the previous token is used, because the file may be half written.
  public var bearerToken: (@Sendable () -> String?)?
  /// How often to tell ``LiveStreamEvent/progress(_:)``; nil for never, which costs nothing.
  public var progressInterval: Duration?

  /// Called on the session's thread at the end of each request, with what it was and how it ended, if
  /// ``UploadRequest/isMeasured``.
  package var measured:
    (@Sendable (RequestMeasurements, UploadRequest, Result<UploadTask.Outcome, UploadError>) -> Void)?

  /// Whether resumable uploads are used (draft-ietf-httpbis-resumable-upload).
  public enum ResumableUse: String, CaseIterable, Sendable {
    /// Where the server supports them.
    case auto
    /// Fails if the server does not support resumable uploads.
    case always
    /// Never: the stream is one plain request after another.
    case never
  }

  /// How much goes into one request of a resumable upload. Its 2xx acknowledges it, and the next goes out on the same
  /// connection.
  public struct RollOver: Equatable, Sendable {
    /// Counted from the request's first byte.
    public var after = Duration.seconds(10)
    /// In bytes.
    public var size: UInt64 = 256 << 20
    /// A request ends after this number of bytes of response heads, most of them of interim responses. libcurl fails
    /// one at 300 KiB, and keeps two to three bytes of memory for each of them until then (curl_easy_header(3)).
    public var responseHeadSize = 200_000
    /// The defaults for a live stream.
    public init() {}
  }

  /// The defaults for a live stream with this request.
  public init(request: UploadRequest) { self.request = request }

  /// 128 bits from the system's generator, as 32 hexadecimal digits.
  public static func randomStreamID() -> String {
    (0..<4).map { _ in
      let word = String(UInt32.random(in: .min ... .max), radix: 16)
      return String(repeating: "0", count: 8 - word.count) + word
    }.joined()
  }
}
