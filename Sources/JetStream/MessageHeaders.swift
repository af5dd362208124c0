// The headers of a stored message in JetStream's format: a line with the version, and a line for each header.

enum MessageHeaders {
  /// nil if the bytes are not a message's headers.
  static func parsed(_ bytes: [UInt8]) -> [MessageContent.Header]? {
    var lines = bytes.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: true).map { line in
      line.last == UInt8(ascii: "\r") ? line.dropLast() : line
    }
    guard let first = lines.first, first.starts(with: "NATS/1.0".utf8) else { return nil }
    lines.removeFirst()
    var headers: [MessageContent.Header] = []
    for line in lines where !line.isEmpty {
      guard let colon = line.firstIndex(of: UInt8(ascii: ":")) else { return nil }
      let value = line[(colon + 1)...].drop { $0 == UInt8(ascii: " ") }
      headers.append(.init(String(decoding: line[..<colon], as: UTF8.self), String(decoding: value, as: UTF8.self)))
    }
    return headers
  }
}
