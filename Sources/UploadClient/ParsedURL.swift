// URLs, taken apart by the same parser that will connect to them: two parsers that disagree about a host are a way past
// every check.

internal import CCurl

/// An `http` or `https` URL in its parts, as libcurl reads them.
struct ParsedURL: Equatable {
  /// `http` or `https`.
  var scheme: String
  /// As it stands, percent-encoded; nil without one.
  var user: String?
  var password: String?
  /// In lower case, an IPv6 address in its brackets and in its shortest form, with its zone.
  var host: String
  /// Its number, also where the URL does not say it.
  var port: String
  /// Begins with a slash; its dot segments are resolved (RFC 3986, section 5.2.4).
  var path: String
  /// Without the question mark; nil where there is none or it is empty.
  var query: String?

  /// - Parameters:
  ///   - text: absolute, or, with a `base`, a reference relative to it (RFC 3986, section 4.2). A fragment is left out:
  ///     it is not sent.
  init?(_ text: String, relativeTo base: ParsedURL? = nil) {
    // What a URI may hold at all; libcurl is more generous. A person who writes a URL may have letters beyond ASCII, a
    // server not.
    guard text.utf8.allSatisfy({ $0 > 0x20 && $0 != 0x7F && ($0 < 0x80 || base == nil) }) else { return nil }
    let reference = Substring(text.utf8.prefix { $0 != UInt8(ascii: "#") })
    guard let handle = curl_url() else { return nil }
    defer { curl_url_cleanup(handle) }
    if let base {
      guard curl_url_set(handle, CURLUPART_URL, base.text, 0) == CURLUE_OK else { return nil }
      // Nothing but a fragment: the same document.
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
      // Not repaired: two names that are no text must not become one.
      return String(validatingCString: found)
    }
    guard let scheme = part(CURLUPART_SCHEME)?.lowercased(), ["http", "https"].contains(scheme),
      let host = part(CURLUPART_HOST)?.lowercased(), let port = part(CURLUPART_PORT, CURLU_DEFAULT_PORT),
      let path = part(CURLUPART_PATH),
      // libcurl decodes a host's percent-encodings.
      host.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F }) || base == nil || base?.host == host
    else { return nil }
    self.scheme = scheme
    self.path = path
    // "80" and "0080" are one port.
    guard let number = UInt16(port), number > 0 else { return nil }
    self.port = String(number)
    user = part(CURLUPART_USER)
    password = part(CURLUPART_PASSWORD)
    query = part(CURLUPART_QUERY)
    if let zone = part(CURLUPART_ZONEID), host.hasSuffix("]") {
      // As it is written in a URL, RFC 6874.
      self.host = "\(host.dropLast())%25\(zone)]"
    } else {
      self.host = host
    }
  }

  /// Whether a URL says its scheme, as libcurl does not demand. By bytes, as everything here that each request of a
  /// stream needs: a search for characters takes a hundred times as long.
  static func hasScheme(_ text: String) -> Bool {
    text.utf8.drop { $0 != UInt8(ascii: ":") }.starts(with: "://".utf8)
  }

  /// The whole, put together by hand: libcurl's setters change the case of percent-encodings, which may be a part of a
  /// name.
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
