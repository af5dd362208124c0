// The reason why an upload ended before its response, as human-readable text and as a kind for a program.

internal import CCurl
package import EventLoops
internal import Glibc

/// An upload that ended without a complete final response.
public struct UploadError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The classes of errors that a caller can handle.
  public enum Kind: String, Equatable, Sendable {
    /// The request cannot be sent in this form. Nothing was sent.
    case invalidRequest
    /// The host's name could not be resolved.
    case unknownHost
    /// No server listens at the address, or the network has no route to it.
    case unreachable
    /// The connection ended before the response.
    case connectionLost
    /// The peer did not answer, or establishing the connection took too long.
    case timedOut
    /// The proxy requires credentials, or does not permit this host (401, 403 or 407 to CONNECT).
    case proxyRefused
    /// TLS could not be negotiated. The cause is transient (a restarting front end) or a mismatch of versions.
    case tlsFailed
    /// The peer's certificate is not trusted.
    case certificateNotTrusted
    /// The peer's certificate is not yet valid by this machine's clock, which may be wrong.
    case certificateNotYetValid
    /// A local certificate, key or CA file cannot be used.
    case badCredentialsFile
    /// The response is not HTTP.
    case protocolViolation
    /// The response violates HTTP/2. HTTP/1.1 may work. A proxy that treats an interim response as the final one causes
    /// this (nginx with any 1xx but 103, and before 1.29 with 103 too).
    case http2Violation
    /// The server does not support HTTP/2, which the request requires.
    case http2NotSupported
    /// ``UploadTask/cancel()`` was called.
    case cancelled
    /// The connection was cut on purpose, by a load test.
    case cut
    /// The body's writer aborted the stream, or the file could not be read to its end.
    case bodyFailed
    /// libcurl failed in a way without its own kind.
    case other
  }

  /// The class of the error.
  public let kind: Kind
  /// The failure and its reason, in words.
  public let description: String
  /// Whether the system may later be able to read a file that it could not read now.
  package let mayPass: Bool
  /// The reason why this machine refused what the request requires, such as a descriptor. Then nothing was sent, and
  /// the end shows nothing about the server.
  package let machineError: SystemError?

  package init(_ kind: Kind, _ description: String, mayPass: Bool = false) {
    self.kind = kind
    self.description = printable(description)
    self.mayPass = mayPass
    machineError = nil
  }

  /// A temporary failure of a call on this machine.
  package init(machine error: SystemError) {
    kind = .other
    description = printable(error.description)
    mayPass = true
    machineError = error
  }

  /// Converts libcurl's error. `detail` is its error buffer, which is more precise than the text of the code.
  ///
  /// - Parameters:
  ///   - systemError: the `errno` of the failed system call, or 0.
  ///   - proxyStatus: the proxy's status for CONNECT, or 0.
  ///   - certificateFault: OpenSSL's error for the peer's certificate (`X509_V_ERR_…`), or 0.
  ///   - awaitsHead: whether the request has begun on a connection, and its response has no complete head.
  init(
    code: CURLcode, detail: String, systemError: Int32 = 0, proxyStatus: Int = 0, certificateFault: Int = 0,
    awaitsHead: Bool = false
  ) {
    // libcurl asks for the address of the other end as soon as there is a connection, and keeps only its first words.
    let endedAtOnce = detail.hasPrefix("getpeername() failed") ? "the server closed the connection at once" : nil
    let words = endedAtOnce ?? (detail.isEmpty ? String(cString: curl_easy_strerror(code)) : detail)
    switch code {
    case _ where [401, 403, 407].contains(proxyStatus):
      self.init(.proxyRefused, "the proxy answered \(proxyStatus)")
    case _ where proxyStatus >= 300:
      // The proxy could not reach the host, which may be available the next time.
      self.init(.unreachable, "the proxy answered \(proxyStatus)")
    case CURLE_SEND_ERROR where systemError == ETIMEDOUT, CURLE_RECV_ERROR where systemError == ETIMEDOUT:
      // TCP_USER_TIMEOUT, tcp(7), which libcurl reports as a failed call.
      self.init(.timedOut, "the peer did not acknowledge the sent bytes (\(words))")
    case CURLE_URL_MALFORMAT:
      self.init(.invalidRequest, words)
    case CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_RESOLVE_PROXY:
      self.init(.unknownHost, words)
    case CURLE_COULDNT_CONNECT, CURLE_INTERFACE_FAILED:
      self.init(.unreachable, words)
    case CURLE_OPERATION_TIMEDOUT:
      self.init(.timedOut, words)
    case CURLE_SEND_FAIL_REWIND:
      // libcurl wanted to send the request again on another connection, and cannot, because its body is gone.
      self.init(.connectionLost, "the reused connection ended within the body")
    // RFC 9113, section 7: detected on this side, or reported by the peer. libcurl has no code for it.
    case CURLE_HTTP2 where words.contains("PROTOCOL_ERROR"), CURLE_HTTP2_STREAM where words.contains("PROTOCOL_ERROR"):
      self.init(.http2Violation, words)
    case CURLE_SEND_ERROR, CURLE_RECV_ERROR, CURLE_GOT_NOTHING, CURLE_PARTIAL_FILE, CURLE_HTTP2, CURLE_HTTP2_STREAM:
      self.init(.connectionLost, words)
    // OpenSSL's text for a response in clear text.
    case CURLE_SSL_CONNECT_ERROR where words.lowercased().contains("wrong version number"):
      self.init(
        .tlsFailed, "the server does not speak TLS on this port (\(words)). Try http://, or the port of the front end")
    case CURLE_SSL_CONNECT_ERROR:
      self.init(.tlsFailed, words)
    // X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CRL_NOT_YET_VALID: x509_vfy.h, and the text of TLS libraries without
    // these codes.
    case CURLE_PEER_FAILED_VERIFICATION
    where [9, 11].contains(certificateFault) || words.lowercased().contains("not yet valid"):
      self.init(.certificateNotYetValid, words)
    case CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_ISSUER_ERROR, CURLE_SSL_INVALIDCERTSTATUS,
      CURLE_SSL_PINNEDPUBKEYNOTMATCH:
      self.init(.certificateNotTrusted, words)
    case CURLE_SSL_CERTPROBLEM, CURLE_SSL_CACERT_BADFILE, CURLE_SSL_CRL_BADFILE, CURLE_SSL_CIPHER:
      self.init(.badCredentialsFile, words)
    // The URL's scheme was checked, so "unsupported" refers to the response ("Received HTTP/0.9 when not allowed").
    case CURLE_UNSUPPORTED_PROTOCOL, CURLE_WEIRD_SERVER_REPLY, CURLE_BAD_CONTENT_ENCODING:
      self.init(.protocolViolation, words)
    // libcurl's buffer for a line of a head has a limit (CURL_MAX_HTTP_HEADER), and a longer line has the code of
    // malloc(3). Newer versions have a code of their own for it, CURLE_TOO_LARGE.
    case CURLE_OUT_OF_MEMORY where awaitsHead:
      self.init(.other, "\(words), or \(Self.longLine)")
    case CURLcode(rawValue: 100) where awaitsHead:
      self.init(.other, Self.longLine)
    default:
      self.init(.other, words)
    }
  }

  private static let longLine = "a line of the response's head is longer than libcurl accepts (100 KiB)"
}
