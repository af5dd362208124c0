// What resumable uploads may take of a server, with what it is when nobody chooses.

/// Limits of resumable uploads (draft-ietf-httpbis-resumable-upload, section "Limits"), and how they are reached.
/// Sizes are in bytes, nil is no limit. An owner is a credential, or an address where the server asks for none.
public struct UploadLimitsConfiguration: Sendable {
  /// The longest representation (`max-size`, 413), and the longest stream of a plain request.
  public var maximumSize: UInt64?
  /// The longest content of one request (`max-append-size`, 413).
  public var maximumAppendSize: UInt64?
  /// The shortest content of a request that has a length and does not complete the upload (`min-append-size`, 400).
  public var minimumAppendSize: UInt64?
  /// How long an upload of known length lives after the last request to it (`max-age`, whole seconds); it is answered
  /// with 410 then, what was kept of it is removed, and it is forgotten after as long again. A complete upload tells
  /// its response for as long. What came of a live stream is never removed: see
  /// `finishAfter` of the server's configuration.
  ///
  /// Only the time counts that a server runs.
  public var maximumAge = Duration.seconds(24 * 3600)
  /// How many unfinished uploads and plain requests at work there may be (503).
  public var maximumCount = 10_000
  /// The same where nothing is stored, and an upload is a few kilobytes of memory and nothing else.
  public static let maximumCountWhenDiscarding = 50_000
  /// How many of them one owner may have (503).
  public var maximumCountPerClient: Int?
  /// How many records of uploads that are over are kept, for clients that did not see the response. Beyond it the
  /// oldest are forgotten, of whoever has the most.
  public var maximumFinishedCount = 10_000
  /// How many of them one owner may have; beyond it its oldest are forgotten.
  public var maximumFinishedCountPerClient = 5_000
  /// How long these records may be together, in bytes.
  public var maximumFinishedSize: UInt64 = 64 << 20
  /// How long one owner's may be.
  public var maximumFinishedSizePerClient: UInt64 = 32 << 20
  /// How many bytes of unfinished streams may be stored in all (507). Holes count, and so does an interrupted stream
  /// until it is complete or its file is removed. Each byte counts for whoever had it stored; after a restart nobody
  /// knows that of a plain stream that was begun without a credential.
  public var quota: UInt64?
  /// How many of them one owner may have stored (507).
  public var quotaPerClient: UInt64?
  /// How many bytes a second a request must bring (408); nil because a live source may be silent.
  public var minimumRate: UInt64?
  /// Over how long that is judged; whole seconds.
  public var rateWindow = Duration.seconds(10)
  /// What an upload's `Location` begins with: `https://example.com/ingest` where a front end serves this server under
  /// that URL and strips the path; empty for a path alone, which is right wherever paths are not rewritten.
  public var publicURL = ""

  /// How long an upload that no request is at work on keeps its handler and its descriptors.
  package var parkDelay = Duration.seconds(60)

  /// For how long the start of a server waits for the records of uploads. It answers within a second, whatever it
  /// finds.
  package var loadPatience = Duration.milliseconds(150)

  /// How many 104 (Upload Resumption Supported) responses a request is sent at most that came through a proxy (one
  /// that says so by `Via`, `Forwarded` or `X-Forwarded-For`); nil for no limit, as where there is no proxy.
  ///
  /// Those built on Go's `net/http` before 1.23 (Caddy, Traefik) bear five, the 100 included, and then fail the
  /// request. nginx bears none, for it takes the first for the final response. Caddy before 2.9 bears none over HTTP/2,
  /// for one that meets the end of its request ends Caddy. HTTP/1.0 is sent none in any case.
  public var maximumForwardedInterimCount: Int? = 4

  /// The defaults of each limit.
  public init() {}
}
