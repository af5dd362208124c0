// Resume data, with which a later process continues a transfer.

internal import Downloads
internal import Foundation
internal import FoundationNetworking
internal import LiveStreaming
internal import ResumableUploads

/// A request without its body.
struct RequestRecord: Codable {
  var url: String
  var method: String
  var fields: [String: String]
  var timeout: Double
  /// Whether a redirect has led there from another origin, whose secrets are not sent.
  var isAtOtherOrigin: Bool?

  init(_ request: URLRequest, isAtOtherOrigin: Bool) {
    self.isAtOtherOrigin = isAtOtherOrigin
    url = request.url?.absoluteString ?? ""
    method = request.httpMethod ?? "GET"
    fields = request.allHTTPHeaderFields ?? [:]
    // JSON has no infinity.
    timeout = request.timeoutInterval.isFinite ? request.timeoutInterval : .greatestFiniteMagnitude
  }

  var urlRequest: URLRequest? {
    guard let url = URL(string: url) else { return nil }
    var request = URLRequest(url: url, timeoutInterval: timeout)
    request.httpMethod = method
    for (name, value) in fields { request.setValue(value, forHTTPHeaderField: name) }
    return request
  }
}

/// An unfinished upload on a server.
struct UploadRecord: Codable {
  /// The uploaded body.
  enum Body: Codable {
    /// The path, and the version that the file must still have.
    case file(String, version: String)
    case bytes(Data)
    /// The delegate provides it.
    case stream
  }

  /// Identifies this kind of data.
  var format = "sluice-url-session-upload-1"
  var request: RequestRecord
  var body: Body
  /// `ResumeData` as text.
  var upload: String

  init?(_ request: URLRequest, isAtOtherOrigin: Bool, _ body: Body, _ upload: ResumeData) {
    guard let text = upload.text else { return nil }
    self.request = RequestRecord(request, isAtOtherOrigin: isAtOtherOrigin)
    (self.body, self.upload) = (body, text)
  }

  init?(_ data: Data) {
    guard let record = try? JSONDecoder().decode(UploadRecord.self, from: data), record.urlRequest != nil,
      record.format == "sluice-url-session-upload-1", ResumeData(record.upload) != nil
    else { return nil }
    self = record
  }

  var data: Data? { try? JSONEncoder().encode(self) }
  var urlRequest: URLRequest? { request.urlRequest }
}

/// An unfinished download, part of which is in a file.
struct DownloadRecord: Codable {
  var format = "sluice-url-session-download-2"
  var request: RequestRecord
  /// The path of the part.
  var path: String
  var inode: UInt64
  /// How many bytes of the file belong to the download.
  var byteCount: Int64
  /// The `ETag` of their response, or else its `Last-Modified`.
  var validator: String
  /// The creation time of the file, in milliseconds since 1970; nil if the file system does not report it.
  var birth: Int64?
  /// The length of the whole in bytes; nil if the server did not state it.
  var length: UInt64?
  /// The `Repr-Digest`; nil if the server stated none.
  var digest: String?

  init(_ request: URLRequest, isAtOtherOrigin: Bool, _ data: DownloadResumeData) {
    self.request = RequestRecord(request, isAtOtherOrigin: isAtOtherOrigin)
    (path, inode, birth, length) = (data.path, data.inode, data.birth, data.length)
    (byteCount, validator, digest) = (Int64(clamping: data.byteCount), data.validator, data.digest)
  }

  var resumeData: DownloadResumeData {
    DownloadResumeData(
      path: path, inode: inode, birth: birth, byteCount: UInt64(clamping: byteCount), validator: validator,
      length: length, digest: digest)
  }

  init?(_ data: Data) {
    guard let record = try? JSONDecoder().decode(DownloadRecord.self, from: data), record.urlRequest != nil,
      record.format == "sluice-url-session-download-2", record.byteCount >= 0
    else { return nil }
    self = record
  }

  var data: Data? { try? JSONEncoder().encode(self) }
  var urlRequest: URLRequest? { request.urlRequest }
}
