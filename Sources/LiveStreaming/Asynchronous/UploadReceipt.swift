// What is known of a file that the server has.

public import Digests
public import UploadClient

/// A file that the server has, all of it.
public struct UploadReceipt: Sendable {
  /// The server's final response. If it came in an earlier process, what the server says of the upload now.
  public var response: HTTPResponse
  /// The size of the file, in bytes.
  public var byteCount: UInt64
  /// How many bytes were sent more than once.
  public var resentByteCount: UInt64
  /// How many times the connection was lost.
  public var outageCount: Int
  /// How long the upload took.
  public var duration: Duration
  /// Whether the upload went through the resumable protocol.
  public var isResumable: Bool
  /// The digest that the server confirmed; nil if none was asked for, or the server computes none.
  public var verifiedDigest: DigestAlgorithm?
}

extension UploadReceipt: CustomStringConvertible {
  /// One line: `1048576 bytes uploaded in 0.21 seconds, 0 outages, verified by sha-256; the server answered 201`.
  public var description: String {
    let digest = verifiedDigest.map { ", verified by \($0.name)" } ?? ""
    return
      "\(byteCount) bytes uploaded in \(duration), \(outageCount) outages\(digest); the server answered \(response)"
  }
}
