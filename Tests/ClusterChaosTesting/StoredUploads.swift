// The final content of the brokers, and whether each stream is stored completely and once.

internal import BrokerTesting
internal import Digests
internal import EventLoops
internal import JetStream
internal import NetworkTesting
internal import PropertyTesting

/// The uploads of a log.
package struct StoredUploads: Sendable {
  package struct Upload: Sendable {
    package var stream: String
    /// Its offset in its stream.
    package var start: UInt64
    package var bytes: [UInt8] = []
    package var isComplete = false
    /// Contradictions in its messages.
    package var problems: [String] = []
    package var end: UInt64 { start + UInt64(bytes.count) }
  }

  /// By their tokens.
  package private(set) var uploads: [String: Upload] = [:]
  package private(set) var messageCount = 0

  /// Reads all messages of the servers' stream.
  package init(_ urls: [String]) throws {
    let found = Lock(StoredUploads())
    try BrokerLoop(BrokerOptions(servers: urls)).read("sluice") { message in found.withLock { $0.take(message) } }
    self = found.withLock { $0 }
  }

  private init() {}

  private mutating func take(_ message: StoredMessage) {
    messageCount += 1
    let token = message.subject.split(separator: ".").last.map { String($0) } ?? ""
    func number(_ name: String) -> UInt64? { message.content[name].flatMap { UInt64($0) } }
    let (offset, place) = (number("Upload-Offset") ?? .max, number("Stream-Offset") ?? .max)
    var upload =
      uploads.removeValue(forKey: token) ?? Upload(stream: message.content["Stream-ID"] ?? "", start: place)
    if offset != UInt64(upload.bytes.count) || place != upload.end {
      upload.problems.append(
        "message \(message.sequence) is at \(offset) (\(place)) behind \(upload.bytes.count) bytes")
    }
    if upload.isComplete { upload.problems.append("message \(message.sequence) is behind the completion") }
    upload.bytes += message.content.payload
    upload.isComplete = message.content["Upload-Complete"] == "?1"
    uploads[token] = upload
  }

  /// The problems of a stream; empty if its uploads contain each of its bytes once. Uploads that no client has
  /// addressed do not count, because their creation was never answered, and the client has made another one.
  func problems(of stream: ClusterStream, addressed: Set<String>) throws -> [String] {
    let own = uploads.filter { $0.value.stream == stream.id }
    var problems = own.values.flatMap { upload in upload.problems.map { "\(stream.id): \($0)" } }
    for (token, upload) in own where !isPattern(upload, of: stream) {
      problems.append("\(stream.id): upload \(token) contains other bytes than the stream")
    }
    let counted = own.filter { addressed.contains($0.key) }.values.sorted { ($0.start, $0.end) < ($1.start, $1.end) }
    var end: UInt64 = 0
    for upload in counted {
      if upload.start != end { problems.append("\(stream.id): an upload begins at \(upload.start), behind \(end)") }
      end = upload.end
    }
    let bytes = counted.flatMap(\.bytes)
    let wanted = Self.content(of: stream)
    let digests = [bytes, wanted].map { Digest(.sha256, of: $0.span.bytes).hexadecimal }
    if digests[0] != digests[1] {
      problems.append("\(stream.id): SHA-256 \(digests[0]) of \(bytes.count) bytes, not of \(wanted.count) bytes sent")
    }
    if counted.last?.isComplete != true { problems.append("\(stream.id) is not complete") }
    return problems
  }

  private func isPattern(_ upload: Upload, of stream: ClusterStream) -> Bool {
    upload.bytes.withUnsafeBytes { all in
      stride(from: 0, to: all.count, by: 32_768).allSatisfy { start in
        stream.pattern.matches(
          UnsafeRawBufferPointer(rebasing: all[start..<min(all.count, start + 32_768)]),
          at: upload.start + UInt64(start))
      }
    }
  }

  /// All bytes that a stream has sent, after its end.
  static func content(of stream: ClusterStream) -> [UInt8] {
    [UInt8](unsafeUninitializedCapacity: Int(stream.length)) { buffer, filled in
      let all = UnsafeMutableRawBufferPointer(buffer)
      for start in stride(from: 0, to: Int(stream.length), by: 32_768) {
        let piece = UnsafeMutableRawBufferPointer(rebasing: all[start..<min(Int(stream.length), start + 32_768)])
        stream.pattern.fill(piece, at: UInt64(start))
      }
      filled = Int(stream.length)
    }
  }
}
