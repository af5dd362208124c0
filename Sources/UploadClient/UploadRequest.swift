// What to upload to, and how to get there: everything libcurl has to be told.

internal import EventLoops

/// Where and how to send a request.
public struct UploadRequest: Equatable, Sendable {
  /// An absolute `http` or `https` URL. User and password in it are sent as Basic credentials.
  public var url: String
  /// `POST` or `PUT`, or whatever else the server takes a body with.
  public var method = "POST"
  /// Additional field lines. Names and values are checked before anything is sent.
  public var fields: [HTTPResponse.Field] = []
  /// Sent as `Authorization: Bearer …` (RFC 6750). Never printed.
  public var bearerToken: String?
  /// Look credentials up in this file, in the format of netrc(5).
  public var netrcFile: String?
  /// A proxy's URL as libcurl takes it (`http://`, `socks5h://`, …); nil obeys `http_proxy` and its like.
  public var proxy: String?
  /// Connect through this unix socket; the URL still names host and path.
  public var unixSocket: String?
  /// A PEM file of the certificate authorities to trust instead of the system's.
  public var certificateAuthorities: String?
  /// A PEM file with the client's certificate, and its key in another file where it is not in the same.
  public var clientCertificate: String?
  /// A PEM file with the key of ``clientCertificate``; nil if that file has both.
  public var clientKey: String?
  /// Which addresses of the host are tried.
  public var addressFamily = AddressFamily.any
  /// Connect from this address of this machine, or from this interface; nil leaves it to the kernel. Each address has
  /// some 28,000 ports to connect from (`net.ipv4.ip_local_port_range`).
  public var localAddress: String?
  /// The version of HTTP.
  public var httpVersion = HTTPVersion.negotiated
  /// How long to wait for what.
  public var limits = Limits()
  /// What the kernel is told about the connection.
  public var socket = SocketOptions()
  /// libcurl's buffer between the body and the socket, in bytes: the largest chunk. 16 KiB to 2 MiB.
  public var uploadBufferSize = 16 * 1024
  /// libcurl's buffer for what the server says, in bytes; at least 1 KiB.
  public var receiveBufferSize = 4096
  /// The most bytes per second to send; nil for as many as the connection takes.
  public var maximumSendRate: Int?
  /// Whether ``UploadTask/Event/accepted(_:)`` is told, which costs a little with every message.
  public var tellsAccepted = false
  /// Whether ``UploadTask/Event/response(_:)`` and ``UploadTask/Event/responseBody(_:)`` are told. Then the response's
  /// body is not kept, and ``Limits/response`` counts from the last of its bytes.
  public var tellsResponse = false
  /// What `Accept-Encoding` says unless ``fields`` say it, and whether the response's body is decoded: nil for neither,
  /// empty for all content codings that libcurl knows.
  package var acceptEncoding: String?
  /// Whether ``UploadTask/measure()`` has something to tell, which costs a few calls of libcurl per request.
  package var isMeasured = false
  /// How much of a response's body is kept, in bytes. At the default, the body is for people to read, and ``Limits``
  /// bound it.
  public var responseBodyLimit = HTTPResponse.bodyLimit
  /// Whether the response's body is what the request is for.
  var wantsResponseBody: Bool { tellsResponse || responseBodyLimit > HTTPResponse.bodyLimit }
  /// Whether account is kept of each chunk under way, up to 16 KiB of memory, so that
  /// ``UploadTask/acknowledgedByteCount`` counts to the byte. Otherwise that errs downwards by their framing: good
  /// enough where the server itself says what it has.
  public var countsChunks = true

