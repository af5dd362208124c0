// An upload request as libcurl options.

internal import CCurl
internal import CLinux
internal import EventLoops
internal import Glibc
internal import HTTPMessages

/// Sets a request's options on an easy handle, and keeps the list that must live as long.
struct CurlOptions {
  let easy: UnsafeMutableRawPointer
  private(set) var fieldList: UnsafeMutablePointer<curl_slist>?

  init(easy: UnsafeMutableRawPointer) { self.easy = easy }

  /// - Throws: ``UploadError`` for the first option that libcurl refuses.
  mutating func set(_ request: UploadRequest, _ body: UploadBody.Kind) throws(UploadError) {
    try set(CURLOPT_URL, request.url)
    try set(body, method: request.method)
    try set(CURLOPT_PROTOCOLS_STR, "http,https")
    try set(CURLOPT_HTTP_VERSION, Self.number(of: request.httpVersion))
    try set(CURLOPT_USERAGENT, "sluice/\(sluiceVersion)")
    // libcurl's own timeouts by signals would hit any running thread.
    try set(CURLOPT_NOSIGNAL, 1)
    try set(CURLOPT_UPLOAD_BUFFERSIZE, request.uploadBufferSize)
    try set(CURLOPT_BUFFERSIZE, request.receiveBufferSize)
    try set(CURLOPT_CONNECTTIMEOUT_MS, Self.milliseconds(request.limits.connect))
    // Otherwise, a request that ends during a lookup would wait for it, and so would the loop with all other streams.
    // See NameLookups.
    try set(CURLOPT_QUICK_EXIT, 1)
    // In seconds. Without any time, thousands of streams that retry together would each start a lookup's thread.
    if request.looksUpAgain { try set(CURLOPT_DNS_CACHE_TIMEOUT, 1) }
    // A proxy's response to CONNECT is not the server's response.
    try set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1)
    if let encoding = request.acceptEncoding { try set(CURLOPT_ACCEPT_ENCODING, encoding) }
    if let rate = request.maximumSendRate {
      try check(
        CURLOPT_MAX_SEND_SPEED_LARGE,
        sluice_setopt_offset(easy, CURLOPT_MAX_SEND_SPEED_LARGE, curl_off_t(clamping: max(1, rate))))
    }
    try setConnectionUse(request)
    try setFields(request)
    try setCredentials(request)
    try setRoute(request)
  }

  /// At least 1, because libcurl and the kernel treat 0 as "the default", and at most the maximum of both.
  static func milliseconds(_ limit: Duration) -> Int {
    Int(max(1, min(limit.nanoseconds / 1_000_000, Int64(Int32.max))))
  }

  private static func number(of version: UploadRequest.HTTPVersion) -> Int {
    switch version {
    case .negotiated: Int(CURL_HTTP_VERSION_2TLS)
    case .http1: Int(CURL_HTTP_VERSION_1_1)
    case .http2: Int(CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE)
    }
  }

  private func set(_ body: UploadBody.Kind, method: String) throws(UploadError) {
    switch body {
    case .none:
      // Otherwise, libcurl would expect a body after the Content-Length of the response (RFC 9112, section 6.3).
      if method == "HEAD" { try set(CURLOPT_NOBODY, 1) }
    case .length(let count):
      try set(CURLOPT_UPLOAD, 1)
      try check(
        CURLOPT_INFILESIZE_LARGE, sluice_setopt_offset(easy, CURLOPT_INFILESIZE_LARGE, curl_off_t(clamping: count)))
    case .unknownLength:
      // An upload with a renamed method, which gives any method a chunked body of unknown length.
      try set(CURLOPT_UPLOAD, 1)
    }
    try set(CURLOPT_CUSTOMREQUEST, method)
  }

  /// Checks a URL without connecting, with libcurl's own parser.
  static func validate(url: String) throws(UploadError) {
    // Only for errors. For each request, it would cost ten times as much as the check.
    func shown(_ url: String) -> String { quoted(UploadRequest.withoutSecrets(url)) }
    guard let parsed = curl_url() else { throw UploadError(.other, "out of memory") }
    defer { curl_url_cleanup(parsed) }
    guard ParsedURL.hasScheme(url) else {
      // A path has no host that could follow the scheme. Two slashes begin a host.
      let isPath = url.isEmpty || url.hasPrefix("/") && !url.hasPrefix("//")
      let whole = isPath ? "http://HOST\(url)" : url.hasPrefix("//") ? "http:" + url : "http://" + url
      throw UploadError(.invalidRequest, "the URL \(shown(url)) has no scheme. Write \(shown(whole)), or https://")
    }
    let code = curl_url_set(parsed, CURLUPART_URL, url, 0)
    guard code == CURLUE_OK else {
      throw UploadError(
        .invalidRequest,
        "the URL \(shown(url)) is invalid: \(String(cString: curl_url_strerror(code)).lowercased())")
    }
    var scheme: UnsafeMutablePointer<CChar>?
    curl_url_get(parsed, CURLUPART_SCHEME, &scheme, 0)
    defer { curl_free(scheme) }
    guard let scheme, ["http", "https"].contains(String(cString: scheme)) else {
      throw UploadError(
        .invalidRequest, "the URL \(shown(url)) is neither http:// nor https://. Write http:// or https://.")
    }
  }

  private mutating func setFields(_ request: UploadRequest) throws(UploadError) {
    // Without this, libcurl waits a second for a 100 that many servers never send.
    append("Expect:")
    for field in request.fields.all {
      // An empty value is written with a semicolon. Otherwise, libcurl would omit the field.
      append(field.value.isEmpty ? "\(field.rawName);" : "\(field.rawName): \(field.value)")
    }
    try check(CURLOPT_HTTPHEADER, sluice_setopt_slist(easy, CURLOPT_HTTPHEADER, fieldList))
  }

  private mutating func append(_ line: String) {
    fieldList = curl_slist_append(fieldList, line)
  }

  private func setCredentials(_ request: UploadRequest) throws(UploadError) {
    if let token = request.bearerToken {
      try set(CURLOPT_HTTPAUTH, Int(sluice_curlauth_bearer))
      try set(CURLOPT_XOAUTH2_BEARER, token)
    }
    if let file = request.netrcFile {
      try set(CURLOPT_NETRC, Int(CURL_NETRC_OPTIONAL.rawValue))
      try set(CURLOPT_NETRC_FILE, file)
    }
    if let file = request.certificateAuthorities { try set(CURLOPT_CAINFO, file) }
    if let file = request.clientCertificate {
      try set(CURLOPT_SSLCERT, file)
      // Otherwise, OpenSSL would ask a terminal for the pass phrase of an encrypted key, and the loop would wait for a
      // user.
      try set(CURLOPT_KEYPASSWD, "")
    }
    // libcurl reads it only beside a certificate.
    if let file = request.clientKey { try set(CURLOPT_SSLKEY, file) }
  }

  private func setRoute(_ request: UploadRequest) throws(UploadError) {
    if let proxy = request.proxy { try set(CURLOPT_PROXY, proxy) }
    if let address = request.localAddress { try set(CURLOPT_INTERFACE, address) }
    if let path = request.unixSocket { try set(CURLOPT_UNIX_SOCKET_PATH, path) }
    switch request.addressFamily {
    case .any: break
    case .ipv4: try set(CURLOPT_IPRESOLVE, Int(CURL_IPRESOLVE_V4))
    case .ipv6: try set(CURLOPT_IPRESOLVE, Int(CURL_IPRESOLVE_V6))
    }
  }

  func set(_ option: CURLoption, _ value: Int) throws(UploadError) {
    try check(option, sluice_setopt_long(easy, option, value))
  }

  private func set(_ option: CURLoption, _ value: String) throws(UploadError) {
    try check(option, sluice_setopt_string(easy, option, value))
  }

  private func check(_ option: CURLoption, _ code: CURLcode) throws(UploadError) {
    guard code != CURLE_OK else { return }
    let name = curl_easy_option_by_id(option).map { String(cString: $0.pointee.name) } ?? "number \(option.rawValue)"
    throw UploadError(
      .invalidRequest, "libcurl refuses the option \(name): \(String(cString: curl_easy_strerror(code)))")
  }
}

extension UploadRequest {
  /// Sets the request's options on a new socket. Options that the kernel refuses stay unchanged. A unix socket has no
  /// segments, for example.
  func apply(toSocket descriptor: Int32) {
    func set(_ level: Int32, _ option: Int32, _ value: Int) {
      var value = Int32(clamping: value)
      setsockopt(descriptor, level, option, &value, socklen_t(MemoryLayout<Int32>.size))
    }
    if let bytes = socket.sendBuffer { set(SOL_SOCKET, SO_SNDBUF, bytes) }
    if let bytes = socket.maximumSegment { set(Int32(IPPROTO_TCP), TCP_MAXSEG, bytes) }
    // In milliseconds. RFC 5482 describes the idea, and tcp(7) the option.
    set(Int32(IPPROTO_TCP), TCP_USER_TIMEOUT, CurlOptions.milliseconds(limits.unacknowledged))
  }
}
