// URLs, parsed by the same parser that connects to them. Two parsers that disagree about a host would open a way around
// every check.

internal import CCurl

/// The parts of an `http` or `https` URL, as libcurl parses them.
struct ParsedURL: Equatable {
  /// `http` or `https`.
  var scheme: String
  /// As written, percent-encoded. Nil without one.
  var user: String?
  var password: String?
  /// In lower case. An IPv6 address is in brackets and in its shortest form, with its zone.
  var host: String
  /// The port number, even if the URL does not state it.
  var port: String
  /// Begins with a slash. Its dot segments are resolved (RFC 3986, section 5.2.4).
  var path: String
  /// Without the question mark. Nil if there is none or it is empty.
  var query: String?

  /// - Parameters:
  ///   - text: an absolute URL or, with a `base`, a reference relative to it (RFC 3986, section 4.2). A fragment is
  ///     omitted, because it is not sent.
  init?(_ text: String, relativeTo base: ParsedURL? = nil) {
    // The characters that a URI allows. libcurl accepts more. A URL from a person may have letters beyond ASCII, a URL
    // from a server may not.
    guard text.utf8.allSatisfy({ $0 > 0x20 && $0 != 0x7F && ($0 < 0x80 || base == nil) }) else { return nil }
    let reference = Substring(text.utf8.prefix { $0 != UInt8(ascii: "#") })
    guard let handle = curl_url() else { return nil }
    defer { curl_url_cleanup(handle) }
    if let base {
      guard curl_url_set(handle, CURLUPART_URL, base.text, 0) == CURLUE_OK else { return nil }
      // Only a fragment: the same document.
      guard reference.isEmpty || curl_url_set(handle, CURLUPART_URL, String(reference), 0) == CURLUE_OK else {
        return nil
      }
    } else {
      guard Self.hasScheme(text), curl_url_set(handle, CURLUPART_URL, String(reference), 0) == CURLUE_OK else {
        return nil
      }
    }
    func part(_ what: CURLUPart, _ flags: Int32 = 0) -> String? {
      var found: UnsafeMutablePointer<CChar>?
      guard curl_url_get(handle, what, &found, UInt32(flags)) == CURLUE_OK, let found else { return nil }
      defer { curl_free(found) }
      // Not repaired, because two invalid names must not become equal.
      return String(validatingCString: found)
    }
    guard let scheme = part(CURLUPART_SCHEME)?.lowercased(), ["http", "https"].contains(scheme),
      let host = part(CURLUPART_HOST)?.lowercased(), let port = part(CURLUPART_PORT, CURLU_DEFAULT_PORT),
      let path = part(CURLUPART_PATH),
      // libcurl decodes the percent-encodings of a host.
      host.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F }) || base == nil || base?.host == host
    else { return nil }
    self.scheme = scheme
    self.path = path
    // "80" and "0080" are the same port.
    guard let number = UInt16(port), number > 0 else { return nil }
    self.port = String(number)
    user = part(CURLUPART_USER)
    password = part(CURLUPART_PASSWORD)
    query = part(CURLUPART_QUERY)
    if let zone = part(CURLUPART_ZONEID), host.hasSuffix("]") {
      // As written in a URL, RFC 6874.
      self.host = "\(host.dropLast())%25\(zone)]"
    } else {
      self.host = host
    }
  }

  /// Whether a URL states its scheme, which libcurl does not require. It compares bytes, like all code here that each
  /// request of a stream uses, because searching for characters takes a hundred times as long.
  static func hasScheme(_ text: String) -> Bool {
    text.utf8.drop { $0 != UInt8(ascii: ":") }.starts(with: "://".utf8)
  }

  /// The complete URL, assembled manually. libcurl's setters change the case of percent-encodings, which may be part of
  /// a name.
  var text: String {
    var credentials = ""
    if user != nil || password != nil { credentials = (user ?? "") + (password.map { ":\($0)" } ?? "") + "@" }
    return "\(scheme)://\(credentials)\(host)\(hasDefaultPort ? "" : ":\(port)")\(path)"
      + (query.map { "?\($0)" } ?? "")
  }

  /// Scheme, host and port (RFC 6454, section 4), always with the port.
  var origin: String { "\(scheme)://\(host):\(port)" }

  private var hasDefaultPort: Bool { port == (scheme == "https" ? "443" : "80") }
}