  /// Which addresses of a host are tried.
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
    /// HTTP/2 from the first byte on, without asking, over plain HTTP as well (RFC 9113, section 3.3).
    case http2
  }

  /// How long to wait for what.
  public struct Limits: Equatable, Sendable {
    /// From the start of an attempt until TCP, proxy and TLS are set up.
    public var connect = Duration.seconds(10)
    /// How long bytes that were handed to TCP may stay unacknowledged before the peer counts as dead. A silent source
    /// is not affected: only unanswered work is judged (`TCP_USER_TIMEOUT`, tcp(7)).
    public var unacknowledged = Duration.seconds(30)
    /// From the end of the body until the head of the final response. What that response has for a body may take 5 s
    /// more at most, and 1 s where it comes before the end of the request's body, because the head decides; no more than
    /// 1 MiB of it is read. With ``UploadRequest/tellsResponse``, or a larger ``UploadRequest/responseBodyLimit``, the
    /// limit is for the whole response.
    public var response = Duration.seconds(30)
    /// The defaults of each limit.
    public init() {}
  }

  /// What the kernel is told about the connection. The defaults are the kernel's.
  public struct SocketOptions: Equatable, Sendable {
    /// `SO_SNDBUF` in bytes, socket(7): how much may be under way unacknowledged.
    public var sendBuffer: Int?
    /// `TCP_MAXSEG` in bytes, tcp(7).
    public var maximumSegment: Int?
    /// The defaults of the kernel.
    public init() {}
  }

  /// A POST request without fields of its own.
  public init(url: String) { self.url = url }

  /// Checks all that can be checked before a connection.
  ///
  /// - Throws: ``UploadError`` of kind ``UploadError/Kind/invalidRequest`` for what may not be sent: a URL that libcurl
  ///   cannot parse, a field name that is no token, a value with control characters (RFC 9110, section 5.5; "header
  ///   injection").
  package func validate() throws(UploadError) {
    try CurlOptions.validate(url: url)
    for field in fields {
      guard !field.name.isEmpty, field.name.utf8.allSatisfy(Self.isTokenByte) else {
        throw UploadError(
          .invalidRequest, "the field name \(quoted(field.name)) is not a token: use letters, digits and hyphens")
      }
      // libcurl would obey them and leave its own framing out (RFC 9112, section 6.1), or wait for a 100 that may never
      // come.
      guard !["content-length", "transfer-encoding", "expect"].contains(field.name.lowercased()) else {
        throw UploadError(
          .invalidRequest, "the field \(field.name) is not yours to set: it follows from the body and how it is sent")
      }
      guard field.value.utf8.allSatisfy({ $0 >= 0x20 && $0 != 0x7f || $0 == 0x09 }) else {
        throw UploadError(
          .invalidRequest,
          "the value of the field \(field.name) has control characters, which would begin another field: remove them")
      }
    }
    guard !method.isEmpty, method.utf8.allSatisfy(Self.isTokenByte) else {
      throw UploadError(.invalidRequest, "the method \(quoted(method)) is not a token")
    }
    if let token = bearerToken, !Self.canSend(token: token) {
      throw UploadError(
        .invalidRequest, "the bearer token is empty or has characters that cannot be sent")
    }
  }

  /// Whether a field is not the user's to set: it belongs to the upload protocol, to the body and how it is sent, or to
  /// the connection. A wrong one would store something else than what is streamed.
  package static func isReserved(fieldName name: String) -> Bool {
    let name = name.lowercased()
    return name.hasPrefix("upload-") || name.hasPrefix("stream-")
      || [
        "content-length", "content-range", "transfer-encoding", "expect", "connection", "keep-alive", "te", "trailer",
        "upgrade",
        "proxy-connection", "http2-settings", "incremental",
      ].contains(name)
  }

  /// Whether a bearer token is one that a field can carry.
  package static func canSend(token: String) -> Bool {
    !token.isEmpty && token.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f }
  }

  /// `tchar`, RFC 9110, section 5.6.2.
  private static func isTokenByte(_ byte: UInt8) -> Bool {
    switch byte {
    case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
      UInt8(ascii: "0")...UInt8(ascii: "9"):
      true
    default:
      "!#$%&'*+-.^_`|~".utf8.contains(byte)
    }
  }
}
