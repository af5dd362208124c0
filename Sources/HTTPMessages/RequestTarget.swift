// The request target (RFC 9112, section 3.2), which is the only part of a request line with its own grammar.

/// The target of a request.
public struct RequestTarget: Equatable, Sendable {
  /// The four forms of a target (RFC 9112, section 3.2).
  public enum Form: Equatable, Sendable {
    /// `/path?query`
    case origin
    /// `http://host/path?query`. A client sends it to a proxy, and every server must accept it.
    case absolute
    /// `host:port`, only for CONNECT.
    case authority
    /// `*`, only for OPTIONS.
    case asterisk
  }

  /// The form of the target.
  public let form: Form
  /// The path as it was sent, with percent-encoding and dot segments. Empty for `authority` and `asterisk`.
  public let path: String
  /// The text after the first question mark, or nil.
  public let query: String?

  /// Path and query, as in the origin form.
  package var text: String { query.map { "\(path)?\($0)" } ?? path }

  /// Reads a target. Throws 400 for octets that RFC 3986 does not allow unescaped, for broken percent-encoding, for an
  /// encoded NUL (which no file name can contain), and for user information (RFC 9110, section 4.2.4).
  package init(_ octets: Span<UInt8>, method: String) throws(RequestRefusal) {
    guard octets.count > 0 else { throw RequestRefusal(400, "the request target is empty") }
    if method == "CONNECT" {
      for index in octets.indices where !Octet.isAuthority(octets[index]) {
        throw RequestRefusal(400, "the target of CONNECT is not a host and port")
      }
      (form, path, query) = (.authority, "", nil)
      return
    }
    if octets.count == 1 && octets[0] == UInt8(ascii: "*") {
      guard method == "OPTIONS" else { throw RequestRefusal(400, "the target * is valid only with OPTIONS") }
      (form, path, query) = (.asterisk, "", nil)
      return
    }
    var start = 0
    if octets[0] == UInt8(ascii: "/") {
      form = .origin
    } else {
      form = .absolute
      start = try Self.endOfAuthority(octets)
    }
    var end = octets.count
    var index = start
    while index < octets.count {
      let octet = octets[index]
      if octet == UInt8(ascii: "%") {
        guard index + 2 < octets.count, let high = Octet.hexValue(octets[index + 1]),
          let low = Octet.hexValue(octets[index + 2])
        else { throw RequestRefusal(400, "the request target has a % that is not followed by two hexadecimal digits") }
        guard high != 0 || low != 0 else { throw RequestRefusal(400, "the request target contains an encoded NUL") }
        index += 3
        continue
      }
      guard Octet.isPathOrQuery(octet) else {
        throw RequestRefusal(400, "the request target contains a character that must be percent-encoded")
      }
      if octet == UInt8(ascii: "?") && end == octets.count { end = index }
      index += 1
    }
    // An absolute form may omit the path, which is then "/" (RFC 9110, section 4.2.3).
    path = start == end ? "/" : String(decodingASCII: octets.extracting(start..<end))
    query = end == octets.count ? nil : String(decodingASCII: octets.extracting((end + 1)..<octets.count))
  }

  /// The position at which the path begins in `http://authority/path`.
  private static func endOfAuthority(_ octets: Span<UInt8>) throws(RequestRefusal) -> Int {
    var authority: Int?
    for scheme in ["http://", "https://"] where octets.starts(withLowercase: scheme) { authority = scheme.utf8.count }
    guard let authority else { throw RequestRefusal(400, "the request target is neither a path nor an http URL") }
    var end = authority
    while end < octets.count, octets[end] != UInt8(ascii: "/"), octets[end] != UInt8(ascii: "?") {
      guard Octet.isAuthority(octets[end]) else {
        throw RequestRefusal(400, "the host of the request target is malformed")
      }
      end += 1
    }
    guard end > authority else { throw RequestRefusal(400, "the request target has no host") }
    return end
  }
}

extension Span<UInt8> {
  /// Whether this begins with `prefix` apart from the case of letters. `prefix` is ASCII in lower case.
  @inlinable package func starts(withLowercase prefix: String) -> Bool {
    guard count >= prefix.utf8.count else { return false }
    var index = 0
    for expected in prefix.utf8 {
      guard Octet.lowercased(self[index]) == expected else { return false }
      index += 1
    }
    return true
  }

  /// Whether this equals `word` apart from the case of letters. `word` is ASCII in lower case.
  @inlinable package func equals(lowercase word: String) -> Bool {
    count == word.utf8.count && starts(withLowercase: word)
  }
}

extension String {
  /// The text of octets that were checked to be ASCII, or that are only shown.
  package init(decodingASCII octets: Span<UInt8>) {
    self = octets.withUnsafeBufferPointer { String(decoding: $0, as: UTF8.self) }
  }
}
