// Bytes that a client sends to a test server in one call: of a plain stream, or of an upload.

import NetworkTesting
import UploadServer

extension TestServer {
  /// Sends bytes of a plain stream and disconnects once all of them are stored.
  @discardableResult
  func plain(_ path: String = "/t.txt", id: String, offset: Int? = nil, type: String = "text/plain", _ text: [UInt8])
    throws -> ServerEvent
  {
    let client = try connect()
    let before = events.all.filter { $0.kind == .interrupted }.count
    try client.send(Self.head(path, id: id, offset: offset, type: type))
    if !text.isEmpty { try client.sendChunk(text) }
    try waitUntil("all has arrived") { client.unacknowledged == 0 }
    client.disconnect()
    return try events.wait(.interrupted, count: before + 1)
  }

  /// Appends bytes to an upload in a request that ends regularly.
  func append(_ location: String, at offset: Int, completes: Bool = false, _ bytes: [UInt8]) throws {
    let client = try connect()
    try client.patch(location, at: offset, completes: completes, ["Content-Length: \(bytes.count)"])
    try client.send(bytes)
    let answer = try client.final().answer
    guard answer["upload-offset"] == "\(offset + bytes.count)" else { throw TestFailure("not appended: \(answer)") }
  }

  func append(_ location: String, at offset: Int, completes: Bool = false, _ text: String) throws {
    try append(location, at: offset, completes: completes, Array(text.utf8))
  }
}
