// What a request says before its body, as values: nothing here knows how it was read.

/// The fields of a request or a response, in the order in which they came. Names are stored in lower case.
///
/// Every field here can be sent: its name is a token, and its value has no control character but the tab (RFC 9110,
/// section 5.5). A field that breaks these rules is not added. ``isValid`` is false from then on, and a response with
/// such fields is answered as a failure of its handler.
public struct HeaderFields: Sendable, Equatable, ExpressibleByDictionaryLiteral {
  public struct Field: Sendable, Equatable {
    /// In lower case: field names compare without regard to case (RFC 9110, section 5.1).
    public let name: String
    /// Without the white space around it. Octets that are not UTF-8 are shown as U+FFFD.
    public let value: String

    /// Of a name and a value that were checked before.
    package init(checkedName name: String, checkedValue value: String) {
      self.name = name
      self.value = value
    }
  }

  public private(set) var all: [Field] = []
  /// Whether every field that was to be added is here.
  public private(set) var isValid = true

  public init() {}

  public init(dictionaryLiteral elements: (String, String)...) {
    for (name, value) in elements { append(name, value) }
  }

  /// Adds a field, without the white space around its value. A field with an invalid name or value is not added; see
  /// ``isValid``.
  public mutating func append(_ name: String, _ value: String) {
    guard !name.isEmpty, name.utf8.allSatisfy(Octet.isToken), value.utf8.allSatisfy(Octet.isFieldContent) else {
      isValid = false
      return
    }
    let isLower = name.utf8.allSatisfy { Octet.lowercased($0) == $0 }
    let isTrimmed = value.utf8.first.map(Octet.isBlank) != true && value.utf8.last.map(Octet.isBlank) != true
    append(
      Field(
        checkedName: isLower ? name : name.lowercasedASCII, checkedValue: isTrimmed ? value : Self.trimmed(value)))
  }

  /// Adds a field that was checked before.
  package mutating func append(_ field: Field) { all.append(field) }

  private static func trimmed(_ value: String) -> String {
    var octets = Substring(value).utf8
    while let first = octets.first, Octet.isBlank(first) { octets.removeFirst() }
    while let last = octets.last, Octet.isBlank(last) { octets.removeLast() }
    return String(Substring(octets))
  }

  /// The only value of `name` (lower case), or nil if there is none, or more than one: fields that must be single
  /// are ambiguous when they are not, and the caller asks `count` to tell the two apart.
  public func single(_ name: String) -> String? {
    var found: String?
    for field in all where field.name == name {
      if found != nil { return nil }
      found = field.value
    }
    return found
  }

  /// How many fields have this `name` (lower case).
  public func count(_ name: String) -> Int {
    var count = 0
    for field in all where field.name == name { count += 1 }
    return count
  }
}

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
  public var method: String
  public var target: RequestTarget
  /// The minor version: 0 for HTTP/1.0, 1 for HTTP/1.1 and anything newer in the same major version.
  public var minorVersion: Int
  public var fields: HeaderFields
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
