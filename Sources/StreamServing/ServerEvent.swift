// What the server tells its owner: one value per thing that happened to a stream, and the JSON line that says it.

internal import EventLoops
internal import JSONLines

/// Something that happened to a stream, or a request that was refused.
public struct ServerEvent: Sendable, Equatable {
  /// What happened.
  public enum Kind: String, Sendable, CaseIterable {
    /// A stream that was not known before has a file now.
    case begun
    /// A request went on with a stream that has a file already.
    case continued
    /// The connection, the disk or the server ended before the stream did. Its `.part` stays.
    case interrupted
    /// The stream is complete and has its final name.
    case ended
    /// The client of a live stream did not come back: what came has its final name, and a next part follows if it does.
    case closed
    /// A recording was long enough: it has its final name, and the stream continues in the next one.
    case split
    /// An upload was cancelled by its client; what was kept of it is gone.
    case cancelled
    /// An upload that nobody went on with was given up; what was kept of it is gone.
    case expired
    /// A complete recording was removed because the operator's rules for keeping recordings say so.
    case removed
    /// A recording, or the part of it that was asked for, was sent to its owner.
    case downloaded
    /// A download ended before its last byte was sent. The client can ask for the rest.
    case downloadInterrupted = "download-interrupted"
    /// A request, or a connection, that was turned away.
    case refused
    /// Something is wrong with the server and not with a request. It goes on as well as it can.
    case warning

    /// Of a request that was answered with that status: 500 is the server's own trouble.
    package static func refusal(status: Int) -> Kind { status == 500 ? .warning : .refused }
  }

  /// What happened.
  public var kind: Kind
  /// When: RFC 3339 in UTC with milliseconds, e.g. `2026-11-20T17:22:19.123Z`.
  public var time: String
  /// The `Stream-ID`.
  public var stream: String?
  /// The file's name in the directory, as it is at that moment.
  public var file: String?
  /// The other end: `192.0.2.7:50312`, `[2001:db8::7]:50312` or `unix`.
  public var peer: String?
  /// The stream offset at which the request begins (`begun`, `continued`), or up to which bytes are stored; of a
  /// download, where it begins in the recording.
  public var offset: UInt64?
  /// How many bytes of this request were stored (`interrupted`) or sent (`downloaded`, `download-interrupted`), of the
  /// whole stream (`ended`), or of the recording (`split`).
  public var bytes: UInt64?
  /// How many bytes of the stream lie in holes.
  public var missing: UInt64?
  /// The status of the answer, where it tells something.
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

  /// The event as one line of JSON (RFC 8259) without the line feed. Keys whose value is nil are left out.
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
