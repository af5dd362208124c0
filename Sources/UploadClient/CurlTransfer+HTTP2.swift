// Requests that must use HTTP/2. libcurl falls back to HTTP/1.1 if a server offers no more, and reports this only with
// the response. An endless stream would never learn its protocol version.

internal import CCurl
internal import CLinux
internal import EventLoops
internal import Glibc

extension UploadRequest {
  /// Whether this request uses TLS to its server.
  package var isSecure: Bool { url.lowercased().hasPrefix("https:") }
}

extension UploadSession {
  /// The version of the loaded libcurl if it cannot put a second request on an HTTP/2 connection without TLS. Otherwise
  /// nil.
  ///
  /// libcurl 7.88 restarts such a connection in the middle of the first request's body (curl issue 10634), 8.0.0 does
  /// not. With such a libcurl, each request gets its own connection, regardless of ``Connections``.
  package static var cannotReusePlainHTTP2: String? {
    let version = CurlOptions.version
    return (0x07_58_00..<0x08_00_00).contains(version.version_num) ? "libcurl \(String(cString: version.version))" : nil
  }
}

extension AcknowledgedBytes {
  /// The number of bytes that libcurl may retain for HTTP/2 besides its upload buffer: a frame that the socket did not
  /// accept, and since 8.0 up to 64 KiB that wait for the peer's flow control.
  static let heldForHTTP2 = (CurlOptions.version.version_num < 0x08_00_00 ? 16 : 80) << 10
}

extension UploadRequest {
  /// Whether the body is sent unchanged. libcurl reports the HTTP version only with the response. Without TLS, the
  /// version is not negotiated.
  package var hasPlainFraming: Bool { !isSecure && httpVersion != .http2 }

  /// The most bytes of a body that libcurl may retain in its own buffers if the framing is not plain.
  package var mostHeldByteCount: Int {
    let mayBeHTTP2 = httpVersion == .http2 || httpVersion == .negotiated && isSecure
    return uploadBufferSize.addingSaturated(mayBeHTTP2 ? AcknowledgedBytes.heldForHTTP2 : 0)
  }
}

extension CurlOptions {
  /// The loaded libcurl. Never nil. All versions have the fields that are read here.
  static var version: curl_version_info_data { curl_version_info(CURLVERSION_FIRST)!.pointee }

  func setConnectionUse(_ request: UploadRequest) throws(UploadError) {
    if request.usesFreshConnection { try set(CURLOPT_FRESH_CONNECT, 1) }
    guard request.httpVersion == .http2, !request.isSecure, UploadSession.cannotReusePlainHTTP2 != nil else { return }
    try set(CURLOPT_FRESH_CONNECT, 1)
    try set(CURLOPT_FORBID_REUSE, 1)
  }
}

extension CurlTransfer {
  /// Makes libcurl report the request's head, whose first line has the version that TLS negotiated.
  func watchHTTPVersion(_ context: UnsafeMutableRawPointer) {
    guard request.httpVersion == .http2, request.isSecure else { return }
    _ = sluice_setopt_long(easy, CURLOPT_VERBOSE, 1)
    _ = sluice_setopt_pointer(easy, CURLOPT_DEBUGDATA, context)
    _ = sluice_setopt_debug(easy) { easy, kind, bytes, count, context in
      let head = UnsafeRawBufferPointer(start: bytes, count: count)
      // The HTTP/1.1 request to a proxy is not the request itself.
      guard kind == CURLINFO_HEADER_OUT, !head.starts(with: "CONNECT ".utf8) else { return 0 }
      _ = sluice_setopt_long(easy, CURLOPT_VERBOSE, 0)
      // Never nil, because it was set above.
      let transfer = Unmanaged<CurlTransfer>.fromOpaque(context!).takeUnretainedValue()
      let line = head.prefix { $0 != UInt8(ascii: "\r") }
      if line.suffix(9).elementsEqual(" HTTP/1.1".utf8) {
        transfer.doesNotSpeakHTTP2("TLS negotiated HTTP/1.1")
      }
      return 0
    }
  }

  /// The current request is aborted at libcurl's next callback, and is not started again.
  func doesNotSpeakHTTP2(_ reason: String) {
    ownFailure = UploadError(.http2NotSupported, "the server does not support HTTP/2: \(reason)")
  }
}

extension CurlMulti {
  /// Inspects the first bytes on a connection before libcurl, which would report no usable error. A server that
  /// supports HTTP/2 begins with a frame (RFC 9113, section 3.4). Any other server answers that the request is bad.
  func look(atPrefaceOn socket: curl_socket_t) {
    guard let connection = connections[socket] else { return }
    var bytes: (UInt8, UInt8, UInt8, UInt8, UInt8) = (0, 0, 0, 0, 0)
    let isHTTP1 = withUnsafeMutableBytes(of: &bytes) { bytes in
      let count = try? retryingInterrupts("recv") {
        recv(socket, bytes.baseAddress, bytes.count, Int32(MSG_PEEK) | Int32(MSG_DONTWAIT))
      }
      return count == bytes.count && bytes.elementsEqual("HTTP/".utf8)
    }
    guard isHTTP1 else { return }
    for transfer in users(of: connection) {
      transfer.doesNotSpeakHTTP2("it answers in HTTP/1.1")
      transfer.ended(CURLE_OK)
    }
  }

  /// All transfers whose requests use this connection.
  func users(of connection: Connection) -> [CurlTransfer] {
    guard sharesConnections else { return connection.user.map { [$0] } ?? [] }
    return transfers.values.filter { $0.connection === connection }
  }
}
