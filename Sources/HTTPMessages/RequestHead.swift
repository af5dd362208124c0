// What a request says before its body, as values: nothing here knows how it was read.

/// How the end of a body is known (RFC 9112, section 6.3).
public enum BodyFraming: Equatable, Sendable {
  /// Neither `Content-Length` nor `Transfer-Encoding`: there is no body.
  case absent
  /// `Content-Length`, in bytes; zero is a body too, an empty one.
  case sized(UInt64)
  /// `Transfer-Encoding: chunked`.
  case chunked
}

/// A request line and its fields, checked (RFC 9112, sections 3 and 5).
public struct RequestHead: Equatable, Sendable {
  /// The method as it was sent; methods are case-sensitive.
  public var method: String
  /// What the request is about.
  public var target: RequestTarget
  /// The minor version: 0 for HTTP/1.0, 1 for HTTP/1.1 and anything newer in the same major version.
  public var minorVersion: Int
  /// All fields, in the order in which they were sent.
  public var fields: HeaderFields
  /// How the end of the body is found.
  public var framing: BodyFraming
  /// Whether the client waits for `100 Continue` before it sends the body (RFC 9110, section 10.1.1).
  public var expectsContinue: Bool
  /// What identifies the credential that the request was let in by, where the server asks for one: the SHA-256 of a
  /// bearer token, and not the token.
  public package(set) var credential: [UInt8]?
  /// Whether the client is willing to use the connection again (RFC 9112, section 9.3).
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

  /// Whether it came through a proxy that says so: RFC 9110, section 7.6.3; RFC 7239; and what was there before them.
  package var wasForwarded: Bool { ["via", "forwarded", "x-forwarded-for"].contains { fields.count($0) > 0 } }
}
