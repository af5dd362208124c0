// The head of a request as values, independent of how it was read.

/// The way in which the end of a body is determined (RFC 9112, section 6.3).
public enum BodyFraming: Equatable, Sendable {
  /// Neither `Content-Length` nor `Transfer-Encoding`. There is no body.
  case absent
  /// `Content-Length`, in bytes. Zero means an empty body.
  case sized(UInt64)
  /// `Transfer-Encoding: chunked`.
  case chunked
}

/// A validated request line and its fields (RFC 9112, sections 3 and 5).
public struct RequestHead: Equatable, Sendable {
  /// The method as it was sent. Methods are case-sensitive.
  public var method: String
  /// The target of the request.
  public var target: RequestTarget
  /// The minor version: 0 for HTTP/1.0, and 1 for HTTP/1.1 and later minor versions.
  public var minorVersion: Int
  /// All fields, in the order in which they were sent.
  public var fields: HeaderFields
  /// The way in which the end of the body is determined.
  public var framing: BodyFraming
  /// Whether the client waits for `100 Continue` before it sends the body (RFC 9110, section 10.1.1).
  public var expectsContinue: Bool
  /// Identifies the credential of the request, if the server requires one. It is the SHA-256 of a bearer token, and not
  /// the token.
  public package(set) var credential: [UInt8]?
  /// Whether the client permits reuse of the connection (RFC 9112, section 9.3).
  public var keepsAlive: Bool

  package init(
    method: String, target: RequestTarget, minorVersion: Int, fields: HeaderFields, framing: BodyFraming,
    expectsContinue: Bool, keepsAlive: Bool
  ) {
    self.method = method
    self.target = target
    self.minorVersion = minorVersion
    self.fields = fields
    self.framing = framing
    self.expectsContinue = expectsContinue
    self.keepsAlive = keepsAlive
  }

  /// Whether a proxy forwarded it and reports this in `Via` (RFC 9110, section 7.6.3), `Forwarded` (RFC 7239) or the
  /// older `X-Forwarded-For`.
  package var wasForwarded: Bool { ["via", "forwarded", "x-forwarded-for"].contains { fields.count($0) > 0 } }
}
