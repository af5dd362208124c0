// Tests the length of an upload: which lengths a client may state, and what happens to an upload that is longer.

import NetworkTesting
import Testing
import UploadServer

@Suite("The length of an upload", .serialized)
struct UploadLengthTests {
  @Test("a length beyond the range of a field is too large, and has no effect", arguments: [false, true])
  func unspeakable(isLimited: Bool) throws {
    let test = try TestServer { if isLimited { $0.uploads.maximumSize = 1 << 40 } }
    let location = try test.create()
    let client = try test.connect()
    try client.patch(location, at: 0, body: "abc")
    _ = try client.final()
    for length in ["5000000000000000", "999999999999997", "18446744073709551612"] {
      let lying = try test.connect()
      try lying.patch(location, at: 3, completes: true, ["Content-Length: \(length)"])
      let refused = try lying.final().answer
      #expect(refused.status == 413, "\(length): \(refused)")
      let creating = try test.connect()
      try creating.request("POST", "/t", ["Upload-Complete: ?1", "Content-Length: \(length)9"])
      #expect([400, 413].contains(try creating.final().answer.status))
    }
    #expect(try client.head(location)["upload-length"] == nil)
    try client.patch(location, at: 3, completes: true, body: "def")
    #expect(try client.final().answer.status == 201)
    #expect(try test.directory.text(test.onlyFile) == "abcdef")
  }

  @Test(
    "content beyond the length ends the upload permanently, in any framing (draft, section Upload Append)",
    arguments: [false, true], [false, true])
  func exceeded(isChunked: Bool, completes: Bool) throws {
    for path in ["/t", "/spooled"] {
      let test = try TestServer { $0.handler = { $0.target.path == "/spooled" ? Quiet() : nil } }
      let location = try test.create(path, ["Upload-Length: 5"])
      let client = try test.connect()
      try client.patch(location, at: 0, body: "abc")
      _ = try client.final()
      let older = try test.connect()
      try older.patch(location, at: 3, chunked: true)
      try older.awaitProgress(3)
      let lying = try test.connect()
      try lying.patch(location, at: 3, completes: completes, body: isChunked ? nil : "def", chunked: isChunked)
      if isChunked { try lying.sendChunk("def") }
      let refused = try lying.final().answer
      #expect(refused.status == 400 && refused.body.contains("inconsistent-upload-length"), "\(refused)")
      #expect(older.isCutOff())
      #expect(try client.head(location).status == 410)
      #expect(try test.events.wait(.interrupted).reason != nil)
      test.stop()
      let next = try TestServer(in: test.directory)
      #expect(try next.connect().head(location).status == 410)
    }
  }

  @Test("bytes of another request beyond the length end the upload, too")
  func exceededByOthers() throws {
    let test = try TestServer()
    let location = try test.create("/t", ["Stream-ID: a", "Content-Type: text/plain", "Upload-Length: 5"])
    let client = try test.connect()
    try client.patch(location, at: 0, body: "abc")
    _ = try client.final()
    let plain = try test.connect()
    try plain.send(TestServer.head(offset: 3))
    try plain.sendChunk("de")
    #expect(try client.head(location)["upload-offset"] == "5")
    let other = try test.connect()
    try other.send(TestServer.head(offset: 5))
    try other.sendChunk("f")
    #expect(try client.head(location).status == 410)
    #expect(try test.directory.text("t-a.part") == "abcdef")
  }
}

/// Receives a body and never answers.
private final class Quiet: RequestHandler {
  func begin(_ exchange: any Exchange) { exchange.acceptBody() }
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  func end() {}
  func aborted(_ reason: AbortReason) {}
  func serverStops() {}
}
