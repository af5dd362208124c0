// Common parts of the tests with bodies other than streams: files to send, and a server that reads any body.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import StreamBuffers

@testable import UploadClient

/// A file with the bytes of a pattern.
final class PatternFile: Sendable {
  let path: String
  let size: Int
  let pattern: OffsetPattern
  private let directory: TemporaryDirectory
  private let descriptor: Int32

  init(size: Int, seed: UInt64 = 1) throws {
    directory = try TemporaryDirectory()
    let pattern = OffsetPattern(seed: seed)
    self.pattern = pattern
    self.size = size
    var content = [UInt8](repeating: 0, count: size)
    content.withUnsafeMutableBytes { content in
      for start in stride(from: 0, to: size, by: OffsetPattern.longestRun) {
        let piece = UnsafeMutableRawBufferPointer(
          rebasing: content[start..<min(start + OffsetPattern.longestRun, size)])
        pattern.fill(piece, at: UInt64(start))
      }
    }
    path = try directory.write("content", content)
    descriptor = open(path, O_RDWR | O_CLOEXEC)
  }

  deinit { close(descriptor) }

  func body(_ range: Range<Int>? = nil) throws -> UploadBody {
    let range = range ?? 0..<size
    return .file(
      try FileBody(
        descriptor: descriptor, range: UInt64(range.lowerBound)..<UInt64(range.upperBound), name: path))
  }

  /// Truncates the file.
  func truncate(to size: Int) { ftruncate(descriptor, size) }

  /// Whether `bytes` equal those of the file from `offset` on.
  func holds(_ bytes: [UInt8], at offset: Int = 0) -> Bool {
    bytes.withUnsafeBytes { bytes in
      stride(from: 0, to: bytes.count, by: OffsetPattern.longestRun).allSatisfy { start in
        let piece = UnsafeRawBufferPointer(rebasing: bytes[start..<min(start + OffsetPattern.longestRun, bytes.count)])
        return pattern.matches(piece, at: UInt64(offset + start))
      }
    }
  }
}

/// A request as a server received it.
struct SeenRequest: Sendable {
  var connection: Int
  var head: ServerConnection.Head
  var body: [UInt8]
  var method: String { String(head.line.prefix { $0 != " " }) }
}

extension ServerConnection {
  /// The whole body, whether chunked, of known length, or absent.
  func anyBody(_ head: Head) throws -> [UInt8] {
    if head["Transfer-Encoding"] == "chunked" { return try body() }
    return try bytes(head["Content-Length"].flatMap { Int($0) } ?? 0)
  }

  func bytes(_ count: Int) throws -> [UInt8] {
    var all: [UInt8] = []
    while all.count < count {
      guard let more = try receive(count - all.count) else { throw TestFailure("the client ended the connection") }
      all += more
    }
    return all
  }
}

/// A server that accepts any request and answers 200 with a body, or without one for HEAD, as HTTP requires.
func obligingServer(
  _ seen: EventLog<SeenRequest>,
  before: @escaping @Sendable (SeenRequest, ServerConnection) throws -> Void = { _, _ in }
) throws -> ScriptedServer {
  try ScriptedServer { connection, number in
    while true {
      let head = try connection.head()
      let request = SeenRequest(connection: number, head: head, body: try connection.anyBody(head))
      seen.append(request)
      try before(request, connection)
      try connection.send(
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + (request.method == "HEAD" ? "" : "done\n"))
    }
  }
}

extension UploadRequest {
  init(_ method: String, _ url: String) {
    self.init(url: url)
    self.method = method
  }
}

extension UploadSession {
  /// Sends a request, and returns the response.
  func send(_ request: UploadRequest, _ body: consuming UploadBody = .none) throws -> HTTPResponse {
    try RunningRequest(self, request, body).response()
  }

  /// Sends a range of a file, and returns the response.
  func send(_ request: UploadRequest, file: PatternFile, _ range: Range<Int>? = nil) throws -> HTTPResponse {
    try send(request, try file.body(range))
  }

  /// Sends `text` as a stream, and returns the response.
  func send(_ request: UploadRequest, streaming text: String) throws -> HTTPResponse {
    let upload = try RunningUpload(self, request)
    try upload.body.write(text)
    upload.body.end()
    return try upload.response()
  }
}
