// Requests as bytes.

/// One request, ready to be sent.
struct ChaosRequest: Sendable {
  var bytes: [UInt8]
  var headCount: Int
  var isHEAD: Bool
  var target: String
  /// For the transcript.
  var text: String

  init(
    _ method: String, _ target: String, token: String, version: Int?? = .some(nil), _ lines: [String],
    content: [UInt8]? = nil, isChunked: Bool = false
  ) {
    var head = ["\(method) \(target) HTTP/1.1", "Host: h", "Authorization: Bearer \(token)"] + lines
    if case .some(.some(let version)) = version { head.append("Upload-Draft-Interop-Version: \(version)") }
    if let content { head.append(isChunked ? "Transfer-Encoding: chunked" : "Content-Length: \(content.count)") }
    bytes = Array((head.joined(separator: "\r\n") + "\r\n\r\n").utf8)
    headCount = bytes.count
    isHEAD = method == "HEAD"
    self.target = target
    text = "\(method) \(target.split(separator: "/").last.map { String($0.suffix(12)) } ?? "")"
    if let content {
      if isChunked { Self.appendChunks(content, to: &bytes) } else { bytes += content }
      text += " \(content.count) bytes\(isChunked ? " chunked" : "")"
    }
  }

  private static func appendChunks(_ content: [UInt8], to bytes: inout [UInt8]) {
    let size = max(1, content.count / 3 + 1)
    var rest = content[...]
    while !rest.isEmpty {
      let chunk = rest.prefix(size)
      bytes += Array("\(String(chunk.count, radix: 16))\r\n".utf8) + chunk + [13, 10]
      rest = rest.dropFirst(chunk.count)
    }
    bytes += Array("0\r\n\r\n".utf8)
  }

  /// The position at which a share of the request ends, from 0 (only its head) to 1 (all of it).
  func end(at share: Double) -> Int { headCount + Int(Double(bytes.count - headCount) * share) }

  /// The line that states whether this request completes the upload.
  static func completeness(_ completes: Bool, version: Int?) -> String {
    version == 3 ? "Upload-Incomplete: ?\(completes ? 0 : 1)" : "Upload-Complete: ?\(completes ? 1 : 0)"
  }
}
