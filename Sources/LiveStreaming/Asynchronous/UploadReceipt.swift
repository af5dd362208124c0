// The result of the upload of a file.

public import Digests
public import UploadClient

/// The confirmation that the server has the whole file.
public struct UploadReceipt: Sendable {
  /// The server's final response. If it arrived in an earlier process, the server's current response about the upload.
  public var response: HTTPResponse
  /// The size of the file, in bytes.
  public var byteCount: UInt64
  /// The number of bytes that were sent more than once.
  public var resentByteCount: UInt64
  /// The number of outages.
  public var outageCount: Int
  /// The duration of the upload.
  public var duration: Duration
  /// Whether the upload used the resumable protocol.
  public var isResumable: Bool
  /// The digest that the server confirmed. Nil if none was requested, or if the server computes none.
  public var verifiedDigest: DigestAlgorithm?
}

extension UploadReceipt: CustomStringConvertible {
  /// One line: `1048576 bytes uploaded in 0.213 s, 0 outages, verified by sha-256; the server answered 201`.
  public var description: String {
    let digest = verifiedDigest.map { ", verified by \($0.name)" } ?? ""
    return "\(counted(byteCount, "byte")) uploaded in \(duration.inSeconds), \(counted(outageCount, "outage"))"
      + "\(digest); the server answered \(response)"
  }
}
