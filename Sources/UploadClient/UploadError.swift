// Why an upload ended before its response, in words for a person and a kind for a program.

internal import CCurl
internal import Glibc

/// An upload that ended without a complete final response.
public struct UploadError: Error, Equatable, Sendable, CustomStringConvertible {
  /// What a caller can act on.
  public enum Kind: String, Equatable, Sendable {
    /// The request cannot be sent as it is; nothing was sent.
    case invalidRequest
    /// The host's name could not be resolved.
    case unknownHost
    /// Nobody listens there, or the network does not lead there.
    case unreachable
    /// The connection ended before the response.
    case connectionLost
    /// The peer left unanswered what it was sent, or the connection took too long.
    case timedOut
    /// The proxy wants credentials, or does not let this host through (401, 403 or 407 to CONNECT).
    case proxyRefused
    /// TLS could not be agreed upon: transient (a restarting front end) or a matter of versions.
    case tlsFailed
    /// The peer's certificate is not trusted.
    case certificateNotTrusted
    /// The peer's certificate is valid from some later time on, by this machine's clock, which may be wrong.
    case certificateNotYetValid
    /// A certificate, key or CA file on this side cannot be used.
    case badCredentialsFile
    /// What came back is not HTTP.
    case protocolViolation
    /// What came back breaks the rules of HTTP/2; HTTP/1.1 may get through. A proxy that takes an interim response for
    /// the final one does this (nginx with any 1xx but 103, and with that before 1.29).
    case http2Violation
    /// The server does not speak HTTP/2, which is all that the request may go over.
    case http2NotSupported
    /// ``UploadTask/cancel()`` was called.
    case cancelled
    /// The connection was cut on purpose, by a load test.
    case cut
    /// The body's writer broke the stream off, or the file could not be read to its end.
    case bodyFailed
    /// libcurl failed in a way that has no kind of its own.
    case other
  }

  /// What failed.
  public let kind: Kind
  /// What failed and why, in words.
  public let description: String

  package init(_ kind: Kind, _ description: String) {
    self.kind = kind
    self.description = printable(description)
  }

  /// What libcurl's verdict means. `detail` is its error buffer, more precise than the code's own words.
  /// - Parameters:
  ///   - systemError: the `errno` of the system call that failed, 0 when none did.
  ///   - proxyStatus: what the proxy answered to CONNECT, 0 without one.
  ///   - certificateFault: what OpenSSL found wrong with the peer's certificate (`X509_V_ERR_…`), 0 for nothing.
  init(code: CURLcode, detail: String, systemError: Int32 = 0, proxyStatus: Int = 0, certificateFault: Int = 0) {
    let words = detail.isEmpty ? String(cString: curl_easy_strerror(code)) : detail
    switch code {
    case _ where [401, 403, 407].contains(proxyStatus):
      self.init(.proxyRefused, "the proxy answered \(proxyStatus)")
    case _ where proxyStatus >= 300:
      // It could not get through to the host, which may be there the next time.
      self.init(.unreachable, "the proxy answered \(proxyStatus)")
    case CURLE_SEND_ERROR where systemError == ETIMEDOUT, CURLE_RECV_ERROR where systemError == ETIMEDOUT:
      // TCP_USER_TIMEOUT, tcp(7): to libcurl a failed call like any other.
      self.init(.timedOut, "the peer did not acknowledge what it was sent (\(words))")
    case CURLE_URL_MALFORMAT:
      self.init(.invalidRequest, words)
    case CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_RESOLVE_PROXY:
      self.init(.unknownHost, words)
    case CURLE_COULDNT_CONNECT, CURLE_INTERFACE_FAILED:
      self.init(.unreachable, words)
    case CURLE_OPERATION_TIMEDOUT:
      self.init(.timedOut, words)
    case CURLE_SEND_FAIL_REWIND:
      // libcurl would have sent the request again on another connection, and cannot: its body is gone.
      self.init(.connectionLost, "the connection, which had carried a request before, ended in the body")
    // RFC 9113, section 7: found on this side, or told by the other; libcurl has no code for it.
    case CURLE_HTTP2 where words.contains("PROTOCOL_ERROR"), CURLE_HTTP2_STREAM where words.contains("PROTOCOL_ERROR"):
      self.init(.http2Violation, words)
    case CURLE_SEND_ERROR, CURLE_RECV_ERROR, CURLE_GOT_NOTHING, CURLE_PARTIAL_FILE, CURLE_HTTP2, CURLE_HTTP2_STREAM:
      self.init(.connectionLost, words)
    // OpenSSL's words for an answer in clear text.
    case CURLE_SSL_CONNECT_ERROR where words.lowercased().contains("wrong version number"):
      self.init(
        .tlsFailed, "the server does not speak TLS on this port: try http://, or the port of the front end (\(words))")
    case CURLE_SSL_CONNECT_ERROR:
      self.init(.tlsFailed, words)
    // X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CRL_NOT_YET_VALID: x509_vfy.h, and the words of TLS libraries without
    // them.
    case CURLE_PEER_FAILED_VERIFICATION
    where [9, 11].contains(certificateFault) || words.lowercased().contains("not yet valid"):
      self.init(.certificateNotYetValid, words)
    case CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_ISSUER_ERROR, CURLE_SSL_INVALIDCERTSTATUS,
      CURLE_SSL_PINNEDPUBKEYNOTMATCH:
      self.init(.certificateNotTrusted, words)
    case CURLE_SSL_CERTPROBLEM, CURLE_SSL_CACERT_BADFILE, CURLE_SSL_CRL_BADFILE, CURLE_SSL_CIPHER:
      self.init(.badCredentialsFile, words)
    // The URL's scheme was checked: "unsupported" is what came back ("Received HTTP/0.9 when not allowed").
    case CURLE_UNSUPPORTED_PROTOCOL, CURLE_WEIRD_SERVER_REPLY, CURLE_BAD_CONTENT_ENCODING:
      self.init(.protocolViolation, words)
    default:
      self.init(.other, words)
    }
  }
}
