// Converts URLs as people write them to URLs that a request can carry.

internal import CCurl
internal import Glibc

extension UploadRequest {
  /// `url` in ASCII: an international host name in IDNA encoding (RFC 5891), and every other octet percent-encoded (RFC
  /// 3987, section 3.1).
  ///
  /// - Returns: nil for a host name that cannot be encoded. An invalid URL is returned unchanged, and is refused later.
  package static func ascii(_ url: String) -> String? {
    guard !url.utf8.allSatisfy({ $0 < 0x80 }), let colon = url.firstRange(of: "://") else { return url }
    let authority = url[colon.upperBound...].prefix { !"/?#".contains($0) }
    let hostStart = authority.lastIndex(of: "@").map { authority.index(after: $0) } ?? authority.startIndex
    let hostAndPort = authority[hostStart...]
    let host = hostAndPort.prefix { $0 != ":" }
    guard let encoded = host.utf8.allSatisfy({ $0 < 0x80 }) ? String(host) : asciiHost(host) else { return nil }
    return percentEncoded(url[..<hostStart]) + encoded + percentEncoded(url[host.endIndex...])
  }

  /// Whether ``url`` names a host and a port for a connection. libcurl skips a third slash.
  package var hasUsableURL: Bool {
    guard let scheme = url.firstRange(of: "://"), url[scheme.upperBound...].first != "/" else { return false }
    return ParsedURL(url) != nil
  }

  /// The family of the address in ``url``. Nil if it has a host name.
  package var literalFamily: AddressFamily? {
    guard let host = ParsedURL(url)?.host else { return nil }
    if host.hasPrefix("[") { return .ipv6 }
    var address = in_addr()
    return inet_pton(AF_INET, host, &address) == 1 ? .ipv4 : nil
  }

  /// libcurl's own conversion, because it determines the host of the connection.
  private static func asciiHost(_ host: Substring) -> String? {
    // libcurl reads host names in the thread's character set, which is ASCII in the C locale.
    let utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nil)
    let previous = uselocale(utf8)
    defer {
      uselocale(previous)
      if let utf8 { freelocale(utf8) }
    }
    guard let handle = curl_url() else { return nil }
    defer { curl_url_cleanup(handle) }
    var found: UnsafeMutablePointer<CChar>?
    guard curl_url_set(handle, CURLUPART_URL, "http://\(host)/", 0) == CURLUE_OK,
      curl_url_get(handle, CURLUPART_HOST, &found, UInt32(CURLU_PUNYCODE)) == CURLUE_OK, let found
    else { return nil }
    defer { curl_free(found) }
    return String(validatingCString: found).flatMap { $0.utf8.allSatisfy { $0 < 0x80 } ? $0 : nil }
  }

  private static func percentEncoded(_ text: Substring) -> String {
    text.utf8.map { $0 < 0x80 ? String(Unicode.Scalar($0)) : percentEncoded($0) }.joined()
  }

  private static func percentEncoded(_ octet: UInt8) -> String {
    "%" + String(0x100 + Int(octet), radix: 16, uppercase: true).dropFirst()
  }

  /// `url` with the name of the file at `path` after its last slash, as with curl's `-T`, if the URL's path names no
  /// file. All characters of the name but unreserved ones are percent-encoded (RFC 3986, section 2.3). The query stays.
  package static func appending(nameOf path: String, to url: String) -> String {
    let name = path.split(separator: "/").last.map(String.init) ?? path
    let start = url.firstRange(of: "://")?.upperBound ?? url.startIndex
    let pathEnd = url[start...].firstIndex { "?#".contains($0) } ?? url.endIndex
    let whole = url[start..<pathEnd]
    // An empty query keeps the URL unchanged, because some servers accept uploads at a path that ends with a slash.
    if url[pathEnd...] == "?" { return url }
    // Without a slash after the host, there is no path.
    guard whole.hasSuffix("/") || !whole.contains("/") else { return url }
    let encoded = name.utf8.map { octet in
      switch octet {
      case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
        UInt8(ascii: "0")...UInt8(ascii: "9"):
        String(Unicode.Scalar(octet))
      case _ where "-._~".utf8.contains(octet): String(Unicode.Scalar(octet))
      default: percentEncoded(octet)
      }
    }.joined()
    return url[..<pathEnd] + (whole.hasSuffix("/") ? "" : "/") + encoded + url[pathEnd...]
  }
}
