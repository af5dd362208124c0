// The limits of a server's resumable uploads, with their defaults.

/// Limits of resumable uploads (draft-ietf-httpbis-resumable-upload, section "Limits"), and their URLs. Sizes are in
/// bytes, and nil means no limit. An owner is a credential. If the server requires none, it is an IPv4 address, or the
/// first 64 bits of an IPv6 address.
public struct UploadLimitsConfiguration: Sendable {
  /// The longest representation (`max-size`, 413), and the longest stream of a plain request.
  public var maximumSize: UInt64?
  /// The longest content of one request (`max-append-size`, 413).
  public var maximumAppendSize: UInt64?
  /// The smallest content of a request with a length that does not complete the upload (`min-append-size`, 400).
  public var minimumAppendSize: UInt64?
  /// The lifetime of an upload of known length after its last request (`max-age`, whole seconds). After it, the upload
  /// gets 410, its bytes are removed, and it is forgotten after the same time again. A complete upload repeats its
  /// response for the same time. The recording of a live stream is never removed by age. See `finishAfter` in the
  /// server's configuration.
  ///
  /// Only time during which a server runs counts.
  public var maximumAge = Duration.seconds(24 * 3600)
  /// The maximum number of unfinished uploads and current plain requests. More get 503.
  public var maximumCount = 10_000
  /// The same for a server that stores nothing, where an upload takes only a few kilobytes of memory.
  public static let maximumCountWhenDiscarding = 50_000
  /// The maximum number of them per owner. More get 503.
  public var maximumCountPerClient: Int?
  /// The maximum number of records of finished uploads, which are kept for clients that did not receive the response.
  /// Beyond it, the oldest records of the owner with the most are removed.
  public var maximumFinishedCount = 10_000
  /// The maximum number of them per owner. Beyond it, the owner's oldest are removed.
  public var maximumFinishedCountPerClient = 5_000
  /// The maximum total size of these records, in bytes. Beyond it, the oldest records of the owner with the largest
  /// total size are removed.
  public var maximumFinishedSize: UInt64 = 64 << 20
  /// The maximum total size of these records per owner, in bytes. Beyond it, the owner's oldest records are removed.
  public var maximumFinishedSizePerClient: UInt64 = 32 << 20
  /// The maximum total number of bytes of unfinished streams. More get 507. Holes count, and so does an interrupted
  /// stream until it is complete or its file is removed. Each byte counts for the owner who stored it. After a restart,
  /// the owner of a plain stream without a credential is unknown.
  public var quota: UInt64?
  /// The maximum number of these bytes per owner. More get 507.
  public var quotaPerClient: UInt64?
  /// The lowest rate of a request in bytes per second. A slower one gets 408. Nil by default, because a live source may
  /// be silent.
  public var minimumRate: UInt64?
  /// The period over which the rate is measured, in whole seconds.
  public var rateWindow = Duration.seconds(10)
  /// The beginning of an upload's `Location`: `https://example.com/ingest` if a front end serves this server under that
  /// URL and strips the path. Empty for a path alone, which is correct wherever paths are not rewritten.
  public var publicURL = ""

  /// How long an upload without an active request keeps its handler and its descriptors.
  package var parkDelay = Duration.seconds(60)

  /// How long the start of a server waits for the records of uploads. The server answers within a second, however many
  /// there are.
  package var loadPatience = Duration.milliseconds(150)

  /// The maximum number of 104 (Upload Resumption Supported) responses to a request that came through a proxy. Such a
  /// request has `Via`, `Forwarded` or `X-Forwarded-For`. Nil means no limit, as without a proxy.
  ///
  /// Proxies built on Go's `net/http` before 1.23 (Caddy, Traefik) accept five, including the 100, and then fail the
  /// request. nginx accepts none, because it treats the first as the final response. Caddy before 2.9 accepts none over
  /// HTTP/2, because a 104 at the end of its request terminates Caddy. HTTP/1.0 requests never get any.
  public var maximumForwardedInterimCount: Int? = 4

  /// Creates the default limits.
  public init() {}
}
