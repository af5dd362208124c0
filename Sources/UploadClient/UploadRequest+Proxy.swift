// The proxy that libcurl will use. It is checked before the first attempt, because libcurl only reports "connection
// failed".

internal import CCurl

extension UploadRequest {
  /// Whether libcurl can use this text as a proxy: a URL, or a host and a port.
  package static func isProxy(_ text: String) -> Bool { host(ofProxy: text) != nil }

  /// The host of a proxy, in lower case. Nil if libcurl cannot use the text as one.
  package static func host(ofProxy text: String) -> String? {
    guard let handle = curl_url() else { return nil }
    defer { curl_url_cleanup(handle) }
    // libcurl would use a host of that name and a path, which a proxy cannot have.
    guard !text.lowercased().hasPrefix("unix:/") else { return nil }
    // As libcurl itself parses it.
    let flags = UInt32(CURLU_NON_SUPPORT_SCHEME | CURLU_GUESS_SCHEME)
    var scheme: UnsafeMutablePointer<CChar>?
    var host: UnsafeMutablePointer<CChar>?
    defer {
      curl_free(scheme)
      curl_free(host)
    }
    guard curl_url_set(handle, CURLUPART_URL, text, flags) == CURLUE_OK,
      curl_url_get(handle, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK, let scheme,
      curl_url_get(handle, CURLUPART_HOST, &host, 0) == CURLUE_OK, let host, host.pointee != 0
    else { return nil }
    // A text without a scheme is an HTTP proxy, regardless of the beginning of its host's name.
    let isKnown =
      !text.contains("://")
      || ["http", "https", "socks", "socks4", "socks4a", "socks5", "socks5h"].contains(
        String(cString: scheme).lowercased())
    return isKnown ? String(cString: host).lowercased() : nil
  }
}
