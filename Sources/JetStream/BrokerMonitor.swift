// Queries the monitoring port of a broker with libcurl.

internal import CCurl
internal import Glibc

/// The monitoring port of a broker (`http_port` or `https_port` in its configuration).
public struct BrokerMonitor: Sendable, Equatable {
  /// As it was given.
  public let url: String
  /// The URL of the document that ``ask(authorityFile:)`` requests.
  let document: String

  /// Creates the description of a monitoring port.
  ///
  /// - Parameter url: `http://HOST:PORT` or `https://HOST:PORT`, with a path in front of `/varz` if there is one.
  ///   Without a port it is 8222. nil if it is not such a URL.
  public init?(_ url: String) {
    guard ["http://", "https://"].contains(where: url.hasPrefix), url.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F }),
      let parts = curl_url()
    else { return nil }
    defer { curl_url_cleanup(parts) }
    func has(_ part: CURLUPart) -> Bool {
      var text: UnsafeMutablePointer<CChar>?
      defer { curl_free(text) }
      return curl_url_get(parts, part, &text, 0) == CURLUE_OK
    }
    guard curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK,
      ![CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY, CURLUPART_FRAGMENT].contains(where: has)
    else { return nil }
    if !has(CURLUPART_PORT) { curl_url_set(parts, CURLUPART_PORT, "8222", 0) }
    var whole: UnsafeMutablePointer<CChar>?
    guard curl_url_get(parts, CURLUPART_URL, &whole, 0) == CURLUE_OK, let whole else { return nil }
    defer { curl_free(whole) }
    let base = String(cString: whole)
    (self.url, document) = (url, base + (base.hasSuffix("/") ? "varz" : "/varz"))
  }

  /// The limits for connecting and for the whole request, in milliseconds.
  private static let (patience, longestTime) = (3000, 10_000)
  private static let longestAnswer = 1 << 20

  /// Queries the broker, and waits for its answer. Do not call it on the thread of a loop.
  ///
  /// - Parameter authorityFile: the path of a PEM file with the authorities that may sign its certificate; nil for the
  ///   system's.
  /// - Throws: ``BrokerError/unreachable(_:)`` or ``BrokerError/invalidReply(_:)``.
  package func ask(authorityFile: String? = nil) throws(BrokerError) -> BrokerFacts {
    guard let easy = curl_easy_init() else { throw .resources("libcurl cannot be initialized") }
    defer { curl_easy_cleanup(easy) }
    var answer: [UInt8] = []
    let result = withUnsafeMutablePointer(to: &answer) { answer in
      _ = sluice_setopt_string(easy, CURLOPT_URL, document)
      _ = sluice_setopt_string(easy, CURLOPT_PROTOCOLS_STR, "http,https")
      // Brokers are never queried through a proxy, whatever the environment specifies.
      _ = sluice_setopt_string(easy, CURLOPT_NOPROXY, "*")
      _ = sluice_setopt_long(easy, CURLOPT_NOSIGNAL, 1)
      _ = sluice_setopt_long(easy, CURLOPT_CONNECTTIMEOUT_MS, Self.patience)
      _ = sluice_setopt_long(easy, CURLOPT_TIMEOUT_MS, Self.longestTime)
      if let authorityFile { _ = sluice_setopt_string(easy, CURLOPT_CAINFO, authorityFile) }
      _ = sluice_setopt_pointer(easy, CURLOPT_WRITEDATA, answer)
      _ = sluice_setopt_transfer(easy, CURLOPT_WRITEFUNCTION) { bytes, size, count, context in
        guard let bytes, let context else { return 0 }
        let answer = context.assumingMemoryBound(to: [UInt8].self)
        guard answer.pointee.count + size * count <= BrokerMonitor.longestAnswer else { return 0 }
        answer.pointee += UnsafeRawBufferPointer(start: bytes, count: size * count)
        return size * count
      }
      return curl_easy_perform(easy)
    }
    guard result == CURLE_OK else { throw failure(result, of: easy) }
    var status = 0
    _ = sluice_getinfo_long(easy, CURLINFO_RESPONSE_CODE, &status)
    guard status == 200 else { throw .invalidReply("\(url) answers with \(status)") }
    return try BrokerFacts(try APIReply(answer))
  }

  private func failure(_ result: CURLcode, of easy: UnsafeMutableRawPointer) -> BrokerError {
    switch result {
    case CURLE_WRITE_ERROR: return .invalidReply("\(url) answers with too much")
    // Anything that is not a head of HTTP/1 would be HTTP/0.9, which libcurl rejects.
    case CURLE_UNSUPPORTED_PROTOCOL, CURLE_WEIRD_SERVER_REPLY, CURLE_GOT_NOTHING, CURLE_HTTP2:
      return .invalidReply("\(url) does not speak HTTP")
    default:
      var number = 0
      // For other failures it would belong to an address that was tried before.
      if result == CURLE_COULDNT_CONNECT { _ = sluice_getinfo_long(easy, CURLINFO_OS_ERRNO, &number) }
      let words = number == 0 ? curl_easy_strerror(result) : UnsafePointer(strerror(Int32(truncatingIfNeeded: number)))
      return .unreachable("\(url): \(words.map { String(cString: $0) } ?? "error \(number)")")
    }
  }
}
