// Requests that are to go over HTTP/2 and nothing else. libcurl takes HTTP/1.1 where a server offers no more, and says
// so only with the response: a stream that never ends would never learn what it is sent over.

internal import CCurl
internal import CLinux
internal import EventLoops
internal import Glibc

extension UploadRequest {
  /// Whether TLS is between this request and its server.
  package var isSecure: Bool { url.lowercased().hasPrefix("https:") }
}

extension UploadSession {
  /// The libcurl that is loaded, when it cannot put a second request on an HTTP/2 connection without TLS; nil for one
  /// that can.
  ///
  /// 7.88 begins such a connection anew in the midst of the first request's body (curl's issue 10634; 8.0.0 does not).
  /// Over such a libcurl each request gets a connection of its own, whatever ``Connections`` say.
  package static var cannotReusePlainHTTP2: String? {
    let version = CurlOptions.version
    return (0x07_58_00..<0x08_00_00).contains(version.version_num) ? "libcurl \(String(cString: version.version))" : nil
  }
}

extension AcknowledgedBytes {
  /// What libcurl may have taken for HTTP/2 and not passed on, besides its upload buffer, in bytes: a frame that the
  /// socket did not take, and since 8.0 up to 64 KiB that wait for the peer's flow control.
  static let heldForHTTP2 = (CurlOptions.version.version_num < 0x08_00_00 ? 16 : 80) << 10
}

extension UploadRequest {
  /// Whether the body goes out as it is. libcurl tells the HTTP version only with the response; without TLS nobody
  /// negotiates it.
  package var hasPlainFraming: Bool { !isSecure && httpVersion != .http2 }

  /// The most bytes of a body that libcurl may keep in buffers of its own where its framing is not plain.
  package var mostHeldByteCount: Int {
    let mayBeHTTP2 = httpVersion == .http2 || httpVersion == .negotiated && isSecure
    return uploadBufferSize.addingSaturated(mayBeHTTP2 ? AcknowledgedBytes.heldForHTTP2 : 0)
  }
}

extension CurlOptions {
  /// The libcurl that is loaded. Never nil; what is asked of it here has been there in all versions.
  static var version: curl_version_info_data { curl_version_info(CURLVERSION_FIRST)!.pointee }

  func setConnectionUse(_ request: UploadRequest) throws(UploadError) {
    guard request.httpVersion == .http2, !request.isSecure, UploadSession.cannotReusePlainHTTP2 != nil else { return }
    try set(CURLOPT_FRESH_CONNECT, 1)
    try set(CURLOPT_FORBID_REUSE, 1)
  }
}

extension CurlTransfer {
  /// Lets libcurl show the request's head, whose first line tells the version that TLS agreed on.
  func watchHTTPVersion(_ context: UnsafeMutableRawPointer) {
    guard request.httpVersion == .http2, request.isSecure else { return }
    _ = sluice_setopt_long(easy, CURLOPT_VERBOSE, 1)
    _ = sluice_setopt_pointer(easy, CURLOPT_DEBUGDATA, context)
    _ = sluice_setopt_debug(easy) { easy, kind, bytes, count, context in
      let head = UnsafeRawBufferPointer(start: bytes, count: count)
      // What a proxy is asked first, in HTTP/1.1, is not the request.
      guard kind == CURLINFO_HEADER_OUT, !head.starts(with: "CONNECT ".utf8) else { return 0 }
      _ = sluice_setopt_long(easy, CURLOPT_VERBOSE, 0)
      // Never nil: it is what was set above.
      let transfer = Unmanaged<CurlTransfer>.fromOpaque(context!).takeUnretainedValue()
      let line = head.prefix { $0 != UInt8(ascii: "\r") }
      if line.suffix(9).elementsEqual(" HTTP/1.1".utf8) {
        transfer.doesNotSpeakHTTP2("TLS agreed on HTTP/1.1")
      }
      return 0
    }
  }

  /// What has begun is broken off as soon as libcurl asks or tells something, and is not begun again.
  func doesNotSpeakHTTP2(_ reason: String) {
    ownFailure = UploadError(.http2NotSupported, "the server does not speak HTTP/2: \(reason)")
  }
}

extension CurlMulti {
  /// Looks at the first bytes that come over a connection before libcurl does, which finds nothing in them that it
  /// could name. A server that speaks HTTP/2 begins with a frame (RFC 9113, section 3.4); one that does not calls the
  /// request a bad one.
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

  /// All whose requests go over this connection.
  func users(of connection: Connection) -> [CurlTransfer] {
    guard sharesConnections else { return connection.user.map { [$0] } ?? [] }
    return transfers.values.filter { $0.connection === connection }
  }
}
