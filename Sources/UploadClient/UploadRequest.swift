// The destination of an upload and its connection: all settings for libcurl.

internal import EventLoops
public import HTTPMessages

/// The destination of a request and its settings.
public struct UploadRequest: Equatable, Sendable {
  /// An absolute `http` or `https` URL. Its user and password are sent as Basic credentials.
  public var url: String
  /// `POST`, `PUT`, or another method for which the server accepts a body.
  public var method = "POST"
  /// Additional field lines, with names as they are sent. A request with an invalid field fails before anything is
  /// sent, with an error that names the field (``UploadError/Kind/invalidRequest``).
  public var fields = HeaderFields()
  /// Sent as `Authorization: Bearer …` (RFC 6750). Never printed.
  public var bearerToken: String?
  /// A file in the format of netrc(5) with credentials.
  public var netrcFile: String?
  /// The URL of a proxy in libcurl's format (`http://`, `socks5h://`, …). Nil uses `http_proxy` and the related
  /// variables.
  public var proxy: String?
  /// A unix socket to connect through. The URL still names the host and path.
  public var unixSocket: String?
  /// A PEM file of the certificate authorities to trust instead of the system's.
  public var certificateAuthorities: String?
  /// A PEM file with the client's certificate. Its key is in the same file or in ``clientKey``.
  public var clientCertificate: String?
  /// A PEM file with the key of ``clientCertificate``. Nil if that file has both.
  public var clientKey: String?
  /// The address families to try.
  public var addressFamily = AddressFamily.any
  /// The address or interface of this machine to connect from. Nil leaves the choice to the kernel. Each address has
  /// about 28,000 ports (`net.ipv4.ip_local_port_range`).
  public var localAddress: String?
  /// The version of HTTP.
  public var httpVersion = HTTPVersion.negotiated
  /// The time limits.
  public var limits = Limits()
  /// The kernel's settings for the connection.
  public var socket = SocketOptions()
  /// The size of libcurl's buffer between the body and the socket, which is the largest chunk. 16 KiB to 2 MiB.
  public var uploadBufferSize = 16 * 1024
  /// The size of libcurl's receive buffer in bytes, at least 1 KiB.
  public var receiveBufferSize = 4096
  /// The highest sending rate in bytes per second. Nil for no limit.
  public var maximumSendRate: Int?
  /// Whether ``UploadTask/Event/accepted(_:)`` is reported, which costs a little for every message.
  public var tellsAccepted = false
  /// Whether ``UploadTask/Event/response(_:)`` and ``UploadTask/Event/responseBody(_:)`` are reported. If so, the
  /// response's body is not stored, and ``Limits/response`` counts from its last byte.
  public var tellsResponse = false
  /// Whether the request gets a new connection. A server may close an idle connection just as a request begins. Its TCP
  /// then acknowledges bytes that no program reads.
  package var usesFreshConnection = false
  /// Whether the host's name is looked up again, because the server may have another address now. Requests of the same
  /// second share a lookup. Otherwise, an address is used for a minute.
  package var looksUpAgain = false
  /// The value of `Accept-Encoding` unless it is in ``fields``. It also enables decoding of the response's body. Nil
  /// disables both, and an empty value means all content codings that libcurl supports.
  package var acceptEncoding: String?
  /// Whether ``UploadTask/measure()`` returns measurements, which costs a few libcurl calls per request.
  package var isMeasured = false
  /// The number of bytes of a response's body to store. With the default, the body is human-readable text, and
  /// ``Limits`` bound it.
  public var responseBodyLimit = HTTPResponse.bodyLimit
  /// Whether the response's body is the purpose of the request.
  var wantsResponseBody: Bool { tellsResponse || responseBodyLimit > HTTPResponse.bodyLimit }
  /// Whether each chunk in flight is recorded, in up to 16 KiB of memory, so that ``UploadTask/acknowledgedByteCount``
  /// is exact. Otherwise, the count is lower by the framing of the chunks. This suffices if the server itself reports
  /// its offset.
  public var countsChunks = true

  /// The address families of a host to try.
  public enum AddressFamily: Sendable {
    /// All of them.
    case any
    /// Only IPv4.
    case ipv4
    /// Only IPv6.
    case ipv6
  }

