// Converts requests and responses between Foundation and Sluice's engine.

internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import HTTPMessages
internal import UploadClient

extension UploadRequest {
  /// Converts one of Foundation's requests for the engine.
  ///
  /// - Parameter isAtOtherOrigin: whether a redirect has led there. The configuration's secrets must not be sent there.
  init?(_ request: URLRequest, _ settings: URLSessionConfiguration, isAtOtherOrigin: Bool = false) {
    guard let url = request.url, ["http", "https"].contains(url.scheme?.lowercased()) else { return nil }
    self.init(url: url.absoluteString)
    method = request.httpMethod ?? "GET"
    for (name, value) in request.allHTTPHeaderFields ?? [:] { add(name, value) }
    for (name, value) in settings.httpAdditionalHeaders ?? [:] {
      let name = "\(name)"
      if isAtOtherOrigin, ["authorization", "cookie"].contains(name.lowercasedASCII) { continue }
      if !fields.contains(name) { add(name, "\(value)") }
    }
    certificateAuthorities = settings.certificateAuthorityFile
    if !isAtOtherOrigin {
      clientCertificate = settings.clientCertificateFile
      clientKey = settings.clientKeyFile
    }
    // 60 is the value of a request that specifies none.
    let timeout = request.timeoutInterval == 60 ? settings.timeoutIntervalForRequest : request.timeoutInterval
    let limit = Duration.milliseconds(Int64(max(1, min(timeout, 1e9)) * 1000))
    (limits.connect, limits.unacknowledged, limits.response) = (limit, limit, limit)
    isMeasured = true
    acceptEncoding = ""
    (uploadBufferSize, receiveBufferSize) = (512 << 10, 256 << 10)
  }

  /// Sets the content type of a POST request if the program does not, like Apple's systems.
  mutating func assumeForm() {
    fields.addDefault("Content-Type", "application/x-www-form-urlencoded")
  }

  /// Omits fields of the connection, the framing or the protocol, which the engine sets.
  private mutating func add(_ name: String, _ value: String) {
    guard !Self.isReserved(fieldName: name) else { return }
    fields.append(name, value)
  }
}

extension HTTPURLResponse {
  /// Converts one of the engine's responses for Foundation.
  static func make(_ response: HTTPResponse, _ url: URL) -> HTTPURLResponse? {
    var fields: [String: String] = [:]
    // Names that differ only in case are the same (RFC 9110, section 5.1). The first spelling counts.
    var spellings: [String: String] = [:]
    for field in response.fields.all {
      let key = field.name
      if let name = spellings[key] {
        // In place, because a copy for each field would take quadratic time.
        fields[name]?.append(", \(field.value)")
      } else {
        spellings[key] = field.rawName
        fields[field.rawName] = field.value
      }
    }
    return HTTPURLResponse(url: url, statusCode: response.status, httpVersion: "HTTP/1.1", headerFields: fields)
  }
}
