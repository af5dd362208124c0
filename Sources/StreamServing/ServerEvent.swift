// The events of the server: one value for each event of a stream, and its JSON line.

internal import EventLoops
internal import JSONLines

/// An event of a stream, or a refused request.
public struct ServerEvent: Sendable, Equatable {
  /// The kind of the event.
  public enum Kind: String, Sendable, CaseIterable {
    /// A new stream has a file now.
    case begun
    /// A request continued a stream that already has a file.
    case continued
    /// The connection, the disk or the server ended before the stream. Its `.part` stays.
    case interrupted
    /// The stream is complete and has its final name.
    case ended
    /// The client of a live stream did not return, or the recording has as many gaps as it may have. The recording has
    /// its final name, and a next part follows if the client returns.
    case closed
    /// A recording reached its limit. It has its final name, and the stream continues in the next one.
    case split
    /// The client cancelled an upload, and its bytes were removed.
    case cancelled
    /// An upload that was not continued has expired, and its bytes were removed.
    case expired
    /// The retention rules removed a complete recording.
    case removed
    /// A recording, or the requested part of it, was sent.
    case downloaded
    /// A download ended before its last byte was sent. The client can request the rest.
    case downloadInterrupted = "download-interrupted"
    /// A request or a connection was refused.
    case refused
    /// A problem of the server itself. The server continues as far as possible.
    case warning

    /// The kind of event for a request answered with that status. 500 is a problem of the server itself.
    package static func refusal(status: Int) -> Kind { status == 500 ? .warning : .refused }
  }

  /// The kind of the event.
  public var kind: Kind
  /// The time: RFC 3339 in UTC with milliseconds, such as `2026-11-20T17:22:19.123Z`.
  public var time: String
  /// The `Stream-ID`.
  public var stream: String?
  /// The current name of the file in the directory.
  public var file: String?
  /// The address of the peer: `192.0.2.7:50312`, `[2001:db8::7]:50312` or `unix`.
  public var peer: String?
  /// The stream offset at which the request begins (`begun`, `continued`), or up to which bytes are stored. For a
  /// download, the offset in the recording at which it begins.
  public var offset: UInt64?
  /// The number of bytes of this request that were stored (`interrupted`) or sent (`downloaded`,
  /// `download-interrupted`), of the whole stream (`ended`), or of the recording (`split`).
  public var bytes: UInt64?
  /// The number of missing bytes of the stream.
  public var missing: UInt64?
  /// The status of the response, if it is relevant.
  public var status: Int?
  /// The cause in words.
  public var reason: String?

  package init(_ kind: Kind, peer: String? = nil, status: Int? = nil, reason: String? = nil) {
    self.kind = kind
    self.time = WallClock.now.iso8601
    self.peer = peer
    self.status = status
    self.reason = reason
  }

  /// The event as one line of JSON (RFC 8259) without the line feed. Keys whose value is nil are omitted.
  public var jsonLine: String {
    var line = JSONLine(event: kind.rawValue)
    line.add("time", time)
    line.add("stream", stream)
    line.add("file", file)
    line.add("peer", peer)
    line.add("offset", offset)
    line.add("bytes", bytes)
    line.add("missing", missing)
    line.add("status", status)
    line.add("reason", reason)
    return line.line
  }
}