  /// A version of HTTP.
  public enum HTTPVersion: Sendable {
    /// HTTP/2 where TLS negotiates it, HTTP/1.1 otherwise.
    case negotiated
    /// HTTP/1.1.
    case http1
    /// HTTP/2 from the first byte on, without negotiation, over plain HTTP as well (RFC 9113, section 3.3).
    case http2
  }

  /// The time limits of a request.
  public struct Limits: Equatable, Sendable {
    /// From the start of an attempt until TCP, the proxy and TLS are connected. An attempt that waits for a connection
    /// of others (``UploadSession/Connections/shared(maximumUploads:)``) may take twice as long.
    public var connect = Duration.seconds(10)
    /// The time after which unacknowledged bytes mean that the peer is dead. A silent source is not affected, because
    /// only unanswered data counts (`TCP_USER_TIMEOUT`, tcp(7)).
    public var unacknowledged = Duration.seconds(30)
    /// From the end of the body to the head of the final response. The response's body may take at most 5 s more,
    /// because the head decides. If the response comes before the end of the request's body, the limit is 1 s. At most
    /// 1 MiB of it is read. With ``UploadRequest/tellsResponse``, or a larger ``UploadRequest/responseBodyLimit``, the
    /// limit is for the whole response, except for an early one of unknown length.
    public var response = Duration.seconds(30)
    /// Creates the default limits.
    public init() {}
  }

  /// The kernel's settings for the connection. The defaults are those of the kernel.
  public struct SocketOptions: Equatable, Sendable {
    /// `SO_SNDBUF` in bytes, socket(7): the number of bytes that may be unacknowledged.
    public var sendBuffer: Int?
    /// `TCP_MAXSEG` in bytes, tcp(7).
    public var maximumSegment: Int?
    /// Creates options with the kernel's defaults.
    public init() {}
  }

  /// Creates a POST request without additional fields.
  public init(url: String) { self.url = url }

  /// Checks everything that can be checked before a connection.
  ///
  /// - Throws: ``UploadError`` of kind ``UploadError/Kind/invalidRequest`` for a request that must not be sent. Its URL
  ///   cannot be parsed by libcurl, or a field has an invalid name or control characters in its value. Control
  ///   characters would permit header injection (RFC 9110, section 5.5).
  package func validate() throws(UploadError) {
    try CurlOptions.validate(url: url)
    if let name = fields.invalidName {
      throw UploadError(
        .invalidRequest,
        HeaderFields.Field.isValid(name: name)
          ? "the value of the field \(name) has control characters. Remove them"
          : "the field name \(quoted(name)) is invalid. Use letters, digits and hyphens")
    }
    // libcurl would obey them and omit its own framing (RFC 9112, section 6.1), or wait for a 100 that may never
    // arrive.
    let framing = ["content-length", "transfer-encoding", "expect"]
    if let field = fields.all.first(where: { framing.contains(where: $0.isNamed) }) {
      throw UploadError(.invalidRequest, "the field \(field.rawName) cannot be set, because it follows from the body")
    }
    guard !method.isEmpty, method.utf8.allSatisfy(Octet.isToken) else {
      throw UploadError(.invalidRequest, "the method \(quoted(method)) is invalid")
    }
    if let token = bearerToken, !Self.canSend(token: token) {
      throw UploadError(
        .invalidRequest, "the bearer token is empty or has characters that cannot be sent")
    }
  }

  /// Whether a user must not set a field, because it belongs to the upload protocol, to the body and its framing, or to
  /// the connection. A wrong value would change the stored bytes.
  package static func isReserved(fieldName name: String) -> Bool {
    let name = name.lowercasedASCII
    return name.hasPrefix("upload-") || name.hasPrefix("stream-")
      || [
        "content-length", "content-range", "transfer-encoding", "expect", "connection", "keep-alive", "te", "trailer",
        "upgrade",
        "proxy-connection", "http2-settings", "incremental",
      ].contains(name)
  }

  /// Whether the request applies only under a condition (RFC 9110, section 13.1; RFC 4918, section 10.4). A 412 then
  /// means that the condition is false.
  package var hasCondition: Bool {
    let names = ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if"]
    return names.contains(where: fields.contains)
  }

  /// Whether a field can carry a bearer token.
  package static func canSend(token: String) -> Bool {
    !token.isEmpty && token.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f }
  }
}
