// Converts a transfer's request for the engine.

internal import EventLoops
internal import LiveStreaming
internal import TransferClient
internal import UploadClient

extension TransferRequest {
  /// How much of a response's body a program receives, in bytes.
  private static let responseBodyLimit = 256 << 10
  /// The longest pause between two attempts, if the program does not specify one.
  private static let usualPause = Duration.seconds(15 * 60)

  /// The request settings that uploads and downloads have in common.
  var httpRequest: UploadRequest {
    var request = UploadRequest(url: url)
    request.method = method
    request.fields = HeaderFields(lines: fields)
    request.bearerToken = token
    (request.netrcFile, request.proxy, request.unixSocket) = (netrcFile, proxy, unixSocket)
    request.certificateAuthorities = certificateAuthorities
    (request.clientCertificate, request.clientKey) = (clientCertificate, clientKey)
    request.addressFamily = addressFamily == 4 ? .ipv4 : addressFamily == 6 ? .ipv6 : .any
    if usesHTTP1 { request.httpVersion = .http1 }
    request.limits.connect = Self.duration(connectLimit) ?? request.limits.connect
    request.limits.response = Self.duration(responseLimit) ?? request.limits.response
    request.responseBodyLimit = Self.responseBodyLimit
    return request
  }

  /// Applies the transfer's retry settings.
  func adapt(_ policy: inout RetryPolicy) {
    policy.maximumCeiling = Self.duration(longestPause) ?? Self.usualPause
    policy.giveUpOnRefusalAfter = giveUpOnRefusalAfter.map { .milliseconds(max(0, $0)) }
  }

  static func duration(_ milliseconds: Int64?) -> Duration? { milliseconds.map { .milliseconds(max(1, $0)) } }

  /// Nil while the file contains no token that could be sent, because it may just be being written.
  static func token(inFile path: String) -> String? {
    guard var bytes = try? PrivateFile.contents(of: path, limit: 16 * 1024)[...] else { return nil }
    while let last = bytes.last, [0x0A, 0x0D, 0x20].contains(last) { bytes.removeLast() }
    let token = String(decoding: bytes, as: UTF8.self)
    return UploadRequest.canSend(token: token) ? token : nil
  }
}

extension TransferResult {
  /// Adds the server's final response.
  mutating func add(_ response: HTTPResponse) {
    status = response.status
    fields = response.fields.lines
    body = response.body
  }
}
